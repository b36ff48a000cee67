"""What CI asks of every file: lint, format, types, generated tables, stripped notebooks, true commands."""

import re
import subprocess
import sys

import on_gpu
import pytest
from conftest import NOTEBOOKS, ROOT

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
    assert len(SOURCES) == 5
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_documents_name_every_parameter_of_the_command_line():
    running = (ROOT / "docs" / "running.md").read_text()
    said = subprocess.run([sys.executable, "run_all.py", "--help"], cwd=ROOT, capture_output=True, text=True).stdout
    options = {word.strip("[],") for word in said.split() if word.startswith("[--")}
    assert len(options) >= 8 and [option for option in options if option not in running] == []


MARKED = re.compile(r"^(@|pytestmark|    .*marks=).*\bmark\.gpu\b", re.MULTILINE)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "outputs").rglob("*.md")])


def anchors_of(path):
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(path):
    """Return the links of a page that lead to no file of the project, or to no heading of its page."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not link.startswith(("http://", "https://")):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append(link)
    return broken


def test_links_lead_somewhere(tmp_path):
    assert {path: broken_links(path) for path in DOCUMENTS if broken_links(path)} == {}
    page = tmp_path / "page.md"
    page.write_text("# What it is\n[a](page.md#what-it-is) [b](page.md#what-it-was) [c](other.md) [d](https://x.org)\n")
    assert broken_links(page) == ["page.md#what-it-was", "other.md"]


def test_the_fault_table_names_tests_that_there_are():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 15
    assert named <= there


def test_the_command_for_a_gpu_runs_every_file_that_has_a_test_for_one():
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if MARKED.search(path.read_text(encoding="utf-8"))]
    assert sorted(on_gpu.FILES) == sorted(path.relative_to(ROOT).as_posix() for path in marked)
