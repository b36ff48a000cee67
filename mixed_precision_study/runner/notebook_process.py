"""The process of a notebook: papermill with as few packages as it needs. It ends with run_all.py.

Its arguments are papermill's. With `--page NOTEBOOK` at their end it also writes the page of that
notebook, because another process would load its packages for as long as the page takes.
"""

import sys

import psutil

from .watch import adopt_orphans, end, runner_above

# jsonschema would load these for half a second, and a grammar for two more, to check formats that
# notebooks lack.
UNUSED = ("rfc3987_syntax", "rfc3986_validator", "isoduration")


def execute_notebook(arguments: list[str]) -> None:
    """Execute a notebook with papermill's arguments, and once more where its kernel did not start,
    because another process took a port that was chosen for it.
    """
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: not to be imported
    from papermill.cli import papermill

    try:
        papermill(arguments, standalone_mode=False)
    except RuntimeError:
        papermill(arguments, standalone_mode=False)


def main(arguments: list[str]) -> None:
    """Execute a notebook and write its page where that is asked for; end what it leaves behind."""
    if not runner_above():  # whose end would have ended this since its import
        sys.exit("run_all.py has ended")
    adopt_orphans()  # so that what the notebook leaves in the background ends with this
    page_of = None
    if arguments[-2] == "--page":
        *arguments, _, page_of = arguments
    try:
        execute_notebook(arguments)
        if page_of:
            from ..report.files import write_page

            write_page(page_of)
    finally:
        end(psutil.Process().children())


if __name__ == "__main__":
    main(sys.argv[1:])
