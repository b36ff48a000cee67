"""Build notebooks that work alone, and the wheel: what people upload to Colab or Kaggle.

    python -m mixed_precision_study.standalone [FOLDER]     writes FOLDER/*.ipynb and the wheel; default: dist

Each notebook is one file: the package lies zipped in its first code cell. The wheel beside a notebook, or among
Kaggle's inputs, does the same.
"""

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import __version__
from .errors import UserError
from .runner.notebook_file import packed_package

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(__file__).resolve().parent
FINDER = """\
# @title The code of this study, packed into this file
import base64
import io
import sys
import tempfile
import zipfile

PACKED = (
{packed}
)
folder = tempfile.mkdtemp(prefix="{package}-")
zipfile.ZipFile(io.BytesIO(base64.b85decode(PACKED))).extractall(folder)
sys.path.insert(0, folder)
print("{package} {version} from this notebook")"""
WIDTH = 20_000  # characters of a line of the packed code


def standalone_notebook(path, packed):
    """Return the text of the notebook at `path` with the package in place of the cell that would look for it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    finders = [cell for cell in notebook["cells"] if cell.get("id") == "finder"]
    if len(finders) != 1:
        raise UserError(f"{path.name} has {len(finders)} cells with the id 'finder'; it needs one.")
    text = base64.b85encode(packed).decode()
    lines = "\n".join(f'    "{text[start : start + WIDTH]}"' for start in range(0, len(text), WIDTH))
    source = FINDER.format(packed=lines, package=PACKAGE.name, version=__version__)
    finders[0]["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def build_wheel(folder):
    """Build the wheel into `folder` and return its path; pip may need the network for setuptools.

    It is built from a copy: setuptools leaves folders behind, and would take old modules out of them again.
    """
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(PACKAGE, Path(copy, PACKAGE.name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, copy)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), copy]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the wheel could not be built: {done.stderr.strip().splitlines()[-1]}")
    return max(folder.glob(f"{PACKAGE.name}-*.whl"), key=lambda path: path.stat().st_mtime)


def build(folder):
    """Write the standalone notebooks and the wheel into `folder` and yield each path."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = packed_package()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        target = folder / path.name
        target.write_text(standalone_notebook(path, packed), encoding="utf-8")
        yield target
    yield build_wheel(folder)


def main(arguments=None):
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mixed_precision_study.standalone", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    folder = parser.parse_args(arguments).folder
    try:
        for path in build(folder.resolve()):
            print(f"{path}  {path.stat().st_size / 1024:,.0f} KiB")
    except (UserError, OSError) as error:
        print(f"standalone: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
