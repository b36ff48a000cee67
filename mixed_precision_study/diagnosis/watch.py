"""The watch of a training: it hears a few functions of PyTorch, and keeps what the rules need."""

import atexit
import contextlib
import gc
import sys
import threading
import time
from collections import Counter
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
from .mistakes import IN_FP32, SPOILED, Diagnosis, Mistake, name_of
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
            for name, buffer in module._buffers.items():
                if buffer is not None and bool(buffer.isfinite().all()):
                    yield f"{name} of {type(module).__name__}", buffer


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

    def __init__(
        self,
        steps: int,
        evaluate: Any,
        on_report: Callable[[Diagnosis], Any],
        by_hand: bool,
        after: int,
    ):
        self.evaluate, self.on_report, self.by_hand = evaluate, on_report, by_hand
        self.seen = Diagnosis(device="cuda" if torch.cuda.is_available() else "cpu")
        self.seen.first = self.to_skip = after
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile = self.warm_up + steps
        self.is_looked_at = self.warm_up <= LOOKED and not after  # whether this step may be slowed
        self.home = threading.get_ident()  # the thread that watches
        self.undo = contextlib.ExitStack()
        self.clock = StepClock(torch.device(self.seen.device))
        self.waits: list = []  # the seconds in which each timed step waited for a DataLoader
        self.count: Counter = Counter()  # of calls of backward(), by what was seen
        # of calls under way, because a method may call its parent's
        self.depth: Counter = Counter()
        self.since: list = []  # optimizers, see ends_a_step()
        self.buffers: list = []
        # by an optimizer's first weight, so that one that wraps another shares its ledger
        self.ledgers: dict = {}
        self.scales: dict = {}  # of each scaler, in the profiled steps
        self.losses: list = []  # scalar ones

    # Life

    def start(self) -> "Watch":
        """Begin to watch, and end an older watch of this thread. An error, stop() or the exit ends
        it."""
        self.__enter__()
        return self

    def __enter__(self) -> Diagnosis:
        if self.over or self.hear in LISTENERS:
            raise UserError("A diagnosis serves once. Call diagnose() again for another one.")
        self.home = threading.get_ident()
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
        evaluate, self.evaluate = self.evaluate, None
        if error is not None:
            self.safely(self._note_error, error)
        self.safely(self._finish)
        if error is None and evaluate is not None:
            self._look_at_evaluation(evaluate)
        self.undo.close()
        self.ledgers, self.buffers = {}, []
        return self.seen

    def _tell(self):
        on_report, self.on_report = self.on_report, id  # which is called no more
        self.seen.judge()
        on_report(self.seen)

    def safely(self, act: Callable, *args: Any) -> None:
        """Act. An error of our own does not reach the loop, but ends the diagnosis."""
        try:
            act(*args)
        except Exception as error:
            line = f"diagnose() failed after step {self.seen.steps} ({error_line(error)})."
            self.seen.unseen.append(line)
            self.safely(self._finish)

    def _note_error(self, error):
        """Take in the error that ended the loop, and note its remedy on it, where one is known."""
        seen, name, facts = self.seen, type(error).__name__, []
        if not self.over:
            seen.ended_by = f"The loop ended by {name} in step {seen.first + seen.steps + 1}."
            where = "inside" if self.failed == id(error) else "outside"
            facts = [*seen.events[-32:], ";", where]
        message, remedy = self._remedy_for(error, facts)
        if remedy:
            seen.errors = [Mistake("error", {"message": message}, f"{name}: {remedy}")]
            error.add_note(f"diagnose(): {remedy}")

    def _remedy_for(self, error, facts):
        spoiled = ["spoiled"] if self._note_state() else []
        return remedy_for(error, [*facts, *spoiled, *self.seen.autocasts])

    def _look_at_evaluation(self, evaluate):
        """Evaluate, and note whether the result is finite."""
        found = self.seen.found
        try:
            leaves = tree_leaves(evaluate())
        except Exception as error:  # of the evaluation, which must not cost the report
            _, remedy = self._remedy_for(error, [])
            found["evaluation failed"] = {"error": error_line(error), "remedy": remedy}
            return
        numbers = [torch.as_tensor(one) for one in leaves if isinstance(one, float | torch.Tensor)]
        bad = [name_of(one.dtype) for one in numbers if not bool(one.isfinite().all())]
        if not numbers:
            self.seen.unseen.append(
                "The evaluation was not checked, because it returns no numbers."
            )
        remedy = SPOILED if self._note_state() else IN_FP32
        if bad and "buffers not finite" not in found:
            found["evaluation not finite"] = {"dtype": bad[0], "remedy": remedy}

    def _note_state(self):
        """Note which buffers were finite once and are no more. Return whether they or weights are
        not."""
        bad = sorted({name for name, one in self.buffers if not bool(one.isfinite().all())})
        if bad:
            self.seen.found["buffers not finite"] = {"names": ", ".join(bad[:4])}
        weights = [weight for one in self.ledgers.values() for weight in one.plain_weights()]
        return bad != [] or not all(bool(one.isfinite().all()) for one in weights)

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
            self._note_call(event)
        handler = getattr(self, f"_{'end' if ends else 'begin'}_{event}", None)
        if handler is not None:
            handler(*args)

    def _note_call(self, call):
        self.seen.events = [*self.seen.events[-63:], call]

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
        scales = [float(one._scale) for one in self.scales if one._scale is not None]
        return [scale for scale in scales if scale != 1]

    def _ledger_of(self, optimizer):
        first = next(
            (one for group in optimizer.param_groups for one in group["params"]), optimizer
        )
        if first not in self.ledgers:
            self.ledgers[first] = Ledger(optimizer)
        return self.ledgers[first]

    # Steps

    def _begin_step(self, optimizer):
        overflow = getattr(optimizer, "found_inf", None)  # by which a fused one skips its step
        is_read = self.is_looked_at or not getattr(overflow, "is_cuda", False)
        self.stepped = not (is_read and overflow)
        if self.is_looked_at:
            keeps = self.seen.steps < self.warm_up
            self._ledger_of(optimizer).begin_step(optimizer, self._known, keeps)

    def _end_step(self, optimizer):
        caches = torch.is_autocast_enabled(self.seen.device) and torch.is_autocast_cache_enabled()
        self._ledger_of(optimizer).end_step(optimizer, caches, self.count["backward"])
        if not self.depth["scaler_step"]:
            self._note_call("step")
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
        self.waited -= time.perf_counter() if torch.is_grad_enabled() else 0.0

    def _end_next(self, *_):
        self.waited += time.perf_counter() if torch.is_grad_enabled() else 0.0

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
        kept = [one.detach().clone() for one in tensors_in(losses)[:1] if one.numel() == 1]
        self.losses += kept if len(self.losses) < KEPT else []
        words = {"backward"}
        for ledger in self.ledgers.values():
            words |= ledger.clear(self._known if self.is_looked_at else None)
        self._note_call("_".join(sorted(words)))
        if self.is_looked_at:
            self.count["anomaly"] += torch.is_anomaly_enabled()
            compiler = sys.modules.get("torch._dynamo.compiled_autograd")
            if not getattr(
                compiler, "compiled_autograd_enabled", False
            ):  # it would trace our hooks
                self.looked = Backward(losses)
        is_stepping = self.seen.steps or self.by_hand or self.to_skip
        if self.count["backward"] > KEPT // 2 and not is_stepping:
            self._finish()  # nothing is kept without end, where no optimizer of PyTorch steps

    def _end_backward(self, *_):
        looked, self.looked = self.looked, None
        if looked is not None:
            paths = looked.paths(self._known)
            self.count.update(["looked", looked.narrow()])
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
            mark(scaled, float(scaler._scale))

    # Phases

    def advance(self) -> None:
        """Note that a step of the loop ends."""
        seen, waited = self.seen, self.waited
        self.waited = 0.0
        if self.to_skip:
            self.to_skip -= 1
            self.losses = []
            self.is_looked_at = self.warm_up <= LOOKED and not self.to_skip
            return
        if self.profiler is not None:
            with torch.autograd.profiler.record_function(END_OF_STEP):
                pass
            seen.in_use.append(torch.cuda.memory_allocated())
            for scaler, scales in self.scales.items():
                scales += [float(scaler._scale)] if scaler._scale is not None else []
        if self.is_looked_at and not self.buffers:
            self.buffers = [*sound_buffers()]
        seen.steps += 1
        if self.warm_up < seen.steps <= self.to_profile:
            self.clock.tick()
            self.waits.append(waited)
        if seen.steps == self.warm_up:
            self.clock.start()
        if seen.steps == self.to_profile:
            self._end_timing()
            self._begin_to_profile()
        is_warm = self.warm_up - LOOKED <= seen.steps < self.warm_up
        self.is_looked_at = is_warm or seen.steps >= self.to_profile
        if seen.unseen or seen.steps == self.to_profile + LOOKED:
            self._finish()
            if not self.by_hand and not self.evaluate:
                self._tell()

    def _end_timing(self):
        if self.waits:
            read_times(self.seen, self.clock.stop()[1], self.waits)
            self.waits = []

    def _begin_to_profile(self):
        if torch.autograd._profiler_enabled():
            self._leave_out("another profiler of PyTorch is running")
            return
        profiler = profiled(self.seen)
        profiler.__enter__()
        self.profiler = profiler  # not earlier, because it is itself a profiler that begins

    def _leave_out(self, reason):
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")

    def _finish(self):
        """End to look, read what was kept on the device, and let go of it."""
        seen, count = self.seen, self.count
        if self.over:
            return
        self.over = True
        leave(self.hear)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)
        self._end_timing()
        seen.losses = [float(loss) for loss in self.losses]
        seen.scales = [scales for scales in self.scales.values() if scales]
        if 0 < count["looked"] == count["anomaly"]:
            seen.found["anomaly detection"] = {}
        for dtype in ("float16", "bfloat16"):
            if 3 * count[dtype] >= max(6, count["looked"]):
                seen.found["loss in 16 bits"] = {"dtype": dtype}
        for ledger in self.ledgers.values():
            seen.found.update(ledger.mistakes())
            seen.state_types |= ledger.state_in_16_bits()
        self._note_state()
        self._note_unseen()
        self.scales, self.losses = {}, []
        if seen.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
            # last, because it may fail
            seen.matmul_switch = torch.backends.cuda.matmul.fp32_precision

    def _note_unseen(self):
        """Say what could not be looked at."""
        seen, needed = self.seen, self.to_profile + LOOKED
        if self.to_skip:
            seen.unseen.append(
                f"The loop ended before step {seen.first + 1}, where diagnose() begins."
            )
        elif seen.steps and not seen.watched and not seen.unseen:
            self._leave_out(f"the loop ended after {seen.steps} steps and {needed} are needed")
        elif seen.device == "cuda" and seen.watched and not seen.kernels:
            self._leave_out(
                "the profiler saw no kernel, as after one of your own; try a new process"
            )
