"""Which code is in use: the commit of this suite, and a hash of the notebook and the package
that measure a run.
"""

import functools
import hashlib
import io
import json
import os
import subprocess
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .files import written_whole
from .variables import COMMIT_ENV, HASH_ENV, NOTEBOOK_ENV

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
# raised by bad JSON or a bad notebook
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
NOT_MEASURING = ("diagnosis", "judge", "report", "runner")  # rooms of the package


class Cell(NamedTuple):
    id: str | None
    source: str
    sets_parameters: bool  # it is tagged `parameters`


def suite_commit() -> str | None:
    """Return MIXED_PRECISION_COMMIT where it is set, else the commit of this clone, with "-dirty"
    after local changes.

    None means that neither is known.
    """
    if commit := os.environ.get(COMMIT_ENV):
        return commit
    if not (ROOT / ".git").exists():  # git would answer for a repository around this folder
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, cwd=ROOT, stderr=subprocess.PIPE, text=True).strip()
    return None


def digest(value: Any) -> str:
    """Return the SHA-256 hash of a JSON value in hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def code_cells(path: Path) -> list[Cell]:
    return [
        Cell(
            cell.get("id"),
            "".join(cell["source"]),
            "parameters" in cell["metadata"].get("tags", ()),
        )
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


def hash_of(notebook: Path) -> str | None:
    """Return the hash of a notebook's code, without its parameters, and of the package's code that
    measures.

    None means that the notebook is broken or just being saved.
    """
    with suppress(OSError, *MALFORMED):
        code = [cell.source for cell in code_cells(notebook) if not cell.sets_parameters]
        return digest([*code, package_hash(package_state())])[:12]
    return None


def hash_now() -> str | None:
    """Return the hash of this run's code, None in a notebook run by hand."""
    notebook = os.environ.get(NOTEBOOK_ENV)
    return hash_of(Path(notebook)) if notebook else None


hash_at_import = functools.cache(hash_now)  # what it returns first, when the package is imported


def hash_that_ran() -> str | None:
    """Return the hash for this run's record, None in a notebook run by hand.

    It ends in "-edited" where notebook or package were edited after the run had been started,
    because it is not known which of them it ran.
    """
    given = os.environ.get(HASH_ENV)
    return (
        given if given is None or {hash_at_import(), hash_now()} == {given} else f"{given}-edited"
    )


def package_state() -> tuple[tuple[str, int], ...]:
    """Return (path, time of the last write in ns) of every file of the package that measures."""
    paths = []
    # rglob takes seven times as long, and every run asks
    for folder, folders, files in os.walk(PACKAGE):
        folders[:] = [name for name in folders if name not in NOT_MEASURING]
        paths += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    return tuple((path, os.stat(path).st_mtime_ns) for path in sorted(paths))


@functools.cache
def package_hash(state: tuple[tuple[str, int], ...]) -> str:
    """Return the hash of the files in `state`, as package_state() gives it.

    Unchanged files are read once.
    """
    paths = [Path(path) for path, _ in state]
    return digest({path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in paths})


def packed_package(others: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return a zip of the package and of `others`, [(name, text)]. Equal files give equal bytes."""
    files: list = [
        (path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes())
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in [*files, *others]:
            # ZipInfo: without times
            opened.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
    return archive.getvalue()


def keep_code(folder: Path, notebooks: Iterable[Path]) -> None:
    """Write the package and these notebooks into `folder`/code-<hash>.zip, unless it is there.

    Its code.json maps each notebook to its `code_hash`, so that a record leads to its code.
    """
    notebooks = sorted(notebooks)
    hashes = {path.stem: hash_of(path) for path in notebooks}
    path = folder / f"code-{digest(hashes)[:12]}.zip"
    if path.exists():
        return
    others = [
        (f"notebooks/{notebook.name}", notebook.read_text(encoding="utf-8"))
        for notebook in notebooks
    ]
    others.append(("code.json", json.dumps(hashes, indent=1)))
    with written_whole(path) as temporary:
        temporary.write_bytes(packed_package(others))
