"""Checks of the GPU before anything is measured: fp16 arithmetic, the clocks, other processes."""

import os
from collections.abc import Callable
from typing import get_args

import torch
from torch import nn

from ..parameters import Precision, Unsupported, UserError
from ..store.variables import BLOCKING_ENV
from .nvml import THROTTLES, NvmlGpu, gpu_before_use, others_of

OTHER_WHEEL = (  # of CUDA 12.6, which ends with PyTorch 2.14
    "install the newest, or for a Pascal or Volta card the last that has them: pip install "
    '"torch>=2.9,<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'
)

GIB = 2**30
# what a card can, by the mode that needs nothing else
FORMATS = {"fp32": "fp32", "tf32": "TF32", "amp_fp16": "fp16", "amp_bf16": "bf16", "fp8": "fp8"}


def check_fp16(device: torch.device) -> str:
    """Return "passed", or what is wrong with fp16 here: the GeForce GTX 16 series gives NaN in
    convolutions.
    """
    generator = torch.Generator(device).manual_seed(0)
    image = torch.randn(7, 64, 32, 32, generator=generator, device=device)
    weight = torch.randn(64, 64, 3, 3, generator=generator, device=device)
    exact = nn.functional.conv2d(image, weight, padding=1)
    half = nn.functional.conv2d(image.half(), weight.half(), padding=1).float()
    error = ((half - exact).norm() / exact.norm()).item()
    return (
        "passed"
        if error < 0.01
        else f"a convolution in fp16 differs from fp32 by {error:.2g} of its norm"
    )


def inspect_gpu(device: torch.device) -> tuple[dict, list[str], dict]:
    """Return what is shown of the device, the warnings, and the record fields; of the CPU only
    that it is none.

    Raise UserError where this PyTorch has no kernels for the GPU.
    """
    if device.type != "cuda":
        return {"GPU": "none, so the CPU runs a smoke test"}, [], {}
    properties = torch.cuda.get_device_properties(device)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        fp16 = check_fp16(device)  # whose kernels are the first of a notebook
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        sentence = f"This PyTorch has no kernels for the {properties.name}; {OTHER_WHEEL}."
        raise UserError(sentence) from None
    free = torch.cuda.mem_get_info(device)[0]
    facts = {
        "GPU": f"{properties.name}, compute capability {properties.major}.{properties.minor}",
        "memory": f"{free / GIB:.1f} of {properties.total_memory / GIB:.1f} GiB are free",
    }
    warnings = disturbances(str(properties.uuid))
    if fp16 != "passed":
        warnings.append(f"fp16 arithmetic is wrong on this GPU: {fp16}")
    return facts, warnings, {"native_bf16": native, "fp16_check": fp16}


def disturbances(uuid: str) -> list[str]:
    """Return what will disturb times or memory on the GPU with this id; what NVML does not tell is
    no disturbance.
    """
    gpu = NvmlGpu(uuid)
    before = gpu_before_use(uuid)
    power = gpu.ask("EnforcedPowerLimit")  # milliwatts
    usual_power = gpu.ask("PowerManagementDefaultLimit")
    bits = gpu.ask("CurrentClocksThrottleReasons") or 0
    throttles = [name for bit, name in THROTTLES.items() if bits & bit]
    found = []
    if others_of(before["pids"], own_is_there=False):
        found.append("another process is on this GPU: times and memory will be disturbed")
    if power is not None and usual_power is not None and power < usual_power:
        found.append(f"the power cap of {power / 1000:.0f} W is below the GPU's default")
    if throttles:
        found.append(f"the GPU is throttled now: {', '.join(throttles)}")
    if os.environ.get(BLOCKING_ENV, "0") != "0":
        found.append(f"every launch waits for the GPU, because {BLOCKING_ENV} is set")
    return found


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces on every stream, or they count as memory of the next run.

    CUDA graphs end with it.
    """
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()


def show_preflight(
    device: torch.device,
    execution: str,
    check_supported: Callable,
    minutes: int | None = None,
) -> tuple[dict, dict]:
    """Check the device within seconds, print a line for each fact, and return the fields for the
    records and {mode: why it cannot run here}.

    check_supported(mode, execution, device, fp16_check) raises Unsupported with the reason where a
    mode cannot run. minutes: how long the whole notebook takes on an H100.
    """
    facts, warnings, fields = inspect_gpu(device)
    refused = {}
    for name in get_args(Precision):
        try:
            check_supported(name, execution, device, fields.get("fp16_check"))
        except Unsupported as refusal:
            refused[name] = str(refusal)
    able = [title for name, title in FORMATS.items() if name not in refused]
    lacking = [title for name, title in FORMATS.items() if name in refused]
    facts["it can"] = ", ".join(able) or f"train nothing with execution={execution!r}"
    if lacking:
        facts["it cannot"] = ", ".join(lacking)
    if minutes and device.type == "cuda":
        facts["minutes"] = f"about {minutes} on an H100 with the parameters as they come"
    for what, text in facts.items():
        print(f"{what:<10} {text}")
    for text in warnings:
        print(f"Caution: {text}.")
    return fields, refused
