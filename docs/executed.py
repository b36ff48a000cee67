"""Make the copy of an executed notebook that people read: its result comes first.

python docs/executed.py EXECUTED.ipynb COPY.ipynb
"""

import json
import sys
from pathlib import Path

NOTE = "*An executed copy. Its result comes first; in the notebook it comes after the run.*"
PAPERMILL = ("papermill", "execution")  # metadata that name times and paths of the machine


def result_first(notebook: dict) -> dict:
    """Return a notebook with its cells of the result right after the title, and without what its
    machine left in it.

    Raises ValueError where it has no result.
    """
    cells = [without_traces(cell) for cell in notebook["cells"]]
    start = next(
        (n for n, cell in enumerate(cells) if "".join(cell["source"]).startswith("## Result")), None
    )
    if start is None or not cells[start + 1].get("outputs"):
        raise ValueError("this notebook has no result; execute it first")
    result = cells[start : start + 2]
    rest = cells[1:start] + cells[start + 2 :]
    note = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": [NOTE]}
    metadata = {
        name: value for name, value in notebook["metadata"].items() if name not in PAPERMILL
    }
    return {**notebook, "metadata": metadata, "cells": [cells[0], note, *result, *rest]}


def without_traces(cell: dict) -> dict:
    """Return a cell without papermill's metadata, warnings and progress bars."""
    kept = {name: value for name, value in cell["metadata"].items() if name not in PAPERMILL}
    cell = {**cell, "metadata": kept}
    if cell["cell_type"] == "code":
        cell["outputs"] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return cell


def main(arguments: list[str]) -> int:
    """Read one notebook and write the other."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    try:
        copy = result_first(json.loads(source.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"{source.name}: {error}", file=sys.stderr)
        return 1
    target.write_text(json.dumps(copy, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
