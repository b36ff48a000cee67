"""The watch of a training: it hears a few functions of PyTorch, and keeps what the rules need.

Whoever watches last takes the ears away. No hook is set in the interpreter or in a module, and code under torch.compile
is passed through unheard.
"""

import atexit
import contextlib
import functools
import gc
import math
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from ..explain.profile import tensors_in
from ..measure.timing import StepClock
from ..parameters import UserError, error_line
from .graph import Backward, mark
from .ledger import Ledger
from .mistakes import Diagnosis, name_of
from .notes import facts_of, remedy_for
from .profile import END_OF_STEP, profiled, read_times

# the last steps that warm up, and as many after the timed ones: only these may be slowed
LOOKED = 4
# steps before the first that is timed; a GPU's libraries search and compile in them
WARM_UP = {"cpu": 3, "cuda": 8}
KEPT = 4096  # losses at most, and half as many backward() calls without a step
LISTENERS: list[Callable] = []  # each takes (event, ends, *args, **kwargs) and raises nothing
INSTALLED: list[tuple[Any, str, Any, Any]] = []  # (owner, name, the function before, ours)
OF_SCALER = {"scale": "scale", "unscale_": "unscale", "step": "scaler_step", "update": "update"}


def doors() -> list[tuple[Any, str, str]]:
    """Return (owner, name, event) of each function that is listened at. What a version lacks is left out."""
    scalers = [torch.amp.GradScaler]
    for scaler in scalers:
        scalers += scaler.__subclasses__()  # FSDP's overrides most of its methods
    places = [
        # of backward() and grad(), however they were imported
        (torch.autograd, "_engine_run_backward", "backward"),
        (torch.amp.autocast_mode.autocast, "__enter__", "autocast"),
        (torch.amp.autocast_mode.autocast, "__exit__", "autocast_exit"),
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
        results: list[Any] = []
        try:
            results.append(function(*args, **kwargs))
            return results[0]
        finally:
            for listener in tuple(LISTENERS):
                listener(event, True, *args, *(results if event == "scale" else ()), **kwargs)

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


def sound_buffers() -> list[tuple[str, torch.Tensor]]:
    """Return (name, buffer) of each buffer of a module in this process that is finite."""
    found = []
    for module in [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]:
        # a module that is half made, or buffers that hold nothing
        with contextlib.suppress(Exception):
            for name, buffer in module._buffers.items():
                if (
                    buffer is not None
                    and buffer.is_floating_point()
                    and bool(buffer.isfinite().all())
                ):
                    found.append((f"{name} of {type(module).__name__}", buffer))
    return found


class Watch:
    """Watches the steps of a training through three phases: they warm up, are timed, and are profiled.

    A step ends with GradScaler.update, or with the first optimizer's step where no scaler is used; `by_hand` the caller
    says so. What is kept of tensors is kept in the few steps that are looked at, and read at the end. It serves once.
    """

    scaled = pending = over = False  # update() ends steps; a step ended in backward(); all is seen
    thread = failed = 0  # the thread that trains; the id of an error that came out of an autocast
    ender: Any = None  # the optimizer that the last scaler.step() was called with
    profiler: Any = None
    waited = 0.0  # seconds for a DataLoader, in the step that is under way
    backwards = unread = 0  # calls of backward(); the last of them that was not looked at
    # scaler.step() came since the last update(); it did not come before that
    asked = unstepped = False
    # in the scaler_step that is under way; a fused optimizer skips its step
    stepped = overflowed = False
    reading: Any = None  # of the backward() that is under way
    leaked = False  # scaled gradients left the weights' books in this step, as for a gradient cache
    version = -1  # of the weights, at the last unscale_()

    def __init__(
        self,
        steps: int,
        evaluate: Any,
        on_report: Callable[[Diagnosis], Any],
        by_hand: bool,
        after: int,
    ):
        self.evaluate, self.on_report, self.by_hand, self.to_skip = (
            evaluate,
            on_report,
            by_hand,
            after,
        )
        self.seen = Diagnosis(first=after, device="cuda" if torch.cuda.is_available() else "cpu")
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile, self.last = self.warm_up + steps, self.warm_up + steps + LOOKED
        # whether the present step may be slowed
        self.is_looked_at = self.warm_up <= LOOKED and not after
        self.home = threading.get_ident()  # the thread that watches
        self.hooks: list[Any] = []  # of all optimizers, while it is watched
        self.undo = contextlib.ExitStack()
        self.clock = StepClock(torch.device(self.seen.device))
        self.waits: list[float] = []  # the seconds in which each timed step waited for a DataLoader
        # of the calls that are under way, because a method may call its parent's
        self.depth: Counter = Counter()
        # optimizers and scalers, see ends_a_step()
        self.since: dict[bool, list[int]] = {False: [], True: []}
        self.open_steps: dict[int, int] = {}  # how deep the stack is in an optimizer's step()
        self.autocasts: set[str] = set()  # types of all autocasts
        self.events: list[list[str]] = [[]]  # the calls of each step
        self.recent: deque[str] = deque(maxlen=32)  # the last calls, for the note on an error
        self.buffers: list[tuple[str, torch.Tensor]] = []
        # of each optimizer; one that wraps another shares its ledger
        self.ledgers: dict[int, Ledger] = {}
        self.owners: list[Any] = []  # those optimizers, so that no other gets the id of one
        self.scales: dict[Any, list[torch.Tensor]] = {}  # of each scaler, in the profiled steps
        # the type of each loss that was looked at, where 16 bits round it
        self.narrow: list[str] = []
        # whether its detection was on, at each backward() that was looked at
        self.anomaly: list[bool] = []
        self.losses: list[torch.Tensor] = []  # scalar ones, without the loss scale

    # Life

    def start(self) -> "Watch":
        """Begin to watch, and end an older watch of this thread.

        Where stop() is never called, an error of a script or a cell ends the watch, and else the exit reports.
        """
        self.open()
        before = sys.excepthook

        def on_error(kind: type, error: BaseException, trace: Any) -> None:
            self.stop(error)
            before(kind, error, trace)

        def after_cell(result: Any) -> None:
            if result.error_in_exec is not None:
                self.stop(result.error_in_exec)

        def put_back() -> None:
            if sys.excepthook is on_error:
                sys.excepthook = before

        sys.excepthook = on_error
        self.undo.callback(put_back)
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            shell.events.register("post_run_cell", after_cell)
            self.undo.callback(shell.events.unregister, "post_run_cell", after_cell)
        return self

    def open(self) -> Diagnosis:
        if self.hooks or self.over:
            raise UserError("A diagnosis serves once. Call diagnose() again for another one.")
        for listener in tuple(LISTENERS):
            other = getattr(listener, "__self__", self)
            if other.home == threading.get_ident():
                other.stop()
        self.home = threading.get_ident()
        self.hooks = [
            register_optimizer_step_pre_hook(
                lambda optimizer, *_: self.hear("step", False, optimizer)
            ),
            register_optimizer_step_post_hook(
                lambda optimizer, *_: self.hear("step", True, optimizer)
            ),
        ]
        listen(self.hear)
        atexit.register(self.stop)
        return self.seen

    __enter__ = open

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> Diagnosis:
        """End to watch and return the report. error: what ended the loop, which gets a note with its remedy."""
        atexit.unregister(self.stop)
        if self.hooks:
            for hook in self.hooks:
                # not earlier, because a hook that leaves itself breaks PyTorch's loop over all
                # hooks
                hook.remove()
            self.hooks = []
            self.undo.close()
            # of an error that says nothing, or takes no note in Python 3.10
            with contextlib.suppress(Exception):
                self.note_error(error)
            self.hear("finish", True)
            if error is None and self.evaluate:
                self.look_at_evaluation()
            self.buffers = []
            self.tell()
        return self.seen

    def tell(self) -> None:
        self.seen.judge()
        on_report, self.on_report = self.on_report, id  # which is called no more
        on_report(self.seen)

    def note_error(self, error: BaseException | None) -> None:
        """Take in the error that ended the loop, and note its remedy on it, where one is known."""
        seen, name, words = self.seen, type(error).__name__, []
        if error is None:
            return
        if not self.over:
            words.append("inside" if self.failed == id(error) else "outside")
            words += ["moved"] if self.version not in (-1, self.versions()) else []
            seen.ended_by = f"The loop ended by {name} in step {seen.first + seen.steps + 1}."
        known = self.remedy_for(error, [] if self.over else self.recent, words)
        if known is not None:
            seen.errors = [(name, *known)]
            error.add_note(f"diagnose(): {known[1]}")

    def remedy_for(
        self, error: BaseException, calls: Iterable[str], words: list[str]
    ) -> tuple[str, str] | None:
        self.note_state()
        is_bad = self.seen.spoiled or self.seen.weights_spoiled
        return remedy_for(
            error, facts_of(error, calls, *words, *self.autocasts, "spoiled" if is_bad else "")
        )

    def books(self) -> list[Ledger]:
        return [*dict.fromkeys(self.ledgers.values())]

    def versions(self) -> int:
        """Return a number that changes where weights change."""
        return sum(one._version for ledger in self.books() for one in ledger.weights[:64])

    def look_at_evaluation(self) -> None:
        """Evaluate, and note whether the result is finite."""
        seen = self.seen
        try:
            value = self.evaluate()
        except Exception as error:  # of the evaluation, which must not cost the report
            known = self.remedy_for(error, [], []) or ("", "")
            seen.found["evaluation failed"] = {"error": error_line(error), "remedy": known[1]}
            return
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, float | torch.Tensor)]
        numbers = [torch.as_tensor(leaf) for leaf in leaves]
        if numbers:
            seen.evaluation_in = " and ".join(
                sorted({name_of(one.dtype) for one in numbers if one.is_floating_point()})
            )
            seen.evaluation_finite = all(bool(number.isfinite().all()) for number in numbers)
            self.note_state()
        else:
            seen.unseen.append(
                "The numbers of the evaluation were not checked, because it returns none of them."
            )

    def note_state(self) -> None:
        """Note which buffers were finite once and are no more, and whether weights are."""
        self.seen.spoiled = sorted(
            {name for name, buffer in self.buffers if not bool(buffer.isfinite().all())}
        )
        weights = [weight for ledger in self.books() for weight in ledger.plain_weights()]
        self.seen.weights_spoiled |= not all(bool(weight.isfinite().all()) for weight in weights)

    # Hearing

    def hear(self, event: str, ends: bool, /, *args: Any, **kwargs: Any) -> None:
        """Note a call. A note may ask the device, so none is taken while a CUDA graph is captured."""
        if torch.compiler.is_compiling() or self.over:
            return
        try:
            if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
                self.note(event, ends, (*args, *kwargs.values()))
        except Exception as error:  # of our own, which must not reach the loop
            self.seen.unseen.append(
                f"diagnose() failed after step {self.seen.steps} ({error_line(error)})."
            )
            self.hear("finish", True)

    def note(self, event: str, ends: bool, args: tuple) -> None:
        here = threading.get_ident()
        if event in ("advance", "finish"):
            getattr(self, event)()
        elif getattr(next(iter(args), None), "_enabled", True) is False:
            # a scaler or autocast that does nothing
            self.seen.autocast_off |= event == "autocast" and args[0].device == self.seen.device
        elif event == "profiler":
            if self.profiler is not None and here == self.home:
                self.finish()  # another one could not start beside ours, so ours makes room
        elif event == "step" and torch._C._current_graph_task_id() != -1:
            # autograd's own threads may step
            self.note_step(ends, args[0])
        elif self.thread in (0, here):
            self.thread = here if event in ("scale", "backward", "step") else self.thread
            self.depth[event] += -1 if ends else 1
            if event == "step":
                self.note_step(ends, args[0])
            elif self.depth[event] == (0 if ends else 1):
                self.note_outer(event, ends, args)

    def note_outer(self, event: str, ends: bool, args: tuple) -> None:
        """Note a call that is not inside another one of its name."""
        if event in OF_SCALER.values():
            self.scales.setdefault(args[0], [])
            if not ends:
                self.note_call(event)
        if event == "next" and torch.is_grad_enabled():  # else it is an evaluation
            self.waited += time.perf_counter() if ends else -time.perf_counter()
        handler = getattr(self, f"{'end' if ends else 'begin'}_{event}", None)
        if handler is not None:
            handler(*args)

    def note_call(self, call: str) -> None:
        if len(self.events[-1]) < 64:
            self.events[-1].append(call)
        self.recent.append(call)

    def ledger_of(self, optimizer: Any) -> Ledger:
        if id(optimizer) not in self.ledgers:
            new = Ledger(optimizer)
            shared = [ledger for ledger in self.books() if not ledger.ids.isdisjoint(new.ids)]
            self.ledgers[id(optimizer)] = [*shared, new][0]
            self.owners.append(optimizer)
        return self.ledgers[id(optimizer)]

    # Steps

    def note_step(self, ends: bool, optimizer: Any) -> None:
        """Note a step of an optimizer. One inside another step of it is its parent's, so it is the same step."""
        depth, ledger = len([*traceback.walk_stack(None)]), self.ledger_of(optimizer)
        outer = self.open_steps.get(id(ledger), depth)
        if ends and depth <= outer:
            self.open_steps.pop(id(ledger), None)
            self.end_step(optimizer, ledger)
        elif not ends:
            self.open_steps[id(ledger)] = min(depth, outer)
            scale, overflow = (
                getattr(optimizer, "grad_scale", None),
                getattr(optimizer, "found_inf", None),
            )
            # a fused optimizer divides and skips steps itself
            if scale is not None and self.is_looked_at:
                ledger.note_hand()
                ledger.divide(float(scale))
            is_read = isinstance(overflow, torch.Tensor) and (
                self.is_looked_at or not overflow.is_cuda
            )
            self.overflowed = is_read and bool(overflow)

    def end_step(self, optimizer: Any, ledger: Ledger) -> None:
        by_scaler = self.depth["scaler_step"] > 0
        self.stepped |= by_scaler
        if not by_scaler:
            if self.is_looked_at:
                ledger.note_hand()
            ledger.settle(self.backwards, self.unread)
        ledger.step(optimizer, self.is_looked_at and self.seen.steps < self.warm_up, self.backwards)
        self.note_call("scaled_step" if by_scaler else "step")
        if not (self.scaled or self.by_hand or by_scaler) and self.ends_a_step(optimizer):
            self.pending = self.depth["backward"] > 0
            if not self.pending:
                self.advance()

    def ends_a_step(self, ender: Any) -> bool:
        """Return whether it is the first optimizer or scaler, or came twice since the first and so takes over."""
        since = self.since[self.scaled]
        first = not since or id(ender) in since
        self.since[self.scaled] = [id(ender)] if first else [*since, id(ender)]
        return first

    # Calls of PyTorch

    def begin_autocast(self, context: Any) -> None:
        if context.device == self.seen.device:
            types = {name_of(context.fast_dtype)}
            self.autocasts |= types
            self.seen.autocasts |= types if torch.is_grad_enabled() else set()

    def begin_autocast_exit(
        self, context: Any, kind: Any = None, error: Any = None, *_: Any
    ) -> None:
        self.failed = id(error) if error is not None else self.failed

    def begin_schedule(self, context: Any) -> None:
        ledger = self.ledgers.get(id(context.o.optimizer))
        if ledger is not None and context.o._step_count > 1:  # else it is being made
            ledger.schedule()

    def begin_backward(self, losses: Any, *rest: Any) -> None:
        if not rest[-1]:  # a call of grad(), whose scaled gradients leave the books
            self.leaked |= self.is_looked_at and Backward(losses).is_scaled()
            return
        self.backwards += 1
        if not self.scales:
            self.keep_loss(losses)
        cleared = [ledger.clear(self.is_looked_at) for ledger in self.books()]
        self.note_call("backward_cleared" if any(cleared) else "backward")
        if not self.is_looked_at:
            self.unread = self.backwards
        else:
            self.anomaly.append(torch.is_anomaly_enabled())
            self.reading = Backward(losses)
            self.reading.listen()
        if self.backwards > KEPT // 2 and not (self.seen.steps or self.by_hand or self.to_skip):
            self.finish()  # nothing is kept without end, where no optimizer of PyTorch steps

    def keep_loss(self, losses: Any) -> None:
        for loss in tensors_in(losses)[:1]:
            if loss.numel() == 1 and len(self.losses) < KEPT:
                self.losses.append(loss.detach().clone())

    def end_backward(self, *args: Any) -> None:
        if not args[-1]:
            return
        reading, self.reading = self.reading, None
        if reading is not None:
            self.read(reading)
        if self.pending:
            self.pending = False
            self.advance()

    def read(self, reading: Backward) -> None:
        reading.close()
        scales = [float(scaler._scale) for scaler in self.scales if scaler._scale is not None]
        paths = reading.paths([scale for scale in scales if scale != 1])
        self.narrow.append(reading.narrow())
        if self.leaked or not reading.is_whole:
            unscaled = {one: {path for path in found if path[0]} for one, found in paths.items()}
            paths = {one: found or {((), math.nan)} for one, found in unscaled.items()}
        self.leaked |= reading.fills_others and reading.is_scaled()
        for ledger in self.books():
            ledger.receive(paths, reading.casts, self.unstepped)
            if not self.scales and "float16" in self.seen.autocasts:
                ledger.measure_small()

    def end_clip(self, weights: Any, limit: Any = None, *_: Any) -> None:
        for ledger in self.books() if self.is_looked_at else ():
            ledger.clip(limit)

    def begin_scale(self, scaler: Any, losses: Any) -> None:
        self.keep_loss(losses)

    def end_scale(self, scaler: Any, losses: Any, result: Any = None) -> None:
        if self.is_looked_at and scaler._scale is not None:
            mark(result, float(scaler._scale))

    def begin_unscale(self, scaler: Any, optimizer: Any) -> None:
        if self.is_looked_at and not self.depth["scaler_step"]:
            self.ledger_of(optimizer).note_hand()

    def end_unscale(self, scaler: Any, optimizer: Any) -> None:
        if sys.exc_info()[0] is None:
            self.version = self.versions()
        if self.is_looked_at and scaler._scale is not None:
            self.ledger_of(optimizer).divide(float(scaler._scale))

    def begin_scaler_step(self, scaler: Any, optimizer: Any, *_: Any) -> None:
        self.ender, self.asked, self.stepped, self.overflowed = optimizer, True, False, False
        if self.is_looked_at:
            self.ledger_of(optimizer).note_hand()

    def end_scaler_step(self, scaler: Any, optimizer: Any, *_: Any) -> None:
        ledger = self.ledger_of(optimizer)
        ledger.settle(self.backwards, self.unread)
        ledger.end_due(scaler, self.stepped and not self.overflowed)

    def begin_update(self, *_: Any) -> None:
        self.unstepped, self.asked = not self.asked, False

    def end_update(self, scaler: Any, *_: Any) -> None:
        if not self.by_hand:
            self.scaled = True
            if self.ends_a_step(self.ender or scaler):
                self.advance()

    # Phases

    def advance(self) -> None:
        seen = self.seen
        if self.to_skip:
            self.to_skip -= 1
            self.is_looked_at = self.warm_up <= LOOKED and not self.to_skip
            self.events, self.losses = [[]], []
            return
        if self.profiler is not None:
            with torch.autograd.profiler.record_function(END_OF_STEP):
                pass
            seen.in_use.append(torch.cuda.memory_allocated())
            for scaler, scales in self.scales.items():
                scales += [scaler._scale.clone()] if scaler._scale is not None else []
        if self.is_looked_at and not self.buffers:
            self.buffers = sound_buffers()
        seen.steps += 1
        is_late = self.to_profile <= seen.steps
        self.is_looked_at = is_late or self.warm_up - LOOKED <= seen.steps < self.warm_up
        self.events.append([])
        self.leaked = False
        if seen.steps == self.warm_up:
            self.clock.start()
        elif self.warm_up < seen.steps <= self.to_profile:
            self.clock.tick()
            self.waits.append(self.waited)
        self.waited = 0.0
        if seen.steps == self.to_profile:
            read_times(seen, self.clock.stop()[1], self.waits)
            self.profile()
        if seen.unseen or seen.steps == self.last:
            self.finish()
            if not self.by_hand and not self.evaluate:
                self.tell()

    def profile(self) -> None:
        if threading.get_ident() != self.home:
            self.leave_out(
                "the loop runs in another thread than diagnose(), and a profiler belongs to one thread"
            )
        elif torch.autograd._profiler_enabled():
            self.leave_out("another profiler of PyTorch is running")
        else:
            profiler = profiled(self.seen)
            profiler.__enter__()
            self.profiler = profiler  # not earlier, because it is itself a profiler that begins

    def leave_out(self, reason: str) -> None:
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")

    def finish(self) -> None:
        """End to look, read what was kept on the device, and let go of it."""
        seen, self.over = self.seen, True
        leave(self.hear)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
        if self.waits and not seen.watched:
            read_times(seen, self.clock.stop()[1], self.waits)
        if self.to_skip:
            seen.unseen.append(
                f"The loop ended before step {seen.first + 1}, where diagnose() was to begin."
            )
        elif seen.steps and not seen.watched and not seen.unseen:
            self.leave_out(f"the loop ended after {seen.steps} steps and {self.last} are needed")
        elif seen.device == "cuda" and seen.watched and not seen.kernels:
            self.leave_out(
                "PyTorch's profiler saw no kernel, as after a profile of your own; try a new process"
            )
        seen.events = [step for step in self.events if step]
        self.read_books()
        self.ledgers, self.owners, self.scales, self.losses, self.ender = {}, [], {}, [], None
        if seen.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
            # last, because it may fail
            seen.matmul_switch = torch.backends.cuda.matmul.fp32_precision

    def read_books(self) -> None:
        seen = self.seen
        steppers = [ledger for ledger in self.books() if ledger.steps or ledger.due]
        seen.optimizers = len(steppers)
        if seen.watched and seen.events and not steppers:
            seen.unseen.append(
                "No optimizer of PyTorch took a step, so nothing is known of what it does to gradients."
            )
        seen.losses = [float(loss) for loss in self.losses]
        seen.scales = [
            [float(scale) for scale in scales] for scales in self.scales.values() if scales
        ]
        if self.anomaly and all(self.anomaly):
            seen.found["anomaly detection"] = {}
        narrow = [one for one in self.narrow if one]
        if 3 * len(narrow) >= max(6, len(self.narrow)):
            seen.found["loss in 16 bits"] = {"dtype": narrow[0]}
        self.note_state()
        for ledger in self.books():
            seen.found.update(ledger.mistakes(self.backwards))
            seen.state_types |= ledger.state_in_16_bits()
            seen.tiny_gradients += ledger.tiny if ledger.is_unscaled() else []
