"""What can end a run or a request, and how an error is told in one line."""


class Stop(Exception):
    """Ends the notebook with one sentence for the reader in place of a traceback."""

    def _render_traceback_(self):  # IPython asks for this before it prints a traceback
        return [f"Stopped: {self}"]


class Unsupported(Exception):
    """The device or this suite cannot run the mode: status `unsupported`, with the reason."""


class Diverged(Exception):
    """Training broke down: status `diverged`, with the reason."""


class Mistake(Exception):
    """A request that cannot be met; the message is one sentence that says what is possible."""


def error_line(error):
    """Return an error in one line: its kind and the first line of what it says, of a long one the first sentences."""
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    whole = line[:400].rpartition(". ")[0] if len(line) > 400 else ""
    return f"{whole}." if whole else line[:400]
