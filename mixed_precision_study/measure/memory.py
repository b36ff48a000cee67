"""Memory: peaks of PyTorch's allocator, use of the whole device, and what fills it at the peak."""

import gc
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..record import LEDGER_AT_PEAK, RunRecord
from .nvml import MIB, NvmlGpu, gpu_before_use


def reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peaks(record: RunRecord, device: torch.device, suffix: str = "", unseen: int = 0) -> None:
    """Raise the record's peaks, `peak_allocated<suffix>_mib` and `peak_reserved<suffix>_mib`, to those since the reset.

    The peaks with warm-up are raised, too. `unseen` bytes are of a CUDA graph, which the allocator does not count.
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
    if not suffix and record.device_used_mib is not None:  # an evaluation leaves memory reserved for later epochs
        read_device_memory(record, device)


def release_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the host has too little memory."""
    signs = ("out of memory", "_ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in signs)


def clear_tracebacks(error: BaseException | None) -> None:
    """Clear the frames of an error and its causes, which keep the run's tensors alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def read_device_memory(record: RunRecord, device: torch.device) -> None:
    """Note the highest use of the whole device (MiB, from NVML) that was read, and that before this process."""
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
    """Note the memory of the CUDA context and libraries (MiB): the device's use less that of others and the allocator.

    It is read after warm-up, when the libraries are loaded, so that a later reading can check the breakdown's sum.
    """
    if device.type != "cuda":
        return
    used = NvmlGpu(record.gpu_uuid).used_mib()
    before = gpu_before_use(record.gpu_uuid)["used_mib"]
    reserved = torch.cuda.memory_reserved(device) / MIB
    record.ledger_context_mib = None if used is None or before is None else used - before - reserved


def bytes_of(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@dataclass
class StepMemory:
    """Memory of one training step, in bytes."""

    peak: int = 0  # allocated, up to the last gradient
    gradients: int = 0  # made so far
    gradients_at_peak: int = 0
    saved_activations: int = 0  # what the forward pass leaves allocated


@contextmanager
def watched_memory(trainer: Any) -> Iterator[StepMemory]:
    """Watch one eager step without waiting for the GPU; the StepMemory that is yielded is complete after the block."""
    seen = StepMemory()
    loss_of = trainer.loss_of
    noted: set[torch.Tensor] = set()
    copies = {*trainer.masters} - {*trainer.weights}
    master_gradients = bytes_of(master.grad for master in copies)  # alive throughout

    def note_gradient(weight):
        if weight in noted:  # where a step adds up the gradients of several batches
            return
        noted.add(weight)
        allocated = torch.cuda.max_memory_allocated()
        if allocated > seen.peak:
            seen.peak = allocated
            seen.gradients_at_peak = seen.gradients
        seen.gradients += weight.grad.nbytes

    def measured_loss(*arguments):
        before = torch.cuda.memory_allocated()
        loss = loss_of(*arguments)
        seen.saved_activations = torch.cuda.memory_allocated() - before
        return loss

    trained = (weight for weight in trainer.weights if weight.requires_grad)
    hooks = [weight.register_post_accumulate_grad_hook(note_gradient) for weight in trained]
    trainer.loss_of = measured_loss
    try:
        yield seen
        if torch.cuda.max_memory_allocated() > seen.peak:  # after the last gradient, in the optimizer
            seen.gradients_at_peak = seen.gradients
        seen.gradients_at_peak += master_gradients
    finally:
        trainer.loss_of = loss_of
        for hook in hooks:
            hook.remove()


def read_memory_breakdown(record: RunRecord, trainer: Any, batches: Iterator) -> None:
    """Fill in the memory breakdown (`ledger_*`): what was allocated at the peak by kind, slack and context."""
    batch = next(batches)
    trainer.eager_step(batch)  # makes gradients and optimizer state
    reset_peaks(trainer.device)
    with watched_memory(trainer) as seen:
        trainer.eager_step(batch)
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    record.ledger_parameters_mib = bytes_of([*trainer.network.parameters(), *trainer.network.buffers()]) / MIB
    record.ledger_masters_mib = bytes_of({*trainer.masters} - {*trainer.weights}) / MIB
    record.ledger_optimizer_mib = bytes_of(value for value in state if isinstance(value, torch.Tensor)) / MIB
    record.ledger_gradients_mib = seen.gradients_at_peak / MIB
    record.saved_activations_mib = seen.saved_activations / MIB
    record.ledger_data_mib = record.data_on_device_mib
    close_memory_breakdown(record)


def close_memory_breakdown(record: Any) -> None:
    """Fill in the rest of the peak, and how far the allocator's reserve and the context are from NVML's figure."""
    known = sum(getattr(record, f"ledger_{part}_mib") or 0 for part in LEDGER_AT_PEAK if part != "activations")
    if known > record.peak_allocated_mib:
        record.ledger_reason = f"the known parts take {known:,.0f} MiB, more than the peak"
        return
    record.ledger_activations_mib = record.peak_allocated_mib - known
    if record.ledger_context_mib is None or record.device_used_mib is None:
        record.ledger_reason = record.device_memory_reason or "what others used before the run is not known"
        return
    total = record.peak_allocated_mib + record.ledger_slack_mib + record.ledger_context_mib
    used = record.device_used_mib - record.device_used_before_mib
    record.ledger_error_fraction = total / used - 1
