"""What NVML says of the GPUs: memory, clocks, processes, and whether one is still there. PyTorch is not needed.

Every question has the answer None where driver or binding give none, and a reason; never 0.
"""

import os
import re
import subprocess
from typing import NamedTuple

MIB = 2**20
THROTTLES = {  # bits of NVML's clock event reasons that mean: slower than the card could be
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}


class NvmlGpu:
    """The GPU as NVML sees it; `reason` says why a card that cannot be asked gives no answers.

    `uuid` as PyTorch prints it, or NVML's own `number` of it. Works with nvidia-ml-py and with the old nvidia-ml-py3
    7.352.0, which returns bytes and knows no second version of the memory call.
    """

    def __init__(self, uuid=None, number=0):
        self.nvml = self.handle = self.reason = None
        try:
            import pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            find = pynvml.nvmlDeviceGetHandleByUUID if uuid else pynvml.nvmlDeviceGetHandleByIndex
            self.nvml, self.handle = pynvml, find(f"GPU-{uuid}".encode() if uuid else number)
        except Exception as error:  # no driver, no such card: each binding raises its own class
            self.reason = f"NVML gave no figure ({error})"

    def ask(self, question, *details, **more):
        """Return NVML's answer to nvmlDeviceGet<question> about this card, or None."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{question}")(self.handle, *details, **more)
        except Exception:  # an old binding, an old driver, a right that is lacking: each raises its own class
            return None

    def memory(self):
        """Return {"used_mib", "total_mib", "reason"} of the whole card; the driver's own reserve is not counted."""
        second = getattr(self.nvml, "nvmlMemory_v2", None)
        memory = (self.ask("MemoryInfo", version=second) if second else None) or self.ask("MemoryInfo")
        if memory is None:
            return {"used_mib": None, "total_mib": None, "reason": self.reason or "NVML gave no figure for the memory"}
        return {"used_mib": memory.used / MIB, "total_mib": memory.total / MIB, "reason": None}

    def driver(self):
        """Return the driver's version as text, or None."""
        try:
            text = self.nvml.nvmlSystemGetDriverVersion()
        except Exception:  # as in ask()
            return None
        return text.decode() if isinstance(text, bytes) else text


def others_of(pids, own_is_there):
    """Return how many of the processes that NVML lists are not this one; None where the list must be incomplete.

    In a container the numbers may be the host's: then one of them is taken for this process, if it uses the card.
    """
    if pids is None or (not pids and own_is_there):
        return None
    return len(set(pids)) - (own_is_there or os.getpid() in pids)


def read_gpus():
    """Return {UUID as PyTorch prints it: {"used_mib", "pids"}} of every card, None where NVML does not tell.

    Of every card, because CUDA may number them otherwise than NVML does, and cannot be asked before it is in use.
    """
    nvml, cards = NvmlGpu().nvml, {}
    for card in [NvmlGpu(number=number) for number in range(nvml.nvmlDeviceGetCount() if nvml else 0)]:
        uuid, processes = card.ask("UUID") or "", card.ask("ComputeRunningProcesses")
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        pids = None if processes is None else [process.pid for process in processes]
        cards[uuid.removeprefix("GPU-")] = {"used_mib": card.memory()["used_mib"], "pids": pids}
    return cards


GPUS_BEFORE_USE = {}  # as read_cards() gave them before this process used a card


def remember_gpus():
    """Note what others have on each card; to be called before this process uses one, or it can no longer be told."""
    GPUS_BEFORE_USE.update(read_gpus())


def gpu_before_use(uuid):
    """Return {"used_mib", "pids"} of a card before this process used it, None for what is not known."""
    return GPUS_BEFORE_USE.get(str(uuid), {"used_mib": None, "pids": None})


GONE = (6, 15, 16)  # NVML_ERROR_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED
LOST = re.compile(r"fallen off the bus|fell off the bus|gpu is lost|device (is )?lost|\bxid\b", re.IGNORECASE)
BROKEN = re.compile(r"unspecified launch failure|CUDA error: (unknown error|no CUDA-capable device)", re.IGNORECASE)


class GpuLost(Exception):
    """The driver says that a GPU is no longer there."""


class GpuState(NamedTuple):
    """Memory of a GPU and how busy it is; None is what NVML does not say, as of a MIG slice."""

    used_mib: float
    total_mib: float
    busy_percent: int | None


def gpu_state(uuid):
    """Return the State of a GPU, or None where NVML cannot say; raise Lost where it says that the GPU is gone."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception as error:  # no binding, no driver: each binding raises its own class
        if getattr(error, "value", None) in GONE:
            raise GpuLost(str(error)) from None
        return None
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError:
        busy = None
    return GpuState(memory.used / 2**20, memory.total / 2**20, busy)


def is_lost(uuid, text, answered):
    """Return whether a GPU on which a run failed is gone: NVML says so, or says nothing and the run's `text` does.

    Where NVML had `answered` before and no longer does, a CUDA error that is otherwise a fault of the program counts.
    """
    try:
        state = gpu_state(uuid)
    except GpuLost:
        return True
    return state is None and bool(LOST.search(text) or (answered and BROKEN.search(text)))


def memory_is_free(uuid, before, slack_mib=64):
    """Return whether no more memory is used than `before` (a State), so that the last run's has been given back."""
    try:
        state = gpu_state(uuid)
    except GpuLost:
        return True  # nothing to wait for; the next run finds out
    return state is None or before is None or state.used_mib <= before.used_mib + slack_mib


def installed_gpus():
    """Return [(index, UUID, name)] of the GPUs that NVML, or else nvidia-smi, finds on this machine."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        # nvidia-ml-py3 7.352.0 answers in bytes.
        found = [[word.decode() if isinstance(word, bytes) else word for word in words] for words in found]
        return [(i, uuid, name) for i, (uuid, name) in enumerate(found)]
    except Exception:  # no binding, no driver, or one that does not answer: each binding raises its own class
        command = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",", 2)] for line in text.splitlines() if line.count(",") >= 2]
    return [(int(index), uuid, name) for index, uuid, name in rows if index.isdigit()]
