"""The errors of this package, and an error as one line of text."""


class UserError(Exception):
    """Something the user can mend. The message says what to do in one sentence; notebooks show no traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython prints this instead of a traceback
        return [f"Stopped: {self}"]


class Unsupported(Exception):
    """The device or this package cannot run the mode. The run's status is `unsupported`."""


class Diverged(Exception):
    """Training broke down. The run's status is `diverged`."""


def error_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, at most 400 characters, in whole sentences."""
    first_line = str(error).strip().partition("\n")[0]
    line = f"{type(error).__name__}: {first_line}"
    if len(line) <= 400:
        return line
    sentences, full_stop, _ = line[:400].rpartition(". ")
    return f"{sentences}." if full_stop else line[:400]
