"""The devices that runs go to: the GPUs of this machine, or shares of its CPU."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..measure import nvml
from ..parameters import UserError
from ..store.variables import GPUS_ENV

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
    setting = os.environ.get(GPUS_ENV)
    if setting is None or not gpus:
        return gpus
    chosen: list = []
    for word in map(str.strip, setting.split(",")):
        named = [gpu for gpu in gpus if word in (str(gpu.number), gpu.visible[: max(len(word), 5)])]
        if word.startswith("MIG-"):  # a slice of a GPU, which NVML does not list
            named = [Device(len(chosen), f"mig{len(chosen)}", word, "MIG slice")]
        if not named:
            break  # CUDA ignores the rest of the list, too
        chosen += named
    return list(dict.fromkeys(chosen))


def choose_devices(gpus: str, jobs: int | None) -> list[Device]:
    """Return the devices for `--gpus` and `--jobs`: GPUs, or `jobs` shares of the CPU where there
    is none.

    Without `jobs` there are as many as cores, up to CPU_JOBS.
    Raise UserError where a GPU is not there or PyTorch cannot use it.
    """
    chosen = [] if gpus == "none" else named_gpus(gpus)
    if not chosen:
        return [
            Device(number, f"cpu{number}")
            for number in range(jobs or min(CPU_JOBS, os.cpu_count() or 1))
        ]
    if jobs:
        raise UserError(
            "--jobs is for the CPU (--gpus none); a GPU takes one run at a time, "
            "so that times compare."
        )
    check_pytorch()
    return chosen


def named_gpus(gpus: str) -> list[Device]:
    """Return the GPUs that `--gpus` names: all, or some by their numbers.

    Raise UserError where one is not there.
    """
    here = {str(gpu.number): gpu for gpu in visible_gpus()}
    if gpus == "all":
        return list(here.values())
    words = [word.strip() for word in gpus.split(",")]
    if unknown := [word for word in words if word not in here]:
        known = "none was found (--gpus none runs on the CPU)"
        if here:
            known = f"the GPUs here are {', '.join(here)}"
        raise UserError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; {known}.")
    return [here[word] for word in dict.fromkeys(words)]


def check_pytorch() -> None:
    """Raise UserError where the installed PyTorch is built without CUDA, or for a newer driver.

    Its source is read, because loading PyTorch takes many seconds.
    """
    package = find_spec("torch")
    if not package or not package.origin:
        return
    text = Path(package.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*'(\d+)", text, re.MULTILINE)
    driver = nvml.cuda_of_driver()
    if built and (not driver or int(built[1]) <= driver):
        return
    cuda = f"CUDA {built[1]}, which the driver is too old for" if built else "no CUDA"
    raise UserError(f"PyTorch is built for {cuda}; install another build, or use --gpus none.")


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
