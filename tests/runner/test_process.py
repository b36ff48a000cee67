"""What surrounds a run: the lock of its folder, what a killed runner leaves, and how a lost GPU is recognised."""

import os
import subprocess
import types

import psutil
import pytest
from made_up_nvml import NvmlError, fake_nvml

from mixed_precision_study.measure import nvml
from mixed_precision_study.parameters import UserError
from mixed_precision_study.runner import execute, folder, status
from mixed_precision_study.runner.watch import is_alive

FAULT = "CUDA error: unspecified launch failure"


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that sets what NVML says of the only GPU: MiB used, or the number of an error with a minus."""
    states = []

    def memory(uuid, version=None):
        if states[-1] < 0:
            raise type("Failed", (NvmlError,), {"value": -states[-1]})("no answer")
        return types.SimpleNamespace(used=states[-1] * 2**20, total=2**30)

    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=memory)
    return states.append


@pytest.mark.parametrize(
    ("state", "text", "answered", "lost"),
    [
        (-15, "anything", True, True),  # NVML_ERROR_GPU_IS_LOST
        (-6, "anything", True, True),  # NVML_ERROR_NOT_FOUND
        (10, FAULT, True, False),  # the GPU answers, so the program is at fault
        (-999, FAULT, True, True),  # it no longer answers
        (-999, FAULT, False, False),  # it never did
        (-999, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", False, True),
        (-999, "ValueError: no such layer", True, False),
    ],
)
def test_lost_gpu_is_known_from_other_failures(gpu, state, text, answered, lost):
    gpu(state)
    assert nvml.is_lost("GPU-0", text, answered) is lost


@pytest.mark.parametrize(("state", "free"), [(500, False), (120, True), (-15, True), (-999, True)])
def test_next_run_waits_until_the_memory_is_free(gpu, state, free):
    gpu(state)
    assert nvml.memory_is_free("GPU-0", nvml.GpuState(100, 1024, 0)) is free
    assert nvml.memory_is_free("GPU-0", None)


@pytest.mark.parametrize("text", ["low 0\noom 2\noom_kill 2\n", "under_oom 0\noom_kill 2\n", "oom_group 2\n"])
def test_kills_for_want_of_memory_are_counted(tmp_path, monkeypatch, text):
    (tmp_path / "events").write_text(text)
    monkeypatch.setattr(execute, "OOM_COUNTERS", (str(tmp_path / "absent"), str(tmp_path / "events")))
    assert execute.oom_kills() == (2 if "oom_kill" in text else None)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("frame\n\nRuntimeError: CUDA error\nCompile with X.\n", "RuntimeError: CUDA error Compile with X."),
        ("Traceback:\n  File x\npapermill.exceptions.PapermillError: no\n", "papermill.exceptions.PapermillError: no"),
        ("An Error here\n\nStopped: give another model.\n", "give another model."),
        ("it says\nnothing else", "nothing else"),
        (f"ValueError: {execute.ROOT}/a.csv", "ValueError: a.csv"),
    ],
)
def test_reason_is_the_error_at_the_end_of_the_log(tmp_path, log, reason):
    (tmp_path / "log").write_text(log)
    assert execute.failure_reason(types.SimpleNamespace(log_path=tmp_path / "log")) == reason


@pytest.mark.parametrize("size", [0, 50, 150, 5000])
def test_of_a_long_log_beginning_and_end_are_read(tmp_path, monkeypatch, size):
    monkeypatch.setattr(execute, "LOG_BYTES", 100)
    text = f"begins{'-' * size}ends"
    (tmp_path / "log").write_text(text)
    found = execute.read_log(types.SimpleNamespace(log_path=tmp_path / "log"))
    assert found == (text if len(text) <= 200 else text[:100] + text[-100:])


def test_clock_that_is_set_makes_no_process_another_one(monkeypatch):
    """A kernel asks every two seconds whether its runner lives; the start time that psutil shows follows the clock."""
    runner = psutil.Process()
    shown = runner.create_time()
    boot = psutil._psplatform.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 3600)
    assert psutil.Process().create_time() != shown
    assert is_alive(runner)


@pytest.mark.parametrize("owner_lives", [False, True])
def test_next_start_ends_what_a_killed_runner_has_left(tmp_path, owner_lives):
    """The noted process ends where its runner is gone. One that only has the number of a dead one goes on."""
    logs, started = tmp_path / "logs", tmp_path / folder.STARTED
    logs.mkdir()
    half = [tmp_path / ".a-run.json.4711.tmp", tmp_path / ".a-run.ipynb.4711.tmp", logs / ".batch.json.4711.tmp"]
    for path in (*half, tmp_path / ".my.tmp"):
        path.touch()
    noted, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        for process in (psutil.Process(), psutil.Process(noted.pid)):
            folder.note_started(tmp_path, process)
        runner, line = started.read_text().splitlines()
        started.write_text(f"{runner}{'' if owner_lives else '9'}\n{line}\n{other.pid} 1.00\nspoilt\n")
        with folder.held(tmp_path, False):
            assert (noted.poll() is None) == owner_lives
            assert other.poll() is None
            assert not any(path.exists() for path in half)
            assert started.read_text() == f"{runner}\n"
    finally:
        noted.kill()
        other.kill()
        noted.wait()
        other.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".my.tmp", "logs"]


def test_what_the_runner_writes_into_its_logs_follows_no_link(tmp_path):
    """An output folder may come from anywhere, and the name of a temporary file can be foreseen."""
    precious, logs = tmp_path / "precious", tmp_path / "out" / "logs"
    precious.write_text("mine")
    logs.mkdir(parents=True)
    for name in ("batch.log", ".started"):
        (logs / name).symlink_to(precious)
    with folder.held(tmp_path / "out", False), pytest.raises(UserError, match=f"process {os.getpid()} "):
        folder.held(tmp_path / "out", False).__enter__()
    assert (logs / ".lock").stat().st_mode & 0o777 == 0o600  # whoever can open it can hold it
    with status.log_in(tmp_path / "out"):
        status.say("one line")
    assert precious.read_text() == "mine" and "one line" in (logs / "batch.log").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "logs").symlink_to(elsewhere)
    with pytest.raises(UserError):
        folder.make(tmp_path)
    assert not list(elsewhere.iterdir())
