"""Batch normalisation by cuDNN within a compiled step in channels_last, as eager PyTorch has it but for bf16.

Inductor would write kernels for it that also do what follows. Which is faster depends on the model, as
docs/pytorch_notes.md says.
"""

from typing import Any

import torch
from torch import Tensor
from torch._dynamo import lookup_backend, register_backend
from torch.nn import functional

ATEN = torch.ops.aten
BY_CUDNN = (torch.float16, torch.float32)


# Inductor knows PyTorch's own operations and would take them apart, but it calls one that is registered here as it is.
@torch.library.custom_op("mixed_precision_study::batch_norm", mutates_args=())
def forward(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return (y, mean and 1 / deviation of the batch, what cuDNN keeps for the backward pass, new running averages)."""
    return ATEN._batch_norm_with_update_functional(x, weight, bias, mean, variance, momentum, eps)


@torch.library.custom_op("mixed_precision_study::batch_norm_backward", mutates_args=())
def backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, kept: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    return ATEN.batch_norm_backward(grad, x, weight, None, None, mean, scale, True, eps, [True, True, True], kept)


@forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, *_: Any) -> tuple[Tensor, ...]:
    size = torch._C._get_cudnn_batch_norm_reserve_space_size(x, True) if x.is_cuda else 0
    kept = torch.empty(size, dtype=torch.uint8, device=x.device)
    of_batch, running = ([torch.empty_like(mean), torch.empty_like(mean)] for _ in range(2))
    return torch.empty_like(x), *of_batch, kept, *running


@backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], *output[1:4])
    ctx.eps = inputs[-1]


forward.register_autograd(
    lambda ctx, grad, *_: (*backward(grad, *ctx.saved_tensors, ctx.eps), None, None, None, None),
    setup_context=remember,
)


def batch_norm(
    x: Tensor, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Tensor:
    """Compute torch.nn.functional.batch_norm, where it can be done so by the operations above."""
    given = all(one is not None for one in (mean, variance, weight, bias))
    images = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if not (training and given and images and x.dtype in BY_CUDNN and weight.dtype == torch.float32):
        return functional.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
    y, _, _, _, new_mean, new_variance = forward(x, weight, bias, mean, variance, momentum, eps)
    with torch.no_grad():
        mean.copy_(new_mean)
        variance.copy_(new_variance)
    return y


@register_backend(name="cudnn_batch_norm")
def compile_around(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    """Compile a graph by Inductor, but for its batch normalisation. It is a backend of torch.compile."""
    for node in graph.graph.nodes:
        if node.target is functional.batch_norm:
            node.target = batch_norm
    graph.recompile()
    return lookup_backend("inductor")(graph, inputs)
