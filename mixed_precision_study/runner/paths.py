"""Where the suite lies, and how paths are written down."""

import os
from pathlib import Path

from ..errors import UserError

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent  # of the checkout: notebooks/, data/ and outputs/ lie here, and what is started runs here


def relative_to_root(path):
    """Return `path` relative to the suite's folder where it lies below, so that no record names a machine's folder."""
    path = Path(path).resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def expanded(text, option):
    """Return the whole path of what the user gave; raise UserError where parameters and records cannot name it."""
    try:
        text.encode()
        path = Path(text).expanduser()
    except UnicodeEncodeError:
        raise UserError(f"{option} {text!a} is not UTF-8; choose another {option}.") from None
    except RuntimeError:
        raise UserError(f"{option} {text}: there is no such home folder; write the whole path.") from None
    try:
        return path.resolve()
    except RuntimeError:  # OSError from Python 3.13 on, where something is written there
        raise UserError(f"{option} {text} is a link that leads back to itself; choose another {option}.") from None


def python_path():
    """Return PYTHONPATH with the package's folder in front, so that whatever is started finds the package."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
