"""Make the copy of an executed notebook that people read: its result comes first.

python docs/executed.py EXECUTED.ipynb COPY.ipynb ["What a reader has to know of this run." ...]
"""

import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

NOTE = "*An executed copy. Its result comes first; in the notebook it comes after the run.*"
PAPERMILL = ("papermill", "execution")  # metadata that name times and paths of the machine
RESULTS = ("results", "run", "pretrained")  # cells that may show one
FIRST = ("result-intro", "results")
MACHINE = re.compile(r"(?<![\w.:/])(?:\.\.)?/(?:[\w.+-]+/)+")  # a folder of the machine
WHERE = "## Where the code comes from"


def result_first(notebook: dict, remarks: Sequence[str] = ()) -> dict:
    """Return a notebook that begins with its conclusions as Markdown, the remarks and the cell of
    its result, ends with the cell that finds the code, and holds nothing that its machine left.

    Raises ValueError where it has no result.
    """
    cells = [without_traces(cell) for cell in notebook["cells"]]
    shown = [cell for cell in cells if cell.get("id") in RESULTS and cell.get("outputs")]
    if not shown:
        raise ValueError("this notebook has no result; execute it first")
    answers = [answer for cell in shown for answer in taken_conclusions(cell)]
    title, *others = cells
    first = [cell for cell in others if cell.get("id") in FIRST]
    finder = [cell for cell in others if cell.get("id") == "finder"]
    rest = [cell for cell in others if cell not in first and cell not in finder]
    note = markdown("note", "\n\n".join([*answers, *remarks, NOTE]))
    metadata = {
        name: value for name, value in notebook["metadata"].items() if name not in PAPERMILL
    }
    ordered = [title, note, *first, *rest, markdown("where", WHERE), *finder]
    return {**notebook, "metadata": metadata, "cells": ordered}


def markdown(name: str, text: str) -> dict:
    """Return a cell of Markdown."""
    lines = text.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines}


def taken_conclusions(cell: dict) -> list[str]:
    """Take the conclusions out of what a cell shows, and return them, their first sentences bold.

    A conclusion is the Markdown above a picture, one for each way of execution; without pictures
    it is the first Markdown.
    """
    outputs = cell["outputs"]
    texts = [one for one in outputs if "text/markdown" in one.get("data", {})]
    above = [
        one
        for one, below in itertools.pairwise(outputs)
        if one in texts and "image/png" in below.get("data", {})
    ]
    conclusions = above or texts[:1]
    cell["outputs"] = [one for one in outputs if one not in conclusions]
    said = ["".join(one["data"]["text/markdown"]).partition(". ") for one in conclusions]
    return [f"**{first}{stop.strip()}** {more}".strip() for first, stop, more in said]


def without_traces(cell: dict) -> dict:
    """Return a cell without papermill's metadata, warnings, progress bars and folders of the
    machine.
    """
    kept = {name: value for name, value in cell["metadata"].items() if name not in PAPERMILL}
    cell = {**cell, "metadata": kept}
    if cell["cell_type"] == "code":
        outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]
        cell["outputs"] = [
            {**output, "text": MACHINE.sub("", "".join(output["text"])).splitlines(keepends=True)}
            if "text" in output
            else output
            for output in outputs
        ]
    return cell


def main(arguments: list[str]) -> int:
    """Read one notebook and write the other."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = map(Path, arguments[:2])
    try:
        copy = result_first(json.loads(source.read_text(encoding="utf-8")), arguments[2:])
    except (OSError, ValueError) as error:
        print(f"{source.name}: {error}", file=sys.stderr)
        return 1
    target.write_text(json.dumps(copy, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
