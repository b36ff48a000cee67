"""Reports for the tests: the executed summary, and the sections of a report with their charts."""

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import ENVIRONMENT, NOTEBOOKS, ROOT
from matplotlib.text import Text

from mixed_precision_study.record import NOT_WRITTEN, write_record
from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import Chart, Sentence, Table
from mixed_precision_study.report.sections import SECTIONS
from mixed_precision_study.report.style import chart_style

SECTION = {module.__name__.rpartition(".")[2]: chart_style()(module.section) for module in SECTIONS}


def execute(folder):
    """Run a copy of the notebook that lies alone among the records, as on Colab; return (process, notebook, folder)."""
    shutil.copy(NOTEBOOKS / "summary.ipynb", folder / "alone.ipynb")
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "alone.ipynb", "summary.ipynb"]
    installed = os.pathsep.join(filter(None, (str(ROOT), ENVIRONMENT.get("PYTHONPATH"))))
    environment = {**ENVIRONMENT, "PYTHONPATH": installed}  # as if the package were installed
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return process, json.loads((folder / "summary.ipynb").read_text(encoding="utf-8")), folder


def outputs(notebook):
    return [output for cell in notebook["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]]


def shown(notebook, kind="text/plain"):
    """Return all that the notebook shows: what it prints, and what it displays as `kind`."""
    printed = ["".join(output.get("text", "")) for output in outputs(notebook)]
    return "\n".join(printed + ["".join(output.get("data", {}).get(kind, "")) for output in outputs(notebook)])


def explore(folder, *names):
    """Return the report of a folder and the drawn charts of its sections, or of those named."""
    report, charts = load(str(folder)), {}
    for name in names or SECTION:
        charts |= {part.name: part.figure for part in SECTION[name](report) if isinstance(part, Chart)}
    with chart_style():
        for figure in charts.values():
            figure.draw_without_rendering()
    return report, charts


@functools.cache
def drawn(write, *names):
    """Return the same for the records that `write(folder)` writes; one session draws them once."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return explore(folder, *names)


def write_all(folder, *records):
    for record in records:
        write_record(record, folder)


def flat(record, path="made up"):
    """Return a record as it is read back from its file."""
    values = {**record.parameters, **vars(record), "path": path}
    return {name: value for name, value in values.items() if name not in NOT_WRITTEN}


def said_in(name, report):
    """Return the sentences of a section, one in a line."""
    return "\n".join(part.text for part in SECTION[name](report).parts if isinstance(part, Sentence))


def tables_of(name, report):
    """Return the tables of a section, each a list of rows."""
    return [part.rows for part in SECTION[name](report) if isinstance(part, Table)]


def overlapping(figure):
    """Return the pairs of texts in one panel that lie on each other."""
    pairs = []
    for axes in figure.axes:
        boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in axes.texts]
        pairs += [(a, b) for (a, box), (b, other) in itertools.combinations(boxes, 2) if box.overlaps(other)]
    return pairs


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def bars_at(axes, x):
    """Return [(foot, height)] of the bars around x, from below."""
    bars = [bar for bar in axes.patches if bar.get_x() < x < bar.get_x() + bar.get_width()]
    return sorted((bar.get_y(), bar.get_height()) for bar in bars)


def panel_of(figure, title):
    return next(axes for axes in figure.axes if title in axes.get_title(loc="left"))
