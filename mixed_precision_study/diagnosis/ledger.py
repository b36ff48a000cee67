"""The ledger of one optimizer: by what its gradients are multiplied and divided, steps due and
taken, and what moves.

The numbers of one small weight tell it, in a few steps. Whoever divides them, the scaler or a line
of the user's, they show it. Where they show nothing that is known, no rule speaks.
"""

import math
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..explain.profile import tensors_in
from .graph import HALF, UNREAD, same

LARGE = 8  # a number from here on may be a loss scale, a smaller one is the weight of a loss
TINY = 0.001  # the share of gradients in float16's last digits from which a loss scale is missed
MANY = 8  # micro-batches whose sum in 16 bits loses a digit; a mean of more is seldom taken by hand


def sample(tensor: Tensor) -> Tensor:
    """Return a copy of some of a tensor's numbers."""
    return tensor.detach().reshape(-1)[:4096].clone()


def nice(number: float) -> bool:
    """Return whether somebody may have written a number: it has at most two digits that count."""
    return same(number, float(f"{number:.1e}"))


def fault_of(path: tuple, divisor: float, known: list) -> str:
    """Name what is wrong where a gradient is multiplied by a path and then divided. known: scales
    of scalers."""
    scale, number = path
    is_known = any(same(divisor, one) for one in known)
    if scale == 1:
        return "never scaled" if is_known and 1 / LARGE <= number <= LARGE else ""
    if math.isnan(scale) or same(divisor, scale):
        return ""
    if same(divisor, 1):
        return "past the scaler"
    if scale > MANY and same(divisor, scale**2):
        return "unscaled twice"
    return "another scale" if is_known else ""


def intended(optimizer: Any, group: dict, weight: Any, before: Tensor) -> Any:
    """Return the update of the `before` numbers of a weight by Adam, AdamW or SGD, read from what
    the step has left in their state; None where it does not tell.
    """
    if any(group.get(name) for name in ("maximize", "amsgrad", "nesterov")):
        return None
    state = {
        name: sample(value).float()
        for name, value in optimizer.state.get(weight, {}).items()
        if torch.is_tensor(value)
    }
    decay = group["weight_decay"] * before
    if isinstance(optimizer, torch.optim.SGD):
        move = state.get("momentum_buffer", sample(weight.grad).float() + decay)
    elif isinstance(optimizer, torch.optim.Adam) and "step" in state:
        steps = optimizer.state[weight]["step"]  # which may lie on the GPU, so nothing reads it
        first, second = (1 - beta**steps for beta in group["betas"])
        sizes = (state["exp_avg_sq"] / second).sqrt() + group["eps"]
        move = state["exp_avg"] / first / sizes
        if group.get("decoupled_weight_decay"):
            move = move + decay
    else:
        return None
    return -group["lr"] * move


class Ledger:
    """Notes what happens to the gradients of an optimizer, and of those that wrap it, and its
    steps."""

    steps = doubled = 0  # doubled: with a gradient that the step before had used
    due = taken = skipped = 0  # steps of a scaler; those that it skipped after the first it took
    through = 0  # steps of a scheduler after a step that the scaler had skipped
    rounds = cleared = 0  # steps that were looked at; gradients that were cleared before
    cached = 0  # steps since autocast cast weights anew
    is_clear = False  # whether the gradient was cleared before the present backward()
    was_skipped = False
    last: Tensor | None = None  # the gradient as it was when it was last looked at
    kept_at = 0  # steps that were taken when numbers were kept

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.weight = min(self.plain_weights(), key=Tensor.numel, default=torch.zeros(()))
        self.version = self.weight._version  # at the last backward()
        step = getattr(type(optimizer), "step", sample)
        self.is_own = step.__module__.startswith("torch.optim")  # it steps as PyTorch does
        self.used: tuple = (0,)  # the last step's gradient, optimizer, and calls of backward()
        self.tiny: list = []  # the share of each gradient that float16 holds with fewer digits
        self.faults: Counter = Counter()  # rounds in which each was seen
        self.figures: dict = {}  # of each fault
        self.scalers: set = set()
        self.kept: list = []  # (16-bit weight, its numbers, where it has a gradient)
        self.before: list = []  # (16-bit weight, its numbers) of the step under way
        self.arrived = self.whole = 0.0  # of updates of 16-bit weights, and all of them, squared
        self._forget()

    def plain_weights(self) -> list:
        """Return the weights whose gradient is neither empty, sparse nor spread over processes."""
        return [
            one
            for one in self.weights
            if type(one.grad) is Tensor and one.grad.layout == torch.strided and one.grad.numel()
        ]

    # Gradients

    def _forget(self):
        """Begin a round, with a gradient that is cleared or used."""
        self.paths = set()  # of each backward()
        self.backwards = 0
        self.divisor = 1.0  # of the gradient since its backward()
        self.clipped = 0.0  # the scale that was in it when it was clipped

    def clear(self, known: list | None) -> set:
        """Say before a backward() whether the gradient was "cleared", and the weights "moved" since
        the last one.

        known: the scales of all scalers, None where nothing may be slowed.
        """
        gradient = self.weight.grad
        version = self.weight._version
        words = {"moved"} if version != self.version else set()
        self.version = version
        self.is_clear = gradient is None or (known is not None and not bool(gradient.any()))
        if self.is_clear:
            self._forget()
            words.add("cleared")
        if known is None:
            self.paths.add(UNREAD)
        else:
            self.divide()
            self.faults["update without step"] += any(same(self.divisor, one) for one in known)
        return words

    def receive(self, paths: set, is_half: bool) -> None:
        """Note a backward() that was looked at. is_half: it is of float16, without a scaler."""
        before = None if self.is_clear else self.last
        self._look()
        if self.last is None or (before is not None and torch.equal(before, self.last)):
            return  # it does not reach these weights
        if self.weight._backward_hooks or self.weight._post_accumulate_grad_hooks:
            paths = {UNREAD}
        self.paths |= paths
        self.backwards += 1
        self.cleared += self.is_clear
        self.divisor = 1.0 if self.divisor == 1 else math.nan  # a part was divided, and a part not
        if is_half and all(number <= LARGE for _, number in paths):
            sizes = sample(max(self.plain_weights(), key=Tensor.numel).grad).abs()
            self.tiny.append(float((sizes[sizes > 0] < 2.0**-14).float().mean()))

    def _look(self):
        """Return by which number the gradient was multiplied since the last look, NaN where none is
        known."""
        before = self.last
        gradient = self.weight.grad
        self.last = sample(gradient) if type(gradient) is Tensor else None
        if before is None or self.last is None or self.last.dtype != torch.float32:
            return math.nan
        factors = self.last / before
        factors = factors[factors.isfinite() & (factors != 0)]  # some are masked
        least, most = factors.aminmax() if len(factors) else (0, 1)
        return abs(float(most)) if same(least, most) else math.nan

    def divide(self) -> None:
        if self.paths and not same(factor := self._look(), 1):
            self.divisor /= factor

    def clip(self, limit: Any) -> None:
        """Note that a function of PyTorch clipped gradients, where that changed them while they
        were multiplied.

        A limit that has the scale in it is sound, and told by its digits: 65.536 is 1e-3 times
        65,536.
        """
        if self.paths and not same(self._look(), 1) and isinstance(limit, int | float):
            left = [scale / self.divisor for scale, _ in self.paths]
            wrong = [scale for scale in left if scale >= LARGE and not nice(limit / scale)]
            self.clipped = max(wrong, default=self.clipped)

    # Steps

    def begin_step(self, optimizer: Any, known: list) -> None:
        """Read what was looked at before a step. known: the scales of all scalers.

        Numbers of 16-bit weights are kept, to see later whether they move; a rate of 0 moves none.
        """
        half = [weight for weight in self.plain_weights() if weight.dtype in HALF]
        if half and self.is_own and not getattr(optimizer, "found_inf", None):
            self.before = [(one, sample(one).float()) for one in half]
        if not self.kept and all(one.get("lr", 1) for one in optimizer.param_groups):
            # a number that is 0 takes any update, unless a mask puts it back
            self.kept = [(one, sample(one), sample(one * one.grad) != 0) for one in half]
            self.kept_at = self.steps
        self.divide()
        if getattr(optimizer, "grad_scale", None) is not None:  # a fused one divides itself
            self.divisor *= float(optimizer.grad_scale)
        if not same(self.divisor, 1):
            self.tiny = []
        if self.paths and UNREAD not in self.paths:
            self.rounds += 1
            for fault, figures in self._read_round(known):
                self.faults[fault] += 1
                self.figures[fault] = figures
        self._forget()

    def _read_round(self, known):
        faults = {fault_of(path, self.divisor, known): path[0] for path in self.paths}
        if self.clipped and "past the scaler" not in faults:
            yield "clipped while scaled", {"scale": self.clipped}
        for fault, scale in faults.items():
            if fault and (self.is_own or fault != "past the scaler"):
                yield fault, {"scale": scale, "divisor": self.divisor}
        if self.backwards >= MANY and self.weight.dtype in HALF:
            yield "sums in 16 bits", {"count": self.backwards}

    def end_step(self, optimizer: Any, caches: bool, backwards: int) -> None:
        """Note a step. caches: whether autocast is on and keeps its casts of the weights.

        backwards: all calls of backward().
        """
        self.steps += 1
        if self.before:
            self._read_updates(optimizer)
        self.cached += caches and self.weight.dtype == torch.float32
        use = id(self.weight.grad), id(optimizer), backwards
        self.doubled += self.weight.grad is not None and use == self.used
        self.used = use

    def _read_updates(self, optimizer):
        """Add up how much of its update each 16-bit weight has taken in this step, in one read."""
        groups = {one: group for group in optimizer.param_groups for one in group["params"]}
        sums = []
        for weight, before in self.before:
            update = intended(optimizer, groups[weight], weight, before)
            if update is not None:
                moved = sample(weight).float() - before
                sums += (update * moved).sum(), update.square().sum()
        if sums:
            read = torch.stack([one.to(sums[0].device) for one in sums]).tolist()
            self.arrived += sum(read[::2])
            self.whole += sum(read[1::2])
        self.before = []

    def end_due(self, scaler: Any, taken: bool) -> None:
        """Note that a step was due with a scaler, and whether it was taken."""
        self._forget()
        self.due += 1
        self.taken += taken
        self.was_skipped = not taken
        self.skipped += self.taken > 0 and not taken
        self.scalers.add(scaler)

    def schedule(self) -> None:
        """Note a scheduler's step, and whether the scaler had skipped the optimizer's step before
        it."""
        self.through += self.was_skipped
        self.was_skipped = False

    # What the rules read

    def mistakes(self) -> Iterator[tuple]:
        """Return (rule, what it names) of each mistake."""
        often = [one for one, count in self.faults.items() if 2 * count >= max(4, self.rounds)]
        if "update without step" in often:  # which explains all else that scales show
            often = ["update without step"]
        yield from [(fault, self.figures.get(fault, {})) for fault in often]
        # a CUDA graph replays calls of backward() that were not heard
        if 2 < self.doubled <= self.used[-1] and 3 * self.doubled >= self.steps:
            yield "steps twice", {}
        if self.rounds > 2 and not self.cleared:
            yield "gradients not cleared", {}
        if self.cached > 2:
            yield "stale weights", {}
        tiny = mean(self.tiny or [0.0])
        if tiny > TINY:
            yield "fp16 without scaler", {"share": tiny}
        share = self._lost_share()
        if share >= 0.2:  # rows of a table that are seen once lose some, too
            yield "lost updates", {"share": share}
        for group in self.optimizer.param_groups if self.is_own else []:
            eps = group.get("eps", 1)
            types = {one.dtype for one in group["params"]}
            if torch.float16 in types and eps < 2**-25 and not group.get("fused"):
                yield "eps", {"eps": eps}
        yield from self._mistakes_of_steps()

    def _mistakes_of_steps(self):
        often = max(3, self.due / 10)
        if self.through >= often:
            yield "scheduled though skipped", {"count": self.through}
        if len(self.scalers) > 2:
            yield "many scalers", {"count": len(self.scalers)}
        elif self.skipped >= often:
            yield "steps skipped", {"count": self.skipped, "due": self.due}

    def _lost_share(self):
        """Return which share of 16-bit weights never moved, 0 where little is known of the
        optimizer."""
        if not (self.kept and self.is_own and self.steps > self.kept_at + 4):
            return 0.0
        stayed = [(before == sample(weight))[has_one] for weight, before, has_one in self.kept]
        return float(torch.cat(stayed).float().mean())

    def has_narrow_state(self) -> bool:
        """Return whether PyTorch's own numbers of an optimizer have 16 bits, as its weights
        have."""
        state = getattr(self.optimizer, "state", {})  # which a wrapper need not have
        return self.is_own and any(one.dtype in HALF for one in tensors_in([*state.values()]))
