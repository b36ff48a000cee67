"""Nothing that comes from a parameter, a record or a download is run as a program or as part of a page."""

import ast
import json
import re
import typing

import made_up_records as made_up
import pytest
import yaml
from conftest import ENVIRONMENT, NOTEBOOKS, ROOT, beside
from test_summary import execute, outputs
from tiny_suite import ACT, AFTER, PARAMETERS, START, WRITE, call, records_of, write_notebook

from mixed_precision_study.errors import Mistake
from mixed_precision_study.record import RunRecord
from mixed_precision_study.runner.notebook_file import code_cells
from mixed_precision_study.runner.studies import load_studies

SCRIPT = "<script>alert(1)</script>"
PACKAGE = ROOT / "mixed_precision_study"
SOURCES = [*ROOT.glob("*.py"), *PACKAGE.rglob("*.py"), *NOTEBOOKS.glob("*.py"), *NOTEBOOKS.glob("*.ipynb")]
UNSAFE = {"eval", "exec", "system", "popen", "load_module", "unsafe_load", "full_load"}


def calls_in(path):
    """Yield (name as in `module.function`, keywords) of every call in a Python file or a notebook's code."""
    notebook = path.suffix == ".ipynb"
    for text in [cell.source for cell in code_cells(path)] if notebook else [path.read_text(encoding="utf-8")]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                keywords = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
                yield ast.unparse(node.func), keywords


def unsafe(name, keywords):
    """Return whether a call starts a shell, runs text, or reads a format that can hold code."""
    module, _, function = name.rpartition(".")
    if name in ("yaml.load", "pickle.load", "pickle.loads", "marshal.loads", "np.load", "torch.load"):
        safe = {"np.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}.get(name)
        return safe is None or keywords.get(safe[0]) is not safe[1]
    return bool(keywords.get("shell")) or (function in UNSAFE and module in ("", "os", "yaml", "imp"))


def test_no_shell_no_code_from_text_no_pickle():
    assert len(SOURCES) > 15
    found = {(path.name, name) for path in SOURCES for name, keywords in calls_in(path) if unsafe(name, keywords)}
    assert found == set()


def test_what_runs_the_cells_of_a_notebook_is_called_by_tests_and_benchmarks_alone():
    calls = {path.name for path in SOURCES for name, _ in calls_in(path) if name.rpartition(".")[2] == "run_cells"}
    assert calls == set()
    assert "run_cells" in {name for name, _ in calls_in(ROOT / "benchmarks" / "compare_loops.py")}


@pytest.mark.parametrize(
    "call, keywords, bad",
    [
        ("subprocess.run", {"shell": True}, True),
        ("subprocess.run", {}, False),
        ("yaml.load", {}, True),
        ("yaml.safe_load", {}, False),
        ("eval", {}, True),
        ("model.eval", {}, False),
        ("torch.load", {}, True),
        ("torch.load", {"weights_only": True}, False),
        ("np.load", {"allow_pickle": False}, False),
        ("np.load", {}, True),
    ],
)
def test_the_rule_finds_what_it_looks_for(call, keywords, bad):
    assert unsafe(call, keywords) is bad


def test_studies_file_cannot_make_objects(tmp_path):
    path = tmp_path / "studies.yaml"
    path.write_text("one: !!python/object/apply:os.system ['touch made']")
    with pytest.raises(Mistake, match="not valid YAML"):
        load_studies(path)
    assert not (tmp_path / "made").exists()


SHELL = "$(touch made) `touch made`; touch made"


@beside()
def batch_of_scripts(folder):
    """(process, folder) of a batch whose parameters and reasons are HTML and commands of a shell."""
    entries = [{"notebook": "tiny", "cpu": {"precisions": ["fp32"], "mode": mode}} for mode in ("ok", "script")]
    (folder / "studies.yaml").write_text(yaml.safe_dump({"pages": {"runs": entries}}))
    act = ACT + f"\nif mode == 'script':\n    raise Stop({SCRIPT.replace('1', '2')!r})"
    write_notebook(folder / "tiny.ipynb", PARAMETERS, START, act, WRITE, AFTER)
    (folder / "summary.ipynb").write_bytes((NOTEBOOKS / "summary.ipynb").read_bytes())
    words = ("pages", "--output-dir", folder / "out", "-p", "model", SCRIPT, "-p", "data_dir", f"{folder}/{SHELL}")
    return lambda: (call(folder, *words, "--jobs", 2, cwd=folder, env=ENVIRONMENT), folder)


def test_text_of_a_record_is_no_part_of_the_exported_page(batch_of_scripts):
    """Parameters and reasons go from the command line through a run, its record and the report to the page."""
    done, folder = batch_of_scripts
    records = records_of(folder / "out")
    assert records["script"]["reason"] == "<script>alert(2)</script>", done.stdout + done.stderr
    assert records["ok"]["model"] == SCRIPT
    assert records["ok"]["data_dir"].endswith(SHELL)
    page = (folder / "out" / "summary.html").read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert "alert(2)" in page
    assert "<script>alert" not in page
    assert not list(folder.rglob("made"))


FROM_A_SET = {"precision", "status"}  # with another value a record is not used at all
DECIDING = FROM_A_SET | {"notebook", "device_type", "dataset_used", "model", "batch_size", "loader", "execution"}


def with_markup(value, name):
    """Return a value of a record with markup behind every text in it."""
    if isinstance(value, list):
        return [with_markup(item, name) for item in value]
    return f"{value}<script>alert('{name.replace('_', '-')}')</script>" if isinstance(value, str) else value


def spoil(folder, kept):
    """Put markup into every text of every record below `folder`, also where a text was not known, but for `kept`."""
    texts = {name for name, spec in RunRecord.__dataclass_fields__.items() if str in typing.get_args(spec.type)}
    for path in folder.rglob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "run_id" in record:
            unknown = dict.fromkeys((name for name in texts if record.get(name) is None), "")
            record["batch_probes"] = record.get("batch_probes") or [[256, "ok", 1.0, 1.0], [512, "oom", 1.0, None]]
            found = {**record, **unknown}.items()
            record = {name: value if name in kept else with_markup(value, name) for name, value in found}
            path.write_text(json.dumps(record), encoding="utf-8")


@beside("every text", "what decides kept")
def spoiled_report(folder, which):
    """(process, executed notebook, folder) of the report on records with markup in every text, or in all but a few."""
    for name in ("cifar", "others", "pool"):
        getattr(made_up, f"write_{name}")(folder / name)
    spoil(folder, FROM_A_SET if which == "every text" else DECIDING)
    return lambda: execute(folder)


def test_no_text_of_a_record_takes_effect_in_the_report(spoiled_report):
    process, notebook, _ = spoiled_report
    assert process.returncode == 0, process.stderr
    data = [one.get("data", {}) for one in outputs(notebook)]
    page = "\n".join("".join(one.get(kind, "")) for one in data for kind in ("text/html", "text/markdown"))
    assert set(re.findall("<script>.*?</script>", page)) == set()
    for name in ("sample-unit", "metric-name", "kernel-family-fractions", "reason"):
        assert f"alert('{name}')" in page, name
