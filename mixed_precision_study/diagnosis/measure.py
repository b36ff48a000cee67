"""Runs through the phases of a diagnosis: steps that warm up, are timed, and are looked into by the profiler."""

import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ..errors import UserError, error_line
from ..gpu.preflight import missing_kernels
from ..profiling import NO_KERNEL, tensors_in
from ..timing import synchronize
from . import doors
from .heard import Heard, weights_of
from .observations import SWITCHES_MIXED, WARM_UP, WATCHED, Observations
from .waits import END_OF_STEP, Sampler, read_profile

LEGACY = "legacy and new APIs"  # in PyTorch's message on TF32 switches that do not agree


class Measurement(Heard):
    """The steps of a training, from the first to the last phase."""

    def __init__(self, steps: int, by_hand: bool = False):
        super().__init__(observe_environment(), by_hand)
        self.device = torch.device(self.seen.device)
        self.home = threading.get_ident()
        self.marks: list[Any] = []  # the ends of the timed steps
        self.began = 0.0
        self.in_use_before = 0
        self.profiler: Any = None
        self.sampler: Sampler | None = None
        self.over = False
        self.warm_up = WARM_UP[self.seen.device]
        self.to_profile = self.warm_up + steps
        self.last = self.to_profile + WATCHED
        doors.listen(self)

    @property
    def is_over(self) -> bool:
        """Whether all phases are through."""
        return self.over or self.count >= self.last

    @property
    def is_timed(self) -> bool:
        """Whether the step that is under way is timed."""
        return self.warm_up <= self.count < self.to_profile

    def begun(self, event: str, args: tuple) -> None:
        """Note the beginning of a call. Another profiler could not start beside ours, so ours makes room."""
        if event != "profiler":
            super().begun(event, args)
        elif self.profiler is not None and threading.get_ident() == self.home:
            self.stop()

    def gave_up(self, error: Exception) -> None:
        """Stop looking because of an error of our own, which must not reach the loop."""
        self.seen.unseen.append(
            f"diagnose() stopped looking after step {self.count}, because it failed itself ({error_line(error)})."
        )
        self.stop()

    def advance(self) -> None:
        """Count a step, and begin the phase that follows it, if one does."""
        if self.is_over:
            return
        if self.profiler is not None:
            self.step_profiled()
        if len(self.marks):
            self.mark()
        self.count += 1
        self.seen.events.append(self.events)
        self.events = []
        if self.count == self.warm_up:
            self.begin_timing()
        if self.count == self.to_profile:
            self.end_timing()
            self.begin_profile()
        if self.is_over:
            self.stop()

    def advance_safely(self) -> None:
        """Count a step of a function that is called by hand; an error of our own ends the diagnosis alone."""
        try:
            self.advance()
        except Exception as error:
            self.gave_up(error)

    def mark(self) -> None:
        """Mark the end of a timed step, on a GPU by an event on its stream."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def begin_timing(self) -> None:
        """Begin to time the steps. Nothing is done in them but to mark their ends."""
        synchronize(self.device)
        self.waited, self.loads = 0.0, False
        self.in_use_before = self.bytes_in_use()
        self.began = time.perf_counter()
        self.mark()

    def end_timing(self) -> None:
        """Note the times of the steps since begin_timing()."""
        marks, self.marks = self.marks, []
        if len(marks) < 2:
            return
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        pairs = list(itertools.pairwise(marks))
        on_gpu = self.device.type == "cuda"
        self.seen.timed = len(pairs)
        self.seen.step_ms = statistics.median(a.elapsed_time(b) if on_gpu else 1000 * (b - a) for a, b in pairs)
        self.seen.data_wait_fraction = min(1.0, self.waited / seconds) if self.loads else None
        self.seen.growth = (self.bytes_in_use() - self.in_use_before) / len(pairs)
        self.seen.reserved = torch.cuda.memory_reserved(self.device) if on_gpu else 0

    def begin_profile(self) -> None:
        """Begin to look into the steps with PyTorch's profiler, unless that is not ours to start."""
        if threading.get_ident() != self.home:
            reason = "the loop runs in another thread than diagnose(), and a profiler belongs to one thread"
        elif torch.autograd._profiler_enabled():
            reason = "another profiler of PyTorch is running"
        else:
            from torch.profiler import ProfilerActivity, profile

            gpu = self.device.type == "cuda"
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
            with torn_down():
                profiler = profile(activities=activities, record_shapes=True, profile_memory=gpu, acc_events=True)
                profiler.start()
            self.profiler = profiler
            self.in_use_before = self.bytes_in_use()
            if gpu:
                self.sampler = Sampler(self.home)
            return
        self.seen.profile_reason = reason
        self.seen.unseen.append(f"The operations of a step were not looked at, because {reason}.")
        self.over = True

    def step_profiled(self) -> None:
        """Note the end of a profiled step."""
        with torch.autograd.profiler.record_function(END_OF_STEP):
            pass
        self.seen.in_use.append(self.bytes_in_use())
        self.keep_scales()

    def end_profile(self) -> None:
        """Read the profile of the steps that were looked into."""
        profiler, self.profiler = self.profiler, None
        sampler, self.sampler = self.sampler, None
        if sampler is not None:
            sampler.stop()
        synchronize(self.device)
        with torn_down():
            profiler.stop()
        peak = read_profile(self.seen, profiler, sampler.seen if sampler else [], self.in_use_before)
        if self.device.type == "cuda":
            self.seen.memory = memory_parts(list(self.optimizers.values()), peak)
            if not self.seen.kernels:
                self.seen.profile_reason = NO_KERNEL

    def bytes_in_use(self) -> int:
        """Return the bytes of the tensors that are alive on the GPU; 0 without one."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def stop(self) -> None:
        """End all phases and listen no longer."""
        self.over = True
        doors.leave(self)
        try:
            if self.profiler is not None:
                self.end_profile()
            if self.marks:
                self.end_timing()
        except Exception as error:
            self.profiler = None
            self.seen.unseen.append(f"The last steps could not be read ({error_line(error)}).")

    def finish(self, evaluate: Callable[[], Any] | None = None) -> Observations:
        """Evaluate, if that is wanted, and return what was seen."""
        self.stop()
        seen = self.seen
        if evaluate is not None:
            seen.evaluation_finite, seen.evaluation_in = finite_numbers(evaluate())
            if seen.evaluation_finite is None:
                seen.unseen.append("The evaluation was not checked, because it returns neither outputs nor a metric.")
        seen.steps = self.count
        with suppress(RuntimeError):  # a lost device
            self.read()
        dynamo = sys.modules.get("torch._dynamo.utils")
        seen.compiled = dynamo is not None and dynamo.counters["frames"]["total"] > 0
        if seen.device != "cuda":
            seen.profile_reason = "kernels are seen on an NVIDIA GPU only"
        elif not seen.kernels and seen.profile_reason is None:
            seen.profile_reason = f"the loop ended after {self.count} steps; {self.last} are needed"
        if self.count and not seen.watched and not seen.unseen:
            seen.unseen.append(
                f"The operations of a step were not looked at, because the loop ended after {self.count} steps and"
                f" {self.last} are needed."
            )
        return seen


@contextmanager
def torn_down() -> Iterator[None]:
    """Let the profiler leave the GPU as it was: without this CUPTI slows all later launches (pytorch issue 144455)."""
    given = os.environ.get("TEARDOWN_CUPTI")
    os.environ["TEARDOWN_CUPTI"] = given or "1"
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("TEARDOWN_CUPTI", None)


def observe_environment() -> Observations:
    """Return what is known before the first step: the device and PyTorch's switches."""
    seen = Observations(device="cuda" if torch.cuda.is_available() else "cpu")
    if seen.device == "cuda":
        seen.gpu = torch.cuda.get_device_name()
        seen.capability = torch.cuda.get_device_capability()
        if wrong := missing_kernels(seen.capability, torch.cuda.get_arch_list()):
            raise UserError(wrong)
    cudnn: Any = torch.backends.cudnn
    seen.benchmark = cudnn.benchmark
    seen.switches = {"matmul": torch.backends.cuda.matmul.fp32_precision, "conv": cudnn.conv.fp32_precision}
    try:
        _ = torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        seen.mixed_switches = True
    return seen


def finite_numbers(value: Any) -> tuple[bool | None, str | None]:
    """Return whether all numbers that an evaluation returned are finite, and their type; None where there is none."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, float | torch.Tensor)]
    numbers = [torch.as_tensor(leaf) for leaf in leaves]
    if not numbers:
        return None, None
    types = {str(number.dtype).removeprefix("torch.") for number in numbers if number.is_floating_point()}
    return all(bool(number.isfinite().all()) for number in numbers), " and ".join(sorted(types)) or None


def memory_parts(optimizers: list[Optimizer], peak: int) -> dict[str, int]:
    """Return the bytes of the peak that weights, gradients and optimizer take; "other" is mostly activations."""
    weights = {weight for one in optimizers for weight in weights_of(one)}
    states = [part for one in optimizers for state in one.state.values() for part in tensors_in(state)]
    sizes = {
        "weights": sum(weight.nbytes for weight in weights),
        "gradients": sum(weight.nbytes for weight in weights if weight.requires_grad),
        "optimizer": sum(tensor.nbytes for tensor in states if tensor.device.type == "cuda"),
    }
    return {**sizes, "other": max(0, peak - sum(sizes.values()))}


def run_steps(measurement: Measurement, step: Callable[[], Any]) -> None:
    """Call a step until all phases are through. Raises UserError where the batches run out, or switches are mixed."""
    try:
        while not measurement.is_over:
            step()
            measurement.advance_safely()
    except StopIteration:
        raise UserError(
            f"step ran out of batches after {measurement.count} steps; diagnose needs {measurement.last}. Repeat them,"
            " as with itertools.cycle, or give a smaller number of steps."
        ) from None
    except RuntimeError as error:
        if LEGACY in str(error):
            raise UserError(SWITCHES_MIXED) from error
        raise
    finally:
        measurement.stop()
