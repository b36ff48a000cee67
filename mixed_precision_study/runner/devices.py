"""The devices that runs go to: the GPUs of this machine, or shares of its CPU."""

import os
import subprocess
import sys
from typing import NamedTuple

from ..errors import UserError
from ..gpu import nvml


class Device(NamedTuple):
    """A GPU, or a share of the CPU."""

    number: int
    label: str
    visible: str = ""  # CUDA_VISIBLE_DEVICES of its runs
    name: str = "CPU"


def visible_gpus() -> list[Device]:
    """Return the GPUs of this machine, or those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    gpus = [Device(number, f"gpu{number}", uuid, name) for number, uuid, name in nvml.installed_gpus()]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not gpus:
        return gpus
    chosen: list[Device] = []
    for word in (word.strip() for word in setting.split(",")):
        if word.startswith("MIG-"):  # a slice of a GPU, which NVML does not list
            found = [Device(len(chosen), f"mig{len(chosen)}", word, "MIG slice")]
        else:
            by_uuid = word.startswith("GPU-")
            found = [gpu for gpu in gpus if word == str(gpu.number) or (by_uuid and gpu.visible.startswith(word))]
        if not found:
            break  # CUDA ignores the rest of the list, too
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def choose_devices(gpus: str, jobs: int | None) -> list[Device]:
    """Return the devices for `--gpus` and `--jobs`: GPUs, or `jobs` shares of the CPU where there is none.

    Raise UserError where a GPU is not there or PyTorch cannot use it.
    """
    there = {} if gpus == "none" else {str(gpu.number): gpu for gpu in visible_gpus()}
    wanted = list(there) if gpus in ("all", "none") else [word.strip() for word in gpus.split(",")]
    unknown = [word for word in wanted if word not in there]
    if unknown:
        known = f"the GPUs here are {', '.join(there)}" if there else "none was found (--gpus none runs on the CPU)"
        raise UserError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; {known}.")
    if not wanted:
        return [Device(number, f"cpu{number}") for number in range(jobs or 1)]
    if jobs:
        raise UserError("--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that times compare.")
    devices = [there[word] for word in dict.fromkeys(wanted)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(device.visible for device in devices)}
    check = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"]
    if subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
        raise UserError("PyTorch cannot use the GPU here: install its CUDA build, or run on the CPU with --gpus none.")
    return devices
