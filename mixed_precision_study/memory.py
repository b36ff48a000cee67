"""What reads memory: peaks of the allocator, the whole device, and what fills it when it stands highest."""

import gc
import traceback
from contextlib import contextmanager

import torch

from .gpu.nvml import MIB, NvmlGpu, gpu_before_use
from .record import LEDGER_AT_PEAK


def reset_peaks(device):
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peaks(record, device, suffix="", unseen=0):
    """Raise the record's peaks, in MiB, to those since the last reset: `peak_allocated<suffix>_mib` and reserved.

    Those with warm-up are raised along. `unseen` bytes are in use beside what the allocator counts: those that a CUDA
    graph has for its own.
    """
    if device.type != "cuda":
        return
    allocated, reserved = torch.cuda.max_memory_allocated(device) + unseen, torch.cuda.max_memory_reserved(device)
    for kind, size in (("allocated", allocated), ("reserved", reserved)):
        for name in {f"peak_{kind}{suffix}_mib", f"peak_{kind}_with_warmup_mib"}:
            setattr(record, name, max(getattr(record, name) or 0, size / MIB))


def release_memory(device):
    """Hand the allocator's free blocks back to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error):
    """Tell a lack of memory, on the device or the host, from other failures."""
    signs = ("out of memory", "_ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in signs)


def clear_tracebacks(error):
    """Clear the frames that led to an error: they hold the tensors of the run, and the device with them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def read_device_memory(record, device):
    """Note what NVML says is used on the whole device, in MiB, now and before this process touched it."""
    if device.type != "cuda":
        record.device_memory_reason = "no GPU"
        return
    memory = NvmlGpu(record.gpu_uuid).memory()
    record.device_used_mib, record.device_memory_reason = memory["used_mib"], memory["reason"]
    record.device_used_before_mib = gpu_before_use(record.gpu_uuid)["used_mib"]
    if record.peak_reserved_mib is not None:
        record.ledger_slack_mib = record.peak_reserved_mib - record.peak_allocated_mib


def read_context(record, device):
    """Note what context and libraries take, MiB: the device less others and less what the allocator holds.

    Called after warm-up, when the libraries are loaded, so that the ledger's sum is set against another reading.
    """
    if device.type == "cuda":
        used, before = (one["used_mib"] for one in (NvmlGpu(record.gpu_uuid).memory(), gpu_before_use(record.gpu_uuid)))
        reserved = torch.cuda.memory_reserved(device) / MIB
        record.ledger_context_mib = None if None in (used, before) else used - before - reserved


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@contextmanager
def watched_memory(trainer, seen):
    """Note in `seen`, during one step, the gradients alive at the peak and what the forward pass left allocated.

    The allocator's figures are the host's: reading them does not wait for the GPU.
    """
    read, allocated = torch.cuda.max_memory_allocated, torch.cuda.memory_allocated
    loss_of, pairs = trainer.loss_of, zip(trainer.weights, trainer.masters, strict=True)
    of_masters = bytes_of(master.grad for weight, master in pairs if master is not weight)  # these are kept
    seen |= {"peak": 0, "gradients": 0, "at_peak": 0, "saved": 0}

    def after(weight):
        if read() > seen["peak"]:
            seen["peak"], seen["at_peak"] = read(), seen["gradients"]
        seen["gradients"] += weight.grad.nbytes

    def forward(*given):
        before = allocated()
        loss = loss_of(*given)
        seen["saved"] = allocated() - before
        return loss

    hooks = [weight.register_post_accumulate_grad_hook(after) for weight in trainer.weights]
    trainer.loss_of = forward
    try:
        yield
        seen["at_peak"] = seen["gradients"] if read() > seen["peak"] else seen["at_peak"]
        seen["at_peak"] += of_masters
    finally:
        trainer.loss_of = loss_of
        for hook in hooks:
            hook.remove()


def read_memory_breakdown(record, trainer, batches, hidden):
    """Fill in the ledger: what was allocated at the peak by kind, then the allocator's slack and the context."""
    seen, batch = {}, next(batches)
    trainer.eager_step(batch, hidden)  # gradients and state are as in the midst of training
    reset_peaks(trainer.device)
    with watched_memory(trainer, seen):
        trainer.eager_step(batch, hidden)
    halves = [master for weight, master in zip(trainer.weights, trainer.masters, strict=True) if master is not weight]
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    record.ledger_parameters_mib = bytes_of([*trainer.network.parameters(), *trainer.network.buffers()]) / MIB
    record.ledger_masters_mib = bytes_of(halves) / MIB
    record.ledger_optimizer_mib = bytes_of(value for value in state if isinstance(value, torch.Tensor)) / MIB
    record.ledger_gradients_mib, record.saved_activations_mib = seen["at_peak"] / MIB, seen["saved"] / MIB
    record.ledger_data_mib = record.data_on_device_mib
    close_memory_breakdown(record)


def close_memory_breakdown(record):
    """Fill in what is left of the peak, and how far the whole sum is from what NVML says this run used."""
    known = sum(getattr(record, f"ledger_{part}_mib") or 0 for part in LEDGER_AT_PEAK[:-1])
    record.ledger_activations_mib = record.peak_allocated_mib - known
    if record.ledger_context_mib is None or record.device_used_mib is None:
        record.ledger_reason = record.device_memory_reason or "what others used before the run is not known"
        return
    total = record.peak_allocated_mib + record.ledger_slack_mib + record.ledger_context_mib
    used = record.device_used_mib - record.device_used_before_mib
    record.ledger_error_fraction = total / used - 1
