"""What fills the memory at the peak of a training step: weights, gradients, optimizer, data and
activations.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from ..measure.memory import reset_peaks
from ..measure.nvml import MIB
from ..store.record import LEDGER_AT_PEAK, RunRecord

if TYPE_CHECKING:
    from ..train.step import Trainer


def bytes_of(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors; one in 8 bits of torchao takes what it is made of."""
    total = 0
    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):
            total += bytes_of(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        elif tensor is not None:
            total += tensor.nbytes
    return total


@dataclass
class StepMemory:
    """Memory of one training step, in bytes."""

    peak: int = 0  # allocated, up to the last gradient
    gradients: int = 0  # made so far
    gradients_at_peak: int = 0
    saved_activations: int = 0  # what the forward pass leaves allocated


@contextmanager
def watched_memory(trainer: "Trainer") -> Iterator[StepMemory]:
    """Watch one eager step without waiting for the GPU; the StepMemory that is yielded is
    complete after the block.
    """
    seen = StepMemory()
    loss_of = trainer.loss_of
    noted = set()
    copies = {*trainer.masters} - {*trainer.weights}
    master_gradients = bytes_of(master.grad for master in copies)  # alive throughout

    def note_gradient(weight):
        # where a step adds up the gradients of several batches, or an update has freed this one
        if weight in noted or weight.grad is None:
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
    try:
        with patch.object(trainer, "loss_of", measured_loss):
            yield seen
        # after the last gradient, in the optimizer
        if torch.cuda.max_memory_allocated() > seen.peak:
            seen.gradients_at_peak = seen.gradients
        seen.gradients_at_peak += master_gradients
    finally:
        for hook in hooks:
            hook.remove()


def read_memory_breakdown(record: RunRecord, trainer: "Trainer", batches: Iterator) -> None:
    """Fill in the memory breakdown (`ledger_*`): what was allocated at the peak by kind, slack
    and context.
    """
    batch = next(batches)
    trainer.eager_step(batch)  # makes gradients and optimizer state
    reset_peaks(trainer.device)
    with watched_memory(trainer) as seen:
        trainer.eager_step(batch)
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    weights = [*trainer.network.parameters(), *trainer.network.buffers()]
    record.fill(
        ledger_parameters_mib=bytes_of(weights) / MIB,
        ledger_masters_mib=bytes_of({*trainer.masters} - {*trainer.weights}) / MIB,
        ledger_optimizer_mib=bytes_of(filter(torch.is_tensor, state)) / MIB,
        ledger_gradients_mib=seen.gradients_at_peak / MIB,
        saved_activations_mib=seen.saved_activations / MIB,
        ledger_data_mib=record.data_on_device_mib,
    )
    close_memory_breakdown(record)


def close_memory_breakdown(record: Any) -> None:
    """Fill in the rest of the peak, and how far the allocator's reserve and the context are from
    NVML's figure.
    """
    known = sum(
        getattr(record, f"ledger_{part}_mib") or 0
        for part in LEDGER_AT_PEAK
        if part != "activations"
    )
    if known > record.peak_allocated_mib:
        record.ledger_reason = f"the known parts take {known:,.0f} MiB, more than the peak"
        return
    record.ledger_activations_mib = record.peak_allocated_mib - known
    if record.ledger_context_mib is None or record.device_used_mib is None:
        record.ledger_reason = (
            record.device_memory_reason or "what others used before the run is not known"
        )
        return
    total = record.peak_allocated_mib + record.ledger_slack_mib + record.ledger_context_mib
    used = record.device_used_mib - record.device_used_before_mib
    record.ledger_error_fraction = total / used - 1
