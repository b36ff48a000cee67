"""Watches a training loop: where its steps end, what its calls say, and what the profiler sees of a few steps."""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ..explain.profile import tensors_in
from ..measure.preflight import missing_kernels
from ..parameters import UserError, error_line
from . import doors
from .mistakes import Observations
from .probe import Probe, name_of
from .profile import END_OF_STEP, OWN, PACKAGE, TORCH, begin_profile, end_profile, read_times

LOOKED = 4  # the last steps that warm up, and as many after the timed ones: only these eight may be slowed
WARM_UP = {"cpu": 3, "cuda": 8}  # steps before the first that is timed; a GPU's libraries search and compile in them


def in_backward() -> bool:
    """Return whether autograd is running backward() in this thread."""
    return torch._C._current_graph_task_id() != -1


def is_called_by_a_library() -> bool:
    """Return whether a package such as Lightning called this function of PyTorch, so that its user cannot change it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, OWN)):
        frame = frame.f_back
    return re.search(PACKAGE, frame.f_code.co_filename) is not None


def is_first(key: int, since: list[int]) -> bool:
    """Return whether an optimizer or scaler is the first one. since: who was called since the first one.

    One that is called twice in between takes over, as where each fold has an optimizer of its own.
    """
    first = not since or key in since
    since[:] = [key] if first else [*since, key]
    return first


class Watch:
    """Watches the steps of a training through three phases: they warm up, are timed, and are profiled.

    In a loop a step ends with GradScaler.update, or with the first optimizer's step where no scaler is used. With
    `by_hand` the caller says where it ends. Only the first thread that trains is watched. What is kept of tensors is
    kept in the few steps that `is_looked_at`, and read at the end.
    """

    def __init__(self, steps: int, by_hand: bool):
        self.seen = Observations()
        if torch.cuda.is_available():
            capability, switch = torch.cuda.get_device_capability(), torch.backends.cuda.matmul.fp32_precision
            if wrong := missing_kernels(capability, torch.cuda.get_arch_list()):
                raise UserError(wrong)
            self.seen = Observations("cuda", torch.cuda.get_device_name(), capability, switch)
        self.by_hand = by_hand
        self.when_over: Callable[[], Any] = tuple  # is called when the last phase is through
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile, self.last = self.warm_up + steps, self.warm_up + steps + LOOKED
        self.home = threading.get_ident()
        self.thread: int | None = None  # that trains
        self.inside: list[str] = []  # the calls that are under way
        self.events: list[tuple[str, int]] = []  # of the step that is under way: (call, id of its optimizer or 0)
        self.count = 0  # steps
        self.since: tuple[list[int], list[int]] = [], []  # optimizers and scalers, see is_first()
        self.probes: dict[int, Probe] = {}  # of each optimizer
        self.scalers: dict[int, Any] = {}
        self.scales: dict[int, list[torch.Tensor]] = {}  # of each scaler, in the profiled steps
        self.scaled = self.unended = self.pending = (
            False  # update() ends steps; not heard yet; a step ended in backward()
        )
        self.stepped = self.unstepped = False  # scaler.step() came since the last update(); it did not before that one
        self.mixed: list[Any] = []  # whether gradients were cleared after an update() without a step
        self.calls: Counter = Counter()  # of backward(): all, in steps that are looked at, and with something wrong
        self.losses: list[torch.Tensor] = []  # scalar ones, without the loss scale
        self.marks: list[tuple[Any, float]] = []  # the ends of the timed steps, and seconds of waiting for a DataLoader
        self.waiting = self.waited = 0.0  # since when, and how long in this step
        self.profiler: Any = None
        self.over = self.finished = False
        doors.listen(self)

    @property
    def is_looked_at(self) -> bool:
        """Whether the step that is under way may be slowed, which the timed ones and the first of a GPU may not."""
        return self.warm_up - LOOKED <= self.count < self.warm_up or self.to_profile <= self.count

    def hear(self, event: str, ends: bool, args: tuple, kwargs: dict[str, Any]) -> None:
        if getattr(args[0], "_enabled", True) is False:  # a scaler or autocast that does nothing
            return
        here = threading.get_ident()
        if self.thread is None and event in ("scale", "backward", "step"):
            self.thread = here
        ours = self.thread in (None, here)
        if event == "step":  # an optimizer's hook, which autograd's own threads may call inside backward()
            if ours or in_backward():
                self.note_step(args[0])
        elif event == "by hand":
            if args[0] is self:
                self.advance()
        elif event == "profiler":  # another one could not start beside ours, so ours makes room
            if self.profiler is not None and here == self.home:
                self.stop()
        elif ours and not ends:
            self.inside.append(event)
            if self.inside.count(event) == 1:
                self.begun(event, args, kwargs)
        elif ours and event in self.inside:  # a method that calls its parent's counts once
            del self.inside[len(self.inside) - 1 - self.inside[::-1].index(event)]
            if event not in self.inside:
                self.ended(event, args, kwargs)

    def gave_up(self, error: Exception) -> None:
        """Stop looking because of an error of our own, which must not reach the loop."""
        self.seen.unseen.append(f"diagnose() stopped after step {self.count}, because it failed ({error_line(error)}).")
        self.stop()

    def begun(self, event: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if event == "next":
            self.waiting = time.perf_counter()
        elif event == "autocast":
            if torch.is_grad_enabled() and args[0].device == self.seen.device:
                self.seen.autocasts.add(name_of(args[0].fast_dtype))
        elif event == "schedule":
            if args[0].o._step_count > 1:  # else it is being made
                stepped = getattr(args[0].o.optimizer, "_opt_called", False)
                self.events.append(("schedule" if stepped else "schedule first", 0))
        elif event == "backward" and kwargs.get("accumulate_grad", True):
            self.note_backward(args)
        elif event == "backward":
            scales = {scaler._scale.data_ptr() for scaler in self.scalers.values() if scaler._scale is not None}
            factors = [getattr(output.grad_fn, "_saved_other", None) for output in tensors_in(args[:1])]
            if args[3] and any(factor.data_ptr() in scales for factor in tensors_in(factors)):
                self.events.append(("scaled gradients", 0))  # of grad(), with a graph, as for a penalty
        elif event == "clip":
            limit = args[1] if len(args) > 1 else kwargs.get("clip_value")
            if isinstance(limit, int | float) and limit < 100:  # else it takes the norm alone, or has the scale in it
                self.events.append((event, 0))
        else:
            self.note_scaler(event, args)

    def ended(self, event: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if event == "next" and torch.is_grad_enabled():  # else it is an evaluation
            self.waited += time.perf_counter() - self.waiting
        elif event == "backward" and kwargs.get("accumulate_grad", True):
            if self.is_looked_at and ("scale", 0) in self.events:
                for probe in self.probes.values():
                    probe.end_scaled_backward()
            if self.pending:
                self.pending = False
                self.advance()
        elif event == "update" and not self.by_hand:
            self.scaled, self.unended = True, False
            if is_first(id(args[0]), self.since[1]):
                self.advance()

    def note_backward(self, args: tuple) -> None:
        self.events.append(("backward", 0))
        self.calls["all"] += 1
        if not self.is_looked_at:
            return
        self.calls["looked at"] += 1
        self.calls["anomaly"] += torch.is_anomaly_enabled()
        self.seen.backward_in_autocast += torch.is_autocast_enabled(self.seen.device) and not is_called_by_a_library()
        for loss in tensors_in(args[:1])[:1]:
            self.seen.loss_multiplied |= type(loss.grad_fn).__name__.startswith("MulBackward")
            self.losses += [loss.detach().clone()] if loss.numel() == 1 and not self.scalers else []
        for probe in self.probes.values():
            probe.begin_backward()
            self.mixed += [probe.cleared[-1]] if self.unstepped else []

    def note_scaler(self, event: str, args: tuple) -> None:
        self.scalers[id(args[0])] = args[0]
        key = 0
        if event == "scale" and self.unended:  # its update() was taken from the scaler before we listened
            self.unended = False
            self.advance()
        if event == "scale" and self.is_looked_at:
            self.losses += [loss.detach().clone() for loss in tensors_in(args[1:])[:1] if loss.numel() == 1]
        elif event in ("unscale", "scaler.step") and len(args) > 1:
            probe, key = self.probe_of(args[1]), id(args[1])
            probe.compare(probe.changes)
            self.stepped |= event == "scaler.step"
            if event == "scaler.step":
                probe.end_round()
        elif event == "update":
            self.stepped, self.unstepped = False, not self.stepped
        self.events.append((event, key))

    def probe_of(self, optimizer: torch.optim.Optimizer) -> Probe:
        if id(optimizer) not in self.probes:
            self.probes[id(optimizer)] = Probe(optimizer)
        return self.probes[id(optimizer)]

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        probe, key, by_scaler = self.probe_of(optimizer), id(optimizer), "scaler.step" in self.inside
        if not by_scaler:
            probe.compare(probe.past_scaler)
            probe.end_round()
        probe.step(self.is_looked_at and self.count < self.warm_up, self.calls["all"])
        self.events.append(("scaled step" if by_scaler else "step", key))
        if self.scaled or self.by_hand or not is_first(key, self.since[0]):
            return
        if by_scaler:
            self.unended = True
        elif in_backward():
            self.pending = True
        else:
            self.advance()

    def advance(self) -> None:
        if self.over:
            return
        if self.profiler is not None:
            with torch.autograd.profiler.record_function(END_OF_STEP):
                pass
            self.seen.in_use.append(torch.cuda.memory_allocated() if self.seen.device == "cuda" else 0)
            for key, scaler in self.scalers.items():
                if scaler._scale is not None:
                    self.scales.setdefault(key, []).append(scaler._scale.clone())
        self.count += 1
        self.seen.events.append(self.events)
        self.events = []
        if self.warm_up <= self.count <= self.to_profile:
            mark: Any = time.perf_counter()
            if self.seen.device == "cuda":
                mark = torch.cuda.Event(enable_timing=True)
                mark.record()
            self.marks.append((mark, self.waited))
        self.waited = 0.0
        if self.count == self.to_profile:
            read_times(self.seen, self.marks)
            if threading.get_ident() != self.home:
                self.leave_out("the loop runs in another thread than diagnose(), and a profiler belongs to one thread")
            elif torch.autograd._profiler_enabled():
                self.leave_out("another profiler of PyTorch is running")
            else:
                self.profiler = begin_profile(self.seen.device)
        if self.over or self.count == self.last:
            self.stop()
            self.when_over()

    def leave_out(self, reason: str) -> None:
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")
        self.over = True

    def stop(self) -> None:
        self.over = True
        doors.leave(self)
        profiler, self.profiler = self.profiler, None
        try:
            if profiler is not None:
                end_profile(self.seen, profiler)
            elif not self.seen.timed:
                read_times(self.seen, self.marks)
        except Exception as error:
            self.seen.unseen.append(f"The last steps could not be read ({error_line(error)}).")

    def finish(self) -> Observations:
        """Read what was kept on the device, let go of it, and return what was seen."""
        self.stop()
        seen, probes = self.seen, list(self.probes.values())
        if self.finished:
            return seen
        self.finished, seen.steps, seen.scaler_on = True, self.count, bool(self.scalers)
        if self.thread is not None and not seen.watched and not seen.unseen:
            self.leave_out(f"the loop ended after {self.count} steps and {self.last} are needed")
        seen.events = [step for step in [*seen.events, self.events] if step]
        if self.calls["anomaly"] == self.calls["looked at"] > 0:
            seen.found["anomaly detection"] = {}
        try:
            seen.losses = [float(loss) for loss in self.losses]
            seen.scales = [[float(scale) for scale in scales] for scales in self.scales.values()]
            if sum(not bool(one) for one in self.mixed) > 1:
                seen.found["update without step"] = {}
            for probe in probes:
                seen.found.update(probe.mistakes(self.calls["all"]))
        except Exception as error:  # a lost device
            seen.unseen.append(f"The numbers on the device could not be read ({error_line(error)}).")
        self.probes, self.scalers, self.losses, self.scales = {}, {}, [], {}
        return seen
