"""What goes wrong in a long study, each of it really done.

docs/contributors/reliability.md has the table.

After each: no finished record is lost, none is false, nothing is left running, and the same command
    completes exactly
what is missing.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import types
from pathlib import Path

import nbformat
import psutil
import pytest
from conftest import CASES, on_request, read_json
from made_up_nvml import NvmlError, fake_nvml
from tiny_suite import (
    ACT,
    LIGHT,
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
from mixed_precision_study.store.record import load

ENDS = CASES["ends"]
STUDIES = {
    "ends": [
        *(entry(mode) for mode in list(ENDS)[:-3]),
        entry("half", precisions="fp32, amp_bf16"),
    ],
    **{mode: [entry(mode)] for mode in list(ENDS)[-3:]},
    "wait": [entry("second", precisions="fp32, amp_bf16"), entry("explain", seed=1), entry(seed=2)],
    "places": [entry(seed=seed) for seed in range(4)],
    "full": [entry(), entry("fill")],
    "edited": [entry("wait")],
    "blind": [entry("blind")],
    "one_gpu": [entry("lost"), *(entry(seed=seed) for seed in range(3))],
    "gpu": [{**entry(), "sweep": {"seed": [0, 1]}}],
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("faults"), STUDIES)


@pytest.fixture
def light(monkeypatch):
    """Runs start at once, because they are made without papermill."""
    monkeypatch.setattr(execute, "NOTEBOOK_PROCESS", ("-c", LIGHT))


def write_times(folder):
    return {
        path.name: path.stat().st_mtime_ns for path in folder.glob("tiny-*.json") if path.is_file()
    }


def trainings(folder):
    return read_json(folder / "logs/batch.json")["trainings"]


def assert_whole(folder, count):
    """Assert that a study is complete, that every file can be read, and that no temporary one is
    left.
    """
    for path in filter(Path.is_file, folder.glob("*.ipynb")):
        nbformat.read(path, 4)
    assert not list(folder.rglob("*.half-written"))
    assert [(one["status"], one["profile_reason"]) for one in read_records(folder)] == [
        ("ok", None)
    ] * count


@pytest.fixture(scope="module")
def ended(suite, tmp_path_factory):
    """(output folder, its records as {mode: record}, words of the command) when runs have ended
    in every way by themselves.
    """
    tmp_path = tmp_path_factory.mktemp("ended")
    output = tmp_path / "ends"
    # as `ipython kernel install` of another Python leaves it
    spec = tmp_path / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(
        json.dumps({"argv": ["false"], "display_name": "Another", "language": "python"})
    )
    (tmp_path / "events").write_text("low 0\noom_kill 0\n")
    # the first kernel ends at once
    (tmp_path / "ipykernel_launcher.py").write_text("import os\nos.remove(__file__)")
    words = ("--output-dir", output, "-p", "data_dir", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        patch.setenv("JUPYTER_PATH", str(tmp_path))
        patch.setattr(execute, "OOM_COUNTER", tmp_path / "events")
        assert main(suite, "ends", *words, "--jobs", 3) == main(suite, "memory", *words) == 1
        patch.setattr(execute, "NOTEBOOK_PROCESS", ("-c", LIGHT))
        patch.setattr(batch, "TELL_SECONDS", 0.5)
        assert main(suite, "hang", *words, "--timeout", 0.05) == 1
        patch.setattr(execute, "STALL_SECONDS", 3)
        assert main(suite, "stall", *words) == 1
    assert survivors(output) == [] == list((output / "logs").glob("*.progress"))
    return output, records_of(output), words


def test_each_end_leaves_its_record(ended):
    output, found, _ = ended
    for mode, (status, reason) in ENDS.items():
        record = found[mode]
        assert record["status"] == status, mode
        assert (reason or "") in (record["reason"] or "") and bool(reason) == bool(
            record["reason"]
        ), mode
        assert (output / f"logs/{record['run_id']}.log").exists() == (mode != "ok")
        if status != "ok":
            assert (record["device_type"], len(record["code_hash"])) == ("cpu", 12)
            assert record["study"]["name"] in STUDIES


def test_what_was_measured_before_the_end_stays(ended):
    output, found, _ = ended
    half = {
        one["precision"]: one["status"]
        for one in read_records(output)
        if one["settings"]["mode"] == "half"
    }
    assert half == {"fp32": "ok", "amp_bf16": "killed"}  # what was measured stays
    assert found["late"]["profile_reason"] == "RuntimeError: the chart broke"


def test_the_same_command_makes_only_what_was_spoilt(suite, ended, light):
    output, found, words = ended
    # while it ran
    assert "  fp32, epoch 2/2, step 30/40\n" in (output / "logs/batch.log").read_text()
    before = write_times(output)
    paths = {mode: output / f"{record['run_id']}.json" for mode, record in found.items()}
    paths["ok"].write_text(paths["ok"].read_text()[:700])
    paths["fail"].unlink()
    paths["silent"].write_text(paths["late"].read_text())  # the record of another run
    paths["stop"].write_text(paths["stop"].read_text().replace('"seed": 0', '"seed": "zero"'))
    assert main(suite, "ends", *words, "--jobs", 2) == 1
    after, spoilt = (
        write_times(output),
        {paths[mode].name for mode in ("ok", "fail", "silent", "stop")},
    )
    assert {name for name in after if after[name] != before[name]} == spoilt
    assert trainings(output) == 4
    assert [record["status"] for record in records_of(output).values()] == [
        one["status"] for one in found.values()
    ]
    times = read_json(output / "logs/batch.json")["run_seconds"]
    # how long a failure took says nothing
    assert paths["ok"].stem in times and paths["fail"].stem not in times


DAEMONS = {  # ways to leave a process that no longer hangs on the notebook
    "setsid": "os.system('setsid sleep {} >/dev/null 2>&1 &')",
    "nohup": (
        "subprocess.Popen(['nohup', 'sleep', '{}'], start_new_session=True, stdout=-3, stderr=-3)"
    ),
    "bare": "os.system('env -i setsid sleep {} >/dev/null 2>&1 &')",
    "forked": (
        "os.fork() or (os.setsid(), os.fork() or os.execlp('sleep', 'sleep', '{}'), os._exit(0))"
    ),
}


def sleeping(seconds):
    """Return the processes that sleep for so many seconds."""
    found = (one.info for one in psutil.process_iter(["pid", "cmdline"]))
    return [one["pid"] for one in found if (one["cmdline"] or [])[-1:] == [str(seconds)]]


ENDINGS = {  # how a notebook goes on when it has started them: (source, status of its record)
    "ended": ("", "ok"),
    "timeout": ("time.sleep(600)", "timeout"),
    "killed": ("time.sleep(3)\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)", "killed"),
}


@pytest.mark.parametrize("ending", on_request(ENDINGS, "timeout", "killed"))
def test_what_a_notebook_leaves_in_the_background_ends_with_it(tmp_path, ending):
    place, (last, status) = list(ENDINGS).index(ending), ENDINGS[ending]
    numbers = {name: 100_003 + 10 * number + place for number, name in enumerate(DAEMONS)}
    lines = [source.format(numbers[name]) for name, source in DAEMONS.items()]
    lines += ["import warnings", "warnings.warn('odd')", last]
    write_suite(tmp_path, {"one": [entry()]}, "\n".join([ACT, *lines]))
    limit = ("--timeout", 0.2) if ending == "timeout" else ()
    done = call(tmp_path, "one", "--output-dir", tmp_path / "out", *limit)
    assert [name for name, number in numbers.items() if sleeping(number)] == []
    if status == "ok":
        said = [path.read_text() for path in (tmp_path / "out").glob("tiny-*.ipynb")]
        assert ["UserWarning: odd" in text and "py:" not in text for text in said] == [True]
    (record,) = read_records(tmp_path / "out")
    assert (record["status"], done.returncode) == (status, int(status != "ok")), done.stdout


@contextlib.contextmanager
def started(suite, data, light=True):
    """Start the study `wait` and yield (process, output folder) when two runs wait: one has half of
    its records.

    The other has its record and explains it. A third has not begun.
    """
    words = command(
        suite,
        "wait",
        "--output-dir",
        data / "out",
        "--jobs",
        2,
        "-p",
        "data_dir",
        data,
        light=light,
    )
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    # the tests may run under nohup
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(words, **pipes) as runner:
        try:
            wait_for(lambda: len([*data.glob("begun-*")]) == 2)
            yield runner, data / "out"
        finally:
            runner.kill()


def complete(suite, data, missing):
    """Let the runs end, give the same command again, and assert that exactly the `missing`
    trainings were made.
    """
    (data / "second/go").parent.mkdir()  # where leftovers of the first start do not look
    (data / "second/go").touch()
    before = write_times(data / "out")
    words = ("--output-dir", data / "out", "--jobs", 2, "-p", "data_dir", data / "second")
    assert call(suite, "wait", *words, light=True).returncode == 0
    assert trainings(data / "out") == missing
    assert len(before.items() & write_times(data / "out").items()) == 4 - missing
    assert_whole(data / "out", 4)


@pytest.mark.parametrize("frozen", on_request([False, True], True))
def test_runner_is_killed_and_what_it_started_ends(suite, tmp_path, frozen):
    """By itself within ten seconds, and where it is stopped as by Ctrl-Z, by the next start at
    once.
    """
    with started(suite, tmp_path, light=False) as (runner, output):
        left = survivors(output)
        for process in left if frozen else ():
            process.suspend()
        runner.kill()
        runner.wait()
        if not frozen:
            wait_for(lambda: not survivors(output), 10)
        names = (".a.json.4711.half-written", "logs/.batch.json.4711.half-written")
        for path in [output / name for name in names]:
            path.touch()
        complete(suite, tmp_path, missing=4)
    assert len(left) == 4 and not survivors(output)


@pytest.mark.parametrize(
    "signals, go, missing",
    [
        ([signal.SIGINT], "go-1", 3),  # to all, as a terminal sends Ctrl-C
        pytest.param([signal.SIGTERM], "go", 1, marks=pytest.mark.exhaustive),
        # as of a terminal that was closed
        pytest.param([signal.SIGHUP], "go", 1, marks=pytest.mark.exhaustive),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM], None, 4),
    ],
)
def test_interrupted_runner_lets_end_what_can(suite, tmp_path, signals, go, missing):
    """Nobody reads any more what it says."""
    with started(suite, tmp_path, light=go != "go-1") as (runner, output):
        began = time.monotonic()
        runner.stdout.close()
        for number in signals:
            os.killpg(runner.pid, number) if go == "go-1" else runner.send_signal(number)
            time.sleep(0.1 if len(signals) > 1 else 0)
        if go:
            (tmp_path / go).touch()
        assert runner.stderr.read() == ""
        # a signal may meet the end of Python
        assert runner.wait(timeout=120) in (1, -signal.SIGHUP, -signal.SIGTERM)
        assert time.monotonic() - began < (batch.GRACE_SECONDS + 10 if go else batch.GRACE_SECONDS)
    # what a signal kept the runner from ending ends by itself
    wait_for(lambda: not survivors(output), 10)
    complete(suite, tmp_path, missing)


def test_folder_in_use_is_refused_and_a_copy_is_not(suite, tmp_path):
    with started(suite, tmp_path) as (runner, output):
        for words in ((), ("--fresh",)):
            refused = call(suite, "wait", "--output-dir", output, *words)
            assert (refused.returncode, refused.stderr.count("\n")) == (
                2,
                1,
            ) and "in use" in refused.stderr
        # whoever can open it can hold it
        assert (output / "logs/.lock").stat().st_mode & 0o777 == 0o600
        shutil.copytree(output, tmp_path / "copy")
        (tmp_path / "data").mkdir()
        (tmp_path / "data/go").touch()
        words = ("--output-dir", tmp_path / "copy", "-p", "data_dir", tmp_path / "data")
        assert call(suite, "wait", *words, light=True).returncode == 0
        (tmp_path / "go").touch()
        assert runner.wait(timeout=120) == 0
    assert not list(tmp_path.glob("out.archived*"))
    for folder in (output, tmp_path / "copy"):
        assert_whole(folder, 4)


def test_folder_that_is_removed_is_the_second_ones(suite, tmp_path):
    with started(suite, tmp_path) as (first, output):
        shutil.rmtree(output)
        for mark in sorted(tmp_path.glob("begun-*")):
            mark.unlink()
        with started(suite, tmp_path) as (second, _):
            errors = first.communicate(timeout=120)[1]
            (tmp_path / "go").touch()
            assert second.wait(timeout=120) == 0
    assert first.returncode == 1
    assert errors.count("\n") == 1 and str(output) in errors
    assert not survivors(output)
    assert trainings(output) == 4
    assert_whole(output, 4)


def test_odd_files_are_not_waited_for_and_not_followed(suite, tmp_path, light):
    """A folder in its place ends the batch, but is left alone."""
    output, precious = tmp_path / "out", tmp_path / "precious"
    precious.write_text("mine")
    runs = [run for (run,) in plan({"runs": STUDIES["places"]}, suite, output, {}, on_gpu=False)[0]]
    (output / "logs").mkdir(parents=True)
    records = [path for run in runs for path in run.record_paths.values()]
    for path in (records[0], runs[0].executed, runs[0].log_path):
        os.mkfifo(path)
    for path in (
        records[1],
        runs[1].executed,
        runs[1].log_path,
        output / "logs/batch.log",
    ):
        path.symlink_to(precious)
    records[2].symlink_to("/dev/zero")
    runs[3].executed.mkdir()
    words = ("--output-dir", output)
    assert main(suite, "places", *words) == 1
    assert_whole(output, 3)
    assert precious.read_text() == "mine"
    runs[3].executed.rmdir()
    assert main(suite, "places", *words) == 0
    assert trainings(output) == 1
    assert_whole(output, 4)


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, where that is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_stops_the_batch_and_loses_nothing(suite, tmp_path, disk):
    """Nothing is a result of a run that found the disk full, even if its record has room again."""
    words = ("--output-dir", disk / "out", "-p", "data_dir", tmp_path)
    assert main(suite, "full", *words) == 1
    assert list(records_of(disk / "out")) == ["ok"] and shutil.disk_usage(disk).free > 8192
    kept = write_times(disk / "out")
    (disk / "out/filler").unlink()
    (tmp_path / "mended").touch()
    assert main(suite, "full", *words) == 0
    assert trainings(disk / "out") == 1
    assert kept.items() <= write_times(disk / "out").items()
    assert_whole(disk / "out", 2)


def test_code_that_is_edited_makes_no_record_that_counts(tmp_path):
    """The notebook is edited, then half saved, then a module of the package is edited."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        execute.ROOT / "mixed_precision_study", tmp_path / "mixed_precision_study", ignore=ignored
    )
    notebook = write_suite(tmp_path, STUDIES) / "tiny.ipynb"
    text, output = notebook.read_text().replace("1234.0", "5678.0"), tmp_path / "out"
    module = tmp_path / "mixed_precision_study/store/files.py"
    words = command(
        tmp_path,
        "edited",
        "--output-dir",
        output,
        "-p",
        "data_dir",
        tmp_path,
        light=True,
        root=tmp_path,
    )
    edited = []
    for path, content in (
        (notebook, text),
        (notebook, text[:200]),
        (module, f"{module.read_text()}\nedited = True\n"),
    ):
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) as runner:
            wait_for(lambda: [*tmp_path.glob("begun-*")])
            path.write_text(content)
            (tmp_path / "go").touch()
            assert runner.wait(timeout=120) == 0
        notebook.write_text(text)
        edited += [record["code_hash"] for record in read_records(output)]
        for mark in (*tmp_path.glob("begun-*"), tmp_path / "go"):
            mark.unlink()
    (tmp_path / "go").touch()
    subprocess.run(words, cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    assert len(edited) == 3 and all(one.endswith("-edited") for one in edited)
    (record,) = read_records(output)
    assert (len(record["code_hash"]), record["samples_per_second"]) == (12, 5678.0)
    aside = [load(path).code_hash for path in sorted(output.glob("other_code-*/*.json"))]
    assert sorted(aside) == sorted(edited)


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Return a function that gives the runner so many made-up GPUs.

    One is lost when the file lost-UUID is there.
    """

    def memory(uuid, version=None):
        if (tmp_path / f"lost-{uuid}").exists():
            raise NvmlError("GPU is lost", 15)
        return types.SimpleNamespace(used=2**20, total=2**37)

    def place(count):
        devices = [
            Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(count)
        ]
        monkeypatch.setattr(cli, "choose_devices", lambda *words: devices)

    fake_nvml(monkeypatch, nvmlDeviceGetHandleByUUID=str, nvmlDeviceGetMemoryInfo=memory)
    return place


def test_what_a_lost_gpu_should_run_goes_to_another(suite, tmp_path, gpus, light):
    gpus(2)
    words = ("--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    assert main(suite, "one_gpu", *words) == 1
    assert trainings(tmp_path / "out") == 4
    lost, *others = sorted(read_records(tmp_path / "out"), key=lambda record: record["status"])
    assert lost["settings"]["mode"] == "lost" and "unspecified launch failure" in lost["reason"]
    assert [record["status"] for record in others] == ["ok"] * 3
    assert "1" in {record["gpu_uuid"].removeprefix("GPU-") for record in others}


def test_a_run_that_found_no_gpu_is_failed(suite, tmp_path, gpus, light):
    gpus(2)
    words = ("--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    assert main(suite, "blind", *words) == 1  # it found no GPU, so it ran on the CPU
    assert "CPU" in records_of(tmp_path / "out")["blind"]["reason"]


@pytest.mark.parametrize(
    "count, gone, mode, ends",
    CASES["gpus that are lost"],
)
def test_without_a_gpu_the_rest_waits(
    suite, tmp_path, gpus, light, capsys, count, gone, mode, ends
):
    """A ratio is said as soon as it is known."""
    gpus(count)
    for number in gone:
        (tmp_path / f"lost-GPU-{number}").touch()
    words = ("--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path, "-p", "mode", mode)
    assert main(suite, "gpu", *words, "-p", "precisions", "fp32, tf32") == (
        0 if len(ends) == 4 else 1
    )
    assert [record["status"] for record in read_records(tmp_path / "out")] == ends
    assert ("fp32 1.00x (n = 1)" in capsys.readouterr().out) == ("ok" in ends)
