"""What is noted of one optimizer: how its gradients change between backward() and its step, and if weights move."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

from .mistakes import name_of

# ways to keep small updates
HELD = r"kahan|stochastic|compens|master|residual|remainder|rounding|float32|float\(\)"


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of some of a tensor's numbers."""
    rows = tensor.detach()[:16] if tensor.dim() else tensor.detach()
    return rows.reshape(-1)[:4096].clone()


class Probe:
    """Notes most of it at one small weight, in the few steps that are looked at, and reads the device at the end."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.weight = min(self.plain_weights(), key=torch.Tensor.numel, default=torch.zeros(()))
        # at each backward() that was looked at: whether the gradient was cleared
        self.cleared: list[Any] = []
        # steps that were due after these; how many of these there were before
        self.rounds = self.rounded = 0
        # the last step's gradient, and how often backward() was called before
        self.used: tuple[Any, int] = (None, 0)
        # doubled: with a gradient that the step before had used
        self.steps = self.doubled = self.kept_at = 0
        # the gradient as backward() left it, while the loss is scaled
        self.scaled: torch.Tensor | None = None
        # before the scaler's step: least factor, largest, one bound?, norm
        self.changes: list[torch.Tensor] = []
        self.past_scaler: list[torch.Tensor] = []  # the same before a step without the scaler
        # (16-bit weight, its numbers, where it has a gradient)
        self.kept: list[tuple[torch.Tensor, ...]] = []

    def plain_weights(self) -> list[torch.Tensor]:
        """Return the weights whose gradient is neither sparse nor spread over processes."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        return [
            one
            for one in weights
            if type(one.grad) is torch.Tensor and one.grad.layout == torch.strided
        ]

    def end_scaled_backward(self) -> None:
        """Keep a gradient, unless other processes add to it later, which would look like a change."""
        gradient = None if torch.distributed.is_initialized() else self.weight.grad
        self.scaled = (
            sample(gradient) if gradient is not None and gradient.dtype == torch.float32 else None
        )

    def end_round(self, changes: list[torch.Tensor]) -> None:
        """Note that a step is due, which a scaler may leave out, and how the gradient has changed since backward()."""
        self.rounds += len(self.cleared) > self.rounded  # else its backward() was not looked at
        self.rounded = len(self.cleared)
        before, self.scaled = self.scaled, None
        if before is not None and self.weight.grad is not None:
            after = sample(self.weight.grad)
            factors = (after / before).nan_to_num(1.0, 1.0, 1.0)
            # a number that is masked counts as unchanged
            factors = torch.where(factors == 0, 1.0, factors)
            at_bound = (after.abs() == after.abs().max()) & (before.abs() > 1.001 * after.abs())
            norm = torch.nn.utils.get_total_norm(
                [weight.grad for weight in self.plain_weights()]
            ).float()
            changes.append(
                torch.stack((factors.min(), factors.max(), (at_bound.sum() > 1).float(), norm))
            )

    def step(self, keeps: bool, backwards: int) -> None:
        """Note a step. keeps: numbers of 16-bit weights, to see later whether they move; a rate of 0 moves none."""
        self.steps += 1
        if (gradient := self.weight.grad) is not None:
            self.doubled += self.used[0] is gradient and self.used[1] == backwards
            self.used = gradient, backwards
        if (
            keeps
            and not self.kept
            and all(float(group.get("lr", 1)) > 0 for group in self.optimizer.param_groups)
        ):
            half = [
                weight
                for weight in self.plain_weights()
                if weight.dtype in (torch.float16, torch.bfloat16)
            ]
            self.kept = [
                (one, sample(one), sample(one.grad) != 0)
                for one in sorted(half, key=torch.Tensor.numel)[-8:]
            ]
            self.kept_at = self.steps

    def mistakes(self, backwards: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return (rule, what it names) of each mistake. backwards: calls of backward(), which a CUDA graph replays."""
        if 2 < self.doubled <= backwards and 3 * self.doubled >= self.steps:
            yield "steps twice", {}
        if self.rounds > 2 and not any(map(bool, self.cleared)):
            yield "gradients not cleared", {}
        if self.past_scaler and all(bool((change[:2] == 1).all()) for change in self.past_scaler):
            yield "past the scaler", {}
        if self.was_clipped():
            yield "clipped while scaled", {}
        own = type(self.optimizer).__module__.startswith("torch.optim")
        for group in self.optimizer.param_groups if own else []:
            eps, half = (
                group.get("eps"),
                any(weight.dtype == torch.float16 for weight in group["params"]),
            )
            if half and isinstance(eps, float) and 0 < eps < 2**-25 and not group.get("fused"):
                yield "eps", {"eps": eps}
        moved = [
            (before != sample(weight))[has_gradient] for weight, before, has_gradient in self.kept
        ]
        numbers = sum(len(one) for one in moved)
        lost = (
            1 - sum(int(one.sum()) for one in moved) / numbers
            if numbers and self.steps > self.kept_at + 2
            else 0.0
        )
        # 0.5: rounding by chance moves some
        if lost >= (0.1 if own else 0.5) and not self.holds_what_is_rounded():
            dtype, name = name_of(self.kept[0][0].dtype), type(self.optimizer).__name__
            yield "lost updates", {"optimizer": name, "dtype": dtype, "share": lost}

    def was_clipped(self) -> bool:
        """Return whether scaled gradients became smaller, in each step to one bound or to one round norm."""
        changes = [change for change in self.changes if change.isfinite().all()]
        if len(changes) < 3:
            return False
        least, most, bound, norms = torch.stack(changes).double().cpu().unbind(1)
        # to one digit; other factors may average, or divide by a count of words
        norm = float(f"{norms[0]:.0e}")
        to_norm = bool((most < 0.999).all()) and bool(((norms - norm).abs() < 1e-4 * norm).all())
        return (
            bool(least.min() >= 0) and bool(most.max() <= 1.001) and (bool(bound.all()) or to_norm)
        )

    def holds_what_is_rounded(self) -> bool:
        """Return whether the source of an optimizer that is not PyTorch's speaks of it, or is not known."""
        kinds = [
            one
            for one in type(self.optimizer).__mro__
            if not one.__module__.startswith(("torch.", "builtins"))
        ]
        try:
            text = "".join(
                inspect.getsource(kind) + str(list(vars(inspect.getmodule(kind)))) for kind in kinds
            )
        except (OSError, TypeError):
            return True
        return re.search(HELD, text, re.IGNORECASE) is not None
