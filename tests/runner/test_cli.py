"""The command line on tiny notebooks: what it plans, refuses, starts, skips, sets aside and sums up."""

import contextlib
import os
import re
import subprocess
import sys
import types
from unittest.mock import Mock

import pytest
from tiny_suite import (
    LIGHT,
    ON_CPU,
    PARAMETERS,
    ROOT,
    call,
    command,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    wait_for,
    write_notebook,
    write_run,
    write_suite,
)

from mixed_precision_study.runner import cli, execute, folder
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.status import read_seconds, shown
from mixed_precision_study.runner.studies import parse_overrides, relative_to_root

BOTH = ["fp32", "amp_bf16"]
STUDIES = {
    "mix": [entry(precisions=BOTH, lr=1), entry("late"), entry("fail")],
    "one": [entry()],
    "flaky": [entry("flaky")],
    "hang": [entry("hang", precisions=BOTH)],
    "both": [entry(), {**entry(), "notebook": "small"}],
    "gpu_only": [{"notebook": "tiny", "minutes": 4, "sweep": {"model": ["a", "b"], "seed": [0, 1]}}],
}
SUMMARY = (
    'records_dir = "."',
    "from pathlib import Path\nprint(len(list(Path(records_dir).glob('*.json'))), 'records')\n"
    "if 'broken' in Path(records_dir).name: raise ValueError",
)


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with studies, the notebooks they run and a summary."""
    place = tmp_path_factory.mktemp("suite")
    write_notebook(place / "summary.ipynb", *SUMMARY)
    write_notebook(place / "small.ipynb", PARAMETERS.replace('csv_path = ""\n', ""), "raise SystemExit(1)")
    return write_suite(place, STUDIES)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The same without a summary, which takes longer than a tiny run."""
    return write_suite(tmp_path_factory.mktemp("bare"), {name: STUDIES[name] for name in ("flaky", "hang")})


def comparisons_of(suite, output, study, *pairs, on_gpu=False):
    return plan({"runs": STUDIES[study]}, suite, output, parse_overrides(pairs), on_gpu)[0]


# Batches of tiny runs


@pytest.fixture(scope="module")
def mix(suite):
    """A study whose runs end well, fail, and fail after their record; and its output folder."""
    output = suite / "mixed {ends} [1]"  # papermill puts parameters into braces, nbconvert looks for patterns
    return call(suite, "mix", "--output-dir", output, "--jobs", 2), output


def test_a_batch_leaves_a_record_of_each_training_and_a_report(mix):
    done, output = mix
    records = read_records(output)
    assert done.returncode == 1 and not survivors("mix")
    assert sorted((record["mode"], record["status"]) for record in records) == [
        ("fail", "failed"),
        ("late", "ok"),
        ("ok", "ok"),
        ("ok", "ok"),
    ]
    assert {(record["precision"], record["lr"]) for record in records if record["mode"] == "ok"} == {
        (precision, 1.0) for precision in BOTH
    }
    assert {record["study"]["name"] for record in records} == {"mix"}
    for mode, record in records_of(output).items():
        executed = list(output.glob(f"*{'2_precisions' if mode == 'ok' else record['run_id']}*.ipynb"))
        assert len(executed) == 1 and "study mix" in executed[0].read_text()
        assert (output / "logs" / f"{executed[0].stem}.log").exists() is (mode != "ok")
    for page in ("summary.ipynb", "summary.html"):
        assert "4 records" in (output / page).read_text(encoding="utf-8")
    lines = done.stdout.splitlines()
    assert len([line for line in lines if re.match(r"\[\d/4\] cpu[01]  tiny-", line)]) == 4
    assert len([line for line in lines if line.endswith("begins")]) == 3
    for record in records:  # named when it ends, and in the last table
        assert len([line for line in lines if record["run_id"] in line and f" {record['status']} " in line]) >= 2
    assert "it/s" not in done.stderr + done.stdout  # no bar where there is no terminal


def test_a_second_start_executes_nothing_and_a_dry_run_marks_what_is_finished(
    suite, mix, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(cli, "summarise", Mock(return_value=True))
    _, output = mix

    def times():
        return {path: path.stat().st_mtime_ns for path in output.rglob("*")}

    before = times()
    assert main(suite, "mix", *ON_CPU, "--output-dir", output, "--dry-run", "--retry-failed") == 0
    said = capsys.readouterr().out
    assert (said.count("tiny-tiny-auto"), said.count("(finished)")) == (3, 2)
    assert main(suite, "mix", *ON_CPU, "--output-dir", tmp_path / "nowhere", "--dry-run") == 0
    assert "(finished)" not in capsys.readouterr().out and not (tmp_path / "nowhere").exists()
    assert times() == before
    assert main(suite, "mix", *ON_CPU, "--output-dir", output) == 1  # what failed is still failed
    assert not [path for path, time in times().items() if path.name.startswith("tiny-") and time != before[path]]


def test_retry_failed_and_fresh(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "PAPERMILL", LIGHT)
    output, data = tmp_path / "out", tmp_path / "data"
    data.mkdir()
    words = ("flaky", *ON_CPU, "--output-dir", output, "-p", "data_dir", data)
    statuses = []
    for mended, option, status in (
        (False, (), 1),
        (True, (), 1),
        (True, ("--retry-failed",), 0),
        (True, ("--fresh",), 0),
    ):
        if mended:
            (data / "mended").touch()
        assert main(bare, *words, *option) == status
        statuses.append(records_of(output)["flaky"]["status"])
    assert statuses == ["failed", "failed", "ok", "ok"]
    (archive,) = tmp_path.glob("out.archived-*")
    assert len(read_records(archive)) == len(read_records(output)) == 1


def test_one_notebook_of_a_study_an_unreadable_record_and_a_broken_report(suite, tmp_path):
    """The folder is named from where the user stands, and settings of Python do not matter."""
    (tmp_path / "mixed_precision_study.py").write_text("raise SystemExit('a foreign module')")
    output = tmp_path / "broken"
    output.mkdir()
    pairs = (("tiny.seed", "7"), ("seed", "3"))
    ((run,), _) = comparisons_of(suite, output, "both", *pairs)
    path = run.record_paths["fp32"]
    path.write_text('{"run_id": "tiny')
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2"}
    words = ("both/tiny", "--output-dir", "broken", "-p", *pairs[0], "-p", *pairs[1])
    done = call(suite, *words, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert [(record["notebook"], record["seed"], record["status"]) for record in read_records(output)] == [
        ("tiny", 7, "ok")
    ]
    assert os.path.join("broken", "logs", "summary.log") in done.stdout
    assert (output / "logs" / "summary.log").is_file() and not (output / "summary.html").exists()


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_sigterm_ends_all_and_writes_no_record(bare, tmp_path):
    """With a closed output, which does not matter either."""
    words = ["sh", "-c", 'exec "$@" >&-', "sh", *command(bare, "hang", "--output-dir", tmp_path, light=True)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    wait_for(lambda: len(survivors("hang")) == 2)  # the run and its child
    process.terminate()
    _, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (1, "")
    assert "0 of 2 trainings" in (tmp_path / "logs" / "batch.log").read_text()
    assert not list(tmp_path.glob("*.json")) and not survivors("hang")


def test_interrupt_counts_what_the_same_command_would_skip(bare, tmp_path, monkeypatch, capsys):
    ((run,),) = comparisons_of(bare, tmp_path, "hang")
    write_run(run, status="failed", reason="broken")
    monkeypatch.setattr(cli, "Batch", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(cli, "summarise", Mock(side_effect=KeyboardInterrupt))
    for option, kept in (((), 2), (("--retry-failed",), 0)):
        assert main(bare, "hang", *ON_CPU, "--output-dir", tmp_path, *option) == 1
        assert re.findall(r"(\d) of (\d) trainings of hang", capsys.readouterr().out) == [(str(kept), "2")]


def test_a_report_that_hangs_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "REPORT_SECONDS", 0.1)
    (tmp_path / "logs").mkdir()
    write_notebook(tmp_path / "source.ipynb", 'records_dir = "."', "import time; time.sleep(600)")
    assert cli.summarise("hanging", tmp_path, tmp_path / "source.ipynb") is False
    assert not survivors("hanging")


# Wrong requests: one sentence that names what is wrong, and nothing is written

WRONG = {
    "nosuch": ["nosuch"],
    "there": ["there/tiny"],
    "epoch": ["one", "-p", "epoch", "3"],
    "--batch-size": ["one", "--batch-size", "3"],
    "batch_size": ["one", "-p", "batch_size", "1.5"],
    "GPU 99": ["one", "--gpus", "99"],
    "gpu_only": ["gpu_only"],
    "--gpus": ["one", "--ray", "auto", "--gpus", "0"],
    "--jobs 0": ["one", "--jobs", "0"],
    "--jobs 100000000": ["one", "--jobs", "100000000"],
    "-p lr " + "[" * 100 + "...": ["one", "-p", "lr", "[" * 400],
    "--timeout 0": ["one", "--timeout", "0"],
    "'x'": ["one", "--timeout", "x"],
    "'\\udcff'": ["one", "--output-dir", "\udcff"],
    "'/\\udcff'": ["one", "-p", "data_dir", "/\udcff"],
    "--output-dir '~nosuchuser/x'": ["one", "--output-dir", "~nosuchuser/x"],
    "--output-dir is": ["one", "--output-dir", ""],
    "--ray is": ["one", "--ray", ""],
    "/nowhere.csv": ["one", "-p", "csv_path", "/nowhere.csv"],
    "9" * 19: ["one", "-p", "batch_size", "9" * 400],
    "x" * 50: ["one", "-p", "model", "x" * 300],
    "file": ["one", "--output-dir", "file"],
    "below": ["one", "--output-dir", "file/below/it"],
    "/file": ["one", "-p", "data_dir", "file"],
    "csv_path ": ["one", "-p", "tiny.csv_path", "folder"],
    "loop": ["one", "--output-dir", "loop"],
    "away": ["one", "--fresh", "--output-dir", "."],
    "home": ["one", "--fresh", "--output-dir", "home"],
    "cifar": ["--parameters", "cifar"],
}


@pytest.mark.parametrize("named, words", WRONG.items(), ids=[" ".join(words)[:50] for words in WRONG.values()])
def test_a_wrong_request_is_one_sentence_and_writes_nothing(suite, tmp_path, capsys, named, words):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "home" / "letters").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    output = [] if "--output-dir" in words else ["--output-dir", "new/out"]
    assert main(suite, *ON_CPU, *output, *words) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["absent", "torn", "untagged", "deep"])
def test_a_notebook_that_cannot_be_run_is_one_sentence(tmp_path, capsys, name):
    (tmp_path / "studies.yaml").write_text(f"one: {{runs: [{{notebook: {name}, cpu: {{}}}}]}}")
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS)
    (tmp_path / "untagged.ipynb").write_text((tmp_path / "tiny.ipynb").read_text().replace("parameters", "words"))
    assert main(tmp_path, "one", *ON_CPU, "--dry-run") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and name in said


def test_what_is_refused_or_listed_loads_neither_pytorch_nor_papermill(tmp_path):
    """With the notebooks of the suite, in seconds that leave no room for it: timm loads PyTorch."""
    (tmp_path / "file").touch()
    for name in ("torch", "papermill"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w'); raise ImportError")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
    code += "from mixed_precision_study.runner import cli\nprint([cli.main(words.split()) for words in sys.argv[1:]])"
    wrong = ("quick --gpus none --output-dir file", "quick/cifar_resnet --gpus none --output-dir out -p model resnt18")
    done = subprocess.run([sys.executable, "-c", code, *wrong, "--list"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["[2, 2, 0]"], done.stderr
    assert len(done.stderr.splitlines()) == 2 and "resnet18" in done.stderr
    assert len(done.stdout.splitlines()) == 2 * len(cli.load_studies(cli.STUDIES_FILE)) + 1
    assert not (tmp_path / "loaded").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "names"), [(["--dry-run"], {"quick"}), (["ladder", "--list"], {"ladder"})])
def test_only_what_is_asked_for_is_run_or_listed_and_else_quick(capsys, words, names):
    assert cli.main(["--gpus", "none", *words]) == 0
    said = {line.split()[0].rstrip(":") for line in capsys.readouterr().out.splitlines() if line[0] != " "}
    assert said & set(cli.load_studies(cli.STUDIES_FILE)) == names


def test_the_parameters_of_a_notebook_are_listed(capsys):
    assert cli.main(["--parameters", "cifar_resnet.ipynb"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} = " in said for name in cli.EXPERIMENTS["cifar_resnet"].model_fields)


def test_csv_is_looked_for_where_the_runs_are(suite, tmp_path, monkeypatch):
    nodes = types.SimpleNamespace(devices=lambda: [Device(0, "ray")])
    monkeypatch.setattr(cli.ray_tasks, "connected", lambda *given: contextlib.nullcontext(nodes))
    assert main(suite, "one", "--dry-run", "-p", "csv_path", "/nowhere.csv", "--ray", "auto") == 0
    (tmp_path / "my.csv").touch()
    assert main(suite, "one", *ON_CPU, "--dry-run", "-p", "csv_path", "my.csv") == 0


def test_a_folder_that_cannot_be_locked_or_moved_is_one_sentence(suite, tmp_path, capsys, monkeypatch):
    """Its lock is another user's, the file system knows none, another run_all.py holds it, or it is a mount point."""
    for name in ("flaky", "one"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "batch.log").touch()
    words = ("flaky", "one", *ON_CPU, "--output-dir", tmp_path, "--fresh")
    with folder.locked(tmp_path / "one"):
        assert main(suite, *words) == 2
    monkeypatch.setattr(folder.Path, "rename", Mock(side_effect=OSError(16, "Device or resource busy")))
    assert main(suite, *words) == 1
    for error in (PermissionError(13, "Permission denied"), NotImplementedError("no flock"), OSError(38, "No flock")):
        monkeypatch.setattr(folder.FileLock, "acquire", Mock(side_effect=error))
        assert main(suite, "one", *ON_CPU, "--output-dir", tmp_path / "one") == 2
    assert capsys.readouterr().err.count("\n") == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flaky", "one"]  # none was set aside


@pytest.mark.parametrize("text", ['{"run_seconds": {"x": null}}', '{"run_seconds": [3]}', "[]", "{"])
def test_times_that_cannot_be_read_are_not_known(tmp_path, text):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "batch.json").write_text(text)
    assert read_seconds(tmp_path) == {}


def test_paths_are_relative_to_the_suite_in_records_and_to_the_user_in_messages(tmp_path):
    assert relative_to_root(ROOT / "outputs" / "quick") == "outputs/quick"
    assert relative_to_root(tmp_path) == tmp_path.resolve().as_posix()
    assert parse_overrides([("data_dir", "here")])["data_dir"] == (tmp_path.resolve() / "here").as_posix()
    assert (shown("mine"), shown(ROOT / "outputs")) == ("mine", str(ROOT / "outputs"))
