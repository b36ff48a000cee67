"""The watch of a training: it hears a few functions of PyTorch, and keeps what the rules need."""

import atexit
import contextlib
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook as last_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook as first_hook
from torch.utils._pytree import tree_leaves

from ..explain.profile import tensors_in
from ..measure.timing import StepClock
from ..parameters import UserError, error_line
from .ears import LISTENERS, OF_SCALER, leave, listen
from .graph import Backward, mark
from .ledger import Ledger
from .mistakes import Diagnosis, name_of
from .notes import remedy_for
from .profile import END_OF_STEP, profiled, read_times

# the last steps that warm up, and as many after the timed ones: only these may be slowed
LOOKED = 4
# steps before the first that is timed; a GPU's libraries search and compile in them
WARM_UP = {"cpu": 3, "cuda": 8}
KEPT = 4096  # losses at most, and half as many backward() calls without a step


def sound_buffers() -> Iterator[tuple]:
    """Yield (name, buffer) of each buffer of a module in this process that is finite."""
    for module in [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]:
        with contextlib.suppress(Exception):  # a module that is half made, or buffers of nothing
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.isfinite().all():
                    yield name, buffer


class Watch:
    """Watches the steps of a training through three phases: they warm up, are timed, and are
    profiled.

    A step ends with that of the first optimizer, which GradScaler.step may skip; `by_hand` the
    caller says so. What is kept of tensors is kept in the few steps that are looked at, and read at
    the end. It serves once.
    """

    pending = over = False  # a step ended in backward(); all is seen
    failed = 0  # the id of an error that came out of an autocast
    profiler: Any = None
    looked: Backward | None = None  # the backward() that is under way
    waited = 0.0  # seconds for a DataLoader, in the step that is under way
    stepped = False  # a step was taken in the scaler_step that is under way
    taken = 0  # steps of the loop

    def __init__(
        self,
        steps: int,
        evaluate: Any,
        on_report: Callable,
        by_hand: bool,
        after: int,
    ):
        self.evaluate = evaluate
        self.on_report = on_report
        self.by_hand = by_hand
        self.seen = Diagnosis(device="cuda" if torch.cuda.is_available() else "cpu")
        self.seen.first = after
        self.warm_up = after + WARM_UP[self.seen.device]  # steps of the loop before the timed ones
        self.to_profile = self.warm_up + steps
        self.home = threading.get_ident()  # the thread that watches
        self.undo = contextlib.ExitStack()
        self.clock = StepClock(torch.device(self.seen.device))
        self.waits: list = []  # the seconds in which each timed step waited for a DataLoader
        self.count: Counter = Counter()  # of calls of backward(), by what was seen
        # of calls under way, because a method may call its parent's
        self.depth: Counter = Counter()
        self.since: list = []  # optimizers, see ends_a_step()
        self.buffers: list = []
        self.events: deque = deque(maxlen=64)  # the last calls that were heard
        # by an optimizer's first weight, so that one that wraps another shares its ledger
        self.ledgers: dict = {}
        self.scales: dict = {}  # of each scaler, in the profiled steps

    @property
    def is_looked_at(self) -> bool:
        """Whether the step that is under way may be slowed."""
        is_warm = self.warm_up - LOOKED <= self.taken < self.warm_up
        return is_warm or self.taken >= self.to_profile

    # Life

    def start(self) -> "Watch":
        """Begin to watch, and end an older watch of this thread. An error, stop() or the exit ends
        it."""
        self.__enter__()
        return self

    def __enter__(self) -> Diagnosis:
        if self.over or self.hear in LISTENERS:
            raise UserError("A diagnosis serves once. Call diagnose() again for another one.")
        for listener in tuple(LISTENERS):
            if listener.__self__.home == self.home:
                listener.__self__.stop()
        for register, ends in ((first_hook, False), (last_hook, True)):
            hook = register(lambda one, *_, ends=ends: self.hear("step", ends, one))
            self.undo.callback(hook.remove)  # earlier it breaks PyTorch's loop over all hooks
        listen(self.hear)
        atexit.register(self.stop)
        self.undo.callback(atexit.unregister, self.stop)
        self.undo.callback(self.safely, self._tell)
        return self.seen

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> Diagnosis:
        """End to watch and return the report. error: what ended the loop, which gets a note with
        its remedy."""
        evaluate = self.evaluate
        self.evaluate = None
        if error is not None:
            self.safely(self._note_error, error)
        self.safely(self._finish)
        if error is None and evaluate is not None:
            self._look_at_evaluation(evaluate)
        self.undo.close()
        self.ledgers = {}
        self.buffers = []
        return self.seen

    def _tell(self):
        on_report, self.on_report = self.on_report, id  # which is called no more
        for name, buffer in self.buffers:  # which were finite once
            if not buffer.isfinite().all():
                self.seen.found["buffers not finite"] = {"name": name}
        self.seen.judge()
        on_report(self.seen)

    def safely(self, act: Callable, *args: Any) -> None:
        """Act. An error of our own does not reach the loop, but ends the diagnosis."""
        try:
            act(*args)
        except Exception as error:
            self.seen.unseen.append(
                f"diagnose() failed after step {self.taken} ({error_line(error)})."
            )
            self.safely(self._finish)

    def _note_error(self, error):
        """Take in the error that ended the loop, and note its remedy on it, where one is known."""
        seen = self.seen
        name = type(error).__name__
        facts = [*seen.autocasts]
        if not self.over:
            seen.ended_by = f"The loop ended by {name} in step {self.taken + 1}."
            where = "inside" if self.failed == id(error) else "outside"
            facts = [*self.events, ";", where, *facts]
        message, remedy = remedy_for(error, facts)
        if remedy:
            seen.found["error"] = {"name": name, "message": message, "remedy": remedy}
            error.add_note(f"diagnose(): {remedy}")

    def _look_at_evaluation(self, evaluate):
        """Evaluate, and note whether the result is finite."""
        seen = self.seen
        try:
            leaves = tree_leaves(evaluate())
        except Exception as error:  # of the evaluation, which must not cost the report
            _, remedy = remedy_for(error, [*seen.autocasts])
            seen.found["evaluation failed"] = {"error": error_line(error), "remedy": remedy}
            return
        numbers = [torch.as_tensor(one) for one in leaves if isinstance(one, float | torch.Tensor)]
        if not all(one.isfinite().all() for one in numbers):
            seen.found["evaluation not finite"] = {}

    # Hearing

    def hear(self, event: str, ends: bool, /, *args: Any) -> None:
        """Note a call, with its result where it ends."""
        if not self.over and not torch.compiler.is_compiling():
            self.safely(self._note, event, ends, args)

    def _note(self, event, ends, args):
        is_capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if is_capturing or not self._is_heard(event, ends, args):
            return  # a CUDA graph must not be asked anything
        if event in OF_SCALER.values() and not ends:
            self.scales.setdefault(args[0], [])
            self.events.append(event)
        handler = getattr(self, f"_{'end' if ends else 'begin'}_{event}", None)
        if handler is not None:
            handler(*args)

    def _is_heard(self, event, ends, args):
        """Return whether a call counts: in the thread that watches, and not inside another one of
        its name."""
        key = event
        if getattr([*args, None][0], "_enabled", True) is False:
            self.seen.autocast_off |= event == "autocast"
            return False  # a scaler or autocast that does nothing
        in_backward = torch._C._current_graph_task_id() != -1
        if event == "step":
            key = self._ledger_of(args[0])  # a step inside it is its parent's
        if threading.get_ident() != self.home and not (event == "step" and in_backward):
            return False  # only steps come from autograd's own threads, too
        self.depth[key] += -1 if ends else 1
        return self.depth[key] == (0 if ends else 1)

    @property
    def _known(self):
        """The loss scales of all scalers; 1 changes nothing."""
        scales = [scaler.get_scale() for scaler in self.scales]
        return [scale for scale in scales if scale != 1]

    def _ledger_of(self, optimizer):
        first = (optimizer.param_groups[0]["params"] or [optimizer])[0]
        if first not in self.ledgers:
            self.ledgers[first] = Ledger(optimizer)
        return self.ledgers[first]

    # Steps

    def _begin_step(self, optimizer):
        overflow = getattr(optimizer, "found_inf", None)  # by which a fused one skips its step
        is_read = self.is_looked_at or not getattr(overflow, "is_cuda", False)
        self.stepped = not (is_read and overflow)
        if self.is_looked_at:
            self._ledger_of(optimizer).begin_step(optimizer, self._known)

    def _end_step(self, optimizer):
        caches = torch.is_autocast_enabled(self.seen.device) and torch.is_autocast_cache_enabled()
        self._ledger_of(optimizer).end_step(optimizer, caches, self.count["backward"])
        if not self.depth["scaler_step"]:
            self.events.append("step")
            self._end_turn(optimizer)

    def _begin_scaler_step(self, *_):
        self.stepped = False

    def _begin_unscale(self, scaler, optimizer):
        self._ledger_of(optimizer)  # which sees from here on whether its weights move

    def _end_scaler_step(self, scaler, optimizer, *done):
        if done:  # else it has raised
            self._ledger_of(optimizer).end_due(scaler, self.stepped)
            self._end_turn(optimizer)

    def _end_turn(self, ender):
        """End a step of the loop with that of its first optimizer, or of one that came twice since
        and takes over."""
        if self.by_hand:
            return
        if self.since and id(ender) not in self.since:
            self.since.append(id(ender))
            return
        self.since = [id(ender)]
        self.pending = self.depth["backward"] > 0
        if not self.pending:
            self.advance()

    # Calls of PyTorch

    def _begin_error(self, *args):
        """End the watch by the error that a script or a notebook's cell is about to show."""
        self.stop(next((one for one in args if isinstance(one, BaseException)), sys.exc_info()[1]))

    def _begin_profiler(self, *_):
        if self.profiler is not None:
            self._finish()  # another one could not start beside ours, so ours makes room

    def _begin_next(self, *_):
        self.waited -= time.perf_counter()

    def _end_next(self, *_):
        self.waited += time.perf_counter()

    def _begin_autocast(self, context):
        if context.device == self.seen.device and torch.is_grad_enabled():
            self.seen.autocasts.add(name_of(context.fast_dtype))

    def _begin_autocast_exit(self, context, kind=None, error=None, *_):
        self.failed = id(error)

    def _begin_uncached(self):
        for ledger in self.ledgers.values():
            ledger.cached = 0

    def _begin_schedule(self, context):
        if context.o._step_count > 1:  # else it is being made
            self._ledger_of(context.o.optimizer).schedule()

    def _begin_backward(self, losses, *rest):
        if not rest[-1]:
            return  # a call of grad(), which fills no gradient
        self.count["backward"] += 1
        if len(self.seen.losses) < KEPT:
            first = tensors_in(losses)[:1]
            self.seen.losses += [one.detach().clone() for one in first if one.numel() == 1]
        words = {"backward"}
        for ledger in self.ledgers.values():
            words |= ledger.clear(self._known if self.is_looked_at else None)
        self.events.append("_".join(sorted(words)))
        if self.is_looked_at:
            self.count["anomaly"] += torch.is_anomaly_enabled()
            compiler = sys.modules.get("torch._dynamo.compiled_autograd")
            if not getattr(
                compiler, "compiled_autograd_enabled", False
            ):  # it would trace our hooks
                self.looked = Backward(losses)
        if self.count["backward"] > KEPT // 2 and not (self.taken or self.by_hand):
            self._finish()  # nothing is kept without end, where no optimizer of PyTorch steps

    def _end_backward(self, *_):
        looked = self.looked
        self.looked = None
        if looked is not None:
            paths = looked.paths(self._known)
            self.count["looked"] += 1
            self.count["narrow"] += looked.is_narrow()
            is_half = not self.scales and "float16" in self.seen.autocasts
            for ledger in self.ledgers.values():
                ledger.receive(paths, is_half)
        if self.pending:
            self.pending = False
            self.advance()

    def _begin_clip(self, *_):
        for ledger in self.ledgers.values() if self.is_looked_at else ():
            ledger.divide()

    def _end_clip(self, weights, limit=None, *_):
        for ledger in self.ledgers.values() if self.is_looked_at else ():
            ledger.clip(limit)

    def _end_scale(self, scaler, losses, scaled=None):
        if self.is_looked_at and scaled is not None:
            mark(scaled, scaler.get_scale())

    # Phases

    def advance(self) -> None:
        """Note that a step of the loop ends."""
        seen = self.seen
        waited = self.waited
        self.waited = 0.0
        if self.profiler is not None:
            with torch.autograd.profiler.record_function(END_OF_STEP):
                pass
            seen.in_use.append(torch.cuda.memory_allocated())
            for scaler, scales in self.scales.items():
                scales.append(scaler.get_scale())
        if self.is_looked_at and not self.buffers:
            self.buffers = [*sound_buffers()]
        self.taken += 1
        seen.steps = max(0, self.taken - seen.first)
        if not seen.steps:
            seen.losses = []
        if self.warm_up < self.taken <= self.to_profile:
            self.clock.tick()
            self.waits.append(waited)
        if self.taken == self.warm_up:
            self.clock.start()
        if self.taken == self.to_profile:
            self._begin_to_profile()
        if seen.unseen or self.taken == self.to_profile + LOOKED:
            self._finish()
            if not self.by_hand and not self.evaluate:
                self._tell()

    def _begin_to_profile(self):
        if torch.autograd._profiler_enabled():
            self.seen.unseen.append("No operation was looked at, because another profiler runs.")
            return
        profiler = profiled(self.seen)
        profiler.__enter__()
        self.profiler = profiler  # not earlier, because it is itself a profiler that begins

    def _finish(self):
        """End to look, read what was kept on the device, and let go of it."""
        seen = self.seen
        count = self.count
        if self.over:
            return
        self.over = True
        leave(self.hear)
        if self.waits:
            read_times(seen, self.clock.stop()[1], self.waits)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
        seen.events = [*self.events]
        seen.losses = [float(loss) for loss in seen.losses]
        seen.scales = [scales for scales in self.scales.values() if scales]
        if 0 < count["looked"] == count["anomaly"]:
            seen.found["anomaly detection"] = {}
        if 3 * count["narrow"] >= max(6, count["looked"]):
            seen.found["loss in 16 bits"] = {}
        for ledger in self.ledgers.values():
            seen.found.update(ledger.mistakes())
            seen.narrow_state |= ledger.has_narrow_state()
        if whole := sum(ledger.whole for ledger in self.ledgers.values()):
            arrived = sum(ledger.arrived for ledger in self.ledgers.values())
            seen.kept_share = min(1.0, max(0.0, arrived / whole))
        self._note_unseen()
        self.scales = {}
        if seen.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
            # last, because it may fail
            seen.matmul_switch = torch.backends.cuda.matmul.fp32_precision

    def _note_unseen(self):
        """Say what could not be looked at."""
        seen = self.seen
        needed = self.to_profile + LOOKED
        if self.taken and not seen.watched and not seen.unseen:
            seen.unseen.append(
                f"No operation was looked at, because the loop ended after {self.taken} steps "
                f"and {needed} are needed."
            )
        elif seen.device == "cuda" and seen.watched and not seen.kernels:
            seen.unseen.append(
                "No kernel was looked at, because the profiler saw none, "
                "as after one of your own. Try a new process."
            )
