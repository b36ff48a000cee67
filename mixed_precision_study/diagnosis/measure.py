"""Runs through the phases of a diagnosis: steps that warm up, are watched, timed and profiled."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import dataloader

from ..errors import UserError
from ..gpu.preflight import missing_kernels
from ..profiling import NO_KERNEL, kernels_of, read_kernels
from ..timing import synchronize
from .observations import SWITCHES_MIXED, WARM_UP, Observations
from .watch import Watcher

WATCHED = 4
PROFILED = 5
LEGACY = "legacy and new APIs"  # in PyTorch's message on TF32 switches that do not agree


def replaced(place: Any, name: str, new: Callable, stack: ExitStack) -> None:
    """Replace a function until the stack is closed."""
    stack.callback(setattr, place, name, getattr(place, name))
    setattr(place, name, new)


class Measurement:
    """Steps of a training, from the first to the last phase. `advance` is called after each step.

    In a loop the end of a step is that of GradScaler.update, or of the first optimizer's step where no scaler is used.
    """

    def __init__(self, steps: int):
        self.steps = steps
        self.seen = observe_environment()
        self.device = torch.device(self.seen.device)
        self.watcher = Watcher(self.seen)
        self.count = 0
        self.waited = 0.0  # seconds for the DataLoader
        self.began = 0.0
        self.in_use_before = 0
        self.loads = False
        self.first_optimizer: int | None = None
        self.scaled = False
        self.profiler: Any = None
        self.hooks = ExitStack()
        self.phase = ExitStack()  # what ends with the current phase
        last = WARM_UP + WATCHED + steps
        self.begins = {WARM_UP: self.watch, WARM_UP + WATCHED: self.time, last: self.profile}
        self.last = last + (PROFILED if self.seen.device == "cuda" else 0)

    @property
    def is_over(self) -> bool:
        """Whether all phases are through."""
        return self.count >= self.last

    def listen(self) -> None:
        """Find the ends of the steps by PyTorch's own hooks."""
        hook = register_optimizer_step_post_hook(self.optimizer_stepped)
        self.hooks.callback(hook.remove)
        update = torch.amp.GradScaler.update

        def then_advance(scaler: Any, *args: Any, **options: Any) -> None:
            update(scaler, *args, **options)
            if scaler._enabled and not self.is_over:
                self.scaled = True
                self.advance()

        replaced(torch.amp.GradScaler, "update", then_advance, self.hooks)

    def optimizer_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Count a step where it ends with an optimizer's."""
        self.first_optimizer = self.first_optimizer or id(optimizer)
        if id(optimizer) == self.first_optimizer and not self.scaled and not self.is_over:
            self.advance()

    def advance(self) -> None:
        """Count a step, and begin the phase that follows it, if one does."""
        if WARM_UP <= self.count < WARM_UP + WATCHED:
            self.watcher.step_ended()
            self.seen.in_use.append(self.bytes_in_use())
        self.count += 1
        if self.is_over:
            self.stop()
        elif self.count in self.begins:
            self.phase.close()
            self.begins[self.count]()

    def watch(self) -> None:
        """Begin to watch the steps."""
        self.watcher.start()
        self.phase.callback(self.watcher.stop)

    def time(self) -> None:
        """Begin to time the steps. Nothing is done in them but to add up what a DataLoader takes."""
        if self.seen.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        following = dataloader._BaseDataLoaderIter.__next__

        def timed(iterator: Any) -> Any:
            began = time.perf_counter()
            try:
                return following(iterator)
            finally:
                self.loads = True
                self.waited += time.perf_counter() - began

        replaced(dataloader._BaseDataLoaderIter, "__next__", timed, self.phase)
        self.phase.callback(self.timed)
        synchronize(self.device)
        self.in_use_before = self.bytes_in_use()
        self.began = time.perf_counter()

    def timed(self) -> None:
        """Note the time of the steps since time() began."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        self.seen.timed = self.count - WARM_UP - WATCHED
        if self.seen.timed > 0:
            self.seen.step_ms = 1000 * seconds / self.seen.timed
            self.seen.data_wait_fraction = self.waited / seconds if self.loads else None
            self.seen.memory = memory_parts(list(self.watcher.optimizers.values()), self.device)
            self.seen.growth = (self.bytes_in_use() - self.in_use_before) / self.seen.timed
            if self.device.type == "cuda":
                self.seen.reserved = torch.cuda.memory_reserved(self.device)

    def bytes_in_use(self) -> int:
        """Return the bytes of the tensors that are alive on the GPU; 0 without one."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def profile(self) -> None:
        """Begin to profile the kernels."""
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("TEARDOWN_CUPTI", "1")  # see profiling.py
        self.profiler = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        self.profiler.start()
        self.phase.callback(self.profiled)

    def profiled(self) -> None:
        """Read the kernels of the profiled steps."""
        synchronize(self.device)
        self.profiler.stop()
        kernels = kernels_of(self.profiler)
        steps = self.count - (self.last - PROFILED)
        if kernels and steps > 0 and self.seen.step_ms:
            found = SimpleNamespace(step_ms_median=self.seen.step_ms)
            read_kernels(found, kernels, steps)
            self.seen.kernels = vars(found)
        else:
            self.seen.profile_reason = NO_KERNEL
        self.profiler = None

    def evaluate(self, evaluate: Callable[[], Any]) -> None:
        """Watch an evaluation, after the steps."""
        watched = self.seen.watched, list(self.seen.events)
        self.watcher.start()
        try:
            evaluate()
        finally:
            self.watcher.stop()
            self.seen.watched, self.seen.events = watched

    def stop(self) -> None:
        """End the phase and take back the hooks."""
        self.phase.close()
        self.hooks.close()

    def finish(self) -> Observations:
        """Return what was seen."""
        self.stop()
        self.seen.steps = self.count
        self.watcher.finish()
        dynamo = sys.modules.get("torch._dynamo.utils")
        self.seen.compiled = dynamo is not None and dynamo.counters["frames"]["total"] > 0
        if self.seen.device != "cuda":
            self.seen.profile_reason = "kernels are seen on an NVIDIA GPU only"
        elif not self.seen.kernels and self.seen.profile_reason is None:
            self.seen.profile_reason = f"the loop ended after {self.count} steps; {self.last} are needed"
        return self.seen


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


def memory_parts(optimizers: list[Optimizer], device: torch.device) -> dict[str, int]:
    """Return the bytes of the peak that weights, gradients and optimizer take; "other" is mostly activations."""
    if device.type != "cuda":
        return {}
    weights = {weight for one in optimizers for group in one.param_groups for weight in group["params"]}
    sizes = {"weights": sum(weight.nbytes for weight in weights)}
    sizes["gradients"] = sum(weight.nbytes for weight in weights if weight.requires_grad)
    states = [part for one in optimizers for state in one.state.values() for part in state.values()]
    tensors = [part for part in states if isinstance(part, torch.Tensor) and part.device.type == "cuda"]
    sizes["optimizer"] = sum(tensor.nbytes for tensor in tensors)
    sizes["other"] = max(0, torch.cuda.max_memory_allocated(device) - sum(sizes.values()))
    return sizes


def run_steps(measurement: Measurement, step: Callable[[], Any]) -> None:
    """Call a step until all phases are through. Raises UserError where the batches run out, or switches are mixed."""
    try:
        while not measurement.is_over:
            step()
            measurement.advance()
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
