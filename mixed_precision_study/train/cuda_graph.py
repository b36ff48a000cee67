"""The whole training step as one CUDA graph: execution="cuda_graph".

A replay cannot ask the host anything. Loss scale, skipped steps, learning rate and hidden state
therefore stay on the device. On the CPU the same steps run without a graph, so that tests can check
their arithmetic.
"""

import functools
import reprlib
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..measure.memory import is_out_of_memory, release_memory, reset_peaks
from ..parameters import Unsupported, error_line
from ..tasks.batches import leaves_of, mapped
from .device_optimizer import DeviceOptimizer
from .precision import gather_master_gradients


class DeviceScaler:
    """A loss scaler that follows torch.amp.GradScaler's rule on the device. Gradients may be fp16.

    scale: the scale at the start; None: the loss is not scaled. dynamic: whether the scale changes.
    found_inf: 1.0 if the gradients of the last step overflowed. skipped: number of such steps.
    """

    def __init__(self, scale: float | None, dynamic: bool, device: torch.device):
        self.enabled = scale is not None
        self.dynamic = dynamic
        self.growth_interval = 2000  # like the other constants here, GradScaler's default
        self.factor = torch.full((), scale or 1.0, dtype=torch.float32, device=device)
        # since the scale last changed
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf, self.skipped = torch.zeros(2, device=device)
        self.unscaled = False  # whether the current step has unscaled its gradients

    def is_enabled(self) -> bool:
        return self.enabled

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor if self.enabled else loss

    def unscale_(self, optimizer: DeviceOptimizer) -> None:
        gather_master_gradients(optimizer)
        self.unscaled = True
        if self.enabled:
            self.found_inf.zero_()
            inverse = self.factor.double().reciprocal().float()
            gradients = optimizer.gradients()
            for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
                same = [gradient for gradient in gradients if gradient.dtype == dtype]
                torch._amp_foreach_non_finite_check_and_unscale_(same, self.found_inf, inverse)

    def step(self, optimizer: DeviceOptimizer) -> None:
        """Update the weights unless a gradient overflowed.

        Unscales the gradients if the step has not done so.
        """
        if not self.unscaled:
            self.unscale_(optimizer)
        optimizer.step(self.found_inf if self.enabled else None)

    def update(self, new_scale: float | None = None) -> None:
        """Count an overflow and adjust a dynamic scale; or set the scale, as GradScaler.update
        does.
        """
        if new_scale is not None:
            self.factor.fill_(new_scale)
            return
        self.unscaled = False
        if self.enabled:
            self.skipped.add_(self.found_inf)
        if self.dynamic:
            torch._amp_update_scale_(
                self.factor, self.good_steps, self.found_inf, 2.0, 0.5, self.growth_interval
            )

    def get_scale(self) -> float:
        return self.factor.item()

    def state_dict(self) -> dict:
        return {
            "scale": self.get_scale(),
            "_growth_tracker": self.good_steps.item(),
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": self.growth_interval,
        }


FAILED_GRAPHS: list = []  # kept alive, because PyTorch's allocator may still refer to them


@functools.cache
def graph_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the stream of all graphs of this process; None on the CPU.

    One stream for all, because cuBLAS never frees the workspaces it makes for a stream. Another
    stream is used before, because the replays of a process that never did so are 2 to 4% slower in
    fp16 (docs/contributors/pytorch_notes.md).
    """
    if device.type != "cuda":
        return None
    with torch.cuda.stream(torch.cuda.Stream(device)):
        torch.zeros(1024, device=device)
    return torch.cuda.Stream(device)


def filled(places: Any, values: Any, name: str) -> Any:
    """Return the first batch or hidden state, with the tensors of another one copied to its own.

    Where there is no first one yet, it is a copy of this one.

    Raises Unsupported where it differs from the first in anything else, because a replay would not
    see that.
    """
    if places is None:
        return mapped(
            values, lambda leaf, _: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
        )
    old, new = dict(leaves_of(places, name)), dict(leaves_of(values, name))
    if old.keys() != new.keys():
        raise Unsupported(
            f"a CUDA graph takes batches of one structure, but the parts of {name} change"
        )
    for path, place in old.items():
        value = new[path]
        if not alike(place, value):
            raise Unsupported(
                "a CUDA graph replays shapes, types and values of the first batch, "
                f"but {path} is first {described(place)} and then {described(value)}; "
                "leave it out of the batch or run eager"
            )
        if isinstance(place, torch.Tensor):
            place.copy_(value, non_blocking=True)
    return places


def alike(first: Any, value: Any) -> bool:
    """Return whether a tensor has the shape and type of the first one, and another leaf its
    value.
    """
    if isinstance(first, torch.Tensor):
        is_tensor = isinstance(value, torch.Tensor)
        return is_tensor and (first.shape, first.dtype) == (value.shape, value.dtype)
    with suppress(Exception):  # whatever the class of a part of the batch raises
        return first is value or (type(first) is type(value) and bool(first == value))
    return False


def described(value: Any) -> str:
    return (
        f"{tuple(value.shape)} of {value.dtype}"
        if isinstance(value, torch.Tensor)
        else reprlib.repr(value)
    )


def capture(run: Callable[[], None], stream: torch.cuda.Stream, device: torch.device) -> tuple:
    """Capture what `run()` does on the device, without computing it.

    Returns (graph, bytes that the graph uses and the allocator does not count after the capture).
    Raises Unsupported if `run` cannot be captured.
    """
    release_memory()
    reset_peaks(device)
    graph = torch.cuda.CUDAGraph()
    try:
        # A failed capture leaves its stream current without the outer context. With "thread_local",
        # a data loader's thread may go on pinning memory.
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            run()
    except RuntimeError as error:
        FAILED_GRAPHS.append(graph)
        graph_stream.cache_clear()  # the stream of a failed capture is not used again
        graph.reset()  # a graph that ran out of memory would keep what it has
        raise_cause(error, device)
    return graph, torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)


def raise_cause(error: BaseException, device: torch.device) -> NoReturn:
    """Raise what ended a capture: out of memory as it is, anything else as Unsupported with its
    first cause.
    """
    generator = torch.cuda.default_generators[
        torch.cuda.current_device() if device.index is None else device.index
    ]
    # else the next dropout would think it is being captured
    generator.graphsafe_set_state(generator.clone_state())
    while error.__context__ is not None and not is_out_of_memory(error):
        error = error.__context__
    if is_out_of_memory(error):
        raise error
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(str(Path(torch.__file__).parent)):
            place = f", at line {frame.lineno} of {Path(frame.filename).name}: {frame.line}"
    raise Unsupported(
        f"this training step cannot be captured in a CUDA graph ({error_line(error)}{place}). "
        "A graph can neither wait for the GPU nor make a tensor from numbers of the host, "
        "so make it before the step or run eager"
    ) from None


# before the capture, so that cuDNN has chosen its algorithms and libraries have their workspaces
EAGER_STEPS = 3


class CapturedStep:
    """Takes steps on tensors that keep their address: the first few eagerly, then as replays of one
    CUDA graph.

    take(batch, hidden): a whole training step that does not wait for the device.
    found_inf: the tensor in which `take` leaves whether the step was skipped.
    outcome: (2,): loss of the last step, and 1 if it was skipped.
    before_capture(): called once, before the capture.
    A hidden state of None means zeros. The next step overwrites what `step` returns.
    """

    def __init__(self, take: Callable, found_inf: torch.Tensor, device: torch.device):
        self.take = take
        self.found_inf = found_inf
        self.device = device
        self.stream = graph_stream(device)
        self.graph: Any = None
        self.taken = 0
        self.batch: Any = None
        self.hidden: Any = None
        self.outcome = torch.zeros(2, device=device)
        self.before_capture: Callable[[], None] = lambda: None
        self.unseen_bytes = 0  # used by the graph and not counted by the allocator
        self.begun_bytes: int | None = None  # allocated when the first epoch began

    def load(self, batch: tuple, hidden: Any) -> None:
        """Copy the batch, and a hidden state from elsewhere, to where the steps read them."""
        self.batch = filled(self.batch, batch, "batch")
        if hidden is None:
            for _, place in leaves_of(self.hidden):
                if isinstance(place, torch.Tensor):
                    place.zero_()
        elif hidden is not self.hidden:
            self.hidden = filled(self.hidden, hidden, "hidden")

    def run(self) -> None:
        """Take a step on the tensors in place and leave its hidden state and its outcome there."""
        loss, hidden = self.take(self.batch, self.hidden)
        self.hidden = filled(self.hidden, hidden, "hidden")
        torch.stack((loss, self.found_inf), out=self.outcome)

    def step(self, batch: tuple, hidden: Any) -> tuple[torch.Tensor, Any]:
        self.load(batch, hidden)
        if self.stream is None:
            self.run()
        elif self.taken < EAGER_STEPS:  # on the stream of the capture
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.run()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.graph is None:
                self.before_capture()
                self.graph, self.unseen_bytes = capture(self.run, self.stream, self.device)
            self.graph.replay()
        self.taken += 1
        return self.outcome[0], self.hidden

    def unseen(self) -> int:
        """Return, as an epoch begins, the bytes that its steps use and the allocator does not
        count.

        Evaluations run on another stream and leave workspaces there. What they have added since the
        first epoch is taken off, because training does not use it.
        """
        if self.stream is None:
            return 0
        begun = torch.cuda.memory_allocated(self.device)
        if self.begun_bytes is None:
            self.begun_bytes = begun
        return self.unseen_bytes - max(0, begun - self.begun_bytes)
