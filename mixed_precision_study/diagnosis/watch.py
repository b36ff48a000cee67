"""The watch of a training: it hears a few functions of PyTorch, and keeps what the rules need.

Whoever watches last takes the ears away. No hook is set in the interpreter or in a module, and code under torch.compile
is passed through unheard.
"""

import atexit
import contextlib
import functools
import gc
import itertools
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from ..explain.profile import tensors_in
from ..measure.timing import StepClock
from ..parameters import error_line
from .graph import Reading, divides, read_graph
from .ledger import Ledger
from .mistakes import Diagnosis, name_of
from .notes import Place, remedy_for
from .profile import END_OF_STEP, profiled, read_times

LOOKED = 4  # the last steps that warm up, and as many after the timed ones: only these may be slowed
WARM_UP = {"cpu": 3, "cuda": 8}  # steps before the first that is timed; a GPU's libraries search and compile in them
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
        (torch.autograd, "_engine_run_backward", "backward"),  # of backward() and grad(), however they were imported
        (torch.amp.autocast_mode.autocast, "__enter__", "autocast"),
        (torch.amp.autocast_mode.autocast, "__exit__", "autocast_exit"),
        (clip_grad, "_clip_grads_with_norm_", "clip"),  # clip_grad_norm_ calls it, by whatever name it was imported
        (torch.nn.utils, "clip_grads_with_norm_", "clip"),
        (torch.nn.utils, "clip_grad_value_", "clip"),
        (dataloader._BaseDataLoaderIter, "__next__", "next"),
        (torch.autograd.profiler.profile, "_prepare_trace", "profiler"),
        (getattr(lr_scheduler, "_enable_get_lr_call", torch), "__enter__", "schedule"),  # step() enters it
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


def sound_buffers() -> dict[int, tuple[str, torch.Tensor]]:
    """Return (name, buffer) of each buffer of a module in this process that is finite, by its id."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for module in [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]:
        with contextlib.suppress(Exception):  # a module that is half made, or buffers that hold nothing
            for name, buffer in module.named_buffers():
                known = found.get(id(buffer), ("", buffer))[0]
                if buffer.is_floating_point() and len(name) > len(known) and bool(buffer.isfinite().all()):
                    found[id(buffer)] = name, buffer
    return found


class Watch:
    """Watches the steps of a training through three phases: they warm up, are timed, and are profiled.

    A step ends with GradScaler.update, or with the first optimizer's step where no scaler is used; `by_hand` the caller
    says so. What is kept of tensors is kept in the few steps that are looked at, and read at the end.
    """

    def __init__(self, steps: int, evaluate: Any, on_report: Callable[[Diagnosis], Any], by_hand: bool, after: int):
        self.options = steps, evaluate, on_report, by_hand, after
        self.begin_anew()

    def begin_anew(self) -> None:
        steps, self.evaluate, self.on_report, self.by_hand, after = self.options
        self.seen = Diagnosis(first=after)
        if torch.cuda.is_available():
            self.seen.device = "cuda"
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile, self.last = self.warm_up + steps, self.warm_up + steps + LOOKED
        self.to_skip = after
        self.hooks: list[Any] = []  # of all optimizers, while it is watched
        self.undo = contextlib.ExitStack()
        self.home, self.thread = threading.get_ident(), 0  # the thread that watches, and the one that trains
        self.depth: Counter = Counter()  # of the calls that are under way, because a method may call its parent's
        self.since: dict[bool, list[int]] = {False: [], True: []}  # optimizers and scalers, see ends_a_step()
        self.scaled = self.pending = self.over = False  # update() ends steps; a step ended in backward(); all is seen
        self.ender: Any = None  # the optimizer that the last scaler.step() was called with
        self.clock = StepClock(torch.device(self.seen.device))
        self.waits: list[float] = []  # the seconds in which each timed step waited for a DataLoader
        self.waited = 0.0  # in the step that is under way
        self.profiler: Any = None
        self.open_steps: dict[int, int] = {}  # how deep the stack is in an optimizer's step()
        self.failed = 0  # the id of an error that came out of an autocast
        self.autocasts: set[str] = set()  # types of all autocasts
        self.recent: deque[str] = deque(maxlen=32)  # the last calls, for the note on an error
        self.buffers: dict[int, tuple[str, torch.Tensor]] = {}
        self.forget()

    def forget(self) -> None:
        """Begin the books anew, as at the start and after the steps that are passed over."""
        self.is_looked_at = self.warm_up <= LOOKED and not self.to_skip  # whether the present step may be slowed
        self.events: list[list[str]] = [[]]  # the calls of each step
        self.backwards = self.unread = 0  # calls of backward(); the last of them that was not looked at
        self.ledgers: dict[int, Ledger] = {}
        self.scales: dict[Any, list[torch.Tensor]] = {}  # of each scaler, in the profiled steps
        self.unstepped = self.stepped = False  # since the last update(); in the scaler_step that is under way
        self.overflowed, self.is_known = False, True  # a fused optimizer skips its step; whether that was asked
        self.reading: Reading | None = None  # of the backward() that is under way
        self.leaked = False  # scaled gradients left the weights' books in this step, as for a gradient cache
        self.penalty: list[float] = []  # the scales in gradients that grad() returned with a graph, in this step
        self.penalties = 0  # backward() calls into which such gradients went with their scale
        self.narrow: list[str] = []  # the type of each loss that was looked at, where 16 bits round it
        self.anomaly: list[bool] = []  # whether its detection was on, at each backward() that was looked at
        self.losses: list[torch.Tensor] = []  # scalar ones, without the loss scale
        self.version = -1  # of the weights, at the last unscale_()

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
            self.stop()
            self.begin_anew()
        for listener in tuple(LISTENERS):
            other = getattr(listener, "__self__", self)
            if other.home == threading.get_ident():
                other.stop()
        self.home = threading.get_ident()
        self.hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self.hear("step", False, optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self.hear("step", True, optimizer)),
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
                hook.remove()  # not earlier, because a hook that leaves itself breaks PyTorch's loop over all hooks
            self.hooks = []
            self.undo.close()
            was_over = self.over
            place = Place([] if was_over else [*self.recent], self.version not in (-1, self.versions()))
            self.hear("finish", True)
            if error is not None:
                place.inside = None if was_over else self.failed == id(error)
                self.note_error(error, place, was_over)
            elif self.evaluate:
                self.look_at_evaluation()
            self.buffers = {}
            self.tell()
        return self.seen

    def tell(self) -> None:
        self.seen.judge()
        on_report, self.on_report = self.on_report, id  # which is called no more
        on_report(self.seen)

    def note_error(self, error: BaseException, place: Place, was_over: bool) -> None:
        """Take in the error that ended the loop, and note its remedy on it, where one is known."""
        seen, name = self.seen, type(error).__name__
        if not was_over:
            seen.ended_by = f"The loop ended by {name} in step {seen.first + seen.steps + 1}."
        known = self.remedy_for(error, place)
        if known is None:
            return
        seen.errors = [(name, *known)]
        with contextlib.suppress(Exception):  # some errors take no notes, nor does Python 3.10
            error.add_note(f"diagnose(): {known[1]}")

    def remedy_for(self, error: BaseException, place: Place) -> tuple[str, str] | None:
        place.autocasts = self.autocasts
        place.spoiled = bool(self.seen.spoiled or self.seen.weights_spoiled)
        return remedy_for(error, place)

    def versions(self) -> int:
        """Return a number that changes where weights change."""
        return sum(one._version for ledger in self.ledgers.values() for one in ledger.weights[:64])

    def look_at_evaluation(self) -> None:
        """Evaluate, and note whether the result is finite, and whether tensors are kept for a backward() in vain."""
        calls: list[str] = []

        def note(call: str, tensor: torch.Tensor) -> torch.Tensor:
            calls.append(call)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks
        seen = self.seen
        try:
            with hooks(lambda kept: note("kept", kept), lambda used: note("used", used)):
                value = self.evaluate()
        except Exception as error:  # of the evaluation, which must not cost the report
            self.note_buffers()
            known = self.remedy_for(error, Place([], False)) or ("", "")
            seen.found["evaluation failed"] = {"error": error_line(error), "remedy": known[1]}
            return
        if "kept" in calls and "used" not in calls:
            seen.found["evaluation with gradients"] = {}
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, float | torch.Tensor)]
        numbers = [torch.as_tensor(leaf) for leaf in leaves]
        if numbers:
            types = {name_of(number.dtype) for number in numbers if number.is_floating_point()}
            seen.evaluation_in = " and ".join(sorted(types))
            seen.evaluation_finite = all(bool(number.isfinite().all()) for number in numbers)
            self.note_buffers()
        else:
            seen.unseen.append("The numbers of the evaluation were not checked, because it returns none of them.")

    def note_buffers(self) -> None:
        """Note which buffers were finite once and are no more."""
        bad = [name for name, buffer in self.buffers.values() if not bool(buffer.isfinite().all())]
        self.seen.spoiled = sorted({*self.seen.spoiled, *bad})

    # Hearing

    def hear(self, event: str, ends: bool, /, *args: Any, **kwargs: Any) -> None:
        """Note a call. A note may ask the device, so none is taken while a CUDA graph is captured."""
        if torch.compiler.is_compiling() or self.over:
            return
        try:
            if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
                self.note(event, ends, args, kwargs)
        except Exception as error:  # of our own, which must not reach the loop
            self.seen.unseen.append(f"diagnose() failed after step {self.seen.steps} ({error_line(error)}).")
            self.hear("finish", True)

    def note(self, event: str, ends: bool, args: tuple, kwargs: dict[str, Any]) -> None:
        here = threading.get_ident()
        if event in ("advance", "finish"):
            getattr(self, event)()
            return
        if getattr(next(iter(args), None), "_enabled", True) is False:  # a scaler or autocast that does nothing
            self.seen.autocast_off |= event == "autocast" and args[0].device == self.seen.device
            return
        if event in ("scale", "backward", "step"):
            self.thread = self.thread or here
        if event == "profiler":
            if self.profiler is not None and here == self.home:
                self.finish()  # another one could not start beside ours, so ours makes room
        elif event == "step":
            # autograd's own threads may step inside backward()
            if self.thread == here or torch._C._current_graph_task_id() != -1:
                self.note_step(ends, args[0])
        elif self.thread in (0, here):
            self.depth[event] += -1 if ends else 1
            if self.depth[event] == (0 if ends else 1):
                handler = getattr(self, f"{'end' if ends else 'begin'}_{event}", None)
                if handler is not None:
                    handler(args, kwargs)

    def note_call(self, call: str) -> None:
        if len(self.events[-1]) < 64:
            self.events[-1].append(call)
        self.recent.append(call)

    def sharing(self, optimizer: Any) -> list[Ledger]:
        """Return the ledger of an optimizer, and those of others with weights of its own, as of what it wraps."""
        ledger = self.ledgers.get(id(optimizer))
        if ledger is None:
            ledger = self.ledgers[id(optimizer)] = Ledger(optimizer)
            for other in self.ledgers.values():
                if not other.ids.isdisjoint(ledger.ids):
                    other.shares = [one for one in (*other.shares, ledger) if one is not other]
                    ledger.shares = [one for one in (*ledger.shares, other) if one is not ledger]
        return [ledger, *ledger.shares]

    # Steps

    def note_step(self, ends: bool, optimizer: Any) -> None:
        """Note a step of an optimizer. One inside another step of it is its parent's, so it is the same step."""
        frame: FrameType | None = sys._getframe()
        depth = 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1
        if not ends:
            self.open_steps[id(optimizer)] = min(depth, self.open_steps.get(id(optimizer), depth))
            self.note_own_scale(optimizer)
        elif self.open_steps.get(id(optimizer), depth) == depth:
            self.open_steps.pop(id(optimizer), None)
            self.end_step(optimizer)

    def note_own_scale(self, optimizer: Any) -> None:
        """Note that a fused optimizer divides by a scale itself, and skips a step on its own."""
        scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if scale is not None and self.is_looked_at:
            ledger = self.sharing(optimizer)[0]
            ledger.note_hand()
            ledger.divide(float(scale))
        self.overflowed, self.is_known = False, True
        if isinstance(overflow, torch.Tensor):
            self.is_known = self.is_looked_at or not overflow.is_cuda
            self.overflowed = self.is_known and bool(overflow)

    def end_step(self, optimizer: Any) -> None:
        ledger = self.sharing(optimizer)[0]
        by_scaler = self.depth["scaler_step"] > 0
        self.stepped |= by_scaler
        if not by_scaler:
            if self.is_looked_at:
                ledger.note_hand()
            ledger.settle(self.backwards, self.unread)
        ledger.step(self.is_looked_at and self.seen.steps < self.warm_up, self.backwards)
        self.note_call("scaled step" if by_scaler else "step")
        if not (self.scaled or self.by_hand or by_scaler) and self.ends_a_step(optimizer):
            if self.depth["backward"]:
                self.pending = True
            else:
                self.advance()

    def ends_a_step(self, ender: Any) -> bool:
        """Return whether it is the first optimizer or scaler, or came twice since the first and so takes over."""
        since = self.since[self.scaled]
        first = not since or id(ender) in since
        self.since[self.scaled] = [id(ender)] if first else [*since, id(ender)]
        return first

    # Calls of PyTorch

    def begin_next(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # else it is an evaluation
            self.waited -= time.perf_counter()

    def end_next(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self.waited += time.perf_counter()

    def begin_autocast(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if args[0].device == self.seen.device:
            name = name_of(args[0].fast_dtype)
            self.autocasts.add(name)
            self.seen.autocasts |= {name} if torch.is_grad_enabled() else set()

    def begin_autocast_exit(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if len(args) > 2 and args[2] is not None:
            self.failed = id(args[2])

    def begin_schedule(self, args: tuple, kwargs: dict[str, Any]) -> None:
        scheduler = args[0].o
        if scheduler._step_count > 1:  # else it is being made
            stepped = getattr(scheduler.optimizer, "_opt_called", False)
            self.note_call("schedule" if stepped else "schedule first")
            ledger = self.ledgers.get(id(scheduler.optimizer))
            if ledger is not None:
                ledger.schedule()

    def scales_now(self) -> list[float]:
        """Return the present loss scales, but 1, which changes nothing."""
        scales = [scaler._scale for scaler in self.scales if scaler._scale is not None]
        return [scale for scale in {float(one) for one in scales} if scale != 1]

    def read(self, args: tuple) -> Reading:
        roots = [root for root in args[0] if isinstance(root, torch.Tensor)]
        reading = read_graph(roots, args[1], self.scales_now())
        reading.whole &= len(roots) == len(args[0])  # others are edges of a graph
        return reading

    def begin_backward(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if not kwargs.get("accumulate_grad", True):
            if self.is_looked_at:
                self.begin_grad(args)
            return
        self.backwards += 1
        if not self.scales:
            self.keep_loss(args[:1])
        if self.is_looked_at:
            self.anomaly.append(torch.is_anomaly_enabled())
            cleared = [ledger.clear() for ledger in self.ledgers.values()]
            self.reading = self.read(args)
            self.note_reading(self.reading)
        else:
            self.unread = self.backwards
            cleared = [ledger.weight.grad is None for ledger in self.ledgers.values()]
        kept = "backward" if self.is_looked_at else "backward, unknown"
        self.note_call("backward, cleared" if any(cleared) else kept)
        if self.backwards > KEPT // 2 and not (self.seen.steps or self.by_hand or self.to_skip):
            self.finish()  # nothing is kept without end, where no optimizer of PyTorch steps

    def begin_grad(self, args: tuple) -> None:
        """Note grad() of a scaled loss: its gradients leave the books, and may go into a penalty."""
        paths = self.read(args).paths.values()
        scales = [scale for each in paths for path in each for scale in path[0]]
        self.leaked |= bool(scales)
        self.penalty += scales[:1] if args[3] else []

    def note_reading(self, reading: Reading) -> None:
        if self.penalty and reading.whole:
            self.penalties += not divides(reading.nodes, self.penalty)
        self.narrow.append(reading.narrow)
        if self.leaked or not reading.whole:
            unscaled = {one: {path for path in paths if path[0]} for one, paths in reading.paths.items()}
            reading.paths = {one: paths or {((), float("nan"))} for one, paths in unscaled.items()}
        elif reading.fills_others:
            self.leaked = any(path[0] for paths in reading.paths.values() for path in paths)

    def keep_loss(self, losses: Any) -> None:
        for loss in tensors_in(losses)[:1]:
            if loss.numel() == 1 and len(self.losses) < KEPT:
                self.losses.append(loss.detach().clone())

    def end_backward(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if not kwargs.get("accumulate_grad", True):
            return
        reading, self.reading = self.reading, None
        if reading is not None:
            for ledger in self.ledgers.values():
                ledger.receive(reading, self.unstepped)
                if not self.scales and "float16" in self.seen.autocasts:
                    ledger.measure_small()
        if self.pending:
            self.pending = False
            self.advance()

    def end_clip(self, args: tuple, kwargs: dict[str, Any]) -> None:
        limit = args[1] if len(args) > 1 else kwargs.get("clip_value", kwargs.get("max_norm"))
        self.note_call("clip")
        for ledger in self.ledgers.values() if self.is_looked_at else ():
            ledger.clip(limit)

    def begin_scale(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.scales.setdefault(args[0], [])
        self.note_call("scale")
        self.keep_loss(args[1:])

    def begin_unscale(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.scales.setdefault(args[0], [])
        self.note_call("unscale")
        if self.is_looked_at and not self.depth["scaler_step"]:
            self.note_hands(args[1])

    def note_hands(self, optimizer: Any) -> None:
        for ledger in self.sharing(optimizer):
            ledger.note_bound()
            ledger.note_hand()

    def end_unscale(self, args: tuple, kwargs: dict[str, Any]) -> None:
        scale = args[0]._scale
        if sys.exc_info()[0] is None:
            self.version = self.versions()
        for ledger in self.sharing(args[1]) if self.is_looked_at and scale is not None else ():
            ledger.divide(float(scale))

    def begin_scaler_step(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.scales.setdefault(args[0], [])
        self.note_call("scaler_step")
        self.ender = args[1]
        self.stepped, self.overflowed, self.is_known = False, False, True
        if self.is_looked_at:
            self.note_hands(args[1])

    def end_scaler_step(self, args: tuple, kwargs: dict[str, Any]) -> None:
        for ledger in self.sharing(args[1]):
            ledger.settle(self.backwards, self.unread)
            if self.is_known:
                ledger.end_due(args[0], self.stepped and not self.overflowed)

    def begin_update(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self.scales.setdefault(args[0], [])
        since = itertools.takewhile(lambda call: call != "update", reversed(self.events[-1]))
        self.unstepped = "scaler_step" not in since
        self.note_call("update")

    def end_update(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self.by_hand:
            self.scaled = True
            if self.ends_a_step(self.ender or args[0]):
                self.advance()

    # Phases

    def advance(self) -> None:
        seen = self.seen
        if self.to_skip:
            self.to_skip -= 1
            self.forget()
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
        self.leaked, self.penalty = False, []
        if seen.steps == self.warm_up:
            self.clock.start()
        elif self.warm_up < seen.steps <= self.to_profile:
            self.clock.tick()
            self.waits.append(self.waited)
        self.waited = 0.0
        if seen.steps == self.to_profile:
            read_times(seen, self.clock.stop()[1], self.waits)
            self.profile()
        if seen.steps == self.last and self.saw_no_kernel():
            self.last += LOOKED
            seen.in_use = []
            self.profile()
        if seen.unseen or seen.steps == self.last:
            self.finish()
            if not self.by_hand and not self.evaluate:
                self.tell()

    def profile(self) -> None:
        if threading.get_ident() != self.home:
            self.leave_out("the loop runs in another thread than diagnose(), and a profiler belongs to one thread")
        elif torch.autograd._profiler_enabled():
            self.leave_out("another profiler of PyTorch is running")
        else:
            profiler = profiled(self.seen)
            profiler.__enter__()
            self.profiler = profiler  # not earlier, because it is itself a profiler that begins

    def saw_no_kernel(self) -> bool:
        """Return whether a first profile saw nothing of the GPU, as after one of the loop's own; a second one may."""
        if self.seen.device != "cuda" or self.last > self.to_profile + LOOKED or self.profiler is None:
            return False
        profiler, self.profiler = self.profiler, None
        profiler.__exit__(None, None, None)
        return not self.seen.kernels

    def leave_out(self, reason: str) -> None:
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")

    def finish(self) -> None:
        """End to look, read what was kept on the device, and let go of it."""
        seen, self.over = self.seen, True
        leave(self.hear)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
            self.profiler = None
        elif self.waits and not seen.watched:
            read_times(seen, self.clock.stop()[1], self.waits)
        if self.to_skip:
            seen.unseen.append(f"The loop ended before step {seen.first + 1}, where diagnose() was to begin.")
        elif seen.steps and not seen.watched and not seen.unseen:
            self.leave_out(f"the loop ended after {seen.steps} steps and {self.last} are needed")
        elif seen.device == "cuda" and seen.watched and not seen.kernels:
            self.leave_out("PyTorch's profiler saw no kernel, as after a profile of your own; try a new process")
        seen.events = [step for step in self.events if step]
        self.read_books()
        self.ledgers, self.scales, self.losses, self.ender = {}, {}, [], None
        if seen.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
            seen.matmul_switch = torch.backends.cuda.matmul.fp32_precision  # last, because it may fail

    def read_books(self) -> None:
        seen = self.seen
        steppers = [ledger for ledger in self.ledgers.values() if ledger.steps or ledger.due]
        seen.optimizers = len(steppers)
        if seen.watched and seen.events and not steppers:
            seen.unseen.append("No optimizer of PyTorch took a step, so nothing is known of what it does to gradients.")
        seen.losses = [float(loss) for loss in self.losses]
        seen.scales = [[float(scale) for scale in scales] for scales in self.scales.values() if scales]
        if self.anomaly and all(self.anomaly):
            seen.found["anomaly detection"] = {}
        narrow = sorted({one for one in self.narrow if one})
        if 3 * sum(map(bool, self.narrow)) >= max(6, len(self.narrow)):
            seen.found["loss in 16 bits"] = {"dtype": " and ".join(narrow)}
        if self.penalties > 1:
            seen.found["penalty of scaled gradients"] = {}
        self.note_buffers()
        for ledger in self.ledgers.values():
            seen.found.update(ledger.mistakes(self.backwards))
            seen.state_types |= ledger.state_in_16_bits()
            finite = [bool(weight.isfinite().all()) for weight in ledger.plain_weights()]
            seen.weights_spoiled |= not all(finite)
            seen.tiny_gradients += ledger.tiny if ledger.is_unscaled() else []
