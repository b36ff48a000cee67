"""The precision modes: what each name means, whether a device can run it, and how it is set."""

import copy
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map

from .errors import Unsupported
from .parameters import COMPILE_MODES

PRECISIONS = {  # what each name means; everything else about a run is the same
    "fp32": {"tf32": False, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "tf32": {"tf32": True, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "amp_fp16": {"tf32": False, "autocast": torch.float16, "weights": torch.float32, "masters": False, "scale": True},
    "amp_bf16": {"tf32": False, "autocast": torch.bfloat16, "weights": torch.float32, "masters": False, "scale": False},
    "o2_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": True, "scale": True},
    "o3_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": False, "scale": True},
}


def check_supported(precision, execution, device, fp16_check=None):
    """Raise Unsupported, with the reason, where `device` cannot run `precision` as itself, or runs fp16 wrongly."""
    if "cuda_graph" in execution and device.type != "cuda":
        raise Unsupported(f'execution="{execution}" needs an NVIDIA GPU; this run is on the CPU')
    if device.type != "cuda" and precision not in ("fp32", "amp_bf16"):
        raise Unsupported(f"{precision} needs an NVIDIA GPU; this run is on the CPU")
    if "fp16" in precision and fp16_check not in (None, "passed"):
        raise Unsupported(f"fp16 arithmetic is wrong on this GPU: {fp16_check}")
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if precision == "tf32" and major < 8:
            raise Unsupported(f"TF32 needs compute capability 8.0 (Ampere) or newer; this GPU has {major}.{minor}")
        if precision == "amp_bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise Unsupported(f"this GPU (compute capability {major}.{minor}) would only emulate bfloat16")


def set_fp32_precision(precision):
    """Set PyTorch's three switches for fp32 arithmetic and return them as read back: {"matmul", "conv", "rnn"}.

    PyTorch ships with TF32 on for convolutions and RNNs, so an "fp32" that sets nothing is not IEEE fp32 there.
    """
    wanted = "tf32" if PRECISIONS[precision]["tf32"] else "ieee"
    # set_float32_matmul_precision sets the matmul switch and the older flag that torch.compile reads together.
    torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
    torch.backends.cuda.matmul.fp32_precision = wanted
    torch.backends.cudnn.conv.fp32_precision = wanted
    torch.backends.cudnn.rnn.fp32_precision = wanted
    switches = {
        "matmul": torch.backends.cuda.matmul,
        "conv": torch.backends.cudnn.conv,
        "rnn": torch.backends.cudnn.rnn,
    }
    return {name: switch.fp32_precision for name, switch in switches.items()}


def autocast(precision, device, cache=True):
    """Return the autocast context of the mode; it wraps forward and loss only, entered and left at every step."""
    dtype = PRECISIONS[precision]["autocast"]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache)


@dataclass(frozen=True)
class Precision:
    """A precision mode on a device, as a training step sees it."""

    name: str
    device: torch.device
    cache: bool = True  # autocast may keep its 16-bit copies of the weights for the rest of the step

    def autocast(self):
        """Return the context in which forward pass and loss run."""
        return autocast(self.name, self.device, self.cache)


def compiled(part, mode="default"):
    """Return `part` under torch.compile; what was compiled for amp_fp16 is never taken for amp_bf16."""
    from torch._functorch import config

    config.enable_autograd_cache = False  # before PyTorch's pull request 181564 its key left out autocast's type
    return torch.compile(part, dynamic=False, **COMPILE_MODES[mode])


def cast_model(model, precision, keep_batchnorm_fp32=False):
    """Cast `model` in place and return its fp32 master copies, one per parameter, which the optimizer updates.

    A parameter that stays fp32 is its own master. o2_fp16 keeps batch normalisation in fp32, o3_fp16 nothing. Its
    count, a kernel more in each step, goes unless it averages over all steps (momentum=None), which needs it.
    `keep_batchnorm_fp32` (Apex's name) keeps it in fp32 in o3_fp16 as well.
    """
    mode = PRECISIONS[precision]
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.num_batches_tracked = norm.num_batches_tracked if norm.momentum is None else None
    masters = [parameter.detach().clone() for parameter in model.parameters()] if mode["masters"] else None
    model.to(mode["weights"])
    for norm in norms if masters or keep_batchnorm_fp32 else []:
        norm.float()
    if not masters:
        return list(model.parameters())
    pairs = zip(model.parameters(), masters, strict=True)
    return [weight if weight.dtype == torch.float32 else torch.nn.Parameter(master) for weight, master in pairs]


def keep_masters(optimizer, weights, masters):
    """Join an optimizer of fp32 master copies to the model's weights; does nothing where there are no copies.

    Its zero_grad then clears the model's gradients, and each of its steps is written back to the model. The loss scaler
    copies the gradients the other way (gather_master_gradients).
    """
    pairs = [(weight, master) for weight, master in zip(weights, masters, strict=True) if weight is not master]
    if not pairs:
        return

    def zero_grad(set_to_none=True):
        for weight in weights:
            weight.grad = None  # those of the copies stay in place, and are overwritten as a whole

    optimizer.master_pairs, optimizer.zero_grad = pairs, zero_grad
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.register_step_post_hook(lambda *_: write_back(optimizer))


def gather_master_gradients(optimizer):
    """Copy the model's fp16 gradients to the fp32 master copies that the optimizer updates, if it has any."""
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
def write_back(optimizer):
    """Copy updated fp32 master copies to the model's fp16 weights, if the optimizer has any."""
    pairs = getattr(optimizer, "master_pairs", ())
    if pairs:
        torch._foreach_copy_([weight for weight, _ in pairs], [master for _, master in pairs])


def in_fp32(network, batch):
    """Return copies of both in fp32; the network's own weights stay as they are."""
    batch = tree_map(lambda part: part.float() if part.is_floating_point() else part, batch)
    return copy.deepcopy(network).float(), batch
