"""The process that samples a GPU while the clock runs."""

import contextlib
import itertools
import json
import subprocess
import sys
import time

import psutil
import pytest
from conftest import ROOT

from mixed_precision_study.measure.sampler import sampled

pytestmark = pytest.mark.slow  # each test starts the sampling process
PYNVML = """
import os, types
clock = 1500

def nvmlInit():
    {init}

def nvmlDeviceGetHandleByUUID(uuid):
    return {{"GPU-ab": "handle"}}[uuid]

def nvmlDeviceGetClockInfo(handle, kind):
    global clock
    clock += 1
    return {{("handle", 1): clock}}[handle, kind]

def nvmlDeviceGetTemperature(handle, sensor):
    return {{("handle", 0): 60}}[handle, sensor] if clock > 1502 else None

def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return {{"handle": 4}}[handle]

def nvmlDeviceGetComputeRunningProcesses(handle):
    return [types.SimpleNamespace(pid=os.getpid())]
"""


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    """Return a function that makes the sampler's process find a made-up pynvml;

    `init` is the body of nvmlInit.
    """

    def place(init="pass"):
        (tmp_path / "pynvml.py").write_text(PYNVML.format(init=init))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr("mixed_precision_study.measure.sampler.START_SECONDS", 60)

    return place


def test_the_sampler_takes_ten_samples_a_second(sampler):
    sampler("print('a line of the library that is no sample')")
    samples = []
    began = time.perf_counter()
    with contextlib.suppress(ZeroDivisionError), sampled("ab", samples):
        time.sleep(1)
        ended = time.perf_counter()
        raise ZeroDivisionError
    ((child,),) = {tuple(sample["pids"]) for sample in samples}
    assert not psutil.pid_exists(child)
    assert 3 <= len(samples) <= 10 * (ended - began) + 3
    times = [sample["seconds"] for sample in samples]
    assert began < times[0] < times[-1] < ended + 5  # the same clock in both processes
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.09
    # The clock is that of the multiprocessors, and None stands for what the GPU does not say.
    assert [sample["mhz"] for sample in samples] == [
        1501 + number for number in range(len(samples))
    ]
    assert {(sample["bits"], sample["celsius"]) for sample in samples} == {(4, None), (4, 60)}


def test_the_sampler_ends_when_its_standard_input_closes(sampler):
    """So it also ends when the kernel that started it is killed."""
    sampler()
    command = [sys.executable, "-m", "mixed_precision_study.measure.sampler", "GPU-ab"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert json.loads(child.stdout.readline())["mhz"] == 1501
        child.stdin.close()
        assert child.wait(timeout=200) == 0


@pytest.mark.parametrize(
    "init, uuid", [("raise RuntimeError('Driver Not Loaded')", "ab"), ("pass", "none")]
)
def test_a_sampler_that_fails_gives_no_samples_and_no_delay(sampler, init, uuid):
    sampler(init)
    samples, began = [], time.perf_counter()
    with sampled(uuid, samples):
        assert time.perf_counter() - began < 40
    assert samples == []
