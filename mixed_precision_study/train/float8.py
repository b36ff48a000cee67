"""fp8 training of Linear layers: all three matrix products of a layer take 8-bit numbers.

The method is that of torchao's float8 training
(https://docs.pytorch.org/ao/stable/workflows/training.html), written with PyTorch's own scaled
matmul. Weights stay in fp32, and everything but the Linear layers runs under bf16 autocast.
"""

from typing import Any, NamedTuple

import torch

from ..parameters import Unsupported

MULTIPLE = 16  # the scaled matmul needs sizes that are multiples of it
FORWARD = torch.float8_e4m3fn  # activations and weights
GRADIENT = torch.float8_e5m2  # gradients, for it has the larger range


class Scaled(NamedTuple):
    """A matrix (rows, columns) in fp8 and the fp32 scale () that gives its values back."""

    values: torch.Tensor
    scale: torch.Tensor

    def flipped(self) -> "Scaled":
        """Return the transposed matrix, stored by rows."""
        return Scaled(self.values.t().contiguous(), self.scale)


def scaled(matrix: torch.Tensor, dtype: torch.dtype) -> Scaled:
    """Round a matrix (rows, columns) to fp8, so that its largest value is fp8's largest."""
    matrix = matrix.float()
    most = torch.finfo(dtype).max
    scale = matrix.abs().amax().clamp(min=1e-12) / most  # zeros would give a scale of zero
    return Scaled((matrix / scale).clamp(-most, most).to(dtype), scale)


def product(a: Scaled, b: Scaled, fast: bool = False) -> torch.Tensor:
    """Return a @ b.T in bf16, (rows of a, rows of b). fast: add up with less than fp32's
    precision.
    """
    how = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
    return torch._scaled_mm(a.values, b.values.t(), scale_a=a.scale, scale_b=b.scale, **how)


class Float8Product(torch.autograd.Function):
    """x (M, K) times the transposed weight (N, K): (M, N) in bf16. M, N and K are multiples of 16.

    A matrix is rounded once, and kept for the backward pass in fp8.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x8, weight8 = scaled(x, FORWARD), scaled(weight, FORWARD)
        ctx.types = x.dtype, weight.dtype
        ctx.save_for_backward(*x8, *weight8)
        return product(x8, weight8, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        gradient = scaled(gradients[0], GRADIENT)
        flipped = gradient.flipped()
        x, weight = (
            Scaled(x_values, x_scale).flipped(),
            Scaled(weight_values, weight_scale).flipped(),
        )
        of_x, of_weight = ctx.types
        return product(gradient, weight).to(of_x), product(flipped, x).to(of_weight)


class Float8Linear(torch.nn.Linear):
    """A Linear layer in fp8: (..., in_features) -> (..., out_features) in bf16.

    Made by use_float8().
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        missing = -len(rows) % MULTIPLE
        padded = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
        y = Float8Product.apply(padded, self.weight)[: len(rows)]
        if self.bias is not None:
            y = y + self.bias.to(torch.bfloat16)
        return y.reshape(*x.shape[:-1], self.out_features)


def use_float8(model: torch.nn.Module) -> float:
    """Turn the model's Linear layers into Float8Linear where their sizes allow it. Return their
    share of the work.

    The work of a layer is taken as its number of weights. Raises Unsupported if the share is 0.
    """
    linears = [module for module in model.modules() if type(module) is torch.nn.Linear]
    fitting = [
        linear
        for linear in linears
        if linear.in_features % MULTIPLE == linear.out_features % MULTIPLE == 0
    ]
    if not fitting:
        raise Unsupported(
            f"fp8 can take no Linear layer, because none has sizes that are multiples of {MULTIPLE}"
        )
    for linear in fitting:
        linear.__class__ = Float8Linear
    return sum(linear.weight.numel() for linear in fitting) / sum(
        linear.weight.numel() for linear in linears
    )


def without_float8(model: torch.nn.Module) -> torch.nn.Module:
    """Turn Float8Linear back into ordinary Linear layers, in place. Return the model."""
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.__class__ = torch.nn.Linear
    return model
