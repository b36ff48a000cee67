"""What CI asks of every file: lint, format, types, generated tables, stripped notebooks, true
commands.
"""

import re
import subprocess
import sys

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT, code_cells, read_notebook

SOURCES = sorted(str(path.relative_to(ROOT)) for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        pytest.param(["mypy"], marks=pytest.mark.slow),
        pytest.param(["nbstripout", "--keep-id", "--verify", *SOURCES], marks=pytest.mark.slow),
        ["pre_commit", "validate-config"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_passes(command):
    assert len(SOURCES) == 6
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "outputs").rglob("*.md")]
)


RELIABILITY = ROOT / "docs/contributors/reliability.md"


def anchors_of(path):
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def broken_links(path):
    """Return the links of a page that lead to no file of the project, or to no heading of its
    page.
    """
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not link.startswith(("http://", "https://")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append(link)
    return broken


def test_links_lead_somewhere():
    assert {path: broken_links(path) for path in DOCUMENTS if broken_links(path)} == {}


def test_the_fault_table_names_tests_that_there_are():
    named = set(re.findall(r"`(test_\w+)`", RELIABILITY.read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 15
    assert named <= there


CELLS = "finder imports parameters check training-step data model evaluate run results"


@pytest.mark.parametrize("name", (*EXPERIMENTS, "summary", "your_model"))
def test_the_one_parameters_cell_says_what_each_value_is(name):
    (cell,) = [
        cell
        for cell in read_notebook(name)["cells"]
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    assert all("  # " in line or line.startswith("#") for line in cell["source"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cells_are_those_that_the_documents_name(name):
    assert list(code_cells(name)) == CELLS.split()
    assert (
        code_cells(name)["check"].splitlines()[0]
        == f'settings = check_parameters("{name}", globals())'
    )
