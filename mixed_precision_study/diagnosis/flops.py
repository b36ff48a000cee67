"""The FLOPs of products and convolutions, from the shapes that PyTorch's profiler recorded."""

import math
import re
from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

PRODUCT = re.compile(  # operations that multiply matrices; what has no formula below is of unknown size
    r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|convolution(_backward)?|_cudnn_rnn(_backward)?|mkldnn_rnn_layer(_backward)?"
    r"|miopen_rnn\w*|conv_tbc\w*|_trilinear|_int_mm|\w*grouped_mm|_?sparse\w*mm\w*|_scaled_dot_product_\w+)$"
)
KNOWN = ("aten", "autograd", "torch", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "torchvision", "profiler")


def of_product(shapes: list, inputs: list) -> float:
    return 2 * math.prod(shapes[0]) * shapes[1][-1]


def of_product_and_sum(shapes: list, inputs: list) -> float:
    return of_product(shapes[1:], inputs)


def of_convolution(shapes: list, inputs: list) -> float:
    """Each number of the output, or of the input where the convolution is transposed, takes part in one kernel."""
    image, weight = shapes[:2]
    stride, padding, dilation, transposed = inputs[3:7]
    if transposed:
        return 2 * math.prod(image) * math.prod(weight[1:])
    sizes = image[0]
    for place, (length, kernel) in enumerate(zip(image[2:], weight[2:], strict=True)):
        step, edge, gap = (each[place if len(each) > 1 else 0] for each in (stride, padding, dilation))
        sizes *= (length + 2 * edge - gap * (kernel - 1) - 1) // step + 1
    return 2 * sizes * math.prod(weight)


def of_convolution_backward(shapes: list, inputs: list) -> float:
    gradient, image, weight = shapes[:3]
    transposed, wanted = inputs[7], inputs[10]
    forward = math.prod(image if transposed else gradient) * math.prod(weight) / weight[0]
    return 2 * forward * sum(bool(one) for one in wanted[:2])


def of_cell(shapes: list, inputs: list) -> float:
    """One layer of an RNN on the CPU: input, its weights, and those of the state."""
    return 2 * math.prod(shapes[0][:-1]) * (math.prod(shapes[1]) + math.prod(shapes[2]))


def of_rnn(shapes: list, inputs: list) -> float:
    """All layers of cuDNN's RNN, whose weights lie in one buffer: each takes part once a token."""
    return 2 * math.prod(shapes[0][:-1]) * shapes[3][0]


def of_attention(shapes: list, inputs: list) -> float:
    return sdpa_flop_count(*shapes[:3])


def of_attention_backward(shapes: list, inputs: list) -> float:
    return sdpa_backward_flop_count(*shapes[:4])


def twice(formula: Callable) -> Callable:
    return lambda shapes, inputs: 2 * formula(shapes, inputs)


FORMULAS: list[tuple[str, Callable]] = [
    (r"mm|bmm|_scaled_mm", of_product),
    (r"addmm|baddbmm", of_product_and_sum),
    ("convolution", of_convolution),
    ("convolution_backward", of_convolution_backward),
    ("mkldnn_rnn_layer", of_cell),
    ("mkldnn_rnn_layer_backward", twice(of_cell)),
    ("_cudnn_rnn", of_rnn),
    ("_cudnn_rnn_backward", twice(of_rnn)),
    (r"_scaled_dot_product_\w+_backward", of_attention_backward),
    (r"_scaled_dot_product_\w+", of_attention),
]


def is_product(event: Any) -> bool:
    """Return whether an operation multiplies matrices, or may: one on matrices that comes from outside of PyTorch."""
    space, _, rest = event.name().partition("::")
    foreign = bool(rest) and space.isidentifier() and space not in KNOWN
    return PRODUCT.match(event.name()) is not None or (foreign and any(len(one) > 1 for one in event.shapes()))


def flops_of(event: Any) -> float | None:
    """Return the FLOPs of a product that the profiler saw, None where its shapes do not tell them."""
    name = event.name().removeprefix("aten::")
    formula = next((one for pattern, one in FORMULAS if re.fullmatch(pattern, name)), None)
    try:
        return float(formula(event.shapes(), event.concrete_inputs())) if formula else None
    except (
        ValueError,
        IndexError,
        TypeError,
        AssertionError,
    ):  # another version's arguments, or shapes that are not kept
        return None


def dtype_of(event: Any) -> str:
    """Return the name that the profiler gives the type of a product's operand."""
    first = 1 if event.name() in ("aten::addmm", "aten::baddbmm") else 0  # that is added
    kinds = event.dtypes()
    return kinds[first].removeprefix("c10::").lower() if len(kinds) > first else ""
