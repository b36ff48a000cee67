"""Where the suite lies, and how paths are written down."""

import os
from pathlib import Path

from ..errors import UserError

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent  # of the checkout, with notebooks/, data/ and outputs/; the current folder of every run


def relative_to_root(path: str | Path) -> str:
    """Return a path relative to ROOT where it lies below, so that no record names a folder of this machine."""
    path = Path(path).resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def expanded(text: str, option: str) -> Path:
    """Return the whole path that the user gave. Raise UserError where it cannot be a parameter or in a record."""
    try:
        text.encode()
        path = Path(text).expanduser()
    except UnicodeEncodeError:
        raise UserError(f"{option} {text!a} is not UTF-8; choose another {option}.") from None
    except RuntimeError:
        raise UserError(f"{option} {text}: there is no such home folder; write the whole path.") from None
    try:
        return path.resolve()
    except RuntimeError:  # from Python 3.13 on an OSError when it is used
        raise UserError(f"{option} {text} is a link that leads back to itself; choose another {option}.") from None


def python_path() -> str:
    """Return PYTHONPATH with the package's folder in front, so that every process finds the package."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
