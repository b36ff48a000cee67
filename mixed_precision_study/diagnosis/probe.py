"""What is noted of one optimizer: how its gradients change between backward() and its step, and whether weights move.

Most of it is noted at one small weight, in the few steps that are looked at, and read from the device at the end.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

from ..explain.profile import tensors_in

HELD = r"kahan|stochastic|compens|master|residual|remainder|rounding|float32|float\(\)"  # ways to keep small updates


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of some of a tensor's numbers."""
    rows = tensor.detach()[:16] if tensor.dim() else tensor.detach()
    return rows.reshape(-1)[:4096].clone()


class Probe:
    """What is noted of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.weight = min(self.plain_weights(), key=torch.Tensor.numel, default=None)
        self.cleared: list[Any] = []  # at each backward() since the last step: whether the gradient was cleared
        self.rounds: list[list[Any]] = []  # of each step: the same
        self.used: tuple[Any, int] = (
            None,
            0,
        )  # the gradient of the last step, and how many calls of backward() came before
        self.steps = self.doubled = self.kept_at = 0  # doubled: with a gradient that the step before had used
        self.scaled: torch.Tensor | None = None  # the gradient as backward() left it, while the loss is scaled
        self.changes: list[torch.Tensor] = []  # of it before the scaler's step, see compare()
        self.past_scaler: list[torch.Tensor] = []  # of it before a step without the scaler
        self.kept: list[tuple[torch.Tensor, ...]] = []  # (16-bit weight, its numbers, where it has a gradient)

    def plain_weights(self) -> list[torch.Tensor]:
        """Return the weights whose gradient is neither sparse nor spread over processes."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        return [one for one in weights if type(one.grad) is torch.Tensor and one.grad.layout == torch.strided]

    @property
    def gradient(self) -> Any:
        return None if self.weight is None else self.weight.grad

    def begin_backward(self) -> None:
        self.cleared.append(True if self.gradient is None else ~self.gradient.any())

    def end_scaled_backward(self) -> None:
        """Keep a gradient, unless other processes add to it later, which would look like a change."""
        known = self.gradient is not None and self.gradient.dtype == torch.float32
        self.scaled = sample(self.gradient) if known and not torch.distributed.is_initialized() else None

    def compare(self, changes: list[torch.Tensor]) -> None:
        """Note (least factor of a change since backward(), largest, whether numbers have one bound, norm of all).

        A number that is masked counts as unchanged.
        """
        before, self.scaled = self.scaled, None
        if before is not None and self.gradient is not None:
            after = sample(self.gradient)
            factors = (after / before).nan_to_num(1.0, 1.0, 1.0)
            factors = torch.where(factors == 0, 1.0, factors)
            at_bound = (after.abs() == after.abs().max()) & (before.abs() > 1.001 * after.abs())
            norm = torch.nn.utils.get_total_norm([weight.grad for weight in self.plain_weights()]).float()
            changes.append(torch.stack((factors.min(), factors.max(), (at_bound.sum() > 1).float(), norm)))

    def end_round(self) -> None:
        """Note that a step was due, although a scaler may leave it out."""
        self.rounds += [self.cleared] if self.cleared else []  # none is known where the step was not looked at
        self.cleared = []

    def step(self, keeps: bool, backwards: int) -> None:
        """Note a step. keeps: numbers of 16-bit weights, to see later whether they move; a rate of 0 moves none."""
        self.steps += 1
        gradient = self.gradient
        if gradient is not None:
            self.doubled += self.used[0] is gradient and self.used[1] == backwards
            self.used = gradient, backwards
        if keeps and not self.kept and all(float(group.get("lr", 1)) > 0 for group in self.optimizer.param_groups):
            half = [weight for weight in self.plain_weights() if weight.dtype in (torch.float16, torch.bfloat16)]
            for weight in sorted(half, key=torch.Tensor.numel)[-8:]:
                self.kept.append((weight, sample(weight), sample(weight.grad) != 0))
            self.kept_at = self.steps

    def mistakes(self, backwards: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return (rule, what it names) of each mistake. backwards: calls of backward(), which a CUDA graph replays."""
        if 2 < self.doubled <= backwards and 3 * self.doubled >= self.steps:
            yield "steps twice", {}
        if len(self.rounds) > 2 and not any(bool(one) for cleared in self.rounds for one in cleared):
            yield "gradients not cleared", {}
        if self.past_scaler and all(bool((change[:2] == 1).all()) for change in self.past_scaler):
            yield "past the scaler", {}
        if self.was_clipped():
            yield "clipped while scaled", {}
        own = type(self.optimizer).__module__.startswith("torch.optim")
        for group in self.optimizer.param_groups if own else []:
            eps, half = group.get("eps"), any(weight.dtype == torch.float16 for weight in group["params"])
            if half and isinstance(eps, float) and 0 < eps < 2**-25 and not group.get("fused"):
                yield "eps", {"eps": eps}
        moved = [(before != sample(weight))[has_gradient] for weight, before, has_gradient in self.kept]
        numbers = sum(len(one) for one in moved)
        lost = 1 - sum(int(one.sum()) for one in moved) / numbers if numbers and self.steps > self.kept_at + 2 else 0.0
        if lost >= (0.1 if own else 0.5) and not self.holds_what_is_rounded(own):  # 0.5: rounding by chance moves some
            dtype, name = name_of(self.kept[0][0].dtype), type(self.optimizer).__name__
            yield "lost updates", {"optimizer": name, "dtype": dtype, "share": lost}

    def was_clipped(self) -> bool:
        """Return whether scaled gradients became smaller, in each step to one bound or to one round norm.

        Other factors may average, or divide by a count of words.
        """
        changes = [change for change in self.changes if change.isfinite().all()]
        if len(changes) < 3:
            return False
        least, most, bound, norms = torch.stack(changes).double().cpu().unbind(1)
        norm = float(f"{norms[0]:.0e}")  # to one digit
        to_norm = bool((most < 0.999).all()) and bool(((norms - norm).abs() < 1e-4 * norm).all())
        return bool(least.min() >= 0) and bool(most.max() <= 1.001) and (bool(bound.all()) or to_norm)

    def holds_what_is_rounded(self, own: bool) -> bool:
        """Return whether a state rounds to the weight, or the source of a foreign optimizer speaks of such a thing."""
        for weight, *_ in self.kept:
            states = [part for part in tensors_in(self.optimizer.state.get(weight, {})) if part.shape == weight.shape]
            wide = [sample(part).to(weight.dtype) for part in states if part.dtype == torch.float32]
            if any(float((part == sample(weight)).float().mean()) > 0.9 for part in wide):
                return True
        try:
            kind = type(self.optimizer)
            text = "" if own else inspect.getsource(kind) + str(list(vars(inspect.getmodule(kind))))
        except (OSError, TypeError):
            return True
        return re.search(HELD, text, re.IGNORECASE) is not None
