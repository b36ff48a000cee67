"""The device, the software and the host: what is missing, what is chosen, what a record says of them."""

import importlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import distributions, version
from pathlib import Path

from .errors import UserError
from .gpu.nvml import MIB, NvmlGpu, remember_gpus

ROOT = Path(__file__).resolve().parents[1]  # of the clone, where the package lies in one


# {module: name for pip} of what a notebook imports; the driver's binding is not among them, as it can be done without.
EXPERIMENT_PACKAGES = {
    name: name
    for name in ("torch", "torchvision", "timm", "numpy", "pandas", "matplotlib", "seaborn", "tqdm", "psutil")
}
REPORT_PACKAGES = {name: name for name in ("numpy", "pandas", "matplotlib", "seaborn")}


def missing_packages(packages):
    """Return the pip names of those `packages` ({module: pip name}) that are not installed here."""
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def require_packages(packages):
    """Install what is missing on Colab and Kaggle; elsewhere stop and say which command installs it.

    pip must not replace PyTorch, NumPy or anything else that is installed: it gets their versions as constraints.
    """
    missing = missing_packages(packages)
    hosted = "COLAB_RELEASE_TAG" in os.environ or "KAGGLE_KERNEL_RUN_TYPE" in os.environ
    if missing and not hosted:
        raise UserError(f"these packages are missing; install them with: pip install {' '.join(missing)}")
    if missing:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.writelines(f"{line}\n" for line in installed_versions())
            constraints.flush()
            command = [sys.executable, "-m", "pip", "install", "-q", "--constraint", constraints.name, *missing]
            subprocess.run(command, check=True)
        importlib.invalidate_caches()  # or a package installed just now is not found


def installed_versions():
    """Return "name==version" of every package that is installed."""
    return sorted({f"{one.metadata['Name']}=={one.version}" for one in distributions() if one.metadata["Name"]})


def choose_device():
    """Return the device that everything runs on, and say which; to be called before this process uses a GPU.

    Raises UserError where PyTorch is too old.
    """
    require_packages({"torch": "torch"})
    import torch

    warnings.filterwarnings("ignore", message="IProgress not found")  # the bars here are plain text
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        raise UserError(
            f"PyTorch {torch.__version__} is too old: the fp32_precision switches need 2.9; pip install -U torch"
        )
    if not torch.cuda.is_initialized():  # else a kernel that goes on: what others used can no longer be told
        remember_gpus()
    device = torch.device("cuda" if torch.cuda.is_available() and torch.version.cuda else "cpu")  # AMD says cuda
    if device.type == "cuda":
        print(f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPU(s); the first is used.")
    else:
        print(
            "No GPU: everything runs on the CPU, which shows that it works and measures nothing. For a GPU, on Colab"
            " choose Runtime > Change runtime type > T4 GPU; on Kaggle choose Settings > Accelerator; elsewhere install"
            " a driver and a CUDA build of PyTorch."
        )
    return device


def suite_commit():
    """Return the commit of the suite where it is known: from run_all.py, or from the clone this notebook lies in."""
    if "MIXED_PRECISION_COMMIT" in os.environ or not (ROOT / ".git").exists():
        return os.environ.get("MIXED_PRECISION_COMMIT")
    answer = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def describe_environment(record, device):
    """Fill in device, versions and host."""
    import torch

    record.device_type, record.torch_version, record.timm_version = device.type, torch.__version__, version("timm")
    record.python_version, record.host_platform = platform.python_version(), platform.platform(terse=True)
    allowed = getattr(os, "sched_getaffinity", None)  # fewer than the host has under taskset, in many a container
    record.host_cores = len(allowed(0)) if allowed else os.cpu_count()
    record.commit = suite_commit()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record.gpu_name, record.gpu_uuid = properties.name, str(properties.uuid)
        record.compute_capability = f"{properties.major}.{properties.minor}"
        record.cuda_version, record.cudnn_version = torch.version.cuda, str(torch.backends.cudnn.version())
        record.driver_version = NvmlGpu(record.gpu_uuid).driver()
        record.device_total_mib = properties.total_memory / MIB
