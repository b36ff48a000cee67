"""Write each notebook as one file, with the package zipped into its first code cell, for upload to
Colab or Kaggle.

    python -m mixed_precision_study.standalone [FOLDER]     writes FOLDER/*.ipynb; default: dist

A file that is no standalone notebook is never replaced.
"""

import argparse
import base64
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import __version__
from .parameters import UserError
from .report.files import of_a_report
from .store.commit import PACKAGE, ROOT, packed_package
from .store.files import written_whole

MARK = "# @title The code of this study, packed into this file"
FINDER = (
    MARK
    + """
import atexit
import base64
import io
import shutil
import sys
import tempfile
import zipfile

PACKED = (
{packed}
)
folder = tempfile.mkdtemp(prefix="{package}-")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
zipfile.ZipFile(io.BytesIO(base64.b85decode(PACKED))).extractall(folder)
sys.path.insert(0, folder)
print("{package} {version} from this notebook")"""
)
LINE = ".{1,20000}"  # of the packed code


def standalone_notebook(path: Path, packed: bytes) -> str:
    """Return the notebook's text with the zipped package in its finder cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    finder = next(cell for cell in notebook["cells"] if cell.get("id") == "finder")
    text = base64.b85encode(packed).decode()
    lines = "\n".join(f'    "{line}"' for line in re.findall(LINE, text))
    finder["source"] = FINDER.format(packed=lines, package=PACKAGE.name, version=__version__)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def build(folder: Path) -> Iterator[Path]:
    """Write the standalone notebooks into `folder`; yield each path.

    Raise UserError before the first where a file of that name is none that this module has written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packed = packed_package()
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"), reverse=True)  # your_model comes first
    sources = {folder / path.name: path for path in paths}
    for target in sources:
        if not of_a_report(target, MARK.encode()):
            raise UserError(f"{target} is no standalone notebook; choose another folder.")
    for target, source in sources.items():
        with written_whole(target) as temporary:
            temporary.write_text(standalone_notebook(source, packed), encoding="utf-8")
        yield target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mixed_precision_study.standalone", description=__doc__
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    folder = parser.parse_args(arguments).folder
    try:
        for path in build(folder.resolve()):
            print(f"{path}  {path.stat().st_size / 1024:,.0f} KiB")
    except (OSError, UserError) as error:
        print(f"standalone: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
