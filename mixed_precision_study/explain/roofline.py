"""The roofline: the highest rates measured on this GPU, and how near a run comes to them."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..measure.nvml import MIB
from ..measure.timing import synchronize
from ..store.record import RunRecord
from ..train.float8 import FORWARD, product, scaled
from ..train.precision import PRECISIONS

if TYPE_CHECKING:
    from ..train.step import Trainer


def rate_of(work: Callable, device: torch.device, seconds: float = 0.2) -> float:
    """Return the highest rate (1/s) at which `work()` ran on the device, after three runs of
    warm-up.
    """
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates: list = []
    until = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < until:
        start.record()
        work()
        end.record()
        synchronize(device)
        rates.append(1000 / start.elapsed_time(end))
    return max(rates)


def measure_ceiling(dtype: torch.dtype, device: torch.device) -> float:
    """Return the TFLOP/s of a large matmul at the current fp32 precision; in fp8 under one scale
    for each matrix.

    Convolutions are no ceiling, because cuDNN may do them in fewer multiplications than are
    counted. In fp32 they came to more than the data sheet allows.
    """
    size = 8192 if torch.cuda.mem_get_info(device)[0] > 4 * 1024 * MIB else 4096
    if dtype == FORWARD:
        a8, b8 = (scaled(torch.randn(size, size, device=device), FORWARD) for _ in range(2))
        return 2 * size**3 * rate_of(lambda: product(a8, b8, fast=True), device) / 1e12
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 * rate_of(lambda: a @ b, device) / 1e12


def measure_copy(device: torch.device) -> float:
    """Return the GB/s, read plus written, of copying 1 GiB within the GPU's memory."""
    size = min(1024 * MIB, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size * rate_of(lambda: target.copy_(source), device) / 1e9


def measure_limits(record: RunRecord, trainer: "Trainer", _batches: Any = None) -> None:
    """Fill in the GPU's measured rates in the run's arithmetic, and the fractions of them that the
    run reaches.

    Raises RuntimeError while another process uses the GPU, because the rates would be those of a
    part of it.
    """
    if record.gpu_shared:
        raise RuntimeError("another process uses the GPU, so that its ceilings cannot be measured")
    mode = PRECISIONS[trainer.precision]
    dtype = FORWARD if trainer.precision == "fp8" else mode["autocast"] or mode["weights"]
    ceiling = record.ceiling_matmul_tflop_per_second = measure_ceiling(dtype, trainer.device)
    copy_rate = record.ceiling_copy_gb_per_second = measure_copy(trainer.device)
    if record.achieved_tflop_per_second is not None:
        record.compute_limit_fraction = record.achieved_tflop_per_second / ceiling
    if record.bytes_per_step and record.gpu_busy_ms_per_step:
        # GB/s while the GPU works
        bytes_per_ms = record.bytes_per_step / record.gpu_busy_ms_per_step
        record.bandwidth_limit_fraction = bytes_per_ms / 1e6 / copy_rate
