"""A made-up NVML that answers only the right question."""

import os
import sys
import types
from functools import partial

THIS = os.getpid()
# Which clock or sensor a question names: the graphics clock or the GPU's sensor is 0, the clock of
# the multiprocessors 1. A question that is not here names none.
DETAILS = dict.fromkeys(("Temperature", "ApplicationsClock", "DefaultApplicationsClock"), (0,))
DETAILS |= dict.fromkeys(("ClockInfo", "MaxClockInfo"), (1,))


class NvmlError(Exception):
    def __init__(self, text, value=None):
        super().__init__(text)
        self.value = value


def fails(*_, **__):
    raise NvmlError("Not Supported")


class MadeUpNvml(types.ModuleType):
    """Has handles only for GPUs that were asked for, and each other question needs such a handle
    and its details.

    asked: the UUIDs and numbers for which a handle was wanted, in order.
    """

    nvmlMemory_v2 = 2

    def __init__(self, functions):
        super().__init__("pynvml")
        self.asked, self.handles = [], []
        for name, function in functions.items():
            if name.startswith("nvmlDeviceGetHandle"):
                function = partial(self.handle_of, function)
            elif name.startswith("nvmlDeviceGet") and name != "nvmlDeviceGetCount":
                details = DETAILS.get(name.removeprefix("nvmlDeviceGet"), ())
                function = partial(self.checked, function, details)
            setattr(self, name, function)

    def handle_of(self, function, gpu):
        self.asked.append(gpu)
        self.handles.append(function(gpu))
        return self.handles[-1]

    def checked(self, function, details, handle, *given, **options):
        if handle not in self.handles or given != details:
            raise NvmlError("Invalid Argument", 2)
        return function(handle, **options)


def fake_nvml(monkeypatch, **functions):
    """Put a made-up pynvml in place; `functions` replace its parts or add to them."""
    memory = types.SimpleNamespace(used=3 * 2**20, total=8 * 2**20)
    usual = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle of {uuid}",
        "nvmlDeviceGetHandleByIndex": ["handle of 0"].__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda handle, version=None: memory,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    module = MadeUpNvml(usual | functions)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
