"""Reports for the tests: the executed summary, and the sections of a report with their charts open to questions."""

import csv
import json
import os
import shutil
import subprocess
import sys

from conftest import ENVIRONMENT, NOTEBOOKS, ROOT
from matplotlib.text import Text

from mixed_precision_study.report.load import load
from mixed_precision_study.report.sections import SECTIONS
from mixed_precision_study.report.theme import chart_style

SECTION = {module.__name__.rpartition(".")[2]: module.section for module in SECTIONS}


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
    """Return the report of a folder and the charts of its sections, or of those named, still open to questions."""
    report, charts = load(str(folder)), {}
    for name in names or SECTION:
        charts |= SECTION[name](report).charts
    with chart_style():
        for figure in charts.values():
            figure.draw_without_rendering()
    return report, charts


def said_in(name, report):
    """Return the sentences of a section."""
    return SECTION[name](report).sentences


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def bars_at(axes, x):
    """Return [(foot, height)] of the bars around x, from below."""
    bars = [bar for bar in axes.patches if bar.get_x() < x < bar.get_x() + bar.get_width()]
    return sorted((bar.get_y(), bar.get_height()) for bar in bars)


def panel_of(figure, title):
    return next(axes for axes in figure.axes if title in axes.get_title(loc="left"))


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["title"], row["precision"], row["baseline"]): row for row in csv.DictReader(file)}
