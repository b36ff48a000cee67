"""Watches a few training steps from outside, without changing them."""

import inspect
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer
from torch.utils.data import dataloader

from ..profiling import WorkCounter, aten, tensors_in
from .observations import Observations

OWN = str(Path(__file__).parent)
LIBRARY = (str(Path(torch.__file__).parent), OWN, "<")
KINDS = {aten.mm: "matmul", aten.addmm: "matmul", aten.bmm: "matmul", aten.baddbmm: "matmul"}
FP8_PRODUCT = getattr(aten, "_scaled_mm", None)


def code_of(function: Any) -> Any:
    """Return the code object of a Python function, below its decorators."""
    return inspect.unwrap(function).__code__


def subclasses(kind: type) -> list[type]:
    """Return a class and all that inherit from it."""
    found = [kind]
    children: list[type] = kind.__subclasses__()
    for child in children:
        found += subclasses(child)
    return found


def calls_to_watch() -> dict[Any, str]:
    """Return {code object: event} of the functions whose calls are noted, whatever name they were imported by."""
    scaler = torch.amp.GradScaler
    schedulers = [kind for kind in subclasses(LRScheduler) if "step" in vars(kind)] + [ReduceLROnPlateau]
    return {
        code_of(scaler.scale): "scale",
        code_of(scaler.unscale_): "unscale",
        code_of(scaler.step): "scaler.step",
        code_of(scaler.update): "update",
        code_of(torch.autograd.backward): "backward",
        code_of(torch.nn.utils.clip_grad_norm_): "clip",
        code_of(torch.nn.utils.clip_grad_value_): "clip",
        Optimizer.profile_hook_step(print).__code__: "step",
        code_of(dataloader.DataLoader.__iter__): "next",
        code_of(dataloader._BaseDataLoaderIter.__next__): "next",
        code_of(torch.nn.Module._call_impl): "forward",
        **{code_of(kind.step): "schedule" for kind in schedulers},
    }


INSIDE = (
    "scale",
    "unscale",
    "scaler.step",
    "update",
    "step",
    "next",
    "clip",
)  # PyTorch's own reads there are no mistake


def place_in_code() -> str:
    """Return the line outside PyTorch from which the current operation comes, as "train.py:31"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    name = Path(frame.f_code.co_filename).name
    line = frame.f_lineno
    return f"line {line} of a cell" if name.removesuffix(".py").isdigit() else f"{name}:{line}"


class Operations(WorkCounter):
    """Notes of every operation what kind of arithmetic it is, whether it waits for the device, and what it copies."""

    def __init__(self, seen: Observations, note_read: Callable[[], None]):
        super().__init__()
        self.seen = seen
        self.note_read = note_read

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        before = self.flops
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        packet = operation._overloadpacket
        tensors = tensors_in((args, kwargs or {}))
        if self.flops > before:
            kind = KINDS.get(packet, "convolution" if "conv" in str(packet) else "other arithmetic")
            key = kind, str(tensors[0].dtype).removeprefix("torch.")
            self.seen.flops[key] = self.seen.flops.get(key, 0.0) + self.flops - before
            self.seen.misaligned_flops = self.misaligned_flops
        if packet is aten.convolution:
            self.seen.shapes.add((tuple(tensors[0].shape), tuple(tensors[1].shape)))
        if packet is FP8_PRODUCT:
            self.seen.fp8_sizes.add((*tensors[0].shape, tensors[1].shape[1]))
        self.note_copies(packet, tensors, result)
        return result

    def note_copies(self, packet: Any, tensors: list[torch.Tensor], result: Any) -> None:
        """Note what makes the CPU wait for the device, and copies to the GPU from memory that is not pinned."""
        if not tensors:  # such as torch.zeros
            return
        source = tensors[0].device.type
        target = result.device.type if isinstance(result, torch.Tensor) else source
        waits = packet in (aten._local_scalar_dense, aten.nonzero, aten.masked_select) and source == self.seen.device
        if packet in (aten._to_copy, aten.copy_) and len(tensors) > 1:
            source = tensors[1].device.type
        if waits or (source == "cuda" and target == "cpu"):
            self.note_read()
        if source == "cpu" and target == "cuda" and not tensors[-1].is_pinned():
            self.seen.unpinned += tensors[-1].nbytes


class Watcher:
    """Watches the steps between start() and stop().

    It sees calls by `sys.setprofile` and operations by a TorchDispatchMode: both take time, and change no number.
    """

    def __init__(self, seen: Observations):
        self.seen = seen
        self.calls = calls_to_watch()
        self.inside: list[str] = []  # the calls of PyTorch's own that are under way
        self.depth = 0  # of modules that call each other
        self.scaler: torch.amp.GradScaler | None = None
        self.optimizers: dict[int, Optimizer] = {}
        self.losses: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []  # whether outputs of the evaluation are finite
        self.busy = False
        self.stack = ExitStack()

    def start(self) -> None:
        """Begin to watch."""
        self.seen.events.append([])
        self.stack.enter_context(Operations(self.seen, self.note_read))
        before = sys.getprofile()
        self.stack.callback(sys.setprofile, before)
        sys.setprofile(self.note)

    def stop(self) -> None:
        """End to watch."""
        self.stack.close()
        self.inside, self.depth = [], 0

    def step_ended(self) -> None:
        """Note the end of a watched step."""
        self.seen.watched += 1
        self.seen.events.append([])
        if self.scaler is not None and self.scaler._scale is not None:
            self.busy = True  # this read is none of the step's
            self.seen.scales.append(float(self.scaler._scale))
            self.busy = False

    def note_read(self) -> None:
        """Note that the current operation makes the CPU wait for the device: where, or that GradScaler does."""
        if self.busy:
            return
        if not self.inside:
            self.seen.reads[place_in_code()] += 1
        elif "scaler.step" in self.inside:
            self.seen.scaler_reads += 1

    def note(self, frame: FrameType, event: str, given: Any) -> None:
        """Note a call of one of the watched functions, or its end."""
        name = self.calls.get(frame.f_code)
        if name is None or self.busy or event not in ("call", "return"):
            return
        self.busy = True
        try:
            if event == "call":
                self.note_call(name, frame)
            else:
                self.note_return(name, frame, given)
        finally:
            self.busy = False

    def note_call(self, name: str, frame: FrameType) -> None:
        """Note the beginning of a watched call."""
        if name in INSIDE:
            self.inside.append(name)
        if name == "forward":
            self.depth += 1
            if self.depth == 1:
                self.note_forward(frame.f_locals["self"])
            return
        if name == "next":
            return
        own = frame.f_locals.get("self")
        if isinstance(own, torch.amp.GradScaler):
            if not own._enabled:
                return
            self.scaler, self.seen.scaler_on = own, True
            if name == "scale":
                self.losses += tensors_in(frame.f_locals["outputs"])[:1]
        if name == "step":
            optimizer = frame.f_locals["args"][0]
            self.optimizers[id(optimizer)] = optimizer
        if name == "backward":
            device = self.seen.device
            self.seen.backward_in_autocast += torch.is_autocast_enabled(device)
            if not self.seen.scaler_on:
                self.losses += tensors_in(frame.f_locals["tensors"])[:1]
        self.seen.events[-1].append(name)

    def note_forward(self, module: torch.nn.Module) -> None:
        """Note in which type the outermost module runs."""
        device = self.seen.device
        first = next(module.parameters(), None)
        if first is not None:
            self.seen.model_on = first.device.type
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            if torch.is_grad_enabled():
                self.seen.autocast = dtype
        else:
            dtype = "float32" if first is None else str(first.dtype).removeprefix("torch.")
        if not module.training and not torch.is_grad_enabled():
            self.seen.evaluation_in = dtype

    def note_return(self, name: str, frame: FrameType, given: Any) -> None:
        """Note the end of a watched call."""
        if self.inside and self.inside[-1] == name:
            self.inside.pop()
        if name != "forward" or self.depth == 0:
            return
        self.depth -= 1
        module = frame.f_locals.get("self")
        if self.depth == 0 and module is not None and not module.training and not torch.is_grad_enabled():
            floats = [tensor for tensor in tensors_in(given) if tensor.is_floating_point()]
            self.outputs += [tensor.isfinite().all() for tensor in floats]

    def finish(self) -> None:
        """Read what was kept on the device."""
        self.seen.losses = [float(loss.detach().float().mean()) for loss in self.losses]
        if self.outputs:
            self.seen.evaluation_finite = all(bool(finite) for finite in self.outputs)
        self.seen.events = [step for step in self.seen.events if step]
        self.seen.half_weights = [text for one in self.optimizers.values() if (text := half_without_masters(one))]
        self.losses, self.outputs = [], []


def half_without_masters(optimizer: Optimizer) -> str | None:
    """Return "AdamW, bfloat16" where an Adam updates 16-bit weights and nothing of it is in 32 bits, else None."""
    name = type(optimizer).__name__
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    half = [weight for weight in weights if weight.dtype in (torch.float16, torch.bfloat16)]
    if "adam" not in name.lower() or not half:
        return None
    for weight in half:
        parts = [part for part in tensors_in(optimizer.state.get(weight, {})) if part.shape == weight.shape]
        if (
            any(part.dtype == torch.float32 for part in parts) or len(parts) > 3
        ):  # a master copy, or what was rounded away
            return None
    return f"{name}, {str(half[0].dtype).removeprefix('torch.')}"


def is_finite(values: list[float]) -> bool:
    """Return whether all values are numbers."""
    return all(math.isfinite(value) for value in values)
