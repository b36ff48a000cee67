"""The device, the software and the host: what is missing, what is used, what a record says about
them.
"""

import functools
import os
import platform
import re
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from .. import __version__
from ..parameters import UserError
from ..store.commit import digest, suite_commit
from ..store.record import RunRecord
from ..store.variables import GPUS_ENV, RUNNER_ENV
from .nvml import MIB, NvmlGpu, installed_gpus, remember_gpus


def choose_device() -> Any:
    """Choose the torch.device that everything runs on, print it and return it. Call it before this
    process uses a GPU.

    Raises UserError if PyTorch is too old, or cannot use the GPU that run_all.py chose.
    """
    import torch

    # the progress bars here are plain text
    warnings.filterwarnings("ignore", message="IProgress not found")
    if torch.__version__ < "2.9":  # compared as a version, not as a text
        raise UserError(
            f"PyTorch {torch.__version__} is too old, because 2.9 is needed; pip install -U torch"
        )
    if not torch.cuda.is_initialized():  # otherwise this process uses the GPU already
        remember_gpus()
    # AMD says cuda
    device = torch.device("cuda" if torch.cuda.is_available() and torch.version.cuda else "cpu")
    given = os.environ.get(GPUS_ENV)
    if device.type == "cpu" and given and os.environ.get(RUNNER_ENV):
        raise UserError(
            f"run_all.py gave this run {given}, but PyTorch cannot use it; "
            "run nvidia-smi and look why."
        )
    if device.type == "cuda":
        print(
            f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPU(s); "
            "the first is used."
        )
    else:
        print(
            "No GPU: everything runs on the CPU. "
            "That checks the installation; the timings mean nothing. "
            "To get a GPU, on Colab choose Runtime > Change runtime type > T4 GPU; "
            "on Kaggle choose Settings > Accelerator; "
            "elsewhere install a driver and a CUDA build of PyTorch."
        )
    return device


def cpu_model() -> str | None:
    """Return the name of the host's CPU, or None where the system does not tell it."""
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^(?:model name|Model)[ \t]*:[ \t]*(\S.*?)\s*$", told, re.MULTILINE):
            return model[1]
    return platform.processor() or platform.machine() or None


@functools.cache
def host_identity() -> str | None:
    """Return 12 hex digits that tell this host from others and give no name away; None where
    nothing identifies it.

    Containers may share a machine's identity, and machines made from one image their name as well.
    So the host's name and the UUIDs of its GPUs go into the hash, too.
    """
    identity = platform.node() + "".join(sorted(uuid for _, uuid, _ in installed_gpus()))
    with suppress(OSError):
        identity += Path("/etc/machine-id").read_text(encoding="utf-8", errors="replace").strip()
    return digest(f"mixed precision study {identity}")[:12] if identity else None


def describe_environment(record: RunRecord, device: Any) -> None:
    """Fill in the device, the versions and the host."""
    import torch

    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # a container may allow fewer cores than there are
        cores = len(os.sched_getaffinity(0))
    with suppress(PackageNotFoundError):  # language models do without it
        record.timm_version = version("timm")
    host = host_identity()
    # the number of a process returns after a while, and on another host
    process = f"{host} {os.getpid()} {psutil.Process().create_time()}"
    record.fill(
        device_type=device.type,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        host_platform=platform.platform(terse=True),
        host_cores=cores,
        host_threads=torch.get_num_threads(),
        host_cpu=cpu_model(),
        host_id=host,
        process_id=digest(process)[:12],
        package_version=__version__,
        commit=suite_commit(),
    )
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu = NvmlGpu(str(properties.uuid))
        record.fill(
            gpu_name=properties.name,
            gpu_uuid=str(properties.uuid),
            compute_capability=f"{properties.major}.{properties.minor}",
            cuda_version=torch.version.cuda,
            cudnn_version=str(torch.backends.cudnn.version()),
            driver_version=gpu.answer("SystemGetDriverVersion"),
            application_clock_mhz=gpu.ask("ApplicationsClock", 0),  # 0: the graphics clock
            application_clock_mhz_default=gpu.ask("DefaultApplicationsClock", 0),
            device_total_mib=properties.total_memory / MIB,
        )
