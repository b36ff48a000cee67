"""The FLOPs of products and convolutions, from the shapes that PyTorch's profiler recorded."""

import re
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from .mistakes import name_of

# operations that multiply matrices, or may: those that come from outside of PyTorch
PRODUCT = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|convolution(_backward)?"
    r"|\w*_rnn(_backward|_layer\w*)?|miopen_rnn\w*|conv_tbc\w*|_trilinear|_int_mm"
    r"|\w*grouped_mm|_?sparse\w*mm\w*|_scaled_dot_product_\w+)$"
    r"|(?!(aten|autograd|torch|prims?|_?c10d\w*|fsdp|torchvision|profiler)::)[^\W\d]\w*::."
)


def is_product(event: Any) -> bool:
    return PRODUCT.match(event.name()) is not None and any(len(one) > 1 for one in event.shapes())


def flops_of(event: Any) -> float | None:
    """Return the FLOPs that PyTorch counts for a product, None where it has no formula or the
    shapes do not tell."""
    # PyTorch 2.9 has no formula for attention on a CPU, which is that of a GPU
    name = event.name().removeprefix("aten::").replace("_for_cpu", "")
    try:
        operation = getattr(torch.ops.aten, name)
        inputs = [
            torch.empty(shape, device="meta") if shape else given
            for shape, given in zip(event.shapes(), event.concrete_inputs(), strict=True)
        ]
        if name.startswith("conv"):
            return float(flop_registry[operation](*inputs, out_val=operation(*inputs)))
        return float(flop_registry[operation](*(one for one in inputs if torch.is_tensor(one))))
    except Exception:  # another version's arguments, or shapes that are not kept
        return None


def dtype_of(event: Any) -> str:
    """Return the type of a product's operand, for which the profiler says "float" and
    "c10::Half"."""
    first = 1 if event.name() in ("aten::addmm", "aten::baddbmm") else 0  # that is added
    (kind,) = event.dtypes()[first : first + 1] or [""]
    return name_of(getattr(torch, kind.removeprefix("c10::").lower(), ""))
