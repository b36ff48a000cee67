"""What goes wrong in a long study, each of it really done; docs/reliability.md has the table.

After each: no finished record is lost, none is false, nothing is left running, and the same command completes exactly
what is missing.
"""

import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import types
from pathlib import Path

import nbformat
import pytest
from made_up_nvml import NvmlError, fake_nvml
from tiny_suite import (
    LIGHT,
    ON_CPU,
    ROOT,
    begun,
    call,
    command,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    wait_for,
    write_suite,
)

from mixed_precision_study.runner import batch, cli, execute
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import plan

BOTH = ["fp32", "amp_bf16"]
ENDS = {  # {mode: (status, part of the reason, or None)}
    "ok": ("ok", None),
    "hang": ("timeout", "--timeout"),
    "stall": ("timeout", "step 30/40"),
    "kill": ("killed", "kernel"),
    "memory": ("killed", "memory"),
    "kill_papermill": ("killed", "papermill was ended by SIGKILL"),
    "stop": ("failed", "model is 'x'; possible are tiny and small."),
    "babble": ("failed", "ValueError: no such layer"),
    "silent": ("failed", "record"),
    "late": ("ok", None),
}
ALONE = ("hang", "stall", "memory")  # each would disturb the others
STUDIES = {
    "ends": [*(entry(mode) for mode in ENDS if mode not in ALONE), entry("half", precisions=BOTH)],
    "hang": [entry("hang")],
    "stall": [entry("stall"), entry("memory")],
    "wait": [entry("second", precisions=BOTH), entry("explain", seed=1), entry(seed=2)],
    "starts": [entry(seed=seed) for seed in range(2)],
    "places": [entry(seed=seed) for seed in range(6)],
    "full": [entry(), entry("fill")],
    "edited": [entry("wait")],
    "gpus": [
        {"notebook": "tiny", "parameters": {"precisions": ["fp32"], "mode": mode}}
        for mode in ("poison", "lost", "blind", "ok")
    ],
    "gpu": [{"notebook": "tiny", "parameters": {"precisions": ["fp32"]}, "sweep": {"seed": [0, 1]}}],
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("faults"), STUDIES)


@pytest.fixture
def light(monkeypatch):
    """Runs start at once, because they are made without papermill."""
    monkeypatch.setattr(execute, "PAPERMILL", LIGHT)


def write_times(folder):
    """Return {name of a record: when it was last written}."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("tiny-*.json") if path.is_file()}


def trainings(folder):
    """Return how many trainings the last start made."""
    return json.loads((folder / "logs" / "batch.json").read_text())["trainings"]


def assert_whole(folder, count):
    """Assert that a study is complete, that every file can be read, and that no temporary one is left."""
    for path in filter(Path.is_file, folder.glob("*.ipynb")):
        nbformat.read(path, 4)
    assert not list(folder.rglob("*.tmp"))
    assert [(one["status"], one["profile_reason"]) for one in read_records(folder)] == [("ok", None)] * count


@pytest.fixture(scope="module")
def ended(suite, tmp_path_factory):
    """Studies whose runs end in every way by themselves, as {mode: record}, and their folders."""
    data, output = tmp_path_factory.mktemp("data"), suite / "ends"
    spec = data / "kernels" / "python3" / "kernel.json"  # as `ipython kernel install` of another Python leaves it
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["false"], "display_name": "Another", "language": "python"}))
    (data / "events").write_text("low 0\noom_kill 0\n")

    def end_the_stalled():
        wait_for(lambda: begun(data) and any(one["mode"] == "memory" for one in read_records(output)), 120)
        patch.setattr(execute, "STALL_SECONDS", 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        patch.setattr(execute, "OOM_COUNTERS", (str(data / "absent"), str(data / "events")))
        patch.setattr(batch, "TELL_SECONDS", 0.5)
        words = (*ON_CPU, "--output-dir", output, "-p", "data_dir", data)
        assert main(suite, "hang", *words, "--timeout", 0.05) == 1
        watcher = threading.Thread(target=end_the_stalled)
        watcher.start()
        assert main(suite, "stall", *words, "--jobs", 2) == 1
        watcher.join()
        patch.setattr(execute, "STALL_SECONDS", 3600)
        assert main(suite, "ends", *words, "--jobs", 3) == 1
        left = [process for study in ("hang", "stall", "ends") for process in survivors(study)]
        yield types.SimpleNamespace(output=output, data=data, words=words, left=left)


@pytest.mark.parametrize("mode", ENDS)
def test_each_end_leaves_its_record(ended, mode):
    record = records_of(ended.output)[mode]
    status, words = ENDS[mode]
    assert record["status"] == status
    assert (words or "") in (record["reason"] or "") and bool(words) == bool(record["reason"])
    assert len(record["code_hash"]) == 12
    assert (ended.output / "logs" / f"{record['run_id']}.log").exists() == (mode != "ok")
    assert not list((ended.output / "logs").glob("*.progress"))
    if status != "ok":
        assert record["device_type"] == "cpu" and record["study"]["name"] in STUDIES
        assert record["started_at"] <= record["finished_at"]


def test_nothing_is_left_after_these_ends_and_what_was_measured_stays(ended):
    assert ended.left == []
    assert (ended.data / "babbled").read_text() == "x"  # a long log does not hide that the kernel had started
    assert records_of(ended.output)["late"]["profile_reason"] == "RuntimeError: the chart broke"
    assert "memory" not in records_of(ended.output)["kill"]["reason"]
    said = (ended.output / "logs" / "batch.log").read_text().splitlines()
    assert any(line.endswith("  fp32, epoch 2/2, step 30/40") for line in said)  # while it ran
    half = {one["precision"]: one["status"] for one in read_records(ended.output) if one["mode"] == "half"}
    assert half == {"fp32": "ok", "amp_bf16": "killed"}


def test_the_same_command_makes_only_what_was_spoilt(suite, ended, light):
    before = write_times(ended.output)
    paths = {mode: ended.output / f"{record['run_id']}.json" for mode, record in records_of(ended.output).items()}
    paths["ok"].write_text(paths["ok"].read_text()[:700])
    paths["babble"].unlink()
    paths["silent"].write_text(paths["late"].read_text())  # the record of another run
    paths["stop"].write_text(paths["stop"].read_text().replace('"seed": 0', '"seed": "zero"'))
    assert main(suite, "ends", *ended.words, "--jobs", 2) == 1
    spoilt = {paths[mode].name for mode in ("ok", "babble", "silent", "stop")}
    after = write_times(ended.output)
    assert {name for name in after if after[name] != before[name]} == spoilt
    assert trainings(ended.output) == 4
    found = records_of(ended.output)
    assert {mode: found[mode]["status"] for mode in ENDS} == {mode: status for mode, (status, _) in ENDS.items()}
    times = json.loads((ended.output / "logs" / "batch.json").read_text())["run_seconds"]
    assert paths["ok"].stem in times and paths["babble"].stem not in times  # how long a failure took says nothing


@contextlib.contextmanager
def started(suite, data, light=True, **options):
    """Start the study `wait` and yield (process, output folder) when two runs wait: one has half of its records.

    The other has its record and explains it. A third has not begun.
    """
    words = command(suite, "wait", "--output-dir", data / "out", "--jobs", 2, "-p", "data_dir", data, light=light)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, **{**pipes, **options}) as runner:
        try:
            wait_for(lambda: len(begun(data)) == 2)
            yield runner, data / "out"
        finally:
            runner.kill()


def complete(suite, data, missing):
    """Let the runs end, give the same command again, and assert that exactly the `missing` trainings were made."""
    (data / "second" / "go").parent.mkdir()  # where leftovers of the first start do not look
    (data / "second" / "go").touch()
    before = write_times(data / "out")
    words = ("--output-dir", data / "out", "--jobs", 2, "-p", "data_dir", data / "second")
    assert call(suite, "wait", *words, light=True).returncode == 0
    assert trainings(data / "out") == missing
    after = write_times(data / "out")
    assert len(before.items() & after.items()) == 4 - missing
    assert_whole(data / "out", 4)


@pytest.mark.parametrize("frozen", [False, True])
def test_runner_is_killed_and_what_it_started_ends(suite, tmp_path, frozen):
    """By itself within ten seconds, and where it is stopped as by Ctrl-Z, by the next start at once."""
    with started(suite, tmp_path, light=False) as (runner, _):
        left = survivors("wait")
        for process in left if frozen else ():
            process.suspend()
        runner.kill()
        runner.wait()
        if not frozen:
            wait_for(lambda: not survivors("wait"), 10)
        complete(suite, tmp_path, missing=4)
    assert len(left) == 4 and not survivors("wait")


def burst(runner):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        runner.send_signal(number)
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("send", "go", "missing"),
    [
        (lambda runner: os.killpg(runner.pid, signal.SIGINT), "go-1", 3),  # as a terminal sends Ctrl-C
        (lambda runner: runner.send_signal(signal.SIGTERM), "go", 1),
        (burst, None, 4),
    ],
    ids=["once", "SIGTERM", "burst"],
)
def test_interrupted_runner_lets_end_what_can(suite, tmp_path, send, go, missing):
    with started(suite, tmp_path, light=go != "go-1", start_new_session=True) as (runner, _):
        began = time.monotonic()
        send(runner)
        if go:
            (tmp_path / go).touch()
        errors = runner.communicate(timeout=120)[1]
        seconds = time.monotonic() - began
    assert runner.returncode in (1, -signal.SIGHUP, -signal.SIGTERM)  # a signal may meet the very end of Python
    assert errors == ""
    assert seconds < (batch.GRACE_SECONDS + 10 if go else batch.GRACE_SECONDS)
    wait_for(lambda: not survivors("wait"), 10)  # what a signal kept the runner from ending ends by itself
    complete(suite, tmp_path, missing)


def test_closed_terminal_is_like_an_interrupt(suite, tmp_path):
    """The terminal is the batch's own, so the system itself tells the batch that it has gone."""
    terminal, other = pty.openpty()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

    def take_terminal():
        os.setsid()
        fcntl.ioctl(other, termios.TIOCSCTTY, 0)

    with started(suite, tmp_path, stdin=other, stdout=other, stderr=other, preexec_fn=take_terminal) as (runner, _):
        signal.signal(signal.SIGHUP, before)
        os.close(other)
        assert select.select([terminal], [], [], 60)[0] and b"wait: " in os.read(terminal, 4096)
        os.close(terminal)
        (tmp_path / "go").touch()
        assert runner.wait(timeout=120) == 1
    complete(suite, tmp_path, missing=1)


def test_folder_in_use_is_refused_and_a_copy_of_it_leaves_its_runs_alone(suite, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "go").touch()
    with started(suite, tmp_path) as (runner, output):
        for words in ((), ("--fresh",)):
            refused = call(suite, "wait", "--output-dir", output, *words)
            assert refused.returncode == 2 and f"process {runner.pid} " in refused.stderr
        shutil.copytree(output, tmp_path / "copy")
        words = ("--output-dir", tmp_path / "copy", "-p", "data_dir", data)
        assert call(suite, "wait", *words, light=True).returncode == 0
        (tmp_path / "go").touch()
        assert runner.wait(timeout=120) == 0
    assert not list(tmp_path.glob("out.archived*"))
    for folder in (output, tmp_path / "copy"):
        assert_whole(folder, 4)


def test_folder_that_is_removed_and_filled_by_the_same_command_is_the_second_ones(suite, tmp_path):
    with started(suite, tmp_path) as (first, output):
        shutil.rmtree(output)
        for mark in begun(tmp_path):
            mark.unlink()
        with started(suite, tmp_path) as (second, _):
            errors = first.communicate(timeout=120)[1]
            (tmp_path / "go").touch()
            assert second.wait(timeout=120) == 0
    assert first.returncode == 1
    assert errors.count("\n") == 1 and str(output) in errors
    assert not survivors("wait")
    assert trainings(output) == 4
    assert_whole(output, 4)


def test_start_that_fails_is_tried_again(suite, tmp_path, monkeypatch):
    """Of two kernels one dies at its first start, and one at each."""
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    dies = f"case $MIXED_PRECISION_PROGRESS in *-s1-*) exit 1;; *-s0-*) mkdir {tmp_path}/died && exit 1;; esac; "
    argv = ["sh", "-c", f"{dies} exec {sys.executable} -m ipykernel_launcher -f {{connection_file}}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Dying", "language": "python"}))
    monkeypatch.setattr(execute, "KERNELSPECS", tmp_path)
    monkeypatch.setattr(execute, "START_PAUSES", (0, 0))
    assert main(suite, "starts", *ON_CPU, "--output-dir", tmp_path / "out", "--jobs", 2) == 1
    statuses = {record["seed"]: record["status"] for record in read_records(tmp_path / "out")}
    assert statuses == {0: "ok", 1: "failed"}


def test_what_is_in_the_place_of_a_file_costs_at_most_its_own_run(suite, tmp_path, light):
    """A folder is left alone; a pipe is not waited for, and a link is not followed."""
    output, precious = tmp_path / "out", tmp_path / "precious"
    precious.write_text("mine")
    comparisons, _ = plan({"runs": STUDIES["places"]}, suite, output, {}, on_gpu=False)
    runs = {run.parameters["seed"]: run for comparison in comparisons for run in comparison}
    (output / "logs").mkdir(parents=True)
    folders = [runs[0].record_paths["fp32"], runs[1].executed, runs[2].log_path]
    for folder in folders:
        folder.mkdir()
    for path in (runs[3].record_paths["fp32"], runs[3].executed, runs[3].log_path, output / "logs" / ".started"):
        os.mkfifo(path)
    for path in (runs[4].record_paths["fp32"], runs[4].executed, runs[4].log_path):
        path.symlink_to(precious)
    runs[5].record_paths["fp32"].symlink_to("/dev/zero")
    words = (*ON_CPU, "--output-dir", output, "--jobs", 2)
    assert main(suite, "places", *words) == 1
    assert_whole(output, 3)
    assert precious.read_text() == "mine"
    for folder in folders:
        folder.rmdir()
    assert main(suite, "places", *words) == 0
    assert trainings(output) == 3
    assert_whole(output, 6)


@contextlib.contextmanager
def small_disk(folder):
    """Mount a small file system of its own at `folder`, where that is allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_stops_the_batch_and_loses_nothing(suite, tmp_path):
    """Nothing is a result of a run that found the disk full, even if its record has room again."""
    with small_disk(tmp_path / "disk") as disk:
        words = (*ON_CPU, "--output-dir", disk / "out", "-p", "data_dir", tmp_path)
        assert main(suite, "full", *words) == 1
        assert list(records_of(disk / "out")) == ["ok"] and shutil.disk_usage(disk).free > 8192
        kept = write_times(disk / "out")
        (disk / "out" / "filler").unlink()
        (tmp_path / "mended").touch()
        assert main(suite, "full", *words) == 0
        assert trainings(disk / "out") == 1
        assert kept.items() <= write_times(disk / "out").items()
        assert_whole(disk / "out", 2)


def test_code_that_is_edited_while_it_runs_makes_no_record_that_counts(tmp_path):
    """The notebook is edited, then half saved, then a module of the package is edited."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(execute.ROOT / "mixed_precision_study", tmp_path / "mixed_precision_study", ignore=ignored)
    notebook = write_suite(tmp_path, STUDIES) / "tiny.ipynb"
    text, output = notebook.read_text().replace("1234.0", "5678.0"), tmp_path / "out"
    words = command(tmp_path, "edited", "--output-dir", output, "-p", "data_dir", tmp_path, light=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    edited = []
    for path, content in (
        (notebook, text),
        (notebook, text[:200]),
        (tmp_path / "mixed_precision_study/measure/files.py", ""),
    ):
        with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as runner:
            wait_for(lambda: begun(tmp_path))
            path.write_text(content or f"{path.read_text()}\nedited = True\n")
            (tmp_path / "go").touch()
            assert runner.wait(timeout=120) == 0
        notebook.write_text(text)
        edited += [record["code_hash"] for record in read_records(output)]
        for mark in (*begun(tmp_path), tmp_path / "go"):
            mark.unlink()
    (tmp_path / "go").touch()
    subprocess.run(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, check=True)
    assert len(edited) == 3 and all(one.endswith("-edited") for one in edited)
    (record,) = read_records(output)
    assert (len(record["code_hash"]), record["samples_per_second"]) == (12, 5678.0)
    aside = [json.loads(path.read_text())["code_hash"] for path in sorted(output.glob("other_code-*/*.json"))]
    assert sorted(aside) == sorted(edited)


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Return a function that gives the runner so many made-up GPUs. One is lost when the file lost-UUID is there."""

    def memory(uuid, version=None):
        if (tmp_path / f"lost-{uuid}").exists():
            raise type("Lost", (NvmlError,), {"value": 15})("GPU is lost")
        return types.SimpleNamespace(used=2**20, total=2**30)

    def place(count):
        devices = [Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(count)]
        monkeypatch.setattr(cli, "choose_devices", lambda *words: devices)

    fake_nvml(monkeypatch, nvmlDeviceGetHandleByUUID=str, nvmlDeviceGetMemoryInfo=memory)
    return place


def test_runs_of_a_lost_gpu_go_to_another_until_two_are_lost_under_one(suite, tmp_path, gpus, light):
    """Four GPUs are lost in three ways, two of them under one run. The fifth makes the rest."""
    gpus(5)
    assert main(suite, "gpus", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path) == 1
    records = records_of(tmp_path / "out")
    statuses = {mode: record["status"] for mode, record in records.items()}
    assert statuses == {"poison": "failed", "lost": "ok", "blind": "ok", "ok": "ok"}
    assert "unspecified launch failure" in records["poison"]["reason"]
    assert len(list(tmp_path.glob("lost-*"))) == 3
    assert trainings(tmp_path / "out") == 4


def test_a_ratio_is_said_as_soon_as_it_is_known(suite, tmp_path, gpus, light, capsys):
    gpus(1)
    words = ("--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path, "-p", "precisions", "fp32, tf32")
    assert main(suite, "gpu", *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("gpu0") and "tf32 1.00x (n = 1)" in line]) >= 2


@pytest.mark.parametrize(
    ("count", "gone", "mode", "ends"),
    [
        (1, (), "poison", ["failed"]),  # the other run waits for a GPU
        (1, (0,), "ok", []),
        (3, (0, 1), "ok", ["ok", "ok"]),  # GPUs that are lost before a run are not its fault
    ],
)
def test_without_a_gpu_the_rest_waits(suite, tmp_path, gpus, light, count, gone, mode, ends):
    gpus(count)
    for number in gone:
        (tmp_path / f"lost-GPU-{number}").touch()
    words = ("--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path, "-p", "mode", mode)
    assert main(suite, "gpu", *words) == (0 if len(ends) == 2 else 1)
    assert [record["status"] for record in read_records(tmp_path / "out")] == ends
