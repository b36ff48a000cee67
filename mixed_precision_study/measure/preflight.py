"""Checks of the GPU before anything is measured: fp16 arithmetic, the clocks, other processes."""

import os
from collections.abc import Callable, Iterable

import torch

from ..parameters import Unsupported, UserError
from ..store.variables import BLOCKING_ENV
from .nvml import MIB, THROTTLES, NvmlGpu, gpu_before_use, others_of

OTHER_WHEEL = (  # of CUDA 12.6, which ends with PyTorch 2.14
    "install the newest, or for a Pascal or Volta card the last that has them: pip install "
    '"torch>=2.9,<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'
)


def check_fp16(device: torch.device) -> str:
    """Return "passed", or what is wrong with fp16 here: the GeForce GTX 16 series gives NaN in
    convolutions.
    """
    generator = torch.Generator(device).manual_seed(0)
    image = torch.randn(7, 64, 32, 32, generator=generator, device=device)
    weight = torch.randn(64, 64, 3, 3, generator=generator, device=device)
    exact = torch.nn.functional.conv2d(image, weight, padding=1)
    half = torch.nn.functional.conv2d(image.half(), weight.half(), padding=1).float()
    error = ((half - exact).norm() / exact.norm()).item()
    return (
        "passed"
        if error < 0.01
        else f"a convolution in fp16 differs from fp32 by {error:.2g} of its norm"
    )


def check_kernels(device: torch.device, name: str) -> str:
    """Return check_fp16(), whose kernels are the first of a notebook.

    Raise UserError where this PyTorch has none for the GPU of this name.
    """
    try:
        return check_fp16(device)
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        sentence = f"This PyTorch has no kernels for the {name}; {OTHER_WHEEL}."
        raise UserError(sentence) from None


def throttles_in_words(bits: int | None) -> str:
    if bits is None:
        return "unknown"
    return ", ".join(name for bit, name in THROTTLES.items() if bits & bit) or "no"


def inspect_gpu(device: torch.device) -> tuple[dict[str, str], list[str], dict]:
    """Return what is shown of the device, the warnings, and the record fields; of the CPU only
    its name.
    """
    if device.type != "cuda":
        return {"device": "CPU"}, [], {}
    properties = torch.cuda.get_device_properties(device)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    fp16 = check_kernels(device, properties.name)
    gpu = NvmlGpu(str(properties.uuid))
    before = gpu_before_use(str(properties.uuid))
    others = others_of(before["pids"], own_is_there=False)
    power = gpu.ask("EnforcedPowerLimit")  # milliwatts
    usual_power = gpu.ask("PowerManagementDefaultLimit")
    # 1: the streaming multiprocessors
    now, most = gpu.ask("ClockInfo", 1), gpu.ask("MaxClockInfo", 1)
    facts = {
        "GPU": f"{properties.name}, compute capability {properties.major}.{properties.minor}",
        "driver": gpu.answer("SystemGetDriverVersion") or "unknown",
        "CUDA and cuDNN": f"{torch.version.cuda}, {torch.backends.cudnn.version()}",
        "bf16": "native" if native else "emulated",
        "free memory": (
            f"{torch.cuda.mem_get_info(device)[0] / MIB:,.0f} of"
            f" {properties.total_memory / MIB:,.0f} MiB"
        ),
        "others on the GPU": "unknown"
        if others is None
        else f"{others} processes, {before['used_mib'] or 0:,.0f} MiB",
        "SM clock": "unknown" if None in (now, most) else f"{now:,} MHz now, {most:,} MHz at most",
        "power cap": "unknown" if power is None else f"{power / 1000:.0f} W",
        "throttled now": throttles_in_words(gpu.ask("CurrentClocksThrottleReasons")),
        "fp16 against fp32": fp16,
    }
    fields = {"native_bf16": native, "fp16_check": fp16}
    return facts, cautions(others, power, usual_power, fp16), fields


def cautions(
    others: int | None, power: int | None, usual_power: int | None, fp16: str
) -> list[str]:
    """Return what makes measurements on this GPU doubtful."""
    warnings = []
    if others:
        warnings.append("another process is on this GPU: times and memory will be disturbed")
    if power is not None and usual_power is not None and power < usual_power:
        warnings.append("the power cap is below the GPU's default")
    if fp16 != "passed":
        warnings.append(f"fp16 arithmetic is wrong on this GPU: {fp16}")
    if os.environ.get(BLOCKING_ENV, "0") != "0":
        warnings.append(f"every launch waits for the GPU, because {BLOCKING_ENV} is set")
    return warnings


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces on every stream, or they count as memory of the next run.

    CUDA graphs end with it.
    """
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()


def show_preflight(
    device: torch.device,
    execution: str,
    precisions: Iterable[str],
    check_supported: Callable[..., None],
) -> dict:
    """Check the device within seconds, print what was found and which modes can run, and return
    fields for the records.

    check_supported(mode, execution, device, fp16_check) raises Unsupported with the reason where a
    mode cannot run.
    """
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
    return fields
