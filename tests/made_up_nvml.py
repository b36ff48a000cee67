"""A made-up NVML."""

import os
import sys
import types

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
