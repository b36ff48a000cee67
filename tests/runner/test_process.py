"""What surrounds a run: why it failed, and how a lost GPU is recognised."""

import types

import psutil
import pytest
from made_up_nvml import NvmlError, fake_nvml

from mixed_precision_study.measure import nvml
from mixed_precision_study.runner import execute
from mixed_precision_study.runner.watch import is_alive

FAULT = "CUDA error: unspecified launch failure"


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that sets what NVML says of the only GPU: MiB used, or the number of an error with a minus."""
    states = []

    def memory(uuid, version=None):
        if states[-1] < 0:
            raise NvmlError("no answer", -states[-1])
        return types.SimpleNamespace(used=states[-1] * 2**20)

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
    assert nvml.memory_is_free("GPU-0", 100) is free
    assert nvml.memory_is_free("GPU-0", None)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("frame\n\nRuntimeError: CUDA error\nCompile with X.\n", "RuntimeError: CUDA error Compile with X."),
        ("Traceback:\n  File x\npapermill.exceptions.PapermillError: no\n", "papermill.exceptions.PapermillError: no"),
        ("An Error here\n\nStopped: give another model.\n", "give another model."),
        ("Error occurred while it started\n  File x\nRuntimeError: Kernel died\n", "RuntimeError: Kernel died"),
        ("it says\nnothing else", "nothing else"),
        ("", "it ended without a word"),
        (f"ValueError: {execute.ROOT}/a.csv", "ValueError: a.csv"),
        (f"{'word ' * 2**17}\n\nValueError: {'x' * 400}", f"ValueError: {'x' * 285}..."),
    ],
    ids=range(8),
)
def test_reason_is_the_error_at_the_end_of_the_log(tmp_path, log, reason):
    (tmp_path / "log").write_text(log)
    assert execute.failure_reason(types.SimpleNamespace(log_path=tmp_path / "log")) == reason


def test_clock_that_is_set_makes_no_process_another_one(monkeypatch):
    """A kernel asks every two seconds whether its runner lives; the start time that psutil shows follows the clock."""
    runner = psutil.Process()
    shown = runner.create_time()
    boot = psutil._psplatform.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 3600)
    kept = hasattr(psutil._psplatform, "BOOT_TIME")  # psutil 5 reads the clock once, so its start times stay
    assert (psutil.Process().create_time() != shown) is not kept
    assert is_alive(runner)
