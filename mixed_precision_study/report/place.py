"""Where a report may be written: over what an earlier report left, and never over a file of a person's."""

import json
import time
from contextlib import suppress
from pathlib import Path

from ..measure.commit import MALFORMED
from ..parameters import UserError

HEADS = {  # of the files that a report writes: the byte at which it begins, and what stands there
    ".png": (37, (b"PLTE",)),  # a palette follows the head at once; other programs write more chunks
    ".csv": (0, (b"comparison,explains,timed,", b"comparison,precision,baseline,", b"article,year,card,")),
}
PAGE = b"<b>Mixed precision study</b>"
PAGE_BYTES = 2**20  # of a page, in which PAGE stands behind its style


def of_a_report(path: Path) -> bool:
    """Return whether an earlier report wrote this file, as its contents show, or nothing stands there.

    A link stands for nothing, because written_whole() replaces it and leaves alone what it leads to.
    """
    if path.is_symlink() or not path.exists():
        return True
    if not path.is_file():
        return False
    if path.suffix == ".ipynb":
        return is_executed(path)
    with path.open("rb") as opened:
        if path.suffix == ".html":
            return PAGE in opened.read(PAGE_BYTES)
        start, words = HEADS[path.suffix]
        return opened.read(start + 64)[start:].startswith(words)


def is_executed(notebook: Path) -> bool:
    """Return whether papermill made a notebook, because a person's lacks the parameters that it adds."""
    with suppress(OSError, *MALFORMED):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        return any("injected-parameters" in cell["metadata"].get("tags", ()) for cell in cells)
    return False


def check_place(folder: Path, notebook: Path) -> None:
    """Raise UserError where a report of `notebook` in `folder` would replace a file of a person's.

    In a folder of records set_aside() renames such a file, unless a person's notebooks lie there.
    """
    page, executed, log = (folder / name for name in ("summary.html", "summary.ipynb", "logs/summary.log"))
    taken = [log] if log.is_file() and not any((folder / "logs").glob(".*lock")) else []
    if not holds_records_alone(folder):
        taken += [path for path in (executed, page) if not of_a_report(path)]
    if executed.exists() and notebook.exists() and executed.samefile(notebook):
        taken.append(executed)
    if taken:
        reason = "which no report has written; choose another folder with --output-dir DIR"
        raise UserError(f"a report in {folder} would replace {taken[0].relative_to(folder)}, {reason}.")


def holds_records_alone(folder: Path) -> bool:
    """Return whether a folder holds JSON files, but no studies and no notebooks that a person wrote."""
    others = [path for path in folder.glob("*.ipynb") if path.name != "summary.ipynb"]
    studies = (folder / "studies.yaml").exists()
    return any(folder.glob("*.json")) and not studies and all(map(is_executed, others))


def set_aside(path: Path) -> Path | None:
    """Make room for a file of a report. Return where a file of a person's is kept now, else None."""
    kept = None
    if not of_a_report(path):
        kept = path.with_name(f"{path.stem}-kept-{time.strftime('%Y%m%dT%H%M%S')}{path.suffix}")
        path.rename(kept)
    path.unlink(missing_ok=True)
    return kept
