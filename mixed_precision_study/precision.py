"""The precision modes: what each name means, whether a device can run it, and how it is set."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .errors import Unsupported
from .float8 import without_float8
from .parameters import COMPILE_MODES, reason_unsupported

PRECISIONS: dict[str, dict] = {  # all that differs between the modes; fp8 also has float8.Float8Linear
    "fp32": {"tf32": False, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "tf32": {"tf32": True, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "amp_fp16": {"tf32": False, "autocast": torch.float16, "weights": torch.float32, "masters": False, "scale": True},
    "amp_bf16": {"tf32": False, "autocast": torch.bfloat16, "weights": torch.float32, "masters": False, "scale": False},
    "o2_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": True, "scale": True},
    "o3_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": False, "scale": True},
    "bf16_true": {"tf32": False, "autocast": None, "weights": torch.bfloat16, "masters": False, "scale": False},
    "fp8": {"tf32": False, "autocast": torch.bfloat16, "weights": torch.float32, "masters": False, "scale": False},
}


def check_supported(precision: str, execution: str, device: torch.device, fp16_check: str | None = None) -> None:
    """Raise Unsupported, with the reason, if `device` cannot run the mode.

    `fp16_check` is the preflight's result: "passed", what is wrong with fp16 on this GPU, or None if not checked.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if reason := reason_unsupported(precision, execution, capability):
        raise Unsupported(reason)
    if "fp16" in precision and fp16_check not in (None, "passed"):
        raise Unsupported(f"fp16 arithmetic is wrong on this GPU: {fp16_check}")


def set_fp32_precision(precision: str) -> dict[str, str]:
    """Set PyTorch's three switches for fp32 arithmetic and return them as read back: {"matmul", "conv", "rnn"}.

    By default PyTorch uses TF32 in convolutions and RNNs, so fp32 there is not IEEE fp32 unless it is set.
    """
    wanted = "tf32" if PRECISIONS[precision]["tf32"] else "ieee"
    # This call sets the matmul switch together with the older flag, which torch.compile reads.
    torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
    cudnn: Any = torch.backends.cudnn
    switches = {"matmul": torch.backends.cuda.matmul, "conv": cudnn.conv, "rnn": cudnn.rnn}
    for switch in switches.values():
        switch.fp32_precision = wanted
    return {name: switch.fp32_precision for name, switch in switches.items()}


def set_fp16_accumulation(wanted: bool) -> bool:
    """Let matmuls in fp16 add up in fp16, instead of PyTorch's default of fp32. Return the switch as read back."""
    matmul: Any = torch.backends.cuda.matmul
    matmul.allow_fp16_accumulation = wanted
    return matmul.allow_fp16_accumulation


@contextmanager
def cudnn_flags(benchmark: bool, deterministic: bool) -> Iterator[None]:
    """Set two of cuDNN's flags within the block."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def autocast(precision: str, device: torch.device, cache: bool = True) -> torch.autocast:
    """Return the autocast context of the mode, for forward pass and loss of one step."""
    dtype = PRECISIONS[precision]["autocast"]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache)


@dataclass(frozen=True)
class Precision:
    """A precision mode on a device, as a training step sees it.

    cache: whether autocast keeps its 16-bit copies of the weights until the end of the step.
    """

    name: str
    device: torch.device
    cache: bool = True

    def autocast(self) -> torch.autocast:
        """Return the context in which forward pass and loss run."""
        return autocast(self.name, self.device, self.cache)


def compiled(part: Callable, mode: str = "default") -> Any:
    """Return a model or a function under torch.compile. `mode` is one of COMPILE_MODES."""
    from torch._functorch import config

    # Before PyTorch's pull request 181564 this cache could return code for another autocast type.
    config.enable_autograd_cache = False
    options: Any = COMPILE_MODES[mode]
    return torch.compile(part, dynamic=False, **options)


def cast_model(model: torch.nn.Module, precision: str, keep_batchnorm_fp32: bool = False) -> list[torch.nn.Parameter]:
    """Cast `model` in place and return what the optimizer updates: one tensor per parameter.

    In o2_fp16 these are fp32 master copies, elsewhere the parameters themselves. o2_fp16 keeps batch normalisation in
    fp32; o3_fp16 does so with `keep_batchnorm_fp32` (Apex's name).
    """
    mode = PRECISIONS[precision]
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        if norm.momentum is not None:  # else the average is over all steps, and needs their count
            norm.num_batches_tracked = None  # counting would cost a kernel per step
    masters = [parameter.detach().clone() for parameter in model.parameters()] if mode["masters"] else None
    model.to(mode["weights"])
    if mode["masters"] or keep_batchnorm_fp32:
        for norm in norms:
            norm.float()
    if masters is None:
        return list(model.parameters())
    pairs = zip(model.parameters(), masters, strict=True)
    return [weight if weight.dtype == torch.float32 else torch.nn.Parameter(master) for weight, master in pairs]


def keep_masters(optimizer: Any, weights: list, masters: list) -> None:
    """Make an optimizer of fp32 master copies clear the model's gradients and write its updates to the model.

    Does nothing if there are no copies. The loss scaler copies the gradients (gather_master_gradients).
    """
    pairs = [(weight, master) for weight, master in zip(weights, masters, strict=True) if weight is not master]
    if not pairs:
        return

    def zero_grad(set_to_none=True):
        for weight in weights:
            weight.grad = None  # the gradients of the copies stay: gather_master_gradients overwrites them

    optimizer.master_pairs = pairs
    optimizer.zero_grad = zero_grad
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.register_step_post_hook(lambda *_: write_back(optimizer))


def gather_master_gradients(optimizer: Any) -> None:
    """Copy the model's fp16 gradients to the optimizer's fp32 master copies, if it has any."""
    pairs = getattr(optimizer, "master_pairs", ())
    for weight, master in pairs:
        if weight.grad is None:
            master.grad = None
        elif master.grad is None:
            master.grad = torch.empty_like(master)
    pairs = [(weight, master) for weight, master in pairs if weight.grad is not None]
    if pairs:
        torch._foreach_copy_([master.grad for _, master in pairs], [weight.grad for weight, _ in pairs])


@torch.no_grad()
def write_back(optimizer: Any) -> None:
    """Copy the updated fp32 master copies to the model's fp16 weights, if the optimizer has any."""
    pairs = getattr(optimizer, "master_pairs", ())
    if pairs:
        torch._foreach_copy_([weight for weight, _ in pairs], [master for _, master in pairs])


def in_fp32(network: torch.nn.Module, batch: tuple) -> tuple[torch.nn.Module, Any]:
    """Return fp32 copies of a network and a batch. Layers in fp8 become ordinary ones."""
    batch = tree_map(lambda part: part.float() if part.is_floating_point() else part, batch)
    return without_float8(copy.deepcopy(network)).float(), batch
