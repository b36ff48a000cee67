"""The precision modes: what each name means, whether a device can run it, and how it is set."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import torch
import torch._functorch.config

from ..parameters import COMPILE_MODES, Unsupported
from ..tasks.batches import mapped
from .float8 import without_float8

# all that differs between the modes; fp8 also has float8.Float8Linear
FP32 = {
    "tf32": False,
    "autocast": None,
    "weights": torch.float32,
    "masters": False,
    "scale": False,
}
PRECISIONS: dict[str, dict] = {
    "fp32": FP32,
    "tf32": FP32 | {"tf32": True},
    "amp_fp16": FP32 | {"autocast": torch.float16, "scale": True},
    "amp_bf16": FP32 | {"autocast": torch.bfloat16},
    "o2_fp16": FP32 | {"weights": torch.float16, "masters": True, "scale": True},
    "o3_fp16": FP32 | {"weights": torch.float16, "scale": True},
    "bf16_true": FP32 | {"weights": torch.bfloat16},
    "fp8": FP32 | {"autocast": torch.bfloat16},
}
# {mode: (least compute capability, why)}
BF16_NEEDS = (8, 0), "bf16 needs compute capability 8.0, because older GPUs only emulate bfloat16"
NEEDS = {
    "tf32": ((8, 0), "TF32 needs compute capability 8.0 (Ampere) or newer"),
    "amp_bf16": BF16_NEEDS,
    "bf16_true": BF16_NEEDS,
    "fp8": ((8, 9), "fp8 needs compute capability 8.9 (Ada, Hopper) or newer"),
}


def may_lose_updates(precision: str) -> bool:
    """Return whether an optimizer updates 16-bit weights themselves, which round updates away."""
    mode = PRECISIONS[precision]
    return mode["weights"] != torch.float32 and not mode["masters"]


def check_supported(
    precision: str, execution: str, device: torch.device, fp16_check: str | None = None
) -> None:
    """Raise Unsupported, with the reason, if `device` cannot run the mode.

    `fp16_check` is the preflight's result: "passed", what is wrong with fp16 on this GPU, or None
    if not checked.
    """
    if device.type != "cuda":
        wanted = f'execution="{execution}"' if "cuda_graph" in execution else precision
        if wanted not in ("fp32", "amp_bf16"):
            raise Unsupported(f"{wanted} needs an NVIDIA GPU; this run is on the CPU")
        return
    capability = torch.cuda.get_device_capability(device)
    least, reason = NEEDS.get(precision, ((0, 0), ""))
    if capability < least:
        raise Unsupported(f"{reason}; this GPU has {capability[0]}.{capability[1]}")
    if "fp16" in precision and fp16_check not in (None, "passed"):
        raise Unsupported(f"fp16 arithmetic is wrong on this GPU: {fp16_check}")


# Of torch: an attribute, or what sets a switch and what reads it, each with its first argument.
FP32_SWITCHES = {
    "matmul": "backends.cuda.matmul.fp32_precision",
    "conv": "backends.cudnn.conv.fp32_precision",
    "rnn": "backends.cudnn.rnn.fp32_precision",
}
# {switch: PyTorch's default}: torch.compile reads them. They set those for fp32, too, so they come
# first.
OLDER_SWITCHES = {
    "set_float32_matmul_precision get_float32_matmul_precision": "highest",
    "backends.cudnn.allow_tf32": True,
}
# on which numbers or times depend, each before what it sets, too
SWITCHES = [
    *FP32_SWITCHES.values(),
    *"""
    backends.mkldnn.enabled
    backends.mkldnn.fp32_precision
    backends.mkldnn.matmul.fp32_precision
    backends.cudnn.enabled
    backends.cudnn.benchmark
    backends.cudnn.benchmark_limit
    backends.cudnn.deterministic
    backends.cuda.matmul.allow_fp16_accumulation
    backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    _functorch.config.enable_autograd_cache
    _functorch.config.backward_pass_autocast
    set_default_dtype get_default_dtype
    set_grad_enabled is_grad_enabled
    set_deterministic_debug_mode get_deterministic_debug_mode
    set_autocast_cache_enabled is_autocast_cache_enabled
    backends.cuda.enable_flash_sdp backends.cuda.flash_sdp_enabled
    backends.cuda.enable_mem_efficient_sdp backends.cuda.mem_efficient_sdp_enabled
    backends.cuda.enable_math_sdp backends.cuda.math_sdp_enabled
    backends.cuda.enable_cudnn_sdp backends.cuda.cudnn_sdp_enabled
    set_autocast_dtype get_autocast_dtype cpu
    set_autocast_dtype get_autocast_dtype cuda
    set_autocast_enabled is_autocast_enabled cpu
    set_autocast_enabled is_autocast_enabled cuda
    """.strip().splitlines(),
]


def set_fp32_precision(precision: str) -> None:
    """Set PyTorch's switches for fp32 arithmetic as a precision needs them.

    By default PyTorch uses TF32 in convolutions and RNNs, so fp32 there is not IEEE fp32 unless it
    is set.
    """
    tf32 = PRECISIONS[precision]["tf32"]
    matmul, cudnn = OLDER_SWITCHES
    set_switch(matmul, "high" if tf32 else "highest")
    set_switch(cudnn, tf32)
    for line in FP32_SWITCHES.values():
        set_switch(line, "tf32" if tf32 else "ieee")


def read_switch(line: str, otherwise: Any = None) -> Any:
    """Return the value of a switch, or `otherwise` of an older one that contradicts those for fp32.

    PyTorch refuses to read such a one.
    """
    name, *reader = line.split()
    with suppress(RuntimeError), warnings.catch_warnings(action="ignore"):  # it is deprecated
        if not reader:
            return attrgetter(name)(torch)
        return attrgetter(reader[0])(torch)(*reader[1:])
    return otherwise


def set_switch(line: str, value: Any) -> None:
    name, *reader = line.split()
    owner, _, attribute = name.rpartition(".")
    with warnings.catch_warnings(action="ignore"):
        if reader:
            attrgetter(name)(torch)(*reader[1:], value)
        else:
            setattr(attrgetter(owner)(torch), attribute, value)


def switches_now() -> dict[str, Any]:
    """Return {switch: its value}."""
    return {line: read_switch(line) for line in SWITCHES}


@contextmanager
def backends_as_found() -> Iterator[None]:
    """Give PyTorch's switches back, after the block, the values that they had before it."""
    older = {line: read_switch(line, default) for line, default in OLDER_SWITCHES.items()}
    before = older | switches_now()
    try:
        yield
    finally:
        for line, value in before.items():
            if read_switch(line) != value:
                set_switch(line, value)


@contextmanager
def cudnn_flags(benchmark: bool, deterministic: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@dataclass(frozen=True)
class Precision:
    """A precision mode on a device, as a training step sees it.

    cache: whether autocast keeps its 16-bit copies of the weights until the end of the step.
    """

    name: str
    device: torch.device
    cache: bool = True

    def autocast(self) -> torch.autocast:
        """Return the context for forward pass and loss of one step."""
        dtype = PRECISIONS[self.name]["autocast"]
        return torch.autocast(
            self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=self.cache
        )


@contextmanager
def autocasts_seen(device: torch.device) -> Iterator[set[torch.dtype]]:
    """Collect the types of every autocast that is turned on for the device within the block, by
    whomever.

    It is read where a region of autocast ends, so that a type that is set within the region counts.
    """
    seen: set = set()
    leave = torch.autocast.__exit__

    def noted(context, *error):
        if context.device == device.type and torch.is_autocast_enabled(device.type):
            seen.add(torch.get_autocast_dtype(device.type))
        return leave(context, *error)

    with patch.object(torch.autocast, "__exit__", noted):
        yield seen


def compiled(part: Callable, mode: str = "default", several_shapes: bool = False) -> Any:
    """Return a model or a function under torch.compile. `mode` is one of COMPILE_MODES.

    For several shapes PyTorch's default holds: it compiles for the first shape and, at the second,
    for any shape.
    """
    # Before PyTorch's pull request 181564 this cache could return code for another autocast type.
    set_switch("_functorch.config.enable_autograd_cache", False)
    # A compiled backward pass would run under the forward's autocast, though eager mode's does not
    # (issue 153044).
    set_switch("_functorch.config.backward_pass_autocast", "off")
    return torch.compile(part, dynamic=None if several_shapes else False, **COMPILE_MODES[mode])


def cast_model(
    model: torch.nn.Module, precision: str, keep_batchnorm_fp32: bool = False
) -> list[torch.nn.Parameter]:
    """Cast `model` in place and return what the optimizer updates: one tensor per parameter.

    In o2_fp16 these are fp32 master copies of the weights that are not frozen, elsewhere the
    parameters themselves. o2_fp16 keeps batch normalisation in fp32; o3_fp16 does so with
    `keep_batchnorm_fp32` (Apex's name).

    Where weights change their type, the model's floating-point arguments are cast to it from now
    on, as Apex's O2 does. The rest of a batch, such as the labels, keeps its type, and so do
    complex weights.
    """
    mode = PRECISIONS[precision]
    dtype = mode["weights"]
    kind = torch.nn.modules.batchnorm._BatchNorm
    norms = [module for module in model.modules() if isinstance(module, kind)]
    for norm in norms:
        # counting the steps costs a kernel in each, and only an average over all needs the count
        if norm.momentum is not None:
            norm.num_batches_tracked = None
    exact = {}
    if mode["masters"]:
        trained = (weight for weight in model.parameters() if weight.requires_grad)
        exact = {weight: weight.detach().clone() for weight in trained}
    tensors = (*model.parameters(), *model.buffers())
    if any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in tensors):
        # unlike model.to(), which makes complex weights real
        model._apply(lambda tensor: cast(tensor, dtype))
        model.argument_dtype = dtype
        model.register_forward_pre_hook(cast_arguments, with_kwargs=True)
    if mode["masters"] or keep_batchnorm_fp32:
        for norm in norms:
            norm.float()
    masters = {
        weight: torch.nn.Parameter(copied)
        for weight, copied in exact.items()
        if weight.dtype != torch.float32  # else it has not been cast
    }
    return [masters.get(weight, weight) for weight in model.parameters()]


def cast(nest: Any, dtype: torch.dtype) -> Any:
    """Return a nest whose floating-point tensors have a type, also those in objects that can be
    moved.
    """

    def cast_leaf(leaf: Any, _: str) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf
        if hasattr(leaf, "to") and hasattr(leaf, "__dict__"):
            leaf = copy.copy(leaf)
            vars(leaf).update(cast(dict(vars(leaf)), dtype))
        return leaf

    return mapped(nest, cast_leaf)


def cast_arguments(model: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Cast the floating-point arguments of a model's forward. It is a hook."""
    return cast((args, kwargs), model.argument_dtype)


def keep_masters(optimizer: Any, weights: list, masters: list) -> None:
    """Make an optimizer of fp32 master copies clear the model's gradients and write its updates to
    the model.

    Does nothing if there are no copies. The loss scaler copies the gradients
    (gather_master_gradients).
    """
    pairs = [
        (weight, master)
        for weight, master in zip(weights, masters, strict=True)
        if weight is not master
    ]
    if not pairs:
        return

    def zero_grad(set_to_none=True):
        for weight in weights:
            # the gradients of the copies stay: gather_master_gradients overwrites them
            weight.grad = None

    optimizer.master_pairs = pairs
    optimizer.zero_grad = zero_grad
    after_step(optimizer, write_back)


def after_step(optimizer: Any, call: Callable[[Any], Any]) -> None:
    """Have call(optimizer) called after each step, also of an optimizer without PyTorch's hooks."""
    step = optimizer.step

    @wraps(step)
    def stepped(*args, **kwargs):
        returned = step(*args, **kwargs)
        call(optimizer)
        return returned

    optimizer.step = stepped


def gather_master_gradients(optimizer: Any) -> None:
    """Copy the model's fp16 gradients to the optimizer's fp32 master copies, if it has any."""
    places, gradients = [], []
    for weight, master in getattr(optimizer, "master_pairs", ()):
        if weight.grad is None:
            master.grad = None
            continue
        if master.grad is None:
            master.grad = torch.empty_like(master)
        places.append(master.grad)
        gradients.append(weight.grad)
    if places:
        torch._foreach_copy_(places, gradients)


@torch.no_grad()
def write_back(optimizer: Any) -> None:
    """Copy the updated fp32 master copies to the model's fp16 weights."""
    weights, masters = zip(*optimizer.master_pairs, strict=True)
    torch._foreach_copy_(weights, masters)


def in_fp32(network: torch.nn.Module, batch: Any) -> tuple[torch.nn.Module, Any]:
    """Return fp32 copies of a network and a batch. Layers in fp8 become ordinary ones."""
    network = without_float8(copy.deepcopy(network)).float()
    network.argument_dtype = torch.float32
    return network, cast(batch, torch.float32)
