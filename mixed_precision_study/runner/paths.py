"""Where the suite lies, and how paths are written down."""

import os
import tempfile
from pathlib import Path

from ..measure.commit import ROOT
from ..parameters import UserError


def relative_to_root(path: str | Path) -> str:
    """Return a path relative to ROOT where it lies below, so that no record names a folder of this machine."""
    path = Path(path).resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def shown(path: str | Path) -> str:
    """Return a path that opens from the current folder: relative where it lies below, else the whole path."""
    path = Path(path).resolve()
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def check_writable(folder: Path) -> None:
    """Raise UserError where the output folder could not be made or written. Nothing is left there."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); choose another with --output-dir DIR"
        raise UserError(f"the output folder {folder} {reason}.") from None


def check_given(name: str, path: str) -> None:
    """Raise UserError where csv_path is no file, or data_dir something else than a folder."""
    whole = ROOT / path
    if name == "csv_path" and not os.path.isfile(whole):
        raise UserError(f"csv_path {path} is no file here; give the CSV that names your images.")
    if name == "data_dir" and os.path.exists(whole) and not os.path.isdir(whole):
        raise UserError(f"data_dir {path} is no folder; give the folder of the data sets, or leave data_dir out.")


def expanded(text: str, option: str) -> Path:
    """Return the whole path that the user gave. Raise UserError where it cannot be a parameter or in a record."""
    try:
        text.encode()
        return Path(text).expanduser().resolve()
    except (UnicodeEncodeError, RuntimeError) as error:  # RuntimeError: no such home, or a link to itself
        raise UserError(f"{option} {text!a} cannot be used ({error}); write another path.") from None


def python_path() -> str:
    """Return PYTHONPATH with the package's folder in front, so that every process finds the package."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
