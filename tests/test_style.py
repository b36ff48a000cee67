"""What CI asks of every file: lint, format, tables in step, stripped notebooks, a README that tells the truth."""

import re
import subprocess
import sys

import pytest
from conftest import NOTEBOOKS, ROOT

SOURCES = sorted(str(path.relative_to(ROOT)) for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["nbstripout", "--keep-id", "--verify", *SOURCES],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_passes(command):
    assert len(SOURCES) == 4
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_badges_and_tables_are_not_stale():
    command = [sys.executable, "docs/tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ci_runs_what_the_readme_says():
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "pip install -r requirements.txt -r requirements-dev.txt && python -m pytest" in readme
    assert "-r requirements.txt -r requirements-dev.txt" in script
    assert script.rstrip().endswith("python -m pytest")


def test_the_readme_names_every_parameter_of_the_command_line():
    readme = (ROOT / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, "run_all.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    options = {word.strip("[],") for word in done.stdout.split() if word.startswith("[--")}
    assert len(options) >= 8
    for option in options:
        assert option in readme, option


def test_the_fault_table_names_tests_that_there_are():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "batches.md").read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 15
    assert named <= there


def test_every_requirement_has_a_floor_and_says_who_needs_it():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        assert ">=" in line, line
        assert "  # " in line, line
