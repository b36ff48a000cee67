"""What is said about the card before anything is measured: does this PyTorch fit it, is fp16 right, is the clock?"""

import html
import time

import torch
from IPython.display import HTML, display

from ..errors import Unsupported, UserError
from .nvml import MIB, THROTTLES, NvmlGpu, gpu_before_use, others_of


def missing_kernels(capability, architectures):
    """Return why this PyTorch cannot run on a GPU of `capability` (major, minor), with the wheel that can, or None."""
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built = divmod(int(number), 10)
        if (kind == "sm" and built[0] == capability[0] and built <= capability) or (
            kind == "compute" and built <= capability
        ):
            return None
    has = f"this PyTorch has no kernels for compute capability {capability[0]}.{capability[1]}; "
    if capability >= (7, 5):
        return has + "install the newest: pip install -U torch torchvision"
    if capability >= (5, 0):  # the CUDA 12.6 wheels are the last with Maxwell, Pascal and Volta; 2.14 is their last
        wheel = 'pip install "torch>=2.9,<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'
        return has + f"install the last that has: {wheel}"
    return has + "no PyTorch that this suite supports (2.9 or newer) has; use a GPU of compute capability 5.0 or newer"


def check_fp16(device):
    """Return "passed", or what is wrong with fp16 here: the GeForce GTX 16 series gives NaN in convolutions."""
    generator = torch.Generator(device).manual_seed(0)
    image, weight = (
        torch.randn(size, generator=generator, device=device) for size in ((7, 64, 32, 32), (64, 64, 3, 3))
    )
    matrix = torch.randn(512, 512, generator=generator, device=device)
    for name, work in (
        ("convolution", lambda dtype: torch.nn.functional.conv2d(image.to(dtype), weight.to(dtype), padding=1)),
        ("matmul", lambda dtype: matrix.to(dtype) @ matrix.to(dtype)),
    ):
        exact, half = work(torch.float32), work(torch.float16).float()
        error = ((half - exact).norm() / exact.norm()).item()
        if not error < 0.01:  # also true of NaN
            return f"a {name} in fp16 differs from fp32 by {error:.2g} of its norm"
    return "passed"


def check_clock(device, repeats=20):
    """Return {"events_per_wall", "launch_per_wall"}: CUDA events against the wall, and when unfinished calls return."""
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.float16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for measured in (False, True):  # once to load the library
        torch.cuda.synchronize()
        began = time.perf_counter()
        start.record()
        for _ in range(repeats if measured else 1):
            matrix @ matrix
        end.record()
        launched = time.perf_counter() - began
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
    return {"events_per_wall": start.elapsed_time(end) / 1000 / wall, "launch_per_wall": launched / wall}


def inspect_gpu(device):
    """Return ({what: text}, [warnings], {record field: value}) of the card; the CPU has nothing to be measured."""
    if device.type != "cuda":
        return {"device": "CPU"}, [], {}
    properties = torch.cuda.get_device_properties(device)
    capability, card, before = (
        (properties.major, properties.minor),
        NvmlGpu(properties.uuid),
        gpu_before_use(properties.uuid),
    )
    if reason := missing_kernels(capability, torch.cuda.get_arch_list()):
        raise UserError(f"{properties.name}: {reason}.")
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    half, clock = check_fp16(device), check_clock(device)
    power, most = card.ask("EnforcedPowerLimit"), card.ask("PowerManagementDefaultLimit")
    used, others, bits = before["used_mib"], others_of(before["pids"], False), card.ask("CurrentClocksEventReasons")
    bits = card.ask("CurrentClocksThrottleReasons") if bits is None else bits  # its name in older bindings
    free = torch.cuda.mem_get_info(device)[0] / MIB
    clocks = [card.ask(ask, 1) for ask in ("ClockInfo", "MaxClockInfo")]  # 1: the streaming multiprocessors
    facts = {
        "GPU": f"{properties.name}, compute capability {properties.major}.{properties.minor}",
        "driver": card.driver() or "unknown",
        "CUDA and cuDNN": f"{torch.version.cuda}, {torch.backends.cudnn.version()}",
        "bf16": "native" if native else "emulated",
        "free memory": f"{free:,.0f} of {properties.total_memory / MIB:,.0f} MiB",
        "others on the GPU": "unknown" if others is None else f"{others} processes, {used or 0:,.0f} MiB",
        "SM clock": "unknown" if None in clocks else f"{clocks[0]:,} MHz now, {clocks[1]:,} MHz at most",
        "power cap": "unknown" if power is None else f"{power / 1000:.0f} W",
        "throttled now": "unknown"
        if bits is None
        else ", ".join(name for bit, name in THROTTLES.items() if bits & bit) or "no",
        "fp16 against fp32": half,
        "CUDA events": f"show {clock['events_per_wall']:.1%} of the wall time",
        "launching": f"takes {clock['launch_per_wall']:.0%} of the time of the work that is launched",
    }
    warnings_ = {
        "another process is on this GPU: times and memory will be disturbed": bool(others),
        "the power cap is below the card's default": None not in (power, most) and power < most,
        f"fp16 arithmetic is wrong on this GPU: {half}": half != "passed",
        "every launch waits for the GPU (is CUDA_LAUNCH_BLOCKING set?)": clock["launch_per_wall"] > 0.5,
        "CUDA events and the wall clock disagree by more than 5%": abs(clock["events_per_wall"] - 1) > 0.05,
    }
    return facts, [text for text, holds in warnings_.items() if holds], {"native_bf16": native, "fp16_check": half}


def clear_workspaces():
    """Free cuBLAS's workspaces on every stream, which would count as memory of the next run. Ends the use of graphs."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()


def show_preflight(device, execution, precisions, check_supported):
    """Show what was found within a few seconds, and every mode, greyed out with its reason where it cannot run here.

    Returns what of it goes into the records. Raises UserError where this PyTorch has no kernels for the GPU.
    """
    began = time.perf_counter()
    facts, found, fields = inspect_gpu(device)
    clear_workspaces()
    for what, text in facts.items():
        print(f"{what:<18} {text}")
    for text in found:
        print(f"WARNING: {text}.")
    rows = []
    for name in precisions:
        reason = None
        try:
            check_supported(name, execution, device, fields.get("fp16_check"))
        except Unsupported as refusal:
            reason = str(refusal)
        style = ' style="color: #999999"' if reason else ""
        rows.append(f"<tr{style}><td>{name}</td><td>{html.escape(reason or 'can run here')}</td></tr>")
    display(HTML(f"<table><tr><th>precision</th><th></th></tr>{''.join(rows)}</table>"))
    print(f"The checks took {time.perf_counter() - began:.1f} s.")
    return fields
