"""The code cells of a notebook, and the hash of the code that a run is measured by."""

import functools
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

from ..files import written_whole
from .paths import PACKAGE

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of what JSON and Python hold
NOT_MEASURING = ("analysis", "report", "runner", "standalone.py")  # parts of the package in which no run is measured


class Cell(NamedTuple):
    """A code cell; `sets_parameters` where it is tagged `parameters`."""

    id: str | None
    source: str
    sets_parameters: bool


def code_cells(path):
    """Return the code cells of a notebook file, in order."""
    return cells_in(path.read_text(encoding="utf-8"))


def cells_in(text):
    """Return the code cells of a notebook's text, in order."""
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    tagged = ["parameters" in cell["metadata"].get("tags", ()) for cell in cells]
    return [Cell(cell.get("id"), "".join(cell["source"]), tag) for cell, tag in zip(cells, tagged, strict=True)]


def hash_of(text):
    """Return the hash of the code in a notebook's text and the package's, without the cell of parameters."""
    code = [cell.source for cell in cells_in(text) if not cell.sets_parameters]
    return hashlib.sha256(json.dumps([*code, package_hash(package_state())]).encode()).hexdigest()[:12]


def package_state():
    """Return (path, when it was last written) of every file of the package that measures."""
    found = []
    for folder, folders, files in os.walk(PACKAGE):  # pathlib's rglob takes seven times as long, and every run asks
        folders[:] = [name for name in folders if name not in NOT_MEASURING]
        found += [os.path.join(folder, name) for name in files if name.endswith(".py") and name not in NOT_MEASURING]
    return tuple((path, os.stat(path).st_mtime_ns) for path in sorted(found))


@functools.cache
def package_hash(state):
    """Return the hash of the package's files that measure; `state` is package_state(), so that each is read once."""
    paths = [Path(path) for path, _ in state]
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def packed_package(others=()):
    """Return the package, and `others` as [(name, text)], as the bytes of a zip; equal files give equal bytes."""
    files = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    parts = [(path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes()) for path in files]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in [*parts, *others]:
            opened.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
    return archive.getvalue()


def keep_code(folder, notebooks):
    """Write the package and the notebooks that a batch runs with into `folder`/code-<hash>.zip, unless it is there.

    Its code.json has the `code_hash` of each notebook, so that a record leads to the code that measured it.
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(notebooks)}
    hashes = {name: hash_of(text) for name, text in texts.items()}
    digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"code-{digest}.zip"
    if path.exists():
        return
    others = [(f"notebooks/{name}.ipynb", text) for name, text in texts.items()]
    with written_whole(path) as temporary:
        temporary.write_bytes(packed_package([*others, ("code.json", json.dumps(hashes, indent=1))]))
