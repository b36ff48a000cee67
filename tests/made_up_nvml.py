"""A made-up NVML: a module for this process, and one that the sampler's process finds."""

import os
import sys
import types

import pytest

THIS = os.getpid()


class NvmlError(Exception):
    def __init__(self, text, value=None):
        super().__init__(text)
        self.value = value


def fails(*_, **__):
    raise NvmlError("Not Supported")


def fake_nvml(monkeypatch, **functions):
    """Put a made-up pynvml in place; `functions` replace its parts, None takes one away."""
    memory = types.SimpleNamespace(used=3 * 2**20, total=8 * 2**20)
    module = types.ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.nvmlInit = lambda: None
    module.nvmlMemory_v2 = 2
    module.asked = []
    module.nvmlDeviceGetHandleByUUID = lambda uuid: module.asked.append(uuid) or "handle"
    module.nvmlDeviceGetHandleByIndex = lambda index: module.asked.append(index) or "handle"
    module.nvmlDeviceGetMemoryInfo = lambda handle, version=None: memory
    module.nvmlSystemGetDriverVersion = lambda: "580.1"
    for name, function in functions.items():
        if function is None:
            delattr(module, name)
        else:
            setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


PYNVML = """
import os, pathlib, types
pathlib.Path({folder!r}, "child").write_text(str(os.getpid()))
calls = 0

def nvmlInit():
    {init}

def nvmlDeviceGetHandleByUUID(uuid):
    assert uuid == "GPU-ab", uuid
    return "handle"

def nvmlDeviceGetClockInfo(handle, kind):
    global calls
    calls += 1
    return 1500 + calls if kind == 1 else None

def nvmlDeviceGetTemperature(handle, kind):
    raise RuntimeError("Not Supported")

def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 4

def nvmlDeviceGetComputeRunningProcesses(handle):
    return [types.SimpleNamespace(pid=7)]
"""


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    """Return a function that makes the sampler's process find a made-up pynvml; `init` is the body of nvmlInit."""

    def place(init="pass", text=PYNVML):
        (tmp_path / "made_up").mkdir(exist_ok=True)
        (tmp_path / "made_up" / "pynvml.py").write_text(text.format(folder=str(tmp_path), init=init))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "made_up"))
        monkeypatch.setattr("mixed_precision_study.measure.sampler.START_SECONDS", 60)

    return place


def child_of(folder):
    return int((folder / "child").read_text())
