"""Loss scaling: the scaler of each mode, the scale of every step, and what fp16 would lose
without one.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..store.record import RunRecord
from ..tasks.batches import parts_of
from .cuda_graph import DeviceScaler
from .precision import PRECISIONS, cudnn_flags, gather_master_gradients, in_fp32


class OwnScaler(torch.amp.GradScaler):
    """PyTorch's loss scaler for what that does not know: a `fixed` scale, fp32 master copies,
    and fp16 gradients.
    """

    def __init__(self, device_type: str, *, init_scale: float, fixed: bool, enabled: bool):
        super().__init__(device_type, init_scale=init_scale, enabled=enabled)
        self.fixed = init_scale if fixed else None

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale if self.fixed is None else self.fixed)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        gather_master_gradients(optimizer)
        super().unscale_(optimizer)

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def make_scaler(
    precision: str, loss_scale: str | float, device: torch.device, on_device: bool = False
) -> Any:
    """Return the mode's torch.amp.GradScaler, or with `on_device` its DeviceScaler. One not enabled
    changes nothing.

    loss_scale: "dynamic" or a fixed number. o3_fp16 has no dynamic scale.
    """
    dynamic = loss_scale == "dynamic"
    mode = PRECISIONS[precision]
    enabled = mode["scale"] and not (precision == "o3_fp16" and dynamic)
    start = 65536.0 if dynamic else float(loss_scale)
    if on_device:
        return DeviceScaler(start if enabled else None, enabled and dynamic, device)
    if dynamic and not mode["masters"]:
        return torch.amp.GradScaler(device.type, init_scale=start, enabled=enabled)
    return OwnScaler(device.type, init_scale=start, fixed=not dynamic, enabled=enabled)


class LossScaleTrace:
    """Works out the loss scale of every step of an epoch, once the clock has stopped.

    It is made before the first step and follows GradScaler's rule, so the training loop never reads
    the scale.
    """

    def __init__(self, record: RunRecord, trainer: Any):
        self.record = record
        self.scaler = trainer.scaler
        self.number = trainer.steps
        dynamic = trainer.scaler.is_enabled() and trainer.fixed_scale is None
        self.state = trainer.scaler.state_dict() if dynamic else {}
        self.note()

    def note(self, scale: float | None = None) -> None:
        """Add [step, scale] to the record if the scale has changed.

        Without a scale, the scaler's own is read.
        """
        if self.scaler.is_enabled():
            trace = self.record.loss_scale_trace
            scale = self.scaler.get_scale() if scale is None else scale
            if not trace or trace[-1][1] != scale:
                trace.append([self.number, scale])

    def end(self, skipped: Iterable[bool]) -> None:
        """Follow all steps of the epoch, given whether each was skipped, then read the scale
        itself.
        """
        if state := self.state:
            scale, good = (
                torch.tensor(state["scale"]),
                torch.tensor(state["_growth_tracker"], dtype=torch.int32),
            )
            rule = state["growth_factor"], state["backoff_factor"], state["growth_interval"]
        for each in skipped:
            if each:
                self.record.overflow_steps.append(self.number)
            self.number += 1
            if state:
                torch._amp_update_scale_(scale, good, torch.tensor(float(each)), *rule)
                self.note(scale.item())
        self.note()


def flush_fraction(gradients: list[torch.Tensor], scale: float) -> float:
    """Return the fraction of non-zero elements of `gradients` (unscaled) that are 0 in fp16 at
    this loss scale.
    """
    lost = sum(((g != 0) & ((g * scale).half() == 0)).sum() for g in gradients)
    nonzero: Any = sum((g != 0).sum() for g in gradients)
    return (lost / nonzero.clamp(min=1)).item()


def read_gradients(record: RunRecord, trainer: Any, batches: Iterator[tuple]) -> None:
    """Fill in, for fp16 modes, the fraction of gradient elements that fp16 loses without and with
    the loss scale.

    The gradients come from an fp32 copy of the model: in fp16 the lost ones could no longer be
    counted.
    """
    if "fp16" not in trainer.precision:
        return
    scale = trainer.scaler.get_scale()
    part = parts_of(next(batches), trainer.micro_batches)[0]
    exact, batch = in_fp32(trainer.network, part)
    # nothing is timed, so nothing is searched
    with cudnn_flags(benchmark=False, deterministic=True):
        loss, _ = trainer.compute_loss(exact, batch, None)
        loss.backward()
    gradients = [weight.grad for weight in exact.parameters() if weight.grad is not None]
    if not all(gradient.isfinite().all() for gradient in gradients):
        record.gradient_reason = "the gradients are not finite even in fp32"
        return
    record.gradient_flush_fraction_scale_1 = flush_fraction(gradients, 1.0)
    record.gradient_flush_fraction_scaled = flush_fraction(gradients, scale)
