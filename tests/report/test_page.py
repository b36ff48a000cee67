"""The page of a report, written beside its notebook, and where its links lead."""

import json
import re
from email.message import Message
from pathlib import Path

import pytest
from conftest import NOTEBOOKS

from mixed_precision_study.report import files
from mixed_precision_study.report.files import write_page
from mixed_precision_study.report.sections import LINES


def test_no_warning_reaches_the_page_and_no_link_is_followed(tmp_path):
    """A warning names a folder of this machine."""
    notebook = json.loads((NOTEBOOKS / "summary.ipynb").read_text())
    texts = {"stderr": "/home/x/charts.py:230: UserWarning: odd", "stdout": "what a cell says"}
    outputs = [
        {"output_type": "stream", "name": name, "text": [text]} for name, text in texts.items()
    ]
    for cell in notebook["cells"]:
        cell.update({"outputs": outputs} if cell["cell_type"] == "code" else {})
    (tmp_path / "summary.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "summary.html").symlink_to(tmp_path / "mine")
    write_page(tmp_path / "summary.ipynb")
    page = (tmp_path / "summary.html").read_text()
    assert ("/home/x" in page, "what a cell says" in page) == (False, True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_executed_summary_begins_with_its_report(tmp_path):
    source = json.loads((NOTEBOOKS / "summary.ipynb").read_text())
    (tmp_path / "summary.ipynb").write_text(json.dumps(source))
    write_page(tmp_path / "summary.ipynb")
    cells = json.loads((tmp_path / "summary.ipynb").read_text())["cells"]
    assert [cell["id"] for cell in cells[:2]] == ["title", "report"]
    assert [cell["cell_type"] for cell in cells[-2:]] == ["code", "code"]
    assert sorted(cells, key=str) == sorted(source["cells"], key=str)


LINKED = ("README.md", "which-lines-do-i-add.md", "is-amp-worth-it-in-eager-mode.md")
ADDRESS = "https://github.com/someone/study"


@pytest.mark.parametrize(
    "settings, installed, expected",
    [
        ("[project]\n", "", None),  # a folder of packages
        ("", ADDRESS, f"{ADDRESS}/blob/main"),
        (f'[project.urls]\nRepository = "{ADDRESS}"\n', "", f"{ADDRESS}/blob/main"),
    ],
)
def test_a_page_links_to_the_address_of_the_project(
    settings, installed, expected, tmp_path, monkeypatch
):
    said = Message()
    if installed:
        said["Project-URL"] = f"Repository, {installed}"
    monkeypatch.setattr(files.importlib.metadata, "metadata", lambda name: said)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    if settings:
        (tmp_path / "pyproject.toml").write_text(settings)
    assert (files.place_of_project(tmp_path) or None) == expected


def test_a_page_of_a_clone_links_to_the_files_of_the_clone(tmp_path):
    place = files.place_of_project(tmp_path)
    links = re.findall(r"\(<([^>#]*)[^>]*>\)", LINES.format(place))
    assert [Path(link).name for link in links] == list(LINKED)
    assert all((tmp_path / link).is_file() for link in links)
