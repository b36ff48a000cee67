"""Checks of the GPU before anything is measured: PyTorch's kernels, fp16 arithmetic, the clocks, other processes."""

import os
import time
from collections.abc import Callable, Iterable

import torch

from ..parameters import Unsupported, UserError
from .nvml import MIB, THROTTLES, NvmlGpu, gpu_before_use, others_of

SM_CLOCK = 1  # NVML's number for the clock of the streaming multiprocessors


def missing_kernels(capability: tuple[int, int], architectures: list[str]) -> str | None:
    """Return why this PyTorch cannot run on a GPU of `capability` (major, minor) and what can; None if it can.

    `architectures` are PyTorch's own, such as "sm_90": they run on later GPUs of the same generation. The driver
    compiles "compute_90" for all later ones.
    """
    major, minor = capability
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built = divmod(int(number), 10)
        if built <= capability and (kind == "compute" or built[0] == major):
            return None
    problem = f"this PyTorch has no kernels for compute capability {major}.{minor}"
    if capability >= (7, 5):
        return f"{problem}; install the newest: pip install -U torch torchvision"
    # The CUDA 12.6 wheels are the last with Maxwell, Pascal and Volta, and 2.14 is the last of them.
    wheel = 'pip install "torch>=2.9,<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'
    return f"{problem}; install the last that has: {wheel}"


def check_fp16(device: torch.device) -> str:
    """Return "passed", or what is wrong with fp16 here: the GeForce GTX 16 series gives NaN in convolutions."""
    generator = torch.Generator(device).manual_seed(0)
    image = torch.randn(7, 64, 32, 32, generator=generator, device=device)
    weight = torch.randn(64, 64, 3, 3, generator=generator, device=device)
    exact = torch.nn.functional.conv2d(image, weight, padding=1)
    half = torch.nn.functional.conv2d(image.half(), weight.half(), padding=1).float()
    error = ((half - exact).norm() / exact.norm()).item()
    return "passed" if error < 0.01 else f"a convolution in fp16 differs from fp32 by {error:.2g} of its norm"


def inspect_gpu(device: torch.device) -> tuple[dict[str, str], list[str], dict]:
    """Return what is shown of the device, the warnings, and the record fields; of the CPU only its name.

    Raises UserError if this PyTorch has no kernels for the GPU.
    """
    if device.type != "cuda":
        return {"device": "CPU"}, [], {}
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if wrong := missing_kernels(capability, torch.cuda.get_arch_list()):
        raise UserError(f"{properties.name}: {wrong}.")
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    fp16 = check_fp16(device)
    gpu = NvmlGpu(str(properties.uuid))
    before = gpu_before_use(str(properties.uuid))
    others = others_of(before["pids"], own_is_there=False)
    power = gpu.ask("EnforcedPowerLimit")  # milliwatts
    usual_power = gpu.ask("PowerManagementDefaultLimit")
    bits = gpu.ask("CurrentClocksThrottleReasons")
    throttles = "unknown" if bits is None else ", ".join(name for bit, name in THROTTLES.items() if bits & bit) or "no"
    now = gpu.ask("ClockInfo", SM_CLOCK)
    most = gpu.ask("MaxClockInfo", SM_CLOCK)
    facts = {
        "GPU": f"{properties.name}, compute capability {properties.major}.{properties.minor}",
        "driver": gpu.answer("SystemGetDriverVersion") or "unknown",
        "CUDA and cuDNN": f"{torch.version.cuda}, {torch.backends.cudnn.version()}",
        "bf16": "native" if native else "emulated",
        "free memory": f"{torch.cuda.mem_get_info(device)[0] / MIB:,.0f} of {properties.total_memory / MIB:,.0f} MiB",
        "others on the GPU": "unknown" if others is None else f"{others} processes, {before['used_mib'] or 0:,.0f} MiB",
        "SM clock": "unknown" if None in (now, most) else f"{now:,} MHz now, {most:,} MHz at most",
        "power cap": "unknown" if power is None else f"{power / 1000:.0f} W",
        "throttled now": throttles,
        "fp16 against fp32": fp16,
    }
    warnings = []
    if others:
        warnings.append("another process is on this GPU: times and memory will be disturbed")
    if power is not None and usual_power is not None and power < usual_power:
        warnings.append("the power cap is below the GPU's default")
    if fp16 != "passed":
        warnings.append(f"fp16 arithmetic is wrong on this GPU: {fp16}")
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        warnings.append("every launch waits for the GPU, because CUDA_LAUNCH_BLOCKING is set")
    return facts, warnings, {"native_bf16": native, "fp16_check": fp16}


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces on every stream, or they count as memory of the next run. CUDA graphs end with it."""
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()


def show_preflight(
    device: torch.device, execution: str, precisions: Iterable[str], check_supported: Callable[..., None]
) -> dict:
    """Check the device within seconds, print what was found and which modes can run, and return fields for the records.

    check_supported(mode, execution, device, fp16_check) raises Unsupported with the reason where a mode cannot run
    here. Raises UserError if this PyTorch has no kernels for the GPU.
    """
    began = time.perf_counter()
    facts, warnings, fields = inspect_gpu(device)
    for name in precisions:
        try:
            check_supported(name, execution, device, fields.get("fp16_check"))
            facts[name] = "can run here"
        except Unsupported as refusal:
            facts[name] = str(refusal)
    for what, text in facts.items():
        print(f"{what:<18} {text}")
    for text in warnings:
        print(f"Caution: {text}.")
    print(f"The checks took {time.perf_counter() - began:.1f} s.")
    return fields
