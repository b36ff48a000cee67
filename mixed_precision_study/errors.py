"""The errors of this package, and text that is safe to show, such as an error as one line."""

import re
import traceback
from pathlib import Path

NOT_SHOWN = re.compile(  # escape sequences with a text, others, then control letters and those that turn a line round
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

LIBRARY = re.compile(  # paths of code that is not the user's: this package, what is installed, Python itself
    rf"^{re.escape(str(Path(__file__).parent))}|[\\/](site-packages|dist-packages|lib[\\/]python3[.\d]*)[\\/]"
)


class UserError(Exception):
    """Something the user can mend. The message says what to do in one sentence; notebooks show no traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython prints this instead of a traceback
        return [f"Stopped: {self}"]


class Unsupported(Exception):
    """The device or this package cannot run the mode. The run's status is `unsupported`."""


class Diverged(Exception):
    """Training broke down. The run's status is `diverged`."""


def shown_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first frame that is neither this package's nor an installed library's."""
    shown = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = shown
    while part is not None:
        users = (number for number, frame in enumerate(part.stack) if not LIBRARY.search(frame.filename))
        part.stack = traceback.StackSummary.from_list(part.stack[next(users, 0) :])
        part = part.__cause__ or part.__context__
    return "".join(shown.format())


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: it could change the title, the clipboard or earlier lines."""
    return NOT_SHOWN.sub("", text)


def error_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, at most 400 characters, in whole sentences."""
    first_line = printable(str(error).strip().partition("\n")[0])
    line = f"{type(error).__name__}: {first_line}"
    if len(line) <= 400:
        return line
    sentences, full_stop, _ = line[:400].rpartition(". ")
    return f"{sentences}." if full_stop else line[:400]
