"""What NVML says of a GPU while a batch runs: memory, utilisation, and whether the card is still there."""

import re
from typing import NamedTuple

GONE = (6, 15, 16)  # NVML_ERROR_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED
LOST = re.compile(r"fallen off the bus|fell off the bus|gpu is lost|device (is )?lost|\bxid\b", re.IGNORECASE)
BROKEN = re.compile(r"unspecified launch failure|CUDA error: (unknown error|no CUDA-capable device)", re.IGNORECASE)


class Lost(Exception):
    """The driver says that a GPU is no longer there."""


class State(NamedTuple):
    """Memory of a GPU and how busy it is; None is what NVML does not say, as of a MIG slice."""

    used_mib: float
    total_mib: float
    busy_percent: int | None


def look(uuid):
    """Return the State of a GPU, or None where NVML cannot say; raise Lost where it says that the GPU is gone."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception as error:  # no binding, no driver: each binding raises its own class
        if getattr(error, "value", None) in GONE:
            raise Lost(str(error)) from None
        return None
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError:
        busy = None
    return State(memory.used / 2**20, memory.total / 2**20, busy)


def is_lost(uuid, text, answered):
    """Return whether a GPU on which a run failed is gone: NVML says so, or says nothing and the run's `text` does.

    Where NVML had `answered` before and no longer does, a CUDA error that is otherwise a fault of the program counts.
    """
    try:
        state = look(uuid)
    except Lost:
        return True
    return state is None and bool(LOST.search(text) or (answered and BROKEN.search(text)))


def is_free(uuid, before, slack_mib=64):
    """Return whether no more memory is used than `before` (a State), so that the last run's has been given back."""
    try:
        state = look(uuid)
    except Lost:
        return True  # nothing to wait for; the next run finds out
    return state is None or before is None or state.used_mib <= before.used_mib + slack_mib
