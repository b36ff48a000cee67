"""What CI asks of every file: lint, format, types, generated tables, stripped notebooks, true commands."""

import ast
import re
import subprocess
import sys

import on_gpu
import pytest
import yaml
from conftest import NOTEBOOKS, ROOT

PACKAGE_FILES = sorted((ROOT / "mixed_precision_study").rglob("*.py"))
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


def untyped(tree):
    """Yield the functions of a module that lack a type, but for private ones and those of private classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from untyped(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if not node.returns or any(not one.annotation and one.arg not in ("self", "cls") for one in arguments):
                yield node.name


def test_public_functions_have_types():
    found = {path: list(untyped(ast.parse(path.read_text(encoding="utf-8")))) for path in PACKAGE_FILES}
    assert len(found) > 50 and {path: names for path, names in found.items() if names} == {}
    source = "class A:\n    def one(self, x: int, y) -> int: ...\n    def _two(self, x): ...\ndef three(): ..."
    assert list(untyped(ast.parse(source))) == ["one", "three"]


def test_ci_runs_what_contributors_are_told():
    told, script = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "pip install -r requirements.txt -r requirements-dev.txt -e .\n" in told and "    python -m pytest  " in told
    assert "-r requirements.txt -r requirements-dev.txt" in script
    assert "\npython -m pytest\n" in script


def test_workflows_run_what_is_here_and_pin_actions_by_major_version():
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    steps = [step for text in texts for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    assert {".ci/run", "python docs/outputs.py --pages site"} <= {step.get("run") for step in steps}
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "run" not in step)


def test_the_documents_name_every_parameter_of_the_command_line():
    running = (ROOT / "docs" / "running.md").read_text()
    done = subprocess.run(
        [sys.executable, "run_all.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    options = {word.strip("[],") for word in done.stdout.split() if word.startswith("[--")}
    assert len(options) >= 8
    for option in options:
        assert option in running, option


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


def test_the_page_of_outputs_names_every_folder_and_archive():
    page = (ROOT / "outputs" / "README.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "outputs").glob("*/**/README.md"), *(ROOT / "outputs" / "archive").iterdir()]
    assert len(pages) > 15
    for path in pages:
        assert f"]({path.relative_to(ROOT / 'outputs').as_posix()})" in page, path


def test_the_fault_table_names_tests_that_there_are():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
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


def test_the_command_for_a_gpu_runs_every_file_that_has_a_test_for_one():
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if MARKED.search(path.read_text(encoding="utf-8"))]
    assert sorted(on_gpu.FILES) == sorted(path.relative_to(ROOT).as_posix() for path in marked)
