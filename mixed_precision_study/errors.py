"""The errors of this package, and how they are said: in one sentence that is safe to show and says what to do."""

import difflib
import re
import reprlib
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

PLAIN_WORDS = {  # for those of pydantic
    "a valid boolean": "True or False",
    "a valid string": "text in quotes",
    "a valid integer": "a whole number",
    "greater than or equal to": "at least",
}
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


def nearest(name: str, names: Collection[str], count: int = 1) -> list[str]:
    """Return the names that are most like `name`, or begin with it."""
    near = difflib.get_close_matches(name, names, count, cutoff=0.6)
    return near or [one for one in names if one.startswith(name)][:count]


def did_you_mean(name: str, names: Collection[str], intro: str = "it has") -> str:
    """Return a hint that lists `names` after the words `intro`, and before them the nearest one."""
    known = f"{intro} {', '.join(names)}."
    return "".join(f"did you mean {near}? {known[0].upper()}{known[1:]}" for near in nearest(name, names)) or known


def said_of(error: "ValidationError", what: str, known: Collection[str]) -> str:
    """Return the first error of pydantic in a sentence; `what` was given values, and has the `known` names."""
    first, *others = error.errors(include_url=False)
    name = first["loc"][0] if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"{what} has no parameter {name}; {did_you_mean(str(name), sorted(known))}"
    if first["type"] == "missing":
        return f"{what} lacks {name}."
    if not name:
        return first["msg"]
    wanted = [one["msg"] for one in (first, *others) if one["loc"][0] == name and one["input"] is first["input"]]
    words = " or ".join(
        dict.fromkeys(re.sub("^(Input should be|String should|List should) ", "", one) for one in wanted)
    )
    must = "must be" if first["msg"].startswith("Input") else "must"
    for word, plain in PLAIN_WORDS.items():
        words = words.replace(word, plain)
    verb = "holds" if any(isinstance(place, int) for place in first["loc"]) else "is"
    choices = re.findall(r"'([^']+)'", first["msg"]) if first["type"] == "literal_error" else []
    near = nearest(first["input"], choices) if isinstance(first["input"], str) else []
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{name} {verb} {reprlib.repr(first['input'])}; it {must} {words}{hint}"
