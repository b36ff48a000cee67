"""The errors of this package, and how an error is told in one line."""


class UserError(Exception):
    """Something the user can mend. The message is one sentence that says what to do; no traceback is shown."""

    def _render_traceback_(self):  # IPython prints this in place of a traceback
        return [f"Stopped: {self}"]


class Unsupported(Exception):
    """The device or this suite cannot run the mode: status `unsupported`, with the reason."""


class Diverged(Exception):
    """Training broke down: status `diverged`, with the reason."""


def error_line(error):
    """Return an error in one line: its kind and the first line of what it says, of a long one the first sentences."""
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    whole = line[:400].rpartition(". ")[0] if len(line) > 400 else ""
    return f"{whole}." if whole else line[:400]
