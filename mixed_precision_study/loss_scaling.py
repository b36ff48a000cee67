"""Loss scaling: the scaler of each mode, the scale step by step, and what fp16 would lose without one."""

import torch

from .cuda_graph import DeviceScaler
from .precision import PRECISIONS, gather_master_gradients, in_fp32


class FixedLossScaler(torch.amp.GradScaler):
    """PyTorch's loss scaler, which goes on with the same scale where one is given as `fixed`."""

    def __init__(self, device_type, *, init_scale, fixed, enabled=True):
        super().__init__(device_type, init_scale=init_scale, enabled=enabled)
        self.fixed = init_scale if fixed else None

    def update(self, new_scale=None):
        super().update(new_scale if self.fixed is None else self.fixed)


class MasterCopyScaler(FixedLossScaler):
    """The same for o2_fp16, where the optimizer updates fp32 master copies of the model's fp16 weights."""

    def unscale_(self, optimizer):
        gather_master_gradients(optimizer)
        super().unscale_(optimizer)


class HalfGradientScaler(FixedLossScaler):
    """The same for o3_fp16, where the gradients themselves are fp16, which PyTorch's scaler refuses."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def make_scaler(precision, loss_scale, device, execution="eager"):
    """Return the loss scaler of the mode; one that is not enabled passes everything through.

    In eager mode it is torch.amp.GradScaler, or a small subclass where that cannot do what the mode needs. A CUDA graph
    has one that follows the same rule on the device. o3_fp16 has none, unless `loss_scale` is a number.
    """
    dynamic = loss_scale == "dynamic"
    enabled = PRECISIONS[precision]["scale"] and not (precision == "o3_fp16" and dynamic)
    start = 65536.0 if dynamic else float(loss_scale)
    if "cuda_graph" in execution:
        return DeviceScaler(start if enabled else None, enabled and dynamic, device)
    if dynamic and not PRECISIONS[precision]["masters"]:
        return torch.amp.GradScaler(device.type, init_scale=start, enabled=enabled)
    kinds = {"o2_fp16": MasterCopyScaler, "o3_fp16": HalfGradientScaler}
    scaler = kinds.get(precision, FixedLossScaler)
    return scaler(device.type, init_scale=start, fixed=not dynamic, enabled=enabled)


class LossScaleTrace:
    """Tells the loss scale of an epoch's steps from which of them were skipped, when the clock has stopped."""

    def __init__(self, record, trainer):
        self.record, self.trainer, self.number = record, trainer, trainer.steps
        self.on = trainer.scaler.is_enabled()
        self.dynamic = self.on and trainer.fixed_scale is None
        self.state = trainer.scaler.state_dict() if self.dynamic else {}
        self.scale = trainer.scaler.get_scale() if self.on else None
        self.note()

    def note(self):
        """Add [step, scale] to the record where the scale has changed, or the steps are counted anew."""
        trace = self.record.loss_scale_trace
        if self.on and (not trace or trace[-1][1] != self.scale or trace[-1][0] > self.number):
            trace.append([self.number, self.scale])

    def step(self, skipped):
        """Take note of a step, with GradScaler's own rule: less after an overflow, more after so many good steps."""
        state = self.state
        if skipped:
            self.record.overflow_steps.append(self.number)
        self.number += 1
        if not self.dynamic:
            return
        state["_growth_tracker"] = 0 if skipped else state["_growth_tracker"] + 1
        if skipped:  # in fp32, as the scaler's own, which comes to 0
            self.scale = torch.tensor(self.scale * state["backoff_factor"]).item()
        elif state["_growth_tracker"] == state["growth_interval"]:
            self.scale, state["_growth_tracker"] = self.scale * state["growth_factor"], 0
        self.note()

    def end(self, skipped=()):
        """Go through the steps of the epoch, [whether each was skipped], then ask the scaler itself."""
        for each in skipped:
            self.step(each)
        self.scale = self.trainer.scaler.get_scale() if self.on else None
        self.note()


def flush_fraction(gradients, scale):
    """Return which fraction of the non-zero elements of `gradients` (at scale 1) is 0 in fp16 at a loss scale."""
    lost = sum(((g != 0) & ((g * scale).half() == 0)).sum() for g in gradients)
    return (lost / sum((g != 0).sum() for g in gradients).clamp(min=1)).item()


def read_gradients(record, trainer, batches, hidden):
    """Fill in, for fp16, which fraction of the weights' gradients is too small for fp16 without and with the scale.

    The gradients are those of a copy of the model in fp32: what fp16 has lost could no longer be counted in fp16.
    """
    if "fp16" not in trainer.precision:
        return
    scale, (exact, batch) = trainer.scaler.get_scale(), in_fp32(trainer.network, next(batches))
    exact.zero_grad()
    loss, _ = trainer.compute_loss(exact, batch, None)
    loss.backward()
    gradients = [weight.grad for weight in exact.parameters() if weight.grad is not None]
    if not all(gradient.isfinite().all() for gradient in gradients):
        record.gradient_reason = "the gradients are not finite even in fp32"
        return
    record.gradient_flush_fraction_scale_1 = flush_fraction(gradients, 1.0)
    record.gradient_flush_fraction_scaled = flush_fraction(gradients, scale)
