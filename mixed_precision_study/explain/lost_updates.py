"""How much of an update 16-bit weights lose to rounding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..store.record import RunRecord
from ..tasks.batches import mapped
from ..train.device_optimizer import DeviceAdamW, DeviceOptimizer
from ..train.precision import may_lose_updates


def exact_copy(optimizer: Any, copies: dict) -> Any:
    """Return an optimizer of the same kind and state for the fp32 copies {weight: copy} of its
    weights.
    """
    groups = []
    for group in optimizer.param_groups:
        groups.append({**group, "params": [copies[weight] for weight in group["params"]]})
    if isinstance(optimizer, DeviceOptimizer):
        copy = object.__new__(type(optimizer))
        copy.__dict__.update(vars(optimizer), param_groups=groups, rounding="nearest")
        if isinstance(copy, DeviceAdamW):
            copy.steps = copy.steps.clone()
    else:
        copy = type(optimizer)(groups, lr=0.0)
    in_fp32 = partial(
        mapped, convert=lambda leaf, _: leaf.float().clone() if torch.is_tensor(leaf) else leaf
    )
    copy.state = {copies[weight]: in_fp32(state) for weight, state in optimizer.state.items()}
    for state in copy.state.values():
        state.pop("remainder", None)  # of earlier updates
    return copy


def read_lost_updates(record: RunRecord, trainer: Any, batches: Iterator[tuple]) -> None:
    """Take a step, and compare what it did to 16-bit weights with what it should have done in fp32.

    Both start from the same weights, gradients and optimizer state. Modes with fp32 weights or
    masters have none.
    """
    if not may_lose_updates(trainer.precision):
        return
    before = [weight.detach().clone() for weight in trainer.masters]
    exact = [torch.nn.Parameter(weight.float()) for weight in before]
    optimizer = exact_copy(trainer.optimizer, dict(zip(trainer.masters, exact, strict=True)))
    trainer.eager_step(next(batches))
    lost = moved = kept = whole = torch.zeros((), device=trainer.device, dtype=torch.float64)
    for weight, copy in zip(trainer.masters, exact, strict=True):
        copy.grad = None if weight.grad is None else weight.grad.float()
    optimizer.step()
    for weight, old, copy in zip(trainer.masters, before, exact, strict=True):
        intended = (copy.detach() - old.float()).double()
        done = (weight.detach().float() - old.float()).double()
        moved = moved + (intended != 0).sum()
        lost = lost + ((intended != 0) & (done == 0)).sum()
        kept = kept + (intended * done).sum()
        whole = whole + intended.square().sum()
    if not whole.isfinite() or not whole:
        record.update_reason = "the step updated nothing"
        return
    record.lost_update_fraction = (lost / moved).item()
    record.kept_update_fraction = (kept / whole).item()
