"""Where a report may be written: over what an earlier report left, and never over a file of a
person's.
"""

import re
import time
from pathlib import Path

from ..parameters import UserError

MARKS = {  # pattern that a file of a report has in its first MiB, and a person's file lacks
    ".ipynb": b"injected-parameters",  # papermill adds them
    ".html": b"<b>Mixed precision study</b>",
    ".csv": b"comparison,explains,timed,|comparison,precision,baseline,|article,year,card,",
    ".png": rb"(?s)\A.{37}PLTE",  # at once behind the head, where other programs write more
}


def of_a_report(path: Path, mark: bytes = b"") -> bool:
    """Return whether an earlier report wrote this file, as its contents show, or nothing stands
    there.

    `mark` is the pattern of its contents, by default that of its ending in MARKS. A link
    stands for nothing, because written_whole() replaces it and leaves alone what it leads to.
    """
    if path.is_symlink() or not path.exists():
        return True
    return path.is_file() and bool(
        re.search(mark or MARKS[path.suffix], path.read_bytes()[: 2**20])
    )


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
    """Make room for a file of a report.

    Return where a file of a person's is kept now, else None.
    """
    if of_a_report(path):
        path.unlink(missing_ok=True)
        return None
    return path.rename(path.with_stem(f"{path.stem}-kept-{time.strftime('%Y%m%dT%H%M%S')}"))
