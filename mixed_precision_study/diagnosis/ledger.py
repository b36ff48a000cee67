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

from .graph import HALF, Path, Reading, same
from .mistakes import name_of

HELD = r"kahan|stochastic|compens|master|residual|remainder|rounding|float32|float\(\)"  # ways to keep small updates
LARGE = 8  # a number from here on may be a loss scale, a smaller one is the weight of a loss
MANY = 8  # micro-batches whose sum in 16 bits loses a digit


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of some of a tensor's numbers."""
    rows = tensor.detach()[:16] if tensor.dim() else tensor.detach()
    return rows.reshape(-1)[:4096].clone()


def fault_of(path: Path, divided: list[float]) -> str | None:
    """Return what is wrong between the numbers that multiplied a gradient and those that divided it."""
    scales, rest = [one for one in path[0] if one != 1], abs(path[1])
    undone = [one for one in divided if one != 1]
    if math.isnan(rest + sum(undone)) or not scales + undone:
        return None
    if not scales:
        return "never scaled" if 1 / LARGE <= rest <= LARGE and len(undone) == 1 else None
    if not undone:
        return "past the scaler"
    if len(undone) != len(scales):
        return "unscaled twice" if len(undone) > len(scales) else "scaled twice"
    matched = all(same(*pair) for pair in zip(sorted(scales), sorted(undone), strict=True))
    return None if matched else "another scale"


def nice(number: float) -> bool:
    """Return whether somebody may have written a number: it has at most two digits that count."""
    return same(number, float(f"{number:.1e}"))


class Ledger:
    """Notes what happens to an optimizer's gradients between backward() and its step."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        groups = getattr(optimizer, "param_groups", [])
        self.weights = [weight for group in groups for weight in group["params"]]
        self.ids = {id(weight) for weight in self.weights}
        self.shares: list[Ledger] = []  # of other optimizers with some of these weights, as of a wrapped one
        self.weight = min(self.plain_weights(), key=torch.Tensor.numel, default=torch.zeros(()))
        self.is_own = type(optimizer).__module__.startswith("torch.optim")  # PyTorch's own
        self.is_clear = False  # whether the gradient was cleared before the present backward()
        self.cleared: list[bool] = []  # the same at each backward() that was looked at
        self.rounds = self.rounded = 0  # steps that were due after these; how many of these there were before
        self.used: tuple[Any, int] = (None, 0)  # the last step's gradient, and how often backward() was called before
        self.steps = self.doubled = self.kept_at = 0  # doubled: with a gradient that the step before had used
        self.entries: list[tuple[dict[int, set[Path]], list[float]]] = []  # paths and divisions of each backward()
        self.clips: set[float] = set()  # the scales that were still in gradients when they were clipped
        self.settled = self.read = 0  # the last round's last backward(); rounds that were read
        self.faults: Counter = Counter()  # rounds in which each was seen
        self.figures: dict[str, dict[str, Any]] = {}  # of each fault
        self.last: torch.Tensor | None = None  # the gradient as it was when it was last looked at
        self.bounds: list[tuple[float, float, float]] = []  # before unscale_: a bound, a norm, the scale
        self.is_measured = False  # whether a division by hand would have been seen
        self.undone = 0  # steps before which gradients were divided by hand
        self.factors: set[float] = set()  # all that multiplies a loss, of each path
        self.tiny: list[float] = []  # the share of each gradient that float16 holds with fewer digits
        self.casts: dict[int, tuple[Any, int]] = {}  # the node that casts a weight, and the steps before it came
        self.is_stale = self.was_skipped = self.came_back = False  # came_back: a scaler, after another one
        self.due = self.taken = self.searched = self.scheduled = self.through = 0  # see end_due() and schedule()
        self.scalers: dict[int, Any] = {}
        self.kept: list[tuple[torch.Tensor, ...]] = []  # (16-bit weight, its numbers, where it has a gradient)

    def plain_weights(self) -> list[torch.Tensor]:
        """Return the weights whose gradient is neither empty, sparse nor spread over processes."""
        has = [one for one in self.weights if type(one.grad) is torch.Tensor and one.grad.numel()]
        return [one for one in has if one.grad.layout == torch.strided]

    # Backward passes

    def clear(self) -> bool:
        """Return whether the gradient was cleared before a backward()."""
        self.is_clear = self.weight.grad is None or not bool(self.weight.grad.any())
        if self.is_clear:
            self.entries = []
        return self.is_clear

    def receive(self, reading: Reading, is_mixed: bool) -> None:
        """Note a backward() that was looked at. is_mixed: update() came before it without a step."""
        for one, node in reading.casts.items():
            before, since = self.casts.get(one, (None, 0))
            if one in self.ids and before is not node:
                self.casts[one] = node, self.steps
            self.is_stale |= before is node and self.steps >= since + 2
        mine = {one: paths for one, paths in reading.paths.items() if one in self.ids}
        if mine:
            self.cleared.append(self.is_clear)
            self.entries.append((mine, []))
            self.factors |= {math.prod(path[0]) * abs(path[1]) for path in set().union(*mine.values())}
            self.faults["update without step"] += is_mixed and not self.is_clear
            self.note_gradient()

    def note_gradient(self) -> None:
        """Keep a gradient's numbers, unless other processes add to it later, which would look like a change."""
        alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
        gradient = self.weight.grad
        self.last = None
        if alone and gradient is not None and gradient.dtype == torch.float32 and gradient.numel():
            self.last = sample(gradient) if gradient.layout == torch.strided else None

    def measure_small(self) -> None:
        """Note which share of the gradients float16 holds with fewer digits than its ten."""
        numbers = [sample(weight.grad).abs().float() for weight in self.plain_weights()]
        sizes = torch.cat(numbers) if numbers else torch.zeros(0)
        if int((sizes > 0).sum()):
            self.tiny.append(float(((sizes > 0) & (sizes < 2.0**-14)).sum() / (sizes > 0).sum()))

    def is_unscaled(self) -> bool:
        """Return whether nothing large multiplied a loss, and no gradient was divided afterwards."""
        known = not math.isnan(sum(self.factors))
        return known and not self.undone and min(self.factors, default=math.inf) <= LARGE

    # What changes gradients

    def note_change(self) -> float | None:
        """Return the number by which the gradient was multiplied since it was noted, NaN where there are several."""
        before, after = self.last, self.weight.grad
        self.note_gradient()
        if before is None or after is None or self.last is None or len(self.last) != len(before):
            return None
        if not bool((before.isfinite() & (before != 0)).any()):
            return None
        moved = self.last != before
        factors = (self.last[moved] / before[moved]).nan_to_num(0.0, 0.0, 0.0)
        factors = factors[factors != 0]  # a number that is masked, or inf, counts as unchanged
        if not len(factors):
            return 1.0
        least, most = float(factors.min()), float(factors.max())
        return most if same(least, most) else math.nan

    def note_hand(self) -> None:
        """Note a division by hand. One by a number that did not multiply the loss counts as unknown."""
        factor = self.note_change()
        self.is_measured = factor is not None
        if factor is None or factor == 1:
            return
        divisor = abs(1 / factor)
        self.undone += divisor > 2
        for paths, divided in self.entries:
            known = {one for each in paths.values() for path in each for one in (*path[0], path[1])}
            divided.append(next((one for one in known if same(one, divisor)), math.nan))

    def note_bound(self) -> None:
        """Note what clipping by hand would leave: the bound of some numbers, and a norm, beside the loss scale."""
        scales = [path[0] for paths, _ in self.entries for each in paths.values() for path in each]
        is_open = all(scales) and not any(divided for _, divided in self.entries)
        if self.last is None or self.weight.grad is None or not scales or not is_open:
            return
        before, after = self.last.abs(), sample(self.weight.grad).abs()
        smaller = before > 1.001 * after
        if len(before) == len(after) and bool((after <= 1.001 * before).all()) and bool(smaller.any()):
            at_bound = int(((after == after.max()) & smaller).sum()) > 1
            norm = torch.nn.utils.get_total_norm([weight.grad for weight in self.plain_weights()])
            whole = float(norm) if bool((smaller | (before == 0)).all()) else math.nan
            self.bounds.append((float(after.max()) if at_bound else math.nan, whole, scales[0][0]))
        else:
            self.bounds.append((math.nan, math.nan, 1.0))

    def divide(self, scale: float) -> None:
        """Note that a scaler, or the optimizer itself, divides all gradients."""
        for _, divided in self.entries:
            divided.append(scale)
        self.note_gradient()

    def clip(self, limit: Any) -> None:
        """Note that a function of PyTorch clipped gradients, where that changed them while they were multiplied.

        A limit that has the scale in it is sound, and told by its digits: 65.536 is 1e-3 times 65,536.
        """
        factor = self.note_change()
        if factor in (None, 1.0) or not isinstance(limit, int | float) or not math.isfinite(limit):
            return
        for paths, divided in self.entries:
            for scales, rest in {path for each in paths.values() for path in each}:
                scale = math.prod(scales[len(divided) :]) if scales else rest
                if scale >= LARGE and not nice(limit / scale) and len(divided) < max(1, len(scales)):
                    self.clips.add(scale)

    # Steps

    def settle(self, backwards: int, unread: int) -> None:
        """End a round with the step that is due. unread: the last backward() that was not looked at."""
        self.rounds += len(self.cleared) > self.rounded  # else its backward() was not looked at
        self.rounded = len(self.cleared)
        if self.entries and unread <= self.settled:
            self.read += 1
            self.faults.update(self.read_entries())
        self.entries, self.clips, self.last, self.settled = [], set(), None, backwards

    def read_entries(self) -> set[str]:
        """Return what is wrong in this round, and keep its figures."""
        found: dict[str, dict[str, Any]] = {}
        for paths, divided in self.entries:
            for path in set().union(*paths.values()):
                found |= self.read_path(path, divided)
        gradient = self.weight.grad
        if len(self.entries) >= MANY and gradient is not None and gradient.dtype in HALF:
            found["sums in 16 bits"] = {"count": len(self.entries), "dtype": name_of(gradient.dtype)}
        if "past the scaler" in found:
            found.pop("clipped while scaled", None)
        self.figures |= found
        return set(found)

    def read_path(self, path: Path, divided: list[float]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        numbers = [one for one in (*path[0], *divided) if one != 1]
        fault = fault_of(path, divided)
        if fault and (fault != "past the scaler" or (self.is_own and self.is_measured)):
            found[fault] = {"scale": numbers[0], "other": numbers[-1]}
        by_hand = not path[0] and any(same(path[1], one) for one in divided)
        if self.clips and (path[0] or by_hand):
            how = "Divide them by it" if by_hand else "Call scaler.unscale_(optimizer)"
            found["clipped while scaled"] = {"scale": max(self.clips), "how": how}
        return found

    def end_due(self, scaler: Any, taken: bool) -> None:
        """Note that a step was due with a scaler, and whether it was taken."""
        self.due += 1
        self.taken += taken
        self.was_skipped = not taken
        self.searched += not self.taken  # steps that were skipped before the first one that was taken
        self.came_back |= id(scaler) in self.scalers and next(reversed(self.scalers)) != id(scaler)
        self.scalers[id(scaler)] = scaler

    def schedule(self) -> None:
        """Note a scheduler's step, and whether the scaler had skipped the optimizer's step before it."""
        self.scheduled += 1
        self.through += self.was_skipped
        self.was_skipped = False

    def step(self, keeps: bool, backwards: int) -> None:
        """Note a step. keeps: numbers of 16-bit weights, to see later whether they move; a rate of 0 moves none."""
        self.steps += 1
        if (gradient := self.weight.grad) is not None:
            self.doubled += self.used[0] is gradient and self.used[1] == backwards
            self.used = gradient, backwards
        rates = [float(group.get("lr", 1)) for group in self.optimizer.param_groups]
        if keeps and not self.kept and min(rates) > 0:
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
        yield from self.mistakes_of_scale()
        yield from self.mistakes_of_steps()
        if self.is_stale:
            yield "stale weights", {}
        for group in self.optimizer.param_groups if self.is_own else []:
            eps, half = group.get("eps"), any(one.dtype == torch.float16 for one in group["params"])
            if half and isinstance(eps, float) and 0 < eps < 2**-25 and not group.get("fused"):
                yield "eps", {"eps": eps}
        least = 0.1 if self.is_own else 0.5  # rounding by chance moves some
        lost = self.lost_share()
        if lost >= least and not self.holds_what_is_rounded():
            dtype, name = name_of(self.kept[0][0].dtype), type(self.optimizer).__name__
            yield "lost updates", {"optimizer": name, "dtype": dtype, "share": lost}

    def lost_share(self) -> float:
        """Return which share of the numbers of 16-bit weights that have a gradient never moved."""
        moved = [(before != sample(weight))[has_one] for weight, before, has_one in self.kept]
        numbers = sum(len(one) for one in moved)
        if not numbers or self.steps <= self.kept_at + 2:
            return 0.0
        return 1 - sum(int(one.sum()) for one in moved) / numbers

    def mistakes_of_scale(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return what half of the rounds or more show. Mixed scales explain all else that they show."""
        if self.faults["update without step"] > 1:
            yield "update without step", {}
            return
        for fault, count in self.faults.items():
            if count > 1 and 2 * count >= self.read:
                yield fault, self.figures[fault]
        if "clipped while scaled" not in self.figures and self.was_clipped():
            how = "Call scaler.unscale_(optimizer)"
            yield "clipped while scaled", {"scale": self.bounds[0][2], "how": how}

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

    def was_clipped(self) -> bool:
        """Return whether scaled gradients became smaller by hand, in each step to one round bound or norm."""
        if len(self.bounds) < 3:
            return False
        for number in (0, 1):
            values = [bound[number] for bound in self.bounds]
            first, scale = values[0], self.bounds[0][2]
            if all(same(one, first) for one in values) and nice(first) and not nice(first / scale):
                return True
        return False

    def state_in_16_bits(self) -> set[str]:
        """Return the names of the optimizer's own numbers that have 16 bits, as its weights have."""
        all_states = getattr(self.optimizer, "state", {})
        states = [all_states.get(weight, {}) for weight in self.weights]
        return {
            str(name)
            for state in states
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and value.dtype in HALF and value.dim()
        }

    def holds_what_is_rounded(self) -> bool:
        """Return whether the source of an optimizer that is not PyTorch's speaks of it, or is not known."""
        foreign = ("torch.", "builtins")
        kinds = [one for one in type(self.optimizer).__mro__ if not one.__module__.startswith(foreign)]
        try:
            sources = [inspect.getsource(kind) + str([*vars(inspect.getmodule(kind))]) for kind in kinds]
        except (OSError, TypeError):
            return True
        return re.search(HELD, "".join(sources), re.IGNORECASE) is not None
