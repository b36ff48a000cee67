"""What NVML says about the GPUs: memory, clocks, processes, and whether one is lost. PyTorch is not
needed.

An unanswered question gives None and a reason, never 0.
"""

import os
import re
from typing import Any

MIB = 2**20
THROTTLES = {  # bits of NVML's clock event reasons that mean: slower than the GPU could be
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}
# these say that the clock was set, even to the highest; below that they slow the GPU
CLOCKS_SET = 0x2 | 0x10
LOST_WORDS = re.compile(
    r"fallen off the bus|fell off the bus|gpu is lost|device (is )?lost|\bxid\b", re.IGNORECASE
)
FAULT_WORDS = re.compile(
    "unspecified launch failure|CUDA error: (unknown error|no CUDA-capable device)", re.IGNORECASE
)
# by the UUID as PyTorch prints it, before this process used a GPU
GPUS_BEFORE_USE: dict[str, dict] = {}


class NvmlGpu:
    """One GPU, by its UUID (with or without "GPU-", as PyTorch prints it) or by NVML's own number.

    If NVML cannot be asked, `handle` is None and `reason` says why. `lost` is NVML's message if it
    calls the GPU lost.
    """

    def __init__(self, uuid: str | None = None, number: int = 0):
        self.nvml = None
        self.handle = None
        self.reason = None
        self.lost: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            if uuid:
                name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
                self.handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            else:
                self.handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            self.nvml = pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
        except Exception as error:  # no driver, no such GPU: each binding raises a class of its own
            self.reason = f"NVML gave no figure ({error})"
            self._note_loss(error)

    def _note_loss(self, error: Exception) -> None:
        # NVML_ERROR_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED
        if getattr(error, "value", None) in (6, 15, 16):
            self.lost = str(error)

    def answer(self, question: str, *details: Any, **options: Any) -> Any:
        """Return what nvml<question>() gives, or None."""
        try:
            return getattr(self.nvml, f"nvml{question}")(*details, **options)
        except Exception as error:
            # an old binding or driver, a missing right: each raises a class of its own
            self._note_loss(error)
            return None

    def ask(self, question: str, *details: Any, **options: Any) -> Any:
        """Return the answer of nvmlDeviceGet<question> for this GPU, or None."""
        return self.answer(f"DeviceGet{question}", self.handle, *details, **options)

    def used_mib(self) -> float | None:
        """Return the memory that is used on the whole GPU, or None, and then `reason` says why."""
        # The second version of the call does not count the driver's own reserve as used.
        memory = self.ask("MemoryInfo", version=getattr(self.nvml, "nvmlMemory_v2", None))
        if memory is None:
            self.reason = self.reason or "NVML gave no figure for the memory"
        return memory and memory.used / MIB

    def process_ids(self) -> list[int] | None:
        processes = self.ask("ComputeRunningProcesses")
        return None if processes is None else [process.pid for process in processes]


def others_of(pids: list[int] | None, own_is_there: bool) -> int | None:
    """Return how many of the listed processes are not this one; None if the list must be
    incomplete.

    In a container NVML may list the host's process ids. If this process uses the GPU, one of them
    is taken for ours.
    """
    if pids is None or (not pids and own_is_there):
        return None
    return len(set(pids)) - (own_is_there or os.getpid() in pids)


def listed_gpus() -> list[NvmlGpu]:
    """Return the GPUs that NVML lists, in its order; none if NVML cannot be asked."""
    return [NvmlGpu(number=number) for number in range(NvmlGpu().answer("DeviceGetCount") or 0)]


def remember_gpus() -> None:
    """Note what others use on each GPU. Call it before this process uses one: later nobody can
    separate the two.

    CUDA may number the GPUs in another order, and cannot be asked before it is in use. So all of
    them are read.
    """
    for gpu in listed_gpus():
        uuid = (gpu.ask("UUID") or "").removeprefix("GPU-")
        GPUS_BEFORE_USE[uuid] = {"used_mib": gpu.used_mib(), "pids": gpu.process_ids()}


def gpu_before_use(uuid: str | None) -> dict:
    """Return {"used_mib", "pids"} of a GPU before this process used it, None for what is not
    known.
    """
    return GPUS_BEFORE_USE.get(str(uuid), {"used_mib": None, "pids": None})


class GpuLost(Exception):
    """The driver says that a GPU is no longer there."""


def used_mib(uuid: str) -> float | None:
    """Return the MiB in use on a GPU, None if NVML does not know.

    Raises GpuLost if NVML says that it is gone.
    """
    gpu = NvmlGpu(uuid)
    used = gpu.used_mib()
    if gpu.lost:
        raise GpuLost(gpu.lost)
    return used


def cuda_of_driver() -> int | None:
    """Return the newest major version of CUDA that the driver knows, None if NVML does not say."""
    version = NvmlGpu().answer("SystemGetCudaDriverVersion")
    return version and version // 1000


def is_lost(uuid: str, text: str, answered: bool) -> bool:
    """Return whether a GPU on which a run failed is lost: NVML says so, or it is silent and the
    run's `text` says so.

    If NVML `answered` before the run and is silent now, an unspecific CUDA error in the text is
    enough.
    """
    gpu = NvmlGpu(uuid)
    silent = gpu.used_mib() is None
    return bool(
        gpu.lost
        or (silent and (LOST_WORDS.search(text) or (answered and FAULT_WORDS.search(text))))
    )


def memory_is_free(uuid: str, before: float | None) -> bool:
    """Return whether a GPU uses no more memory than `before`, in MiB.

    True also if that is not known or it is lost.
    """
    used = NvmlGpu(uuid).used_mib()  # of a lost one the next run finds out
    return used is None or before is None or used <= before + 64


def installed_gpus() -> list[tuple[int, str, str]]:
    """Return (index, UUID, name) of the GPUs of this machine, in NVML's order."""
    answers = [(gpu.ask("UUID"), gpu.ask("Name")) for gpu in listed_gpus()]
    return [(index, uuid, name) for index, (uuid, name) in enumerate(answers) if uuid and name]
