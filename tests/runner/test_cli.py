"""The command line on tiny notebooks: what it plans, refuses, starts, skips, sets aside and sums up."""

import contextlib
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from mixed_precision_study.runner.scheduler import (
    DeviceSlot,
    Job,
    RunQueue,
    home_of,
    jobs_of,
    mark_diverged,
    set_aside_records,
    store_times,
    stranded,
    take_job,
    unfinished,
)
from tiny_suite import (
    ON_CPU,
    PARAMETERS,
    ROOT,
    START,
    WRITE,
    call,
    command,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    wait_for,
    write_notebook,
    write_suite,
)

from mixed_precision_study.data_files import data_files_hash
from mixed_precision_study.errors import UserError
from mixed_precision_study.record import RunRecord, comparison_key, run_id_of, write_record
from mixed_precision_study.runner import cli, devices, estimates, output_folder
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.devices import Device, choose_devices, visible_gpus
from mixed_precision_study.runner.paths import check_writable, relative_to_root, shown
from mixed_precision_study.runner.plan import check_values, notebook_defaults, plan
from mixed_precision_study.runner.status import table
from mixed_precision_study.runner.studies import parse_overrides

BOTH = ["fp32", "amp_bf16"]
STUDIES = {
    "mix": [entry(precisions=BOTH, lr=1), entry("flat", precisions=BOTH), entry("late"), entry("fail")],
    "one": [entry()],
    "flaky": [entry("flaky")],
    "train": [entry("train")],
    "hang": [entry("hang", precisions=["fp32", "tf32"])],
    "gpu_only": [{"notebook": "tiny", "minutes": 4, "sweep": {"model": ["a", "b"], "seed": [0, 1]}}],
}
TURNS = {
    "twice": [
        {"notebook": "turns", "parameters": {"repeats": 2}, "cpu": {"repeats": 2}, "minutes": 8},
        {"notebook": "turns", "parameters": {"model": "small"}, "minutes": 3},
    ],
    "thrice": [{"notebook": "turns", "parameters": {"repeats": 3}, "minutes": 8}],
    "swept": [{"notebook": "turns", "sweep": {"repeats": [1, 3], "seed": [0, 1]}, "minutes": 16}],
    "alone": [{"notebook": "alone", "parameters": {"repeats": 2}, "minutes": 4}],
}
SUMMARY = (
    'records_dir = "."',
    "from pathlib import Path\nprint(len(list(Path(records_dir).glob('*.json'))), 'records')\n"
    "assert 'broken' not in Path(records_dir).name",
)
GPUS = [Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(2)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with studies, the notebook they run and a summary."""
    folder = tmp_path_factory.mktemp("suite")
    write_notebook(folder / "summary.ipynb", *SUMMARY)
    return write_suite(folder, STUDIES)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The same without a summary, which takes longer than a tiny run."""
    return write_suite(tmp_path_factory.mktemp("bare"), STUDIES)


@pytest.fixture
def one_run(suite, tmp_path):
    """The only run of the study `one`."""
    (((run,),), _) = plan({"runs": STUDIES["one"]}, suite, tmp_path, {}, on_gpu=False)
    return run


def write_run(run, **fields):
    """Write a record of a run that has never run."""
    fields = {"status": "ok", "epoch_seconds": [2.0], **fields}
    record = RunRecord(run.run_id, run.notebook.stem, run.precision, run.parameters, **fields)
    write_record(record, run.folder)


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """A folder with a notebook that can be told the number of its repetition, one that cannot, and studies."""
    folder = write_suite(tmp_path_factory.mktemp("turns"), TURNS)
    start, write = START.replace(" mode ", " mode repeats repeat "), WRITE.replace('"tiny"', '"turns"')
    write_notebook(folder / "turns.ipynb", PARAMETERS + "\nrepeats = 1\nrepeat = 0\n", start, write)
    write_notebook(folder / "alone.ipynb", PARAMETERS + "\nrepeats = 1\n", "pass")
    return folder


@pytest.fixture(scope="module")
def mix(suite):
    """A study whose runs end well, diverge, fail, and fail after their record; and its output folder."""
    output = suite / "mixed {ends} [1]"  # papermill puts parameters into braces, nbconvert looks for patterns
    return call(suite, "mix", "--output-dir", output, "--jobs", 2), output


def test_ok_run_leaves_record_and_executed_notebook(mix):
    done, output = mix
    records = [record for record in read_records(output) if record["mode"] == "ok"]
    assert sorted(record["precision"] for record in records) == sorted(BOTH)
    for record in records:
        assert (record["status"], record["lr"], record["metric"]) == ("ok", 1.0, [0.2, 0.9])
        cells = nbformat.read(output / f"{record['run_id']}.ipynb", 4).cells
        assert any("study mix" in out.get("text", "") for cell in cells for out in cell.get("outputs", ()))
        assert not (output / "logs" / f"{record['run_id']}.log").exists()
    assert "2.5 s/epoch, 1,234 samples/s, 57 MiB peak, accuracy 0.9" in done.stdout
    assert "NO GPU" in done.stdout
    assert "6/6" in done.stdout
    assert len(re.findall(r"^cpu[01]  tiny-\S+  begins$", done.stdout, re.MULTILINE)) == 6


def test_run_that_fails_after_its_record_is_ok_and_told(mix):
    done, output = mix
    late = records_of(output)["late"]
    assert (late["status"], late["reason"]) == ("ok", None)
    assert "after the record: RuntimeError: the chart broke" in done.stdout
    assert (output / "logs" / f"{late['run_id']}.log").stat().st_size
    assert done.returncode == 1
    assert not survivors("mix")


def test_run_no_better_than_chance_is_diverged(mix):
    done, output = mix
    flat = {record["precision"]: record for record in read_records(output) if record["mode"] == "flat"}
    assert flat["fp32"]["status"] == "ok"
    assert flat["amp_bf16"]["status"] == "diverged"
    assert flat["amp_bf16"]["reason"]
    assert flat["amp_bf16"]["metric"] == [0.1, 0.1]
    assert "diverged" in done.stdout


def test_table_lists_every_run_under_a_header_with_units(mix):
    done, output = mix
    lines = done.stdout.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("run  "))
    assert "epoch (s)" in lines[header]
    assert "peak (MiB)" in lines[header]
    rows = lines[header + 1 : header + 7]
    assert sorted(row.split()[0] for row in rows) == sorted(record["run_id"] for record in read_records(output))
    assert "it/s" not in done.stderr + done.stdout  # no bar where there is no terminal


def test_summary_is_executed_and_exported(mix):
    done, output = mix
    assert "6 records" in (output / "summary.ipynb").read_text()
    assert "6 records" in (output / "summary.html").read_text(encoding="utf-8")
    assert "summary.html" in done.stdout


def test_second_start_executes_nothing(suite, mix):
    _, output = mix

    def times():
        return {path.name: path.stat().st_mtime_ns for path in output.glob("tiny-*")}

    before = times()
    done = call(suite, "mix", "--output-dir", output)
    assert times() == before
    assert len(before) == 12
    assert "6 finished already and skipped" in done.stdout
    assert done.returncode == 1  # what failed is still failed


def test_dry_run_starts_nothing_and_marks_the_finished(suite, mix, tmp_path, capsys):
    _, output = mix
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert main(suite, "mix", *ON_CPU, "--output-dir", output, "--dry-run", "--retry-failed") == 0
    said = capsys.readouterr().out
    assert (said.count("tiny-tiny-auto"), said.count("(finished)")) == (6, 5)
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert main(suite, "mix", *ON_CPU, "--output-dir", tmp_path / "nowhere", "--dry-run") == 0
    assert "(finished)" not in capsys.readouterr().out
    assert not (tmp_path / "nowhere").exists()


def test_run_id_is_the_one_the_notebook_computes(suite):
    defaults = notebook_defaults(suite / "tiny.ipynb")
    study = {"runs": [{"notebook": "tiny", "parameters": {"lr": 1}, "sweep": {"seed": [0, 1]}}]}
    overrides = parse_overrides([("loss_scale", "1024"), ("model", "7"), ("precisions", "fp32, tf32")])
    comparisons, _ = plan(study, suite, suite / "out", overrides, on_gpu=True)
    assert [sorted(run.precision for run in runs) for runs in comparisons] == [["fp32", "tf32"]] * 2
    for seed, runs in enumerate(sorted(comparisons, key=lambda runs: runs[0].parameters["seed"])):
        own = {**defaults, "lr": 1.0, "seed": seed, "loss_scale": 1024, "model": "7"}
        for run in runs:
            assert run.run_id == run_id_of("tiny", own, run.precision)
            assert run.run_id == run_id_of("tiny", run.parameters, run.precision)
            assert type(run.parameters["lr"]) is float


def test_retry_failed_and_fresh(bare, tmp_path):
    output, data = tmp_path / "out", tmp_path / "data"
    data.mkdir()
    words = ("flaky", "--output-dir", output, "-p", "data_dir", data)
    assert call(bare, *words).returncode == 1
    assert records_of(output)["flaky"]["status"] == "failed"
    (data / "mended").touch()
    assert "1 finished already" in call(bare, *words).stdout
    assert records_of(output)["flaky"]["status"] == "failed"
    again = call(bare, *words, "--retry-failed")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "no summary was made" in again.stdout
    assert records_of(output)["flaky"]["status"] == "ok"
    assert call(bare, *words, "--fresh").returncode == 0
    (archive,) = tmp_path.glob("out.archived-*")
    assert len(list(archive.glob("tiny-*.json"))) == len(list(output.glob("tiny-*.json"))) == 1


def test_unreadable_record_is_made_again_and_a_broken_summary_is_told(suite, tmp_path):
    output = tmp_path / "broken"
    output.mkdir()
    (((run,),), _) = plan({"runs": STUDIES["one"]}, suite, output, {}, on_gpu=False)
    run.record_path.write_text('{"run_id": "tiny')
    done = call(suite, "one", "--output-dir", output)
    assert run_process.read_record(run.record_path)["status"] == "ok"
    assert done.returncode == 1
    assert "the summary failed" in done.stdout
    assert not (output / "summary.html").exists()


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_sigterm_ends_all_and_writes_no_record(bare, tmp_path):
    process = subprocess.Popen(command(bare, "hang", "--output-dir", tmp_path), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(survivors("hang")) == 3)  # papermill, kernel, the kernel's child
    process.terminate()
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "interrupted: 0 of 2 runs" in text
    assert not list(tmp_path.glob("*.json"))
    assert not survivors("hang")


WRONG = {
    "study": (["nosuch"], "unknown study nosuch; possible are flaky, gpu_only, hang, mix, one, train."),
    "notebook": (["there/tiny.ipynb"], "write --only tiny."),
    "part of a notebook": (["one", "--only", "t"], "did you mean tiny?"),
    "parameter as an option": (["one", "--batch-size", "3"], "-p batch_size VALUE"),
    "parameter": (["one", "-p", "epoch", "3"], "notebook tiny has no parameter epoch; it has batch_size"),
    "precision": (["one", "-p", "precisions", "fp32,fp64"], "unknown precision fp64; possible are fp32, tf32"),
    "whole number": (["one", "-p", "batch_size", "1.5"], 'batch_size of notebook tiny must be "max" or a whole number'),
    "flag": (["one", "-p", "channels_last", "1"], "channels_last of notebook tiny must be true or false, not 1"),
    "number": (["one", "-p", "lr", "fast"], "lr of notebook tiny must be a number, not 'fast'"),
    "text": (["one", "-p", "model", "[a]"], "model of notebook tiny must be text"),
    "value": (["one", "-p", "model", "[a"], "-p model [a"),
    "gpu": (["one", "--gpus", "99"], "there is no GPU 99"),
    "output_dir": (["one", "-p", "output_dir", "x"], "--output-dir"),
    "needs gpu": (["gpu_only"], "study gpu_only needs a GPU"),
    "repeat": (["one", "-p", "repeat", "1"], "-p repeats N"),
    "ray": (["one", "--ray", "auto", "--gpus", "0"], "--gpus 0"),
    "jobs": (["one", "--jobs", "0"], "--jobs 0 must be"),
    "many jobs": (["one", "--jobs", "100000000"], "from 1 to 1000"),
    "deep": (["one", "-p", "lr", "[" * 2000], "-p lr " + "[" * 100 + "..."),
    "timeout": (["one", "--timeout", "0"], "--timeout 0 must be"),
    "stall": (["one", "--stall-minutes", "-1"], "--stall-minutes -1 must be"),
    "letters": (["one", "--output-dir", "\udcff"], "--output-dir '\\udcff' is not UTF-8"),
    "data letters": (["one", "-p", "data_dir", "/\udcff"], "-p data_dir '/\\udcff' is not UTF-8"),
    "home": (["one", "--output-dir", "~nosuchuser/x"], "--output-dir ~nosuchuser/x"),
    "data home": (["one", "-p", "data_dir", "~nosuchuser/x"], "-p data_dir ~nosuchuser/x"),
    "no folder": (["one", "--output-dir", ""], "--output-dir is empty"),
    "no address": (["one", "--ray", ""], "--ray is empty"),
    "no data": (["one", "-p", "data_dir", ""], "data_dir is empty"),
    "no csv": (["one", "-p", "csv_path", "/nowhere.csv"], "csv_path /nowhere.csv"),
    "digits": (["one", "-p", "lr", "1" * 400], "lr of notebook tiny must be a number"),
    "seed": (["one", "-p", "seed", "9" * 23], "must be below 4294967296"),
    "whole": (["one", "-p", "batch_size", "9" * 30], f"batch_size is {'9' * 30}; it must be below 9223372036854775808"),
    "endless": (["one", "-p", "batch_size", "9" * 400], "9...; it must be below 9223372036854775808"),
    "long": (["one", "-p", "model", "x" * 300], "too long a name"),
    "empty": (["one", "-p", "precisions", "[]"], "precisions is empty; possible are fp32, tf32"),
    "loss scale": (["one", "-p", "loss_scale", ""], 'loss_scale of notebook tiny must be "dynamic" or a number'),
}


@pytest.mark.parametrize("words, sentence", WRONG.values(), ids=WRONG)
def test_wrong_request_is_one_sentence_and_writes_nothing(suite, tmp_path, capsys, words, sentence):
    output = tmp_path / "out"
    assert main(suite, *ON_CPU, "--output-dir", output, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not output.exists()


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("a: [", "not valid YAML"),
        ("- a", "must map names to studies"),
        ("", "must map names to studies"),
        ("one: {runs: 3}", "study one"),
        ("../up: {runs: [{notebook: tiny}]}", "study ../up"),
        ("one: {runs: [{cpu: {}}]}", "must name its `notebook`"),
        ("one: {runs: [{notebook: tiny, extra: 1}]}", "`extra`"),
        ("one: {runs: [{notebook: tiny, sweep: {seed: 1}}]}", "sweep `seed`"),
        ("one: {runs: [{notebook: tiny, cpu: {repeat: 1}}]}", "`repeats`, not `repeat`"),
        ("one: {runs: [{notebook: tiny, sweep: {repeat: [0, 1]}}]}", "`repeats`, not `repeat`"),
        ("one: {runs: [{notebook: absent, cpu: {}}]}", "there is no notebook absent"),
        ("one: {runs: [{notebook: torn, cpu: {}}]}", "notebook torn must be"),
        ("one: {runs: [{notebook: untagged, cpu: {}}]}", "notebook untagged must be"),
        ("one: {runs: [{notebook: derived, cpu: {}}]}", "notebook derived must be"),
        ("one: {runs: [{notebook: poor, cpu: {}}]}", "lacks the parameters dataset, model"),
        ("one: {runs: [{notebook: poor, cpu: {}}]}\nboth: &a [*a]", "study both"),
        ("one: {runs: [{notebook: tiny, cpu: {1: 2}}]}", "notebook tiny has no parameter 1; it has"),
        ("one: {runs: [{notebook: tiny, minutes: long}]}", "`minutes`"),
        ("one: {runs: [{notebook: tiny, minutes: .inf}]}", "`minutes`"),
        ("one: " + "[" * 2000, "not valid YAML"),
        ("one: {runs: [{notebook: deep, cpu: {}}]}", "notebook deep must be"),
    ],
)
def test_wrong_studies_file_or_notebook(tmp_path, capsys, text, sentence):
    (tmp_path / "studies.yaml").write_text(text)
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    write_notebook(tmp_path / "derived.ipynb", "x = 3 * y")
    write_notebook(tmp_path / "poor.ipynb", "seed = 1")
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS)
    write_notebook(tmp_path / "untagged.ipynb", "seed = 1")
    book = json.loads((tmp_path / "untagged.ipynb").read_text())
    book["cells"][0]["metadata"] = {}
    (tmp_path / "untagged.ipynb").write_text(json.dumps(book))
    assert main(tmp_path, "one", *ON_CPU, "--dry-run") == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_csv_is_looked_for_where_the_runs_are(suite, tmp_path, monkeypatch):
    nodes = contextlib.nullcontext((run_process, [Device(0, "node-cpu0")]))
    monkeypatch.setattr(cli, "devices_for", lambda args: nodes)
    assert main(suite, "one", "--dry-run", "-p", "csv_path", "/nowhere.csv", "--ray", "auto") == 0
    (tmp_path / "my.csv").touch()
    assert main(suite, "one", "--dry-run", "-p", "csv_path", "my.csv") == 0


def test_closed_output_does_not_stop_a_batch(bare, tmp_path):
    words = ["sh", "-c", 'exec "$@" >&-', "sh", *command(bare, "one", "--output-dir", tmp_path)]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert records_of(tmp_path)["ok"]["status"] == "ok"
    assert "1 runs took" in (tmp_path / "logs" / "batch.log").read_text()


def test_output_folder_that_cannot_be_written(suite, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(suite, "one", *ON_CPU, "--output-dir", tmp_path / "file" / "out") == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--output-dir", "file"], "cannot be written"),
        (["--output-dir", "file/below/it"], "cannot be written"),
        (["-p", "data_dir", "file"], "is no folder"),
        (["-p", "tiny.data_dir", "file"], "is no folder"),
        (["-p", "csv_path", "folder"], "is no file"),
        (["-p", "tiny.csv_path", "nowhere.csv"], "is no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_folders_are_checked_before_the_devices(suite, tmp_path, capsys, monkeypatch, words, sentence):
    """Looking at the devices loads PyTorch. What is refused leaves nothing behind."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(cli, "choose_devices", Mock(side_effect=AssertionError("too late")))
    assert main(suite, "one", *ON_CPU, "--output-dir", "new/out", *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX users")
def test_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    user = os.geteuid()
    theirs.chmod(0o555)
    try:
        if user == 0:  # who may write everywhere
            os.seteuid(65534)
        with pytest.raises(UserError, match="cannot be written"):
            check_writable(theirs / "out")
    finally:
        os.seteuid(user)
    assert not list(theirs.iterdir())


def test_folder_and_model_are_refused_without_loading_pytorch(tmp_path):
    """With the notebooks of the suite, in seconds that leave no room for it: timm loads PyTorch."""
    (tmp_path / "file").write_text("")
    loud = tmp_path / "modules" / "torch"
    loud.mkdir(parents=True)
    (loud / "__init__.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w'); raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    for words, sentence in (
        (["--output-dir", "file", "-p", "model", "efficientnet_b0"], "cannot be written"),
        (["--output-dir", "out", "-p", "model", "resnt18"], "the nearest names: resnet18"),
    ):
        words = [sys.executable, str(ROOT / "run_all.py"), "layout", *ON_CPU, *words]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert not (tmp_path / "loaded").exists()


def test_only_runs_one_notebook_and_its_parameter_reaches_it(bare, tmp_path):
    folder = write_suite(tmp_path, {"both": [entry(), {**entry(), "notebook": "small"}]})
    write_notebook(folder / "small.ipynb", PARAMETERS.replace('csv_path = ""\n', ""), START, WRITE)
    words = ("both", "--output-dir", tmp_path / "out", "--only", "tiny", "-p", "tiny.seed", 7, "-p", "seed", 3)
    done = call(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(record["notebook"], record["seed"]) for record in read_records(tmp_path / "out")] == [("tiny", 7)]


def test_report_that_is_named_opens_from_where_the_user_stands(suite, tmp_path):
    """An output folder in the checkout, the user elsewhere; and one below the folder in which the user stands."""
    (ROOT / "outputs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".test-", dir=ROOT / "outputs") as inside:
        for folder, said in (
            (inside, os.path.join(inside, "summary.html")),
            ("mine", os.path.join("mine", "summary.html")),
        ):
            done = call(suite, "one", "--output-dir", folder, cwd=tmp_path)
            named = re.findall(r"\S+summary\.html", done.stdout)
            assert named == [said]
            assert (tmp_path / named[0]).is_file()


def test_folders_in_which_results_are_kept_open_from_where_the_user_stands(suite, tmp_path):
    """The output folder lies in the checkout, the user stands elsewhere."""
    (ROOT / "outputs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".test-", dir=ROOT / "outputs") as inside:
        output = os.path.join(inside, "out")
        words = ("one", "--output-dir", output)
        assert call(suite, *words, cwd=tmp_path).returncode == 0
        (path,) = Path(output).glob("tiny-*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "code_hash": "0123456789ab"}))
        for more in ((), ("--fresh",)):
            done = call(suite, *words, *more, cwd=tmp_path)
            (named,) = re.findall(r"kept in (\S+)", done.stdout)
            assert (tmp_path / named).is_dir()


@pytest.mark.parametrize("setting", [{"PYTHONSAFEPATH": "1"}, {"PYTHONOPTIMIZE": "2"}])
def test_settings_of_python_do_not_matter(bare, tmp_path, setting):
    (tmp_path / "mixed_precision_study.py").write_text("raise SystemExit('a foreign module')")
    environment = {**os.environ, **setting, "PYTHONPATH": str(tmp_path)}
    done = call(bare, "one", "--output-dir", tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok"]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("columns", [80, 120])
def test_progress_is_seen_on_a_narrow_terminal(bare, tmp_path, columns):
    import fcntl
    import pty
    import struct
    import termios

    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    long_name = ["-p", "model", "tf_efficientnet_b0", "-p", "precisions", "amp_bf16"]
    words = command(bare, "train", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path, *long_name)
    words.remove("--no-progress-bar")
    seen = b""
    until = time.monotonic() + 200
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=other) as runner:
        os.close(other)
        try:
            while b"step 30/40" not in seen and time.monotonic() < until:
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 4096)
        finally:
            runner.kill()
    os.close(terminal)
    lines = re.split(r"[\r\n]|\x1b\[A", seen.decode(errors="replace"))
    assert any(re.search(r"^cpu0  tf_efficientnet_b0 amp_bf16 .*epoch 2/2, step 30/40  0:\d\d", line) for line in lines)
    assert all(len(line) <= columns for line in lines)


def test_a_run_never_falls_back_to_its_start(one_run):
    """Its cell is read while a process writes it, as the one that executes the notebook does."""
    private = run_process.private_folder()
    code = "import sys, pathlib\nn = 0\nwhile n := n + 1: pathlib.Path(sys.argv[1]).write_text(f'{n % 60}/60')"
    with subprocess.Popen([sys.executable, "-c", code, str(private / "cell")]) as writer:
        try:
            running = run_process.RunningProcess(one_run, Device(0, "cpu0"), None, writer, private, None)
            wait_for(lambda: run_process.note_signs_of_life(running) or running.progress)
            seen = []
            for _ in range(2_000):
                run_process.note_signs_of_life(running)
                seen.append(run_process.progress_of(running))
        finally:
            writer.kill()
    shutil.rmtree(private)
    assert all(seen)
    assert len(set(seen)) > 1  # the writer was at work all the while


@pytest.mark.parametrize("option", ["--output-dir", "data_dir"])
def test_link_that_leads_back_to_itself_is_one_sentence(suite, tmp_path, capsys, option):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    words = ["--output-dir", "a"] if option == "--output-dir" else ["-p", "data_dir", "a", "--output-dir", "out"]
    status = main(suite, "one", *ON_CPU, *words)
    if sys.version_info < (3, 13) or option == "--output-dir":  # newer ones leave such a data_dir to the notebook
        assert status == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), NotImplementedError("no flock"), OSError(38, "No flock")]
)
def test_folder_that_cannot_be_locked_is_one_sentence(suite, tmp_path, capsys, monkeypatch, error):
    """As where the lock is another user's file, or the file system knows no locks."""
    monkeypatch.setattr(output_folder.FileLock, "acquire", Mock(side_effect=error))
    assert main(suite, "one", *ON_CPU, "--output-dir", tmp_path) == 2
    assert f"run_all.py: the output folder {tmp_path} cannot be locked (" in capsys.readouterr().err


LONG = {"data_dir": "x" * 2_001}  # with which no record could be read again


@pytest.mark.parametrize(
    ("name", "values", "refused"),
    [("own", {"batch_size": -1}, False), ("cifar_resnet", {"batch_size": -1}, True), ("own", LONG, True)],
)
def test_a_notebook_that_declares_nothing_in_the_package_checks_its_values_itself(tmp_path, name, values, refused):
    write_notebook(tmp_path / f"{name}.ipynb", PARAMETERS)
    study = {"runs": [{"notebook": name, "parameters": values}]}
    comparisons, _ = plan(study, tmp_path, tmp_path / "out", {}, on_gpu=True)
    with pytest.raises(UserError, match=f"^notebook {name}: ") if refused else contextlib.nullcontext():
        check_values(comparisons)


def test_fresh_refuses_to_move_the_folder_one_stands_in(suite, tmp_path, capsys):
    assert main(suite, "one", *ON_CPU, "--output-dir", ".", "--fresh") == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_fresh_renames_only_what_a_batch_has_made(suite, tmp_path, capsys, monkeypatch):
    (tmp_path / "home" / "letters").mkdir(parents=True)
    assert main(suite, "one", *ON_CPU, "--fresh", "--output-dir", tmp_path / "home") == 2
    assert f"{tmp_path / 'home'}, which" in capsys.readouterr().err
    (tmp_path / "mounted" / "logs").mkdir(parents=True)
    (tmp_path / "mounted" / "logs" / "batch.log").touch()
    monkeypatch.setattr(output_folder.Path, "rename", Mock(side_effect=OSError(16, "Device or resource busy")))
    assert main(suite, "one", *ON_CPU, "--fresh", "--output-dir", tmp_path / "mounted") == 2
    assert "cannot rename" in capsys.readouterr().err


def test_fresh_sets_no_folder_aside_where_it_must_not_touch_another(suite, tmp_path, capsys):
    for name in ("flaky", "one"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "batch.log").touch()
    with output_folder.locked(tmp_path / "one"):
        assert main(suite, "flaky", "one", *ON_CPU, "--output-dir", tmp_path, "--fresh") == 2
    assert "one is in use" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flaky", "one"]


def test_interrupt_counts_what_the_same_command_would_skip(bare, tmp_path, monkeypatch, capsys):
    (runs,), _ = plan({"runs": STUDIES["hang"]}, bare, tmp_path, {}, on_gpu=False)
    for run, status in zip(runs, ("ok", "failed"), strict=True):
        write_run(run, status=status)
    monkeypatch.setattr(cli, "run_comparisons", Mock(side_effect=KeyboardInterrupt))
    for option, kept in (((), 2), (("--retry-failed",), 1)):
        assert main(bare, "hang", *ON_CPU, "--output-dir", tmp_path, *option) == 1
        said = capsys.readouterr().out
        assert f"; {kept} finished already and skipped" in said
        assert f"interrupted: {kept} of 2 runs of hang are finished and kept" in said


SOUND = {"precision": "fp32", "model": "tiny", "batch_size": 4, "seed": 0, "status": "ok", "epoch_seconds": [2.0]}
SOUND["notebook"] = "tiny"


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": 0.5},
        {"notebook": ["tiny"]},  # from here on the report alone stumbles over it
        {"precision": "fp4"},
        {"seed": [1]},
        {"batch_size": {}},
        {"epoch_seconds": []},
        {"tensor_core_fraction": 10**400},
        {"metric": ["good"], "metric_better": "higher"},
        {"metric": [0.5], "chance_metric": 0.1},  # without metric_better
        {"epoch_seconds": 3},
        {"metric": [10**400], "metric_better": "higher", "chance_metric": 0.1},
        {"samples_per_second": "fast"},
        {"status": "failed", "reason": 7},
        {"gpu_uuid": 1},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_record_that_a_person_has_spoilt_is_made_again(one_run, changes):
    record = {**SOUND, "run_id": one_run.run_id, "metric": []}
    for spoilt, again in ((record, []), ({**record, **changes}, [one_run])):
        one_run.record_path.write_text(json.dumps(spoilt))
        assert unfinished([one_run]) == again
        assert mark_diverged([one_run]) == {}
        assert home_of([one_run], GPUS) is None
        assert ("not run" in table([[one_run]])) is bool(again)
    one_run.record_path.write_text("[" * 100_000)
    assert unfinished([one_run]) == [one_run]
    one_run.record_path.unlink()
    os.mkfifo(one_run.record_path)
    assert unfinished([one_run]) == [one_run]


def test_run_that_was_ended_before_it_explained_is_made_again_but_not_one_that_was_timed(one_run):
    for purpose, seconds, again in (("explain", None, True), ("explain", 3.5, False), ("all", None, False)):
        record = {**SOUND, "run_id": one_run.run_id, "purpose": purpose, "explanation_seconds": seconds}
        one_run.record_path.write_text(json.dumps(record))
        assert unfinished([one_run]) == ([one_run] if again else [])
    one_run.record_path.write_text(json.dumps({**record, "purpose": "explain", "status": "oom", "reason": "too much"}))
    assert unfinished([one_run]) == []


def test_records_of_other_code_are_never_overwritten(one_run, tmp_path):
    for number in range(3):
        record = {**SOUND, "run_id": one_run.run_id, "code_hash": "../a", "number": number}
        one_run.record_path.write_text(json.dumps(record))
        set_aside_records([[one_run]])
        assert not one_run.record_path.exists()
    kept = {path.parent.name: json.loads(path.read_text())["number"] for path in tmp_path.glob("*/*.json")}
    assert kept == {"other_code-___a": 0, "other_code-___a-2": 1, "other_code-___a-3": 2}


def test_records_of_other_code_are_set_aside_also_where_they_are_not_asked_for(one_run, tmp_path, capsys):
    """The report would compare them with what is measured now. Those of another notebook, or of this code, stay."""
    codes = {"a": ("tiny", "old"), "b": ("tiny", one_run.code_hash), "c": ("large", "old"), "d": ("tiny", None)}
    for run_id, (notebook, code) in codes.items():
        record = {**SOUND, "run_id": run_id, "notebook": notebook, "code_hash": code}
        data = {"synthetic": True, "data_dir": "elsewhere"}  # which does not count here
        (tmp_path / f"{run_id}.json").write_text(json.dumps({**record, **data}))
    (tmp_path / "a.ipynb").touch()
    (tmp_path / "e.json").write_text("[]")
    set_aside_records([[one_run]])
    folder = tmp_path / "other_code-old"
    said = capsys.readouterr().out
    assert said.startswith("1 records were measured by other code")
    assert f" {shown(folder)} without being run again" in said
    assert sorted(path.name for path in folder.iterdir()) == ["a.ipynb", "a.json"]
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["b", "c", "d", "e"]


def test_runs_on_made_up_data_are_made_again_once_another_data_dir_has_data(tmp_path, capsys):
    """Not where it has none, not again and again, and not where the data do not come from there or were not wanted."""
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS)  # its data come by csv_path
    write_notebook(tmp_path / "text.ipynb", PARAMETERS.replace('csv_path = ""\n', ""))
    entries = [("text", "auto"), ("text", "synthetic"), ("tiny", "auto")]
    study = {"runs": [{"notebook": name, "cpu": {"dataset": data, "precisions": ["fp32"]}} for name, data in entries]}

    def asked(data_dir):
        overrides = parse_overrides([("data_dir", str(tmp_path / data_dir))])
        comparisons, _ = plan(study, tmp_path, tmp_path, overrides, on_gpu=False)
        return [run for (run,) in comparisons]

    def again(data_dir):
        return [run.run_id for run in asked(data_dir) if unfinished([run])]

    for folder in ("empty/text", "cached/cache/text", "full/text", "other/text"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "empty/text":
            (tmp_path / folder / "train.txt").touch()
    for run in asked("absent"):
        write_run(run, synthetic=True)
    assert not (again("absent") or again("empty") or again("cached"))
    text = asked("full")[0]
    assert again("full") == [text.run_id]
    set_aside_records([[run] for run in asked("full")])
    kept = tmp_path / "made_up_data"
    said = capsys.readouterr().out
    assert said.startswith("1 records are of made-up data")
    assert f" {shown(kept)} and run again" in said
    assert [path.name for path in kept.iterdir()] == [text.record_path.name]
    for synthetic, folder in ((True, "full"), (False, "other")):  # the data in it may be those of another notebook
        write_run(text, synthetic=synthetic)
        assert again(folder) == []


@pytest.mark.parametrize("synthetic", [True, False])
def test_made_up_data_are_named_when_a_batch_ends(bare, tmp_path, capsys, synthetic):
    (((run,),), _) = plan({"runs": STUDIES["one"]}, bare, tmp_path, {}, on_gpu=False)
    write_run(run, synthetic=synthetic)
    main(bare, "one", "--output-dir", str(tmp_path))
    assert ("CAUTION: The run trained on made-up data" in capsys.readouterr().out) == synthetic


def test_runs_on_other_files_under_the_same_name_are_made_again(tmp_path, capsys):
    """Their records are kept aside. A record without a hash counts, and so does one whose files are not here."""
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS)
    study = {"runs": [{"notebook": "tiny", "cpu": {"dataset": "folder", "precisions": ["fp32"]}}]}
    images = tmp_path / "pets" / "train" / "cat"
    images.mkdir(parents=True)
    (images / "0.png").write_bytes(b"one")
    overrides = parse_overrides([("data_dir", str(tmp_path / "pets"))])
    (comparison,), _ = plan(study, tmp_path, tmp_path, overrides, on_gpu=False)
    (run,) = comparison
    found = data_files_hash("tiny", run.parameters)
    for known in (None, found):
        write_run(run, data_files_hash=known)
        set_aside_records([comparison])
        assert not unfinished(comparison)
    (images / "0.png").write_bytes(b"two")
    set_aside_records([comparison])
    assert "of other data" in capsys.readouterr().out
    assert unfinished(comparison) == [run]
    assert [path.name for path in (tmp_path / f"other_data-{found}").iterdir()] == [run.record_path.name]
    write_run(run, data_files_hash=found)
    (images / "0.png").unlink()
    set_aside_records([comparison])
    assert not unfinished(comparison)


def test_what_takes_longest_begins_first_and_on_one_device_last(turns, tmp_path):
    _, (long, short) = planned(turns, "twice")
    args = cli.parse_arguments([])
    recorded = {run.run_id: 100.0 if run in short else 1.0 for run in (*long, *short)}
    for seconds, order in (({}, [long, short]), (recorded, [short, long])):  # by the minutes of the study, as recorded
        assert [job.comparison for job in jobs_of([short, long], GPUS, args, seconds)] == order
        assert [job.comparison for job in jobs_of([short, long], GPUS[:1], args, seconds)] == order[::-1]


def thrice(turns, folder, purpose):
    """Return a comparison of three repetitions of two precisions with this purpose."""
    (comparison,) = planned(turns, "thrice")[1]
    return [run._replace(folder=folder, parameters={**run.parameters, "purpose": purpose}) for run in comparison]


@pytest.mark.parametrize(
    ("cards", "here", "again"),
    [
        ("99 99 00", GPUS, ()),  # each whole on one card
        ("99 9- --", GPUS, (2, 3)),  # its card has gone
        ("9- -- --", GPUS[1:], (0, 1)),
        ("99 11 1-", GPUS, (5,)),  # the rest goes to the card of the last
        ("99 91 11", GPUS, (2,)),  # of two cards: all on the one that is here
        ("98 -- --", GPUS, ()),  # nothing is missing there, and neither card is here
        ("99 9- --", [Device(0, "cpu0")], (3,)),
    ],
)
def test_a_repetition_is_made_again_as_a_whole_where_its_gpu_is_not_here(turns, cards, here, again, capsys, tmp_path):
    """A ratio compares runs of one GPU, so a half repetition would stay without its outcome."""
    comparison = thrice(turns, tmp_path, "time")
    places = cards.replace(" ", "")
    for run, place in zip(comparison, places, strict=True):
        if place != "-":
            write_run(run, gpu_uuid=place)
    missing = [number for number, place in enumerate(places) if place == "-"]
    expected = sorted({*missing, *again})
    (job,) = jobs_of([comparison], here, cli.parse_arguments([]), {})
    assert [comparison.index(run) for run in job.to_do] == expected
    set_aside_records([comparison], here)
    moved = len(expected) - len(missing)
    said = capsys.readouterr().out
    assert (f"{moved} records are of another GPU" in said) is bool(moved)
    assert len(list(tmp_path.glob("other_gpu/*.json"))) == moved
    assert [comparison.index(run) for run in unfinished(comparison)] == expected
    assert stranded(comparison, here) == []


def test_what_may_go_to_one_gpu_alone_goes_before_what_may_go_anywhere(turns):
    """Or the one GPU takes the free comparison and the other idles: seen on two H200s."""
    _, (first, second) = planned(turns, "twice")
    waiting = [Job(first, first), Job(second, second, GPUS[0])]
    assert take_job(waiting, GPUS[0]).comparison == second
    assert take_job(waiting, GPUS[1]).comparison == first
    assert take_job(waiting, GPUS[0]) is None


def test_single_processes_stay_where_they_are(turns, tmp_path):
    """They may be long, and have no interval."""
    comparison = thrice(turns, tmp_path, "all")
    write_run(comparison[0], gpu_uuid="9")
    assert stranded(comparison, GPUS) == []


def test_seeds_that_share_a_process_stay_too(turns, tmp_path):
    """A study of quality comes in portions of GPU time, on whatever card there is."""
    timed = thrice(turns, tmp_path, "time")
    write_run(timed[0], gpu_uuid="9")  # of its repetition a run is still to be made
    assert stranded(timed, GPUS) == [timed[0]]
    assert stranded([run._replace(shares="seeds") for run in timed], GPUS) == []


@pytest.mark.parametrize(
    "jobs, seconds",
    [
        ([[5], [3], [3]], 5.5),  # 11 s shared evenly; no order reaches it, and none beats it
        ([[5, 3], [3]], 8),  # what is compared stays on one device
        ([[], [4]], 4),
    ],
)
def test_what_no_order_could_beat_is_stored(tmp_path, capsys, jobs, seconds):
    (tmp_path / "logs").mkdir()
    queue = RunQueue("made-up", None, None, 60, 0, [], {}, 3, [], done=3, job_seconds=jobs)
    store_times(tmp_path, queue, [DeviceSlot(gpu) for gpu in GPUS], 2 * seconds, "")
    assert json.loads((tmp_path / "logs" / "batch.json").read_text())["ideal_seconds"] == seconds
    assert f"no order on 2 devices could take less than {seconds:.1f} s (50%)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ['{"run_seconds": {"x": null}}', '{"run_seconds": [3]}', "[]", "{"])
def test_times_that_cannot_be_read_are_not_known(tmp_path, text):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "batch.json").write_text(text)
    assert estimates.read_seconds(tmp_path) == {}


def test_nothing_waits_for_ever(tmp_path, monkeypatch, capsys):
    """A run has a limit also where none is asked for. A summary that hangs is stopped."""
    assert cli.parse_arguments([]).timeout > 0
    monkeypatch.setattr(cli, "SUMMARY_SECONDS", 0.1)
    (tmp_path / "logs").mkdir()
    write_notebook(tmp_path / "source.ipynb", 'records_dir = "."', "import time; time.sleep(600)")
    assert cli.summarise("hanging", tmp_path, tmp_path / "source.ipynb") is False
    assert "has not ended within" in capsys.readouterr().out
    assert not survivors("hanging")


def test_list_needs_neither_papermill_nor_pytorch(suite):
    code = "import sys; from mixed_precision_study.runner import cli; status = cli.main(sys.argv[1:]); "
    code += "sys.exit(status or 'papermill' in sys.modules or 'torch' in sys.modules)"
    words = [sys.executable, "-c", code, "--list", "--studies", str(suite / "studies.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"gpu_only +8 runs +about 4 minutes", done.stdout)


def test_paths_below_the_suite_are_relative(tmp_path):
    assert relative_to_root(ROOT / "outputs" / "quick") == "outputs/quick"
    assert relative_to_root(tmp_path) == tmp_path.resolve().as_posix()
    paths = parse_overrides([("data_dir", "here"), ("csv_path", "a.csv")])
    assert paths["data_dir"][1] == (tmp_path.resolve() / "here").as_posix()
    assert paths["csv_path"][1] == (tmp_path.resolve() / "a.csv").as_posix()


def fake_nvml(as_bytes, count=2):
    """Return a stand-in for pynvml; nvidia-ml-py3 7.352.0 answers in bytes."""
    text = str.encode if as_bytes else str
    return types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: text(f"GPU-{index}{index}{index}-abc"),
        nvmlDeviceGetName=lambda index: text("NVIDIA Made-up"),
    )


@pytest.mark.parametrize("as_bytes", [True, False])
def test_gpus_from_either_binding(monkeypatch, as_bytes):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(as_bytes))
    assert visible_gpus() == [
        (0, "gpu0", "GPU-000-abc", "NVIDIA Made-up"),
        (1, "gpu1", "GPU-111-abc", "NVIDIA Made-up"),
    ]


def test_gpus_without_binding_come_from_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    lines = "0, GPU-aa-bb, NVIDIA Made-up, large\n1, GPU-cc-dd, NVIDIA Other\n"
    answer = types.SimpleNamespace(stdout=lines)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: answer)
    assert [gpu.visible for gpu in visible_gpus()] == ["GPU-aa-bb", "GPU-cc-dd"]
    assert visible_gpus()[0].name == "NVIDIA Made-up, large"


@pytest.mark.parametrize(
    "setting, seen",
    [("1", [1]), ("1,0", [1, 0]), ("GPU-111", [1]), ("", []), ("-1", []), ("0,7,1", [0]), ("MIG-x/1/0", ["MIG-x/1/0"])],
)
def test_existing_visible_devices_are_honoured(monkeypatch, setting, seen):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    expected = [one if isinstance(one, str) else f"GPU-{one}{one}{one}-abc" for one in seen]
    assert [gpu.visible for gpu in visible_gpus()] == expected


def test_gpu_that_pytorch_cannot_use(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(False))
    monkeypatch.setattr(devices, "cuda_of_pytorch", lambda: "")
    with pytest.raises(UserError, match="CUDA build"):
        choose_devices("1", None)
    with pytest.raises(UserError, match="the GPUs here are 0, 1"):
        choose_devices("0,5", None)
    with pytest.raises(UserError, match="--jobs is for the CPU"):
        choose_devices("all", 2)
    assert [device.label for device in choose_devices("none", 3)] == ["cpu0", "cpu1", "cpu2"]


@pytest.mark.parametrize(
    ("built", "driver", "refused"),
    [
        ("13.2", (12, 8), True),
        ("12.6", (13, 0), False),
        ("12.9", (12, 2), False),
        ("", (13, 0), True),
        (None, None, False),
    ],
)
def test_pytorch_for_a_cuda_that_the_driver_does_not_know_is_refused(built, driver, refused):
    assert bool(devices.reason_against(built, driver)) == refused


def test_cuda_of_pytorch_is_read_and_not_loaded(monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '12.6'\n")
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(devices, "find_spec", lambda name: found)
    assert devices.cuda_of_pytorch() == "12.6"
    (tmp_path / "version.py").write_text("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n")
    assert devices.cuda_of_pytorch() == ""
    (tmp_path / "version.py").unlink()
    assert devices.cuda_of_pytorch() is None


def test_what_the_cpu_cannot_run_is_recorded_without_a_kernel(tmp_path, monkeypatch):
    """The notebook is the suite's own; another one may give a mode a meaning of its own."""
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    monkeypatch.setattr(run_process, "start_notebook", Mock(side_effect=AssertionError("a kernel was started")))
    words = ["quick", "--only", "cifar_resnet", *ON_CPU, "-p", "precisions", "tf32,amp_fp16", "--output-dir", tmp_path]
    assert cli.main([str(word) for word in words]) == 0
    records = read_records(tmp_path)
    assert {record["precision"]: record["status"] for record in records} == {
        "tf32": "unsupported",
        "amp_fp16": "unsupported",
    }
    assert all(record["device_type"] == "cpu" and "NVIDIA GPU" in record["reason"] for record in records)
    assert not list(tmp_path.glob("*resnet*.ipynb"))


def test_comparisons_stay_on_one_gpu_and_spread_over_all(suite, tmp_path, monkeypatch):
    started = []

    def launch(run, study, commit, device, attempt):
        started.append((run.run_id, device.visible))
        run.log_path.write_text("")
        process = subprocess.Popen([sys.executable, "-c", ""])
        before = run_process.signature(run.record_path)
        write_run(run, gpu_uuid=device.visible.removeprefix("GPU-"))
        return run_process.RunningProcess(run, device, commit, process, run_process.private_folder(), before)

    monkeypatch.setattr(run_process, "launch", launch)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS)
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    assert main(suite, "gpu_only", "--output-dir", tmp_path) == 0
    comparisons, _ = plan({"runs": STUDIES["gpu_only"]}, suite, tmp_path, {}, on_gpu=True)
    where = dict(started)
    homes = [{where[run.run_id] for run in runs} for runs in comparisons]
    assert len(started) == 8
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == {"GPU-0", "GPU-1"}
    # A comparison that lost one record is completed on the GPU on which the rest of it ran.
    lost = next(runs[1] for runs, home in zip(comparisons, homes, strict=True) if home == {"GPU-1"})
    lost.record_path.unlink()
    started.clear()
    assert main(suite, "gpu_only", "--output-dir", tmp_path) == 0
    assert started == [(lost.run_id, "GPU-1")]


def planned(folder, study, *pairs, on_gpu=True):
    """Return what a study of TURNS becomes: how often per comparison, see repetitions_of, and the comparisons."""
    overrides = parse_overrides(pairs)
    comparisons, _ = plan({"runs": TURNS[study]}, folder, folder / "out", overrides, on_gpu)
    runs_in = [[(run.precision, run.parameters["repeat"]) for run in runs] for runs in comparisons]
    return [repetitions_of(runs) for runs in runs_in], comparisons


def repetitions_of(runs):
    """Return how many blocks of BOTH there are in [(precision, repetition)], each begun by the other precision."""
    names = [precision for precision, _ in runs]
    blocks = [names[start : start + 2] for start in range(0, len(names), 2)]
    assert all(sorted(block) == sorted(BOTH) for block in blocks)
    assert all(block[0] != following[0] for block, following in itertools.pairwise(blocks))
    assert [number for _, number in runs] == [place // 2 for place in range(len(runs))]
    return len(blocks)


ONCE = 1
TWICE = 2
THRICE = 3


def test_repetitions_take_turns_in_one_comparison(turns):
    assert planned(turns, "twice")[0] == [TWICE, ONCE]
    assert planned(turns, "twice", on_gpu=False)[0] == [TWICE]
    assert planned(turns, "twice", ("repeats", "1"))[0] == [ONCE, ONCE]
    orders, comparisons = planned(turns, "twice", ("repeats", "3"))
    assert orders == [THRICE, THRICE]
    for runs in comparisons:
        assert len({run.run_id for run in runs}) == 6
        for run in runs:
            assert run.parameters["repeats"] == 1
            assert run.run_id == run_id_of("turns", run.parameters, run.precision)
    alone = parse_overrides([("precisions", "fp32")])
    comparisons, _ = plan({"runs": TURNS["twice"]}, turns, turns / "out", alone, True)
    assert [run.precision for run in comparisons[0]] == ["fp32", "fp32"]


def test_what_is_asked_for_twice_runs_once_and_what_is_compared_stays_together(turns):
    assert planned(turns, "swept")[0] == [THRICE, THRICE]  # a comparison per seed; one repetition is part of three
    assert planned(turns, "swept", ("repeats", "2"))[0] == [TWICE, TWICE]
    entries = [{"notebook": "turns", "parameters": {"precisions": names}} for names in (["fp32"], ["fp32", "tf32"])]
    comparisons, _ = plan({"runs": entries}, turns, turns, {}, True)
    assert [{run.precision for run in runs} for runs in comparisons] == [{"fp32", "tf32"}]


def test_notebook_that_is_not_told_its_repetition_repeats_by_itself(turns):
    for pairs, repeats, minutes in (((), 2, 2), ((("repeats", "3"),), 3, 3)):
        overrides = parse_overrides(pairs)
        ((first, second),), _ = plan({"runs": TURNS["alone"]}, turns, turns, overrides, True)
        assert {first.precision, second.precision} == {"fp32", "amp_bf16"}
        assert first.parameters["repeats"] == second.parameters["repeats"] == repeats
        assert "repeat" not in first.parameters
        assert first.minutes == pytest.approx(minutes)


def test_repeats_below_one_are_left_to_the_notebook_and_too_many_are_refused(turns):
    overrides = parse_overrides([("repeats", "-1")])
    comparisons, _ = plan({"runs": TURNS["twice"]}, turns, turns / "out", overrides, True)
    assert [[run.parameters["repeats"] for run in runs] for runs in comparisons] == [[-1, -1]] * 2
    with pytest.raises(UserError, match="repeats is 1001"):
        planned(turns, "twice", ("repeats", "1001"))


@pytest.mark.parametrize(
    "study, pairs, minutes",
    [
        ("twice", (), [8, 3]),
        ("twice", [("repeats", "6")], [24, 18]),  # three and six times what the entries ask for
        ("twice", [("repeats", "1")], [4, 3]),
        ("twice", [("precisions", "fp32")], [4, 1.5]),
        ("swept", [], [6, 6]),  # of the four passes per seed, the first is asked for twice
        ("swept", [("repeats", "4")], [8, 8]),
        ("swept", [("seed", "0")], [6]),
    ],
)
def test_minutes_follow_the_number_of_trainings(turns, study, pairs, minutes):
    comparisons, _ = plan({"runs": TURNS[study]}, turns, turns / "out", parse_overrides(pairs), True)
    assert [sum(run.minutes for run in runs) for runs in comparisons] == pytest.approx(minutes)
    assert all(run.minutes == pytest.approx(runs[0].minutes) for runs in comparisons for run in runs)


def test_list_and_dry_run_show_every_repetition(turns, tmp_path, capsys, monkeypatch):
    for words, said in (([], r"^twice +6 runs +about 11 m"), (["-p", "repeats", 3], r"^twice +12 runs +about 21 m")):
        assert main(turns, "--list", *words) == 0
        assert re.search(said, capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS[:1])
    assert main(turns, "twice", "--dry-run", "-p", "model", "same", "--output-dir", tmp_path / "out") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  turns-")]
    names = [line[0].split("-")[3] for line in lines]
    assert repetitions_of(list(zip(names, (0, 0, 1, 1), strict=True))) == TWICE  # two entries, one model
    assert not (tmp_path / "out").exists()


def test_repetitions_run_one_after_the_other_and_record_their_number(turns, tmp_path):
    done = call(turns, "twice", "--output-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(tmp_path)
    numbers = {record["run_id"]: (record["precision"], record["repeat"]) for record in records}
    finished = re.findall(r"^\[\d/4\] cpu0  (\S+)  ok", done.stdout, re.MULTILINE)
    assert repetitions_of([numbers[run_id] for run_id in finished]) == TWICE
    places = {record["run_id"]: record["order_in_comparison"] for record in records}
    assert [places[run_id] for run_id in finished] == [0, 1, 2, 3]
    assert {record["repeats"] for record in records} == {1}
    assert [record["study"] for record in records] == [{"name": "twice", "description": "", "show": {}}] * 4
    assert len({comparison_key(record) for record in records}) == 1
    lost = next(run_id for run_id, number in numbers.items() if number == ("amp_bf16", 1))
    (tmp_path / f"{lost}.json").unlink()
    again = call(turns, "twice", "--output-dir", tmp_path)
    assert "3 finished already and skipped" in again.stdout
    assert (tmp_path / f"{lost}.json").exists()
