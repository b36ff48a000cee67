"""What the calls of a training loop say of it: where its steps end, and what is done to loss, gradients and weights."""

import threading
import time
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ..profiling import tensors_in
from .observations import Observations


def in_backward() -> bool:
    """Return whether autograd is running backward() in this thread."""
    return torch._C._current_graph_task_id() != -1


class Heard:
    """Hears calls through doors.py and notes what they say. `advance` is called where a step ends.

    In a loop a step ends with GradScaler.update, or with the first optimizer's step where no scaler is used. With
    `by_hand`, the caller knows where it ends. Only the first thread that trains is listened to. In timed steps
    (`is_timed`) nothing is computed. What is kept of tensors is read at the end.
    """

    def __init__(self, seen: Observations, by_hand: bool):
        self.seen = seen
        self.by_hand = by_hand
        self.thread: int | None = None  # that trains
        self.inside: list[str] = []  # the calls that are under way
        self.events: list[str] = []  # of the step that is under way
        self.count = 0  # steps
        self.first_optimizer: int | None = None
        self.optimizers: dict[int, Optimizer] = {}
        self.scalers: dict[int, Any] = {}
        self.scales: dict[int, list[torch.Tensor]] = {}  # of each scaler in the profiled steps
        self.scaled = False  # GradScaler.update ends the steps
        self.unended = False  # an optimizer stepped within scaler.step, and update() has not come yet
        self.pending = False  # a step ended inside backward()
        self.losses: list[torch.Tensor] = []  # scalar ones, without the loss scale
        self.stepped: set[int] = set()  # optimizers that stepped since the last backward()
        self.stepped_without_first: set[int] = set()  # and since the first one did
        self.doubled = 0  # steps without a backward() since the one before
        self.cleared: dict[int, list[Any]] = {}  # of each optimizer since its last step: whether a gradient was cleared
        self.kept: list[list[Any]] = []  # of each optimizer's step: the same
        self.scaled_gradient: tuple[torch.Tensor, torch.Tensor] | None = None  # (weight, its gradient after backward())
        self.factors: list[torch.Tensor] = []  # by which code of the loop changed a scaled gradient: (least, most)
        self.schedules_before_backward = 0
        self.waiting: float | None = None
        self.waited = 0.0  # seconds for the DataLoader
        self.loads = False

    def advance(self) -> None:
        """Count a step."""
        raise NotImplementedError

    @property
    def is_timed(self) -> bool:
        """Whether the step that is under way is timed."""
        raise NotImplementedError

    def is_ours(self, event: str) -> bool:
        """Return whether a call belongs to the training, which the first thread that calls backward() is."""
        here = threading.get_ident()
        if self.thread is None and event in ("scale", "backward", "step"):
            self.thread = here
        return self.thread in (None, here)

    def begun(self, event: str, args: tuple) -> None:
        """Note the beginning of a call."""
        if not self.is_ours(event):
            return
        self.inside.append(event)
        if self.inside.count(event) > 1:  # a method that calls its parent's
            return
        if event == "next":
            self.waiting = time.perf_counter()
        elif event == "autocast":
            if args[0]._enabled and torch.is_grad_enabled() and args[0].device == self.seen.device:
                self.seen.autocasts.add(str(args[0].fast_dtype).removeprefix("torch."))
        elif event == "schedule":
            if args[0].o._step_count > 1:  # else it is being made
                self.note_schedule(args[0].o)
                self.events.append(event)
        elif event == "backward":
            self.note_backward(args)
        elif event == "clip":
            self.events.append(event)
        elif args[0]._enabled:
            self.note_scaler(event, args)

    def ended(self, event: str, args: tuple) -> None:
        """Note the end of a call, and of a step."""
        if event == "step":  # an optimizer's hook, which autograd's own threads may call inside backward()
            if self.is_ours(event) or in_backward():
                self.note_step(args[0])
            return
        if not self.is_ours(event) or event not in self.inside:
            return
        del self.inside[len(self.inside) - 1 - self.inside[::-1].index(event)]
        if event in self.inside:
            return
        if event == "next" and self.waiting is not None:
            self.loads = True
            self.waited += time.perf_counter() - self.waiting
        elif event == "backward":
            self.keep_scaled_gradient()
            if self.pending:
                self.pending = False
                self.advance()
        elif event == "update" and args[0]._enabled and not self.by_hand:
            self.scaled, self.unended = True, False
            self.advance()

    def note_backward(self, args: tuple) -> None:
        """Note the loss, and whether the gradients of each optimizer's smallest weight have been cleared."""
        self.seen.backward_in_autocast += torch.is_autocast_enabled(self.seen.device)
        self.seen.anomaly_detection = torch.is_anomaly_enabled()
        self.events.append("backward")
        self.stepped = set()
        if self.is_timed:
            return
        for loss in tensors_in(args[:1])[:1]:
            self.seen.loss_multiplied |= type(loss.grad_fn).__name__.startswith("MulBackward")
            if not self.seen.scaler_on and loss.numel() == 1:
                self.losses.append(loss.detach().float().clone())
        for one, found in self.cleared.items():
            gradient = smallest(self.optimizers[one]).grad
            found.append(~gradient.any() if gradient is not None and is_plain(gradient) else True)

    def keep_scaled_gradient(self) -> None:
        """Keep the gradient of a small weight as backward() left it, while the loss is scaled."""
        alone = not torch.distributed.is_initialized()  # else other processes' gradients may be added by hand
        known = list(self.optimizers.values()) if alone and "scale" in self.events and not self.is_timed else []
        weight = smallest(known[0]) if known else None
        gradient = None if weight is None else weight.grad
        self.scaled_gradient = None
        if gradient is not None and is_plain(gradient) and gradient.dtype == torch.float32:
            self.scaled_gradient = weight, gradient.clone()

    def note_scaler(self, event: str, args: tuple) -> None:
        """Note a call of a GradScaler that is on."""
        self.scalers[id(args[0])] = args[0]
        self.seen.scaler_on = True
        if event == "scale":
            if self.unended:  # the step before had no update()
                self.unended = False
                self.advance()
            for loss in tensors_in(args[1:])[:1]:
                if loss.numel() == 1 and not self.is_timed:
                    self.losses.append(loss.detach().float().clone())
        elif event in ("unscale", "scaler.step") and self.scaled_gradient is not None:
            weight, before = self.scaled_gradient
            self.scaled_gradient = None
            if weight.grad is not None and event == "scaler.step" and "unscale" not in self.events:
                factors = (weight.grad / before).nan_to_num(1.0, 1.0, 1.0)
                factors = torch.where(factors == 0, 1.0, factors)  # a gradient that is masked
                self.factors.append(torch.stack((factors.min(), factors.max())))
        self.events.append(event)

    def note_step(self, optimizer: Optimizer) -> None:
        """Note an optimizer's step, which ends the loop's step where no scaler is used."""
        key = id(optimizer)
        self.optimizers[key] = optimizer
        if self.first_optimizer not in self.optimizers or (key in self.stepped_without_first and not self.by_hand):
            self.first_optimizer = key  # as where each fold has an optimizer of its own
        self.doubled += key in self.stepped
        self.stepped.add(key)
        if not self.is_timed and (found := self.cleared.get(key)):
            self.kept.append(found)
        self.cleared[key] = []
        self.events.append("step")
        if key == self.first_optimizer:
            self.stepped_without_first = set()
        else:
            self.stepped_without_first.add(key)
        if self.by_hand or self.scaled or key != self.first_optimizer:
            return
        if self.seen.scaler_on and "scaler.step" in self.inside:
            self.unended = True
        elif in_backward():
            self.pending = True
        else:
            self.advance()

    def note_schedule(self, scheduler: Any) -> None:
        """Count the first step of a scheduler that comes before any backward() and any step of its optimizer."""
        trained = self.count or {"scale", "backward", "step"} & set(self.events)
        began = scheduler._step_count > 2 or getattr(scheduler.optimizer, "_opt_called", False)
        self.schedules_before_backward += not trained and (not began or self.schedules_before_backward > 0)

    def keep_scales(self) -> None:
        """Keep the scale of each scaler, without waiting for the device."""
        for key, scaler in self.scalers.items():
            if scaler._scale is not None:
                self.scales.setdefault(key, []).append(scaler._scale.clone())

    def read(self) -> None:
        """Read what was kept on the device."""
        seen = self.seen
        seen.events = [step for step in [*seen.events, self.events] if step]
        seen.losses = [float(loss) for loss in self.losses]
        seen.scales = [[float(scale) for scale in scales] for scales in self.scales.values()]
        seen.doubled_steps = 2 * self.doubled >= self.count > 2
        seen.uncleared = len(self.kept) > 2 and not any(bool(one) for found in self.kept for one in found)
        factors = [tuple(pair.tolist()) for pair in self.factors]
        least, most = [one for one, _ in factors], [other for _, other in factors]
        reduced = len(factors) > 2 and min(least) >= 0 and max(most) <= 1.001
        seen.clipped_by_hand = reduced and min(least) < 0.999 * max(most)  # else by a constant, as to average
        weights = [weight for one in self.optimizers.values() for weight in weights_of(one)]
        seen.model_on = weights[0].device.type if weights else None
        for optimizer in self.optimizers.values():
            half = half_without_masters(optimizer)
            if half is not None:
                seen.half_weights.append(f"{type(optimizer).__name__}, {half}")
                group = optimizer.param_groups[0]
                if half == "float16" and not group.get("fused") and 0 < group.get("eps", 1) < 2**-25:
                    seen.eps_lost = group["eps"]
        seen.scheduled_first = self.schedules_before_backward == 1 and all(
            step.count("schedule") == 1 for step in seen.events[: self.count]
        )
        self.losses, self.scales, self.kept, self.factors, self.scaled_gradient = [], {}, [], [], None


def weights_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the weights that an optimizer updates."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def is_plain(gradient: torch.Tensor) -> bool:
    """Return whether a gradient can be computed with, because it is neither sparse nor spread over processes."""
    return type(gradient) is torch.Tensor and gradient.layout == torch.strided


def smallest(optimizer: Optimizer) -> torch.Tensor:
    """Return the smallest of an optimizer's weights with a gradient, or the smallest of all."""
    weights = weights_of(optimizer)
    return min([weight for weight in weights if weight.grad is not None] or weights, key=torch.Tensor.numel)


def half_without_masters(optimizer: Optimizer) -> str | None:
    """Return "bfloat16" where one of PyTorch's own optimizers updates weights of that type and keeps no 32 bits.

    Optimizers from elsewhere may keep what is rounded away, or round stochastically, so nothing is said of them.
    """
    weights = [weight for weight in weights_of(optimizer) if weight.requires_grad]
    half = [weight for weight in weights if weight.dtype in (torch.float16, torch.bfloat16)]
    states = [part for weight in half for part in tensors_in(optimizer.state.get(weight, {})) if part.dim()]
    own = type(optimizer).__module__.startswith("torch.optim")
    if not own or not half or any(part.dtype == torch.float32 for part in states):
        return None
    return str(half[0].dtype).removeprefix("torch.")
