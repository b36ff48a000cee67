"""Notebooks executed as a person does, and what they then hold."""

import json
import subprocess
import sys

from conftest import ENVIRONMENT, read_json


def papermill(notebook, folder, environment=None, options=(), **parameters):
    """Run a notebook as `papermill NOTEBOOK out.ipynb` does, in `folder`, and return the
    finished process.
    """
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(notebook),
        "out.ipynb",
        "-k",
        "python3",
        "--no-progress-bar",
    ]
    for name, value in parameters.items():
        command += ["-y", json.dumps({name: value})]
    given = {
        "env": ENVIRONMENT | (environment or {}),
        "capture_output": True,
        "text": True,
        "check": False,
    }
    return subprocess.run([*command, *options], cwd=folder, timeout=600, **given)


def executed(folder):
    """Return what papermill has written in a folder."""
    return read_json(folder / "out.ipynb")


def outputs_of(notebook, kind=None):
    """Return all outputs of a notebook's cells; those that have `kind`, where it is given."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output for output in outputs if kind is None or kind in output]


def cell_errors(notebook):
    """Return the errors that cells have ended with."""
    return [output for output in outputs_of(notebook) if output["output_type"] == "error"]


def printed(notebook):
    """Return all that the cells have printed."""
    return "".join("".join(output["text"]) for output in outputs_of(notebook, "text"))
