"""Memory: peaks of PyTorch's allocator, and use of the whole device."""

import gc
import traceback

import torch

from ..store.record import RunRecord
from .nvml import MIB, NvmlGpu, gpu_before_use


def reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peaks(record: RunRecord, device: torch.device, suffix: str = "", unseen: int = 0) -> None:
    """Raise the record's peaks, `peak_allocated<suffix>_mib` and `peak_reserved<suffix>_mib`, to
    those since the reset.

    The peaks with warm-up are raised, too. `unseen` bytes are of a CUDA graph, which the allocator
    does not count.
    """
    if device.type != "cuda":
        return
    peaks = {
        "allocated": torch.cuda.max_memory_allocated(device) + unseen,
        "reserved": torch.cuda.max_memory_reserved(device),
    }
    for kind, size in peaks.items():
        for name in {f"peak_{kind}{suffix}_mib", f"peak_{kind}_with_warmup_mib"}:
            setattr(record, name, max(getattr(record, name) or 0, size / MIB))
    # an evaluation leaves memory reserved for later epochs
    if not suffix and record.device_used_mib is not None:
        read_device_memory(record, device)


def release_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # which does nothing where no GPU is in use


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the host has too little memory."""
    signs = ("out of memory", "_ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        sign in str(error) for sign in signs
    )


def clear_tracebacks(error: BaseException | None) -> None:
    """Clear the frames of an error and its causes, which keep the run's tensors alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def read_device_memory(record: RunRecord, device: torch.device) -> None:
    """Note the highest use of the whole device (MiB, from NVML) that was read, and that before
    this process.
    """
    if device.type != "cuda":
        record.device_memory_reason = "no GPU"
        return
    gpu = NvmlGpu(record.gpu_uuid)
    used = gpu.used_mib()
    if used is not None:
        record.device_used_mib = max(record.device_used_mib or 0, used)
    record.device_memory_reason = gpu.reason
    record.device_used_before_mib = gpu_before_use(record.gpu_uuid)["used_mib"]
    if record.peak_reserved_mib is not None and record.peak_allocated_mib is not None:
        record.ledger_slack_mib = record.peak_reserved_mib - record.peak_allocated_mib


def read_context(record: RunRecord, device: torch.device) -> None:
    """Note the memory of the CUDA context and libraries (MiB): the device's use less that of others
    and the allocator.

    It is read after warm-up, when the libraries are loaded, so that a later reading can check the
    breakdown's sum.
    """
    if device.type != "cuda":
        return
    used = NvmlGpu(record.gpu_uuid).used_mib()
    before = gpu_before_use(record.gpu_uuid)["used_mib"]
    reserved = torch.cuda.memory_reserved(device) / MIB
    record.ledger_context_mib = None if used is None or before is None else used - before - reserved
