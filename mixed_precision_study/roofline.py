"""What this card was measured to do at most, and how near a run comes to it."""

import json
import time
from contextlib import suppress
from pathlib import Path

import torch

from .gpu.nvml import MIB
from .precision import PRECISIONS
from .record import write_flat
from .timing import synchronize

SESSION_SECONDS = 12 * 3600  # for which what was measured on a card is believed


def rate_of(work, device, seconds=0.2):
    """Return how often a second `work()` runs on the device, after three runs to warm up."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates, until = [], time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < until:
        start.record()
        work()
        end.record()
        synchronize(device)
        rates.append(1000 / start.elapsed_time(end))
    return max(rates)


def measure_ceiling(dtype, device):
    """Return {"matmul", "conv"}: TFLOP/s of a large matmul and convolution in the arithmetic that is set."""
    search, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    size = 8192 if torch.cuda.mem_get_info(device)[0] > 4 * 1024 * MIB else 4096
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * size**3 * rate_of(lambda: a @ b, device) / 1e12
    layer = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False, device=device, dtype=dtype)
    layer = layer.to(memory_format=torch.channels_last)
    images = torch.randn(128, 256, 28, 28, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        conv = 2 * 9 * 256 * images.numel() * rate_of(lambda: layer(images), device) / 1e12
    torch.backends.cudnn.benchmark = search
    return {"matmul": matmul, "conv": conv}


def measure_copy(device):
    """Return the GB/s, read plus written, of copying 1 GiB within the card."""
    size = min(1024 * MIB, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size * rate_of(lambda: target.copy_(source), device) / 1e9


def cached(path, name, measure, shared):
    """Return what `measure()` gives for the card, from `path` where that was written within this session."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict) or not 0 <= time.time() - known.get("time", 0) < SESSION_SECONDS:
        known = {"time": time.time()}
    if name not in known and shared:
        raise RuntimeError("another process uses the GPU, so that its ceilings cannot be measured")
    if name not in known:
        known[name] = measure()
        with suppress(OSError):  # then it is measured anew next time
            write_flat(known, path)
    return known[name]


def measure_limits(record, trainer, folder):
    """Fill in the card's measured ceilings in the run's arithmetic, and the fractions of them that the run reaches."""
    device, mode = trainer.device, PRECISIONS[trainer.precision]
    dtype = mode["autocast"] or mode["weights"]
    arithmetic = "tf32" if mode["tf32"] else str(dtype).removeprefix("torch.")
    path = Path(folder) / f".ceilings-{record.gpu_uuid}-torch{record.torch_version}.json"
    ceiling = cached(path, arithmetic, lambda: measure_ceiling(dtype, device), record.gpu_shared)
    record.ceiling_matmul_tflop_per_second, record.ceiling_conv_tflop_per_second = ceiling["matmul"], ceiling["conv"]
    record.ceiling_copy_gb_per_second = cached(path, "copy", lambda: measure_copy(device), record.gpu_shared)
    if record.achieved_tflop_per_second is not None:
        record.compute_limit_fraction = record.achieved_tflop_per_second / max(ceiling.values())
    if record.bytes_per_step and record.gpu_busy_ms_per_step:
        moved = record.bytes_per_step / record.gpu_busy_ms_per_step / 1e6  # GB/s while the GPU works
        record.bandwidth_limit_fraction = moved / record.ceiling_copy_gb_per_second
