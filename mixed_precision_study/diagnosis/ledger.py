"""The ledger of one optimizer: by what its gradients are multiplied and divided, steps due and taken, and what moves.

Rules read it at the end. The numbers are those of one small weight and of a few steps, so they cost next to nothing.
"""

import inspect
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from .graph import HALF, Path, same
from .mistakes import name_of

# they keep small updates
HELD = r"(?i)kahan|stochastic|compens|master|residual|remainder|rounding|float32|float\(\)"
LARGE = 8  # a number from here on may be a loss scale, a smaller one is the weight of a loss
MANY = 8  # micro-batches whose sum in 16 bits loses a digit


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of some of a tensor's numbers."""
    rows = tensor.detach()[:16] if tensor.dim() else tensor.detach()
    return rows.reshape(-1)[:4096].clone()


def fault_of(path: Path, divided: list[float]) -> str | None:
    """Return what is wrong between the numbers that multiplied a gradient and those that divided it."""
    scales, rest = sorted(one for one in path[0] if one != 1), abs(path[1])
    undone = sorted(one for one in divided if one != 1)
    if math.isnan(rest + sum(undone)):
        return None
    if not scales:
        return "never scaled" if len(undone) == 1 and 1 / LARGE <= rest <= LARGE else None
    if not undone:
        return "past the scaler"
    if len(undone) != len(scales):
        return "unscaled twice" if len(undone) > len(scales) else "scaled twice"
    return None if all(map(same, scales, undone)) else "another scale"


def nice(number: float) -> bool:
    """Return whether somebody may have written a number: it has at most two digits that count."""
    return same(number, float(f"{number:.1e}"))


class Ledger:
    """Notes what happens between backward() and step() to the gradients of an optimizer, and of those that wrap it."""

    steps = doubled = kept_at = 0  # doubled: with a gradient that the step before had used
    # steps of a scaler; those that it skipped before the first that it took
    due = taken = searched = 0
    scheduled = through = 0  # steps of a scheduler; those after a step that the scaler had skipped
    # that were looked at; that were read; the last one's last backward()
    rounds = read = settled = 0
    undone = 0  # steps before which gradients were divided by hand
    is_clear = False  # whether the gradient was cleared before the present backward()
    is_measured = False  # whether a division by hand would have been seen
    is_stale = was_skipped = came_back = False  # came_back: a scaler, after another one
    clipped = 0.0  # the scale that was in gradients when they were clipped
    last: torch.Tensor | None = None  # the gradient as it was when it was last looked at

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.ids = {id(weight) for weight in self.weights}
        self.weight = min(self.plain_weights(), key=torch.Tensor.numel, default=torch.zeros(()))
        self.is_own = type(optimizer).__module__.startswith("torch.optim")  # PyTorch's own
        self.cleared: list[bool] = []  # is_clear at each backward() that was looked at
        # the last step's optimizer, gradient, and calls of backward() before it
        self.used: tuple = (None, None, 0)
        # paths and divisions of each backward()
        self.entries: list[tuple[set[Path], list[float]]] = []
        self.faults: Counter = Counter()  # rounds in which each was seen
        self.figures: dict[str, dict[str, Any]] = {}  # of each fault
        self.factors: set[float] = set()  # all that multiplies a loss, of each path
        # the share of each gradient that float16 holds with fewer digits
        self.tiny: list[float] = []
        self.scalers: dict[int, Any] = {}
        # (16-bit weight, its numbers, where it has a gradient)
        self.kept: list[tuple[torch.Tensor, ...]] = []

    def plain_weights(self) -> list[torch.Tensor]:
        """Return the weights whose gradient is neither empty, sparse nor spread over processes."""
        has = [one for one in self.weights if type(one.grad) is torch.Tensor and one.grad.numel()]
        return [one for one in has if one.grad.layout == torch.strided]

    # Backward passes

    def clear(self, is_looked_at: bool) -> bool:
        """Return whether the gradient was None before a backward(), or 0 where it may be slowed."""
        gradient = self.weight.grad
        self.is_clear = gradient is None or (is_looked_at and not bool(gradient.any()))
        if self.is_clear:
            self.entries = []
        return self.is_clear

    def receive(self, found: dict[int, set[Path]], casts: list, is_mixed: bool) -> None:
        """Note a backward() that was looked at. is_mixed: update() came before it without a step."""
        for metadata, weight in casts:
            if weight in self.ids:
                first = metadata.setdefault("diagnose(): steps before", self.steps)
                self.is_stale |= self.steps >= first + 2
        paths = set().union(*(its for weight, its in found.items() if weight in self.ids))
        if paths:
            self.cleared.append(self.is_clear)
            self.entries.append((paths, []))
            self.factors |= {math.prod(scales) * abs(rest) for scales, rest in paths}
            self.faults["update without step"] += is_mixed and not self.is_clear
            self.note_gradient()

    def note_gradient(self) -> torch.Tensor | None:
        """Keep a gradient's numbers, unless other processes add to it later, which would look like a change."""
        alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
        gradient = self.weight.grad
        is_plain = (
            type(gradient) is torch.Tensor and gradient.layout == torch.strided and gradient.numel()
        )
        self.last = (
            sample(gradient) if alone and is_plain and gradient.dtype == torch.float32 else None
        )
        return self.last

    def measure_small(self) -> None:
        """Note which share of the gradients float16 holds with fewer digits than its ten."""
        numbers = [sample(weight.grad).abs().float() for weight in self.plain_weights()]
        sizes = torch.cat([torch.zeros(1), *(one[one > 0].cpu() for one in numbers)])[1:]
        self.tiny += [float((sizes < 2.0**-14).float().mean())] if len(sizes) else []

    def is_unscaled(self) -> bool:
        """Return whether nothing large multiplied a loss, and no gradient was divided afterwards."""
        known = not math.isnan(sum(self.factors))
        return known and not self.undone and min(self.factors, default=math.inf) <= LARGE

    # What changes gradients

    def change(self) -> float | None:
        """Return the number by which the gradient was multiplied since it was noted, NaN where there are several."""
        before, after = self.last, self.note_gradient()
        if before is None or after is None or len(before) != len(after):
            return None
        factors = after / before
        factors = factors[factors.isfinite() & (factors != 0)]  # some are masked
        if not len(factors):
            return None
        least, most = (float(one) for one in factors.aminmax())
        return most if same(least, most) else math.nan

    def note_hand(self) -> None:
        """Note a division by hand. One by a number that did not multiply the loss counts as unknown."""
        factor = self.change()
        self.is_measured = factor is not None
        if factor is None or same(factor, 1):
            return
        divisor = abs(1 / factor)
        self.undone += divisor > 2
        for paths, divided in self.entries:
            known = {one for scales, rest in paths for one in (*scales, rest)}
            divided.append(next((one for one in known if same(one, divisor)), math.nan))

    def divide(self, scale: float) -> None:
        """Note that a scaler, or the optimizer itself, divides all gradients."""
        for _, divided in self.entries:
            divided.append(scale)
        self.note_gradient()

    def clip(self, limit: Any) -> None:
        """Note that a function of PyTorch clipped gradients, where that changed them while they were multiplied.

        A limit that has the scale in it is sound, and told by its digits: 65.536 is 1e-3 times 65,536.
        """
        factor = self.change()
        if factor is None or same(factor, 1) or not isinstance(limit, int | float):
            return
        for paths, divided in self.entries:
            for scale in [math.prod(scales) for scales, _ in paths if len(scales) > len(divided)]:
                if scale >= LARGE and not nice(limit / scale):
                    self.clipped = scale

    # Steps

    def settle(self, backwards: int, unread: int) -> None:
        """End a round with the step that is due. unread: the last backward() that was not looked at."""
        self.rounds += bool(self.entries)
        if self.entries and unread <= self.settled:
            self.read += 1
            self.faults.update(self.read_entries())
        self.entries, self.clipped, self.last, self.settled = [], 0.0, None, backwards

    def read_entries(self) -> set[str]:
        """Return what is wrong in this round, and keep its figures."""
        found: dict[str, dict[str, Any]] = {}
        for path, divided in [(path, divided) for paths, divided in self.entries for path in paths]:
            fault = fault_of(path, divided)
            if fault and (fault != "past the scaler" or (self.is_own and self.is_measured)):
                numbers = [one for one in (*path[0], *divided) if one != 1]
                found[fault] = {"scale": numbers[0], "other": numbers[-1]}
        if self.clipped and "past the scaler" not in found:
            found["clipped while scaled"] = {"scale": self.clipped}
        gradient = self.weight.grad
        if len(self.entries) >= MANY and gradient is not None and gradient.dtype in HALF:
            found["sums in 16 bits"] = {
                "count": len(self.entries),
                "dtype": name_of(gradient.dtype),
            }
        self.figures |= found
        return set(found)

    def end_due(self, scaler: Any, taken: bool) -> None:
        """Note that a step was due with a scaler, and whether it was taken."""
        self.due += 1
        self.taken += taken
        self.was_skipped = not taken
        self.searched += not self.taken
        self.came_back |= id(scaler) in self.scalers and next(reversed(self.scalers)) != id(scaler)
        self.scalers[id(scaler)] = scaler

    def schedule(self) -> None:
        """Note a scheduler's step, and whether the scaler had skipped the optimizer's step before it."""
        self.scheduled += 1
        self.through += self.was_skipped
        self.was_skipped = False

    def step(self, optimizer: Any, keeps: bool, backwards: int) -> None:
        """Note a step. keeps: numbers of 16-bit weights, to see later whether they move; a rate of 0 moves none."""
        self.steps += 1
        if (gradient := self.weight.grad) is not None:
            before, used, calls = self.used
            self.doubled += before is optimizer and used is gradient and calls == backwards
            self.used = optimizer, gradient, backwards
        if (
            keeps
            and not self.kept
            and min(float(group.get("lr", 1)) for group in optimizer.param_groups) > 0
        ):
            half = [weight for weight in self.plain_weights() if weight.dtype in HALF]
            largest = sorted(half, key=torch.Tensor.numel)[-8:]
            self.kept = [(one, sample(one), sample(one.grad) != 0) for one in largest]
            self.kept_at = self.steps

    # What the rules read

    def mistakes(self, backwards: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return (rule, what it names) of each mistake. backwards: calls of backward(), which a CUDA graph replays."""
        if 2 < self.doubled <= backwards and 3 * self.doubled >= self.steps:
            yield "steps twice", {}
        if self.rounds > 2 and not any(self.cleared):
            yield "gradients not cleared", {}
        if self.faults["update without step"] > 1:  # which explains all else that scales show
            yield "update without step", {}
        else:
            often = [
                fault
                for fault, count in self.faults.items()
                if count > 1 and 2 * count >= self.read
            ]
            yield from [(fault, self.figures[fault]) for fault in often]
        yield from self.mistakes_of_steps()
        if self.is_stale:
            yield "stale weights", {}
        for group in self.optimizer.param_groups if self.is_own else []:
            eps, half = group.get("eps"), any(one.dtype == torch.float16 for one in group["params"])
            if half and isinstance(eps, float) and 0 < eps < 2**-25 and not group.get("fused"):
                yield "eps", {"eps": eps}
        lost = self.lost_share()
        # rounding by chance moves some
        if lost >= (0.1 if self.is_own else 0.5) and not self.holds_what_is_rounded():
            dtype, name = name_of(self.kept[0][0].dtype), type(self.optimizer).__name__
            yield "lost updates", {"optimizer": name, "dtype": dtype, "share": lost}

    def lost_share(self) -> float:
        """Return which share of the numbers of 16-bit weights that have a gradient never moved."""
        stayed = [(before == sample(weight))[has_one] for weight, before, has_one in self.kept]
        numbers = sum(map(len, stayed))
        is_late = numbers and self.steps > self.kept_at + 2
        return sum(int(one.sum()) for one in stayed) / numbers if is_late else 0.0

    def mistakes_of_steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        skipped, later = self.due - self.taken, self.due - self.taken - self.searched
        if self.through > 2 and 10 * self.through >= self.due and 2 * self.scheduled >= self.due:
            yield "scheduled though skipped", {"count": self.through}
        if len(self.scalers) > 2 and not self.came_back:
            yield "many scalers", {"count": len(self.scalers), "due": self.due}
        elif self.taken and (self.searched >= 16 or (later > 2 and 10 * later >= self.due)):
            interval = min(getattr(one, "_growth_interval", 2000) for one in self.scalers.values())
            how = "Find the batches whose loss or gradients are inf or NaN"
            if self.searched >= 16:
                how = "Give GradScaler a smaller init_scale"
            elif interval <= 20:
                how = f"Raise growth_interval, which is {interval}"
            yield "steps skipped", {"count": skipped, "due": self.due, "how": how}

    def state_in_16_bits(self) -> set[str]:
        """Return the names of the optimizer's own numbers that have 16 bits, as its weights have."""
        states = [*getattr(self.optimizer, "state", {}).values()]
        pairs = [pair for state in states if isinstance(state, dict) for pair in state.items()]
        return {
            str(name)
            for name, value in pairs
            if getattr(value, "dtype", None) in HALF and value.dim()
        }

    def holds_what_is_rounded(self) -> bool:
        """Return whether the source of an optimizer that is not PyTorch's speaks of it, or is not known."""
        kinds = [
            one
            for one in type(self.optimizer).__mro__
            if not one.__module__.startswith(("torch.", "builtins"))
        ]
        try:
            sources = [
                inspect.getsource(kind) + str([*vars(inspect.getmodule(kind))]) for kind in kinds
            ]
        except (OSError, TypeError):
            return True
        return re.search(HELD, "".join(sources)) is not None
