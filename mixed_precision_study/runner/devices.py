"""The devices that runs go to: the GPUs of this machine, or shares of its CPU."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..measure import nvml
from ..parameters import UserError

AMPERE = (8, 0)  # the compute capability from which on a GPU has TF32 and bf16
SMALL_GIB = 20  # of memory; a GPU with less is a small one
CPU_JOBS = 3  # runs at once on the CPU, of which each loads its packages on one core


class Device(NamedTuple):
    """A GPU, or a share of the CPU."""

    number: int
    label: str
    visible: str = ""  # CUDA_VISIBLE_DEVICES of its runs
    name: str = "CPU"


class Cards(NamedTuple):
    """What a plan must know of the GPUs.

    lacking: the usual precisions for which none of them has the arithmetic
    small: whether one of them has less than SMALL_GIB of memory
    """

    lacking: tuple[str, ...] = ()
    small: bool = False


def visible_gpus() -> list[Device]:
    """Return the GPUs of this machine, or those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    gpus = [
        Device(number, f"gpu{number}", uuid, name) for number, uuid, name in nvml.installed_gpus()
    ]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not gpus:
        return gpus
    chosen: list[Device] = []
    for word in map(str.strip, setting.split(",")):
        found = [gpu for gpu in gpus if word in (str(gpu.number), gpu.visible[: max(len(word), 5)])]
        if word.startswith("MIG-"):  # a slice of a GPU, which NVML does not list
            found = [Device(len(chosen), f"mig{len(chosen)}", word, "MIG slice")]
        if not found:
            break  # CUDA ignores the rest of the list, too
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def choose_devices(gpus: str, jobs: int | None) -> list[Device]:
    """Return the devices for `--gpus` and `--jobs`: GPUs, or `jobs` shares of the CPU where there
    is none.

    Without `jobs` there are as many as cores, up to CPU_JOBS.
    Raise UserError where a GPU is not there or PyTorch cannot use it.
    """
    there = {} if gpus == "none" else {str(gpu.number): gpu for gpu in visible_gpus()}
    wanted = list(there) if gpus in ("all", "none") else [word.strip() for word in gpus.split(",")]
    unknown = [word for word in wanted if word not in there]
    if unknown:
        known = (
            f"the GPUs here are {', '.join(there)}"
            if there
            else "none was found (--gpus none runs on the CPU)"
        )
        raise UserError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; {known}.")
    if not wanted:
        return [
            Device(number, f"cpu{number}")
            for number in range(jobs or min(CPU_JOBS, os.cpu_count() or 1))
        ]
    if jobs:
        raise UserError(
            "--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that "
            "times compare."
        )
    devices = [there[word] for word in dict.fromkeys(wanted)]
    found = find_spec("torch")
    if found and found.origin:  # its source is read, because loading PyTorch takes many seconds
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
        built, driver = re.search(r"^cuda\b.*'(\d+)", text, re.MULTILINE), nvml.cuda_of_driver()
        if not built or (driver and int(built[1]) > driver):
            cuda = f"CUDA {built[1]}, which the driver is too old for" if built else "no CUDA"
            raise UserError(
                f"PyTorch is built for {cuda}; install another build, or use --gpus none."
            )
    return devices


def cards_of(devices: list[Device]) -> Cards:
    """Return what a plan must know of the GPUs. One of which NVML says nothing counts as new and
    large.
    """
    gpus = [nvml.NvmlGpu(device.visible) for device in devices if device.visible]
    found = [tuple(gpu.ask("CudaComputeCapability") or AMPERE) for gpu in gpus]
    memory = [gpu.ask("MemoryInfo") for gpu in gpus]
    return Cards(
        ("tf32", "amp_bf16") if found and max(found) < AMPERE else (),
        any(one.total < SMALL_GIB * 2**30 for one in memory if one),
    )
