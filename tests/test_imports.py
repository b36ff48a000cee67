"""Which module of the package may import which, and that importing one loads no more than it
needs.
"""

import ast
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, ROOT

NAME = "mixed_precision_study"
PACKAGE = ROOT / NAME
JUDGING = {"judge", "report", "runner"}
BASE = {"parameters", "store"}
RULES = {  # module or room: all that it may import of the package
    "store.variables": set(),
    "measure.packages": {"store.variables"},
    "parameters": {"measure.packages", "store.variables"},
    "store.files": set(),
    "store.commit": {"store.files", "store.variables"},
    "store.record": {"parameters", "store.commit", "store.files", "store.variables"},
    "store": {"parameters", "store"},
    "measure.order": set(),
    "measure": BASE | {"measure"},
    "tasks": {"measure", "parameters", "store.files", "tasks"},
    "train": BASE | {"measure", "tasks.batches", "train"},
    "explain": BASE | {"measure", "tasks.batches", "train", "explain"},
    "judge": BASE | {"judge"},
    "report": BASE | {"judge", "report"},
    "experiment": BASE | {"explain", "measure", "tasks", "train"},
    "own_model": BASE | {"experiment", "report.results", "tasks", "train"},
    "standalone": {"parameters", "report.files", "store.commit", "store.files"},
    "diagnosis": BASE | {"diagnosis", "explain", "measure", "train"},
    "runner": BASE
    | {
        "judge.axis",
        "judge.conditions",
        "judge.fit",
        "judge.ratios",
        "judge.verdict",
        "measure.nvml",
        "measure.order",
        "report.files",
        "report.tables",
        "report.words",
        "runner",
        "tasks.data_files",
    },
}


def module_of(path):
    """Return a file's name within the package, as in `gpu.nvml`; that of a folder for its
    __init__.py.
    """
    return ".".join(
        part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__"
    )


def imports_of(path):
    """Return the modules of the package that a file imports, anywhere in it, each by a relative
    import.
    """
    folder, found = path.relative_to(PACKAGE).parts[:-1], set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [getattr(node, "module", "")]
        )
        assert not any((name or "").partition(".")[0] == NAME for name in names), path
        if isinstance(node, ast.ImportFrom) and node.level:
            place = [
                *folder[: len(folder) - node.level + 1],
                *([node.module] if node.module else []),
            ]
            for alias in node.names:  # a module of that folder, or a name in that module
                inner = ".".join([*place, alias.name])
                found.add(inner if inner in FILES else ".".join(place))
    return found - {""}  # the package itself has but its version and when it was first asked for


FILES = {
    module_of(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or module_of(path)
}


def within(name, places):
    """Return whether a module is one of `places` or lies in one of them."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def test_every_module_has_a_rule():
    assert [name for name in FILES if not within(name, RULES)] == []


@pytest.mark.parametrize("place", RULES)
def test_a_module_imports_only_what_lies_below_it(place):
    files = [name for name in FILES if within(name, [place])]
    assert files
    for name in files:
        wrong = {other for other in imports_of(FILES[name]) if not within(other, RULES[place])}
        assert not wrong, f"{name} imports {', '.join(sorted(wrong))}"


def run_code(code, **variables):
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), **variables}
    pipes = {"env": environment, "capture_output": True, "text": True, "check": False}
    return subprocess.run([sys.executable, "-c", code], **pipes)


def loaded(modules, heavy):
    """Return which of `heavy` a fresh process has loaded that imported some modules, which must
    print nothing.
    """
    done = run_code(
        f"import sys\nfor name in {modules!r}:\n    __import__(name)\nprint(*({heavy!r} & "
        "set(sys.modules)))"
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    return done.stdout.split()


WITHOUT_TORCH = [f"{NAME}.{name}" for name in FILES if within(name, JUDGING)]


@pytest.mark.parametrize(
    "modules, heavy",
    [
        ([NAME], {"torch", "numpy", "pandas", "matplotlib", "pynvml", "IPython"}),
        (WITHOUT_TORCH, {"torch", "timm", "papermill"}),
        ([f"{NAME}.parameters", f"{NAME}.standalone"], {"torch", "timm", "numpy"}),
    ],
    ids=["package", "judging", "declarations"],
)
def test_importing_loads_nothing_heavy_and_prints_nothing(modules, heavy):
    assert modules and loaded(modules, heavy) == []


STALE = {
    "of a shell that a notebook opened": {
        "RUNNER": "999999",
        "ABOUT": "{",
        "ORDER": "x",
        "FOLDER": ".",
    },
    "of a foreign process": {"RUNNER": "2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STALE)
def test_variables_of_a_run_that_is_over_end_nothing(name):
    code = f"import {NAME}.store.record as r, time; time.sleep(3); print('alive', r.given_study())"
    begin = NAME.upper().rpartition("_")[0]
    done = run_code(code, **{f"{begin}_{one}": value for one, value in STALE[name].items()})
    assert (done.returncode, done.stdout) == (0, "alive None\n")
    assert (done.stderr.count("\n"), "Traceback" in done.stderr) == (1, False)
