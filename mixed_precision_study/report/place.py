"""Where a report may be written: over what an earlier report left, and never over a file of a person's."""

import time
from pathlib import Path

from ..parameters import UserError

MARKS = {  # bytes of which a file of a report holds one near its beginning, and a person's file none
    ".ipynb": [b"injected-parameters"],  # papermill adds them
    ".html": [b"<b>Mixed precision study</b>"],
    ".csv": [b"comparison,explains,timed,", b"comparison,precision,baseline,", b"article,year,card,"],
    ".png": [b"PLTE"],  # at once behind the head, where other programs write more
}
NEAR = {".png": 41}  # bytes; 2**20 of other files


def of_a_report(path: Path, *marks: bytes) -> bool:
    """Return whether an earlier report wrote this file, as its contents show, or nothing stands there.

    `marks` are those of the file, by default the MARKS of its ending.

    A link stands for nothing, because written_whole() replaces it and leaves alone what it leads to.
    """
    if path.is_symlink() or not path.exists():
        return True
    head = path.read_bytes()[: NEAR.get(path.suffix, 2**20)] if path.is_file() else b""
    return any(mark in head for mark in marks or MARKS[path.suffix])


def check_place(folder: Path, notebook: Path) -> None:
    """Raise UserError where a report of `notebook` in `folder` would replace a file of a person's.

    Beside records set_aside() renames such a file, unless a person's notebooks lie there.
    """
    drawn, log = folder / "summary.ipynb", folder / "logs" / "summary.log"
    taken = [path for path in (drawn, drawn.with_suffix(".html")) if not of_a_report(path)]
    if any(folder.glob("*.json")) and all(map(of_a_report, {*folder.glob("*.ipynb")} - {drawn})):
        taken = []
    if log.is_file() and not any(folder.glob("logs/.*lock")):
        taken.append(log)
    if drawn.resolve() == notebook.resolve():
        taken = [drawn]
    if taken:
        advice = "which no report has written; choose another folder with --output-dir DIR"
        raise UserError(f"a report would replace {taken[0]}, {advice}.")


def set_aside(path: Path) -> Path | None:
    """Make room for a file of a report. Return where a file of a person's is kept now, else None."""
    if of_a_report(path):
        path.unlink(missing_ok=True)
        return None
    return path.rename(path.with_stem(f"{path.stem}-kept-{time.strftime('%Y%m%dT%H%M%S')}"))
