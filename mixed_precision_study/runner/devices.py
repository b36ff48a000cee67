"""The devices that runs go to: the GPUs of this machine, or shares of its CPU."""

import os
import subprocess
import sys
from typing import NamedTuple

from ..errors import UserError
from ..gpu import nvml


class Device(NamedTuple):
    """A GPU, or a share of the CPU; `visible` is what CUDA_VISIBLE_DEVICES becomes for its runs."""

    index: int
    label: str
    visible: str = ""
    name: str = "CPU"


def installed_gpus():
    """Return the GPUs that NVML, or else nvidia-smi, finds on this machine."""
    return [Device(index, f"gpu{index}", uuid, name) for index, uuid, name in nvml.installed_gpus()]


def visible_gpus():
    """Return the installed GPUs, or those that an existing CUDA_VISIBLE_DEVICES leaves, in its order."""
    gpus, setting = installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not gpus:
        return gpus
    chosen = []
    for word in (word.strip() for word in setting.split(",")):
        found = [gpu for gpu in gpus if word == str(gpu.index) or (word[:4] == "GPU-" and gpu.visible.startswith(word))]
        if word.startswith("MIG-"):  # a slice of a GPU, which the lists above do not know
            found = [Device(len(chosen), f"mig{len(chosen)}", word, "MIG slice")]
        if not found:
            break  # CUDA, too, ignores the rest of the list
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def choose_devices(gpus, jobs):
    """Return the devices for `--gpus` and `--jobs`: GPUs, or `jobs` shares of the CPU where there is none."""
    there = {} if gpus == "none" else {str(gpu.index): gpu for gpu in visible_gpus()}
    wanted = list(there) if gpus in ("all", "none") else [word.strip() for word in gpus.split(",")]
    unknown = [word for word in wanted if word not in there]
    if unknown:
        known = f"the GPUs here are {', '.join(there)}" if there else "none was found (--gpus none runs on the CPU)"
        raise UserError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; {known}.")
    if not wanted:
        return [Device(i, f"cpu{i}") for i in range(jobs or 1)]
    if jobs:
        raise UserError("--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that times compare.")
    devices = [there[word] for word in dict.fromkeys(wanted)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(device.visible for device in devices)}
    check = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"]
    if subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
        raise UserError("PyTorch cannot use the GPU here: install its CUDA build, or run on the CPU with --gpus none.")
    return devices
