"""Where the suite lies, and how paths are written down."""

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


def expanded(text: str, option: str) -> Path:
    """Return the whole path that the user gave. Raise UserError where it cannot be a parameter or in a record."""
    try:
        text.encode()
        return Path(text).expanduser().resolve()
    except (UnicodeEncodeError, RuntimeError) as error:  # RuntimeError: no such home, or a link to itself
        raise UserError(f"{option} {text!a} cannot be used ({error}); write another path.") from None
