"""fp8 training of Linear layers: all three matrix products of a layer take 8-bit numbers.

The method is that of torchao's float8 training (https://docs.pytorch.org/ao/stable/workflows/training.html), written
with PyTorch's own scaled matmul. Weights stay in fp32, and everything but the Linear layers runs under bf16 autocast.
"""

from typing import Any, NamedTuple

import torch

from ..parameters import Unsupported

MULTIPLE = 16  # the scaled matmul needs sizes that are multiples of it
FORWARD = torch.float8_e4m3fn  # activations and weights; with a scale for each row gradients too
GRADIENT = torch.float8_e5m2  # gradients under one scale, for it has the larger range
SMALLEST = 1e-12  # a largest value of zero would give a scale of zero


class Scaled(NamedTuple):
    """A matrix (rows, columns) in fp8 and the fp32 scale that gives its values back: () or (rows, 1)."""

    values: torch.Tensor
    scale: torch.Tensor

    def flipped(self) -> "Scaled":
        """Return the transposed matrix, stored by rows. Its scale must be one for the whole matrix."""
        return Scaled(self.values.t().contiguous(), self.scale)


def scaled(matrix: torch.Tensor, dtype: torch.dtype, by_row: bool) -> Scaled:
    """Round a matrix (rows, columns) to fp8, so that its largest value, or that of each row, is fp8's largest.

    The scales of rows are powers of two, which round nothing.
    """
    matrix = matrix.float()
    most = torch.finfo(dtype).max
    largest = matrix.abs().amax(-1, keepdim=True) if by_row else matrix.abs().amax()
    scale = largest.clamp(min=SMALLEST) / most
    if by_row:
        scale = scale.log2().ceil().exp2()
    return Scaled((matrix / scale).clamp(-most, most).to(dtype), scale)


def product(a: Scaled, b: Scaled, fast: bool = False) -> torch.Tensor:
    """Return a @ b.T in bf16, (rows of a, rows of b). fast: add up with less than fp32's precision."""
    scales = {"scale_a": a.scale, "scale_b": b.scale.t() if b.scale.dim() else b.scale}
    return torch._scaled_mm(a.values, b.values.t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


class Float8Product(torch.autograd.Function):
    """x (M, K) times the transposed weight (N, K): (M, N) in bf16. M, N and K are multiples of 16.

    Under one scale a matrix is rounded once, and kept for the backward pass in fp8. With a scale for each row it is
    rounded again for the backward pass, where its columns are the rows.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, by_row: bool) -> torch.Tensor:
        x8, weight8 = scaled(x, FORWARD, by_row), scaled(weight, FORWARD, by_row)
        ctx.by_row = by_row
        ctx.types = x.dtype, weight.dtype
        ctx.save_for_backward(*((x, weight) if by_row else (*x8, *weight8)))
        return product(x8, weight8, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        (gradient,) = gradients
        if ctx.by_row:
            sides = [scaled(matrix.t().contiguous(), FORWARD, True) for matrix in (gradient, *ctx.saved_tensors)]
            gradient8 = scaled(gradient, FORWARD, True)
            flipped, x, weight = sides
        else:
            values, scale, weight_values, weight_scale = ctx.saved_tensors
            gradient8 = scaled(gradient, GRADIENT, False)
            flipped = gradient8.flipped()
            x, weight = Scaled(values, scale).flipped(), Scaled(weight_values, weight_scale).flipped()
        of_x, of_weight = ctx.types
        return product(gradient8, weight).to(of_x), product(flipped, x).to(of_weight), None


class Float8Linear(torch.nn.Linear):
    """A Linear layer in fp8: (..., in_features) -> (..., out_features) in bf16. Made by use_float8()."""

    by_row = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        missing = -len(rows) % MULTIPLE
        padded = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
        y = Float8Product.apply(padded, self.weight, self.by_row)[: len(rows)]
        if self.bias is not None:
            y = y + self.bias.to(torch.bfloat16)
        return y.reshape(*x.shape[:-1], self.out_features)


def use_float8(model: torch.nn.Module, scaling: str) -> float:
    """Turn the model's Linear layers into Float8Linear where their sizes allow it. Return their share of the work.

    scaling: "tensorwise" (one scale for a matrix, the faster) or "rowwise" (one for each row, the more exact).
    The work of a layer is taken as its number of weights. Raises Unsupported if the share is 0.
    """
    linears = [module for module in model.modules() if type(module) is torch.nn.Linear]
    fitting = [linear for linear in linears if not odd_sizes(linear)]
    if not fitting:
        raise Unsupported(reason_without(linears))
    for linear in fitting:
        linear.__class__ = Float8Linear
        linear.by_row = scaling == "rowwise"
    return sum(linear.weight.numel() for linear in fitting) / sum(linear.weight.numel() for linear in linears)


def without_float8(model: torch.nn.Module) -> torch.nn.Module:
    """Turn Float8Linear back into ordinary Linear layers, in place. Return the model."""
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.__class__ = torch.nn.Linear
    return model


def odd_sizes(linear: torch.nn.Linear) -> list[int]:
    return [size for size in (linear.in_features, linear.out_features) if size % MULTIPLE]


def reason_without(linears: list[torch.nn.Linear]) -> str:
    if not linears:
        return "fp8 needs Linear layers, and the model has none"
    odd = sorted({size for linear in linears for size in odd_sizes(linear)})
    sizes = f"{odd[0]} is not a multiple" if len(odd) == 1 else f"{', '.join(map(str, odd[:4]))} are not multiples"
    return f"fp8 could take 0% of the Linear layers' work: {sizes} of {MULTIPLE}"
