"""diagnose(): what is wrong with a training step, in which types it computes, and where its time goes.

While somebody watches, a few functions of PyTorch tell of each call and then do the same. Whoever watches last takes
them away. No hook is set in the interpreter or in a module, and code under torch.compile is passed through unheard.
"""

import atexit
import contextlib
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from ..explain.profile import tensors_in
from ..measure.timing import StepClock
from ..parameters import UserError, error_line
from .mistakes import Diagnosis, name_of
from .probe import Probe
from .profile import END_OF_STEP, profiled, read_times

# the last steps that warm up, and as many after the timed ones: only these eight may be slowed
LOOKED = 4
# steps before the first that is timed; a GPU's libraries search and compile in them
WARM_UP = {"cpu": 3, "cuda": 8}
LISTENERS: list[Callable] = []  # each takes (event, ends, *args, **kwargs) and raises nothing
INSTALLED: list[tuple[Any, str, Any, Any]] = []  # (owner, name, the function before, ours)
OF_SCALER = {
    "scale": "scale",
    "unscale_": "unscale",
    "step": "scaler.step",
    "update": "update",
    "get_scale": "read",
}


def doors() -> list[tuple[Any, str, str]]:
    """Return (owner, name, event) of each function that is listened at. What a version lacks is left out."""
    scalers = [torch.amp.GradScaler]
    for scaler in scalers:
        scalers += scaler.__subclasses__()  # FSDP's overrides most of its methods
    places = [
        # of backward() and grad(), however they were imported
        (torch.autograd, "_engine_run_backward", "backward"),
        (torch.amp.autocast_mode.autocast, "__enter__", "autocast"),
        # clip_grad_norm_ calls it, by whatever name it was imported
        (clip_grad, "_clip_grads_with_norm_", "clip"),
        (torch.nn.utils, "clip_grads_with_norm_", "clip"),
        (torch.nn.utils, "clip_grad_value_", "clip"),
        (dataloader._BaseDataLoaderIter, "__next__", "next"),
        (torch.autograd.profiler.profile, "_prepare_trace", "profiler"),
        # step() enters it
        (getattr(lr_scheduler, "_enable_get_lr_call", torch), "__enter__", "schedule"),
        *((kind, name, event) for kind in scalers for name, event in OF_SCALER.items()),
    ]
    return [place for place in places if place[1] in vars(place[0])]


def told(function: Callable, event: str) -> Callable:
    """Return a function that tells of its calls, and otherwise does what the given one does."""

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        for listener in tuple(LISTENERS):
            listener(event, False, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            for listener in tuple(LISTENERS):
                listener(event, True, *args, **kwargs)

    return through


def listen(listener: Callable) -> None:
    for owner, name, event in [] if LISTENERS else doors():
        before = vars(owner)[name]
        ours = told(before, event)
        setattr(owner, name, ours)
        INSTALLED.append((owner, name, before, ours))
    LISTENERS.append(listener)


def leave(listener: Callable) -> None:
    """End to tell a listener. A function that somebody else has replaced meanwhile stays theirs."""
    if listener in LISTENERS:
        LISTENERS.remove(listener)
    while INSTALLED and not LISTENERS:
        owner, name, before, ours = INSTALLED.pop()
        if vars(owner).get(name) is ours:
            setattr(owner, name, before)


class Watch:
    """Watches the steps of a training through three phases: they warm up, are timed, and are profiled.

    A step ends with GradScaler.update, or with the first optimizer's step where no scaler is used; `by_hand` the caller
    says so. What is kept of tensors is kept in the few steps that are looked at, and read at the end.
    """

    def __init__(
        self, steps: int, evaluate: Any, on_report: Callable[[Diagnosis], Any], by_hand: bool
    ):
        self.seen = Diagnosis()
        if torch.cuda.is_available():
            has_tf32 = torch.cuda.get_device_capability() >= (8, 0)
            self.seen = Diagnosis(
                [], "cuda", torch.backends.cuda.matmul.fp32_precision if has_tf32 else ""
            )
        self.evaluate, self.on_report, self.by_hand = evaluate, on_report, by_hand
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile, self.last = self.warm_up + steps, self.warm_up + steps + LOOKED
        # whether the step that is under way may be slowed
        self.is_looked_at = self.warm_up <= LOOKED
        self.hook: Any = None  # of all optimizers, while it is watched
        # the thread that watches, and the one that trains
        self.home, self.thread = threading.get_ident(), 0
        # of the calls that are under way, because a method may call its parent's
        self.depth: Counter = Counter()
        self.events: list[list[str]] = [[]]  # the calls of each step
        self.backwards = 0  # calls of backward()
        # optimizers and scalers, see ends_a_step()
        self.since: dict[bool, list[int]] = {False: [], True: []}
        self.probes: dict[torch.optim.Optimizer, Probe] = {}
        self.scales: dict[Any, list[torch.Tensor]] = {}  # of each scaler, in the profiled steps
        # update() ends steps; a step ended in backward(); all is seen
        self.scaled = self.pending = self.over = False
        self.unstepped = False  # scaler.step() did not come before the last update()
        # whether gradients were cleared after an update() without a step
        self.mixed: list[Any] = []
        # whether its detection was on, at each backward() that was looked at
        self.anomaly: list[bool] = []
        self.losses: list[torch.Tensor] = []  # scalar ones, without the loss scale
        self.clock = StepClock(torch.device(self.seen.device))
        self.waits: list[float] = []  # the seconds in which each timed step waited for a DataLoader
        self.waited = 0.0  # in the step that is under way
        self.profiler: Any = None

    def start(self) -> "Watch":
        """Begin to watch. Where stop() is never called, as after an error at module level, the exit reports."""
        self.hook = register_optimizer_step_post_hook(
            lambda optimizer, *_: self.hear("step", True, optimizer)
        )
        listen(self.hear)
        atexit.register(self.stop)
        return self

    def stop(self, error: BaseException | None = None) -> Diagnosis:
        """End to watch and return the report. error: what ended the loop, which gets a note with its remedy."""
        atexit.unregister(self.stop)
        if self.hook is not None:
            # not earlier, because a hook that leaves itself breaks PyTorch's loop over all hooks
            self.hook.remove()
            self.hook = None
            self.hear("finish", True)
            if self.evaluate and error is None:
                self.look_at_evaluation()
            self.tell(error)
        return self.seen

    def __enter__(self) -> Diagnosis:
        return self.start().seen

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.stop(error)

    def tell(self, error: BaseException | None = None) -> None:
        self.seen.judge(error)
        on_report, self.on_report = self.on_report, id  # which is called no more
        on_report(self.seen)

    def look_at_evaluation(self) -> None:
        """Evaluate, and note whether the result is finite, and whether tensors are kept for a backward() in vain."""
        calls: list[str] = []

        def note(call: str, tensor: torch.Tensor) -> torch.Tensor:
            calls.append(call)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: note("kept", kept), lambda used: note("used", used)
        ):
            value = self.evaluate()
        if "kept" in calls and "used" not in calls:
            self.seen.found["evaluation with gradients"] = {}
        numbers = [
            torch.as_tensor(leaf)
            for leaf in tree_leaves(value)
            if isinstance(leaf, float | torch.Tensor)
        ]
        if numbers:
            types = {name_of(number.dtype) for number in numbers if number.is_floating_point()}
            self.seen.evaluation_in = " and ".join(sorted(types))
            self.seen.evaluation_finite = all(bool(number.isfinite().all()) for number in numbers)
        else:
            self.seen.unseen.append(
                "The numbers of the evaluation were not checked, because it returns none of them."
            )

    def hear(self, event: str, ends: bool, /, *args: Any, **kwargs: Any) -> None:
        """Note a call. A note may ask the device, so none is taken while a CUDA graph is captured."""
        if torch.compiler.is_compiling() or self.over:
            return
        try:
            if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
                self.note(event, ends, args, kwargs)
        except Exception as error:  # of our own, which must not reach the loop
            self.seen.unseen.append(
                f"diagnose() failed after step {self.seen.steps} ({error_line(error)})."
            )
            self.hear("finish", True)

    def note(self, event: str, ends: bool, args: tuple, kwargs: dict[str, Any]) -> None:
        here = threading.get_ident()
        if any(getattr(one, "_enabled", True) is False for one in args[:1]):
            return  # a scaler or autocast that does nothing
        if event in ("scale", "backward", "step"):
            self.thread = self.thread or here
        if event in ("advance", "finish"):
            getattr(self, event)()
        elif event == "profiler" and self.profiler is not None and here == self.home:
            self.finish()  # another one could not start beside ours, so ours makes room
        elif event == "step" and (self.thread == here or torch._C._current_graph_task_id() != -1):
            # autograd's own threads may step inside backward()
            probe = self.probes[args[0]] = self.probes.get(args[0]) or Probe(args[0])
            by_scaler = self.depth["scaler.step"] > 0
            if not by_scaler:
                probe.end_round(probe.past_scaler)
            probe.step(self.is_looked_at and self.seen.steps < self.warm_up, self.backwards)
            self.events[-1].append("scaled step" if by_scaler else "step")
            if not (self.scaled or self.by_hand or by_scaler) and self.ends_a_step(args[0]):
                if self.depth["backward"]:
                    self.pending = True
                else:
                    self.advance()
        elif self.thread in (0, here):
            self.depth[event] += -1 if ends else 1
            if self.depth[event] == 0 and ends:
                self.note_end(event, args, kwargs)
            elif self.depth[event] == 1 and not ends:
                self.note_begin(event, args, kwargs)

    def note_begin(self, event: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if event == "next" and torch.is_grad_enabled():  # else it is an evaluation
            self.waited -= time.perf_counter()
        elif event == "autocast" and torch.is_grad_enabled() and args[0].device == self.seen.device:
            self.seen.autocasts.add(name_of(args[0].fast_dtype))
        elif event == "schedule" and args[0].o._step_count > 1:  # else it is being made
            stepped = getattr(args[0].o.optimizer, "_opt_called", False)
            self.events[-1].append("schedule" if stepped else "schedule first")
        elif event == "backward" and kwargs.get("accumulate_grad", True):
            self.events[-1].append("backward")
            self.backwards += 1
            self.anomaly += [torch.is_anomaly_enabled()] if self.is_looked_at else []
            for loss in tensors_in(args[:1])[:1] if self.is_looked_at else []:
                self.seen.loss_multiplied |= type(loss.grad_fn).__name__.startswith("MulBackward")
                self.losses += (
                    [loss.detach().clone()] if loss.numel() == 1 and not self.scales else []
                )
            for probe in self.probes.values() if self.is_looked_at else []:
                probe.cleared.append(
                    True if probe.weight.grad is None else ~probe.weight.grad.any()
                )
                self.mixed += probe.cleared[-1:] if self.unstepped else []
        elif event == "backward":
            scales = {
                scaler._scale.data_ptr() for scaler in self.scales if scaler._scale is not None
            }
            factors = [
                getattr(output.grad_fn, "_saved_other", None) for output in tensors_in(args[:1])
            ]
            if args[3] and any(factor.data_ptr() in scales for factor in tensors_in(factors)):
                # of grad(), with a graph, as for a penalty
                self.events[-1].append("scaled gradients")
        elif event == "clip":
            limit = args[1] if len(args) > 1 else kwargs.get("clip_value", kwargs.get("max_norm"))
            # else it takes the norm alone, or has the scale in it
            if isinstance(limit, int | float) and limit < 100:
                self.events[-1].append(event)
        elif event in OF_SCALER.values():
            self.scales.setdefault(args[0], [])
            if event == "scale" and self.is_looked_at:
                self.losses += [
                    loss.detach().clone() for loss in tensors_in(args[1:])[:1] if loss.numel() == 1
                ]
            elif event in ("unscale", "scaler.step") and len(args) > 1:
                probe = self.probes[args[1]] = self.probes.get(args[1]) or Probe(args[1])
                probe.end_round(probe.changes)
            elif event == "update":
                since = itertools.takewhile(
                    lambda call: call != "update", reversed(self.events[-1])
                )
                self.unstepped = "scaler.step" not in since
            self.events[-1].append(event)

    def note_end(self, event: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if event == "next" and torch.is_grad_enabled():
            self.waited += time.perf_counter()
        elif event == "backward" and kwargs.get("accumulate_grad", True):
            for probe in (
                self.probes.values() if self.is_looked_at and "scale" in self.events[-1] else ()
            ):
                probe.end_scaled_backward()
            if self.pending:
                self.pending = False
                self.advance()
        elif event == "update" and not self.by_hand:
            self.scaled = True
            if self.ends_a_step(args[0]):
                self.advance()

    def ends_a_step(self, ender: Any) -> bool:
        """Return whether it is the first optimizer or scaler, or came twice since the first and so takes over."""
        since = self.since[self.scaled]
        first = not since or id(ender) in since
        self.since[self.scaled] = [id(ender)] if first else [*since, id(ender)]
        return first

    def advance(self) -> None:
        seen = self.seen
        if self.profiler is not None:
            with torch.autograd.profiler.record_function(END_OF_STEP):
                pass
            seen.in_use.append(torch.cuda.memory_allocated())
            for scaler, scales in self.scales.items():
                scales += [scaler._scale.clone()] if scaler._scale is not None else []
        seen.steps += 1
        self.is_looked_at = (
            self.warm_up - LOOKED <= seen.steps < self.warm_up or self.to_profile <= seen.steps
        )
        self.events.append([])
        if seen.steps == self.warm_up:
            self.clock.start()
        elif self.warm_up < seen.steps <= self.to_profile:
            self.clock.tick()
            self.waits.append(self.waited)
        self.waited = 0.0
        if seen.steps == self.to_profile:
            read_times(seen, self.clock.stop()[1], self.waits)
            if threading.get_ident() != self.home:
                self.leave_out(
                    "the loop runs in another thread than diagnose(), and a profiler belongs to one thread"
                )
            elif torch.autograd._profiler_enabled():
                self.leave_out("another profiler of PyTorch is running")
            else:
                profiler = profiled(seen)
                profiler.__enter__()
                self.profiler = profiler
        if seen.unseen or seen.steps == self.last:
            self.finish()
            if not self.by_hand and not self.evaluate:
                self.tell()

    def leave_out(self, reason: str) -> None:
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")

    def finish(self) -> None:
        """End to look, read what was kept on the device, and let go of it."""
        seen, self.over = self.seen, True
        leave(self.hear)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
        elif self.waits:
            read_times(seen, self.clock.stop()[1], self.waits)
        if self.thread and not seen.watched and not seen.unseen:
            self.leave_out(f"the loop ended after {seen.steps} steps and {self.last} are needed")
        seen.events = [step for step in self.events if step]
        if self.anomaly and all(self.anomaly):
            seen.found["anomaly detection"] = {}
        seen.losses = [float(loss) for loss in self.losses]
        seen.scales = [
            [float(scale) for scale in scales] for scales in self.scales.values() if scales
        ]
        if sum(not bool(one) for one in self.mixed) > 1:
            seen.found["update without step"] = {}
        for probe in self.probes.values():
            seen.found.update(probe.mistakes(self.backwards))
        self.probes, self.scales, self.losses = {}, {}, []


def diagnose(
    step: Callable[[], Any] | None = None,
    *,
    steps: int = 20,
    evaluate: Callable[[], Any] | None = None,
    on_report: Callable[[Diagnosis], Any] = print,
) -> Any:
    """Diagnose a training step, and change nothing in it.

    step(): takes one training step of yours. Without it, diagnose() is a context around a loop, or diagnose().start()
        before it and stop() of what that returns after it. There a step ends with scaler.update() or optimizer.step().
    steps: how many are timed, after 3 that warm up (8 on a GPU). Then PyTorch's profiler looks into 4, which are slow.
    evaluate(): evaluates your model once, after the steps, and returns its metric or its outputs, which are checked.
    on_report(report): is called as soon as all is known, or the loop ends or fails.

    Returns a Diagnosis, which the context fills in; its `mistakes` are empty where none was found. An error of its own
    ends the diagnosis and not your loop. Raises UserError where `steps` is wrong.
    """
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps is {steps!r}; it must be a whole number of at least 1.")
    watch = Watch(steps, evaluate, on_report, by_hand=step is not None)
    if step is None:
        return watch
    # batches that run out end it, and the report says so
    with watch as report, contextlib.suppress(StopIteration):
        while not watch.over:
            step()
            watch.hear("advance", True)
    return report
