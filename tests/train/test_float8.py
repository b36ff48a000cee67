"""fp8 training of Linear layers.

PyTorch's scaled matmul runs on a CPU too, so the arithmetic is checked here.
"""

import copy
import itertools

import pytest
import torch
from conftest import seeded
from small_training import sgd_trainer
from torch import nn

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train.float8 import (
    FORWARD,
    GRADIENT,
    Float8Linear,
    Float8Product,
    product,
    scaled,
    use_float8,
    without_float8,
)


def values(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def exact(matrix):
    """Return what a matrix in fp8 stands for, in fp64."""
    return matrix.values.double() * matrix.scale.double()


@pytest.fixture(autouse=True, scope="module")
def _where_pytorch_has_the_product():
    try:
        product(scaled(values(16, 16), FORWARD), scaled(values(16, 16), FORWARD))
    except (RuntimeError, NotImplementedError):
        pytest.skip("this PyTorch has no scaled matmul on this CPU")


@pytest.mark.parametrize("dtype, bits", [(FORWARD, 3), (GRADIENT, 2)])
def test_scaling_uses_the_whole_range_of_the_format(dtype, bits):
    matrix = values(8, 64) * torch.logspace(-3, 3, 8)[:, None]
    rounded = scaled(matrix, dtype)
    most = torch.finfo(dtype).max
    assert most / 2.2 < rounded.values.float().abs().amax() <= most
    error = (exact(rounded) / matrix.double() - 1).abs()[matrix.abs() > matrix.abs().amax() / 100]
    assert error.max() <= 2.0 ** -(bits + 1) * 1.001
    assert (exact(scaled(torch.zeros(16, 16), dtype)) == 0).all()
    assert not exact(scaled(torch.full((16, 16), torch.inf), dtype)).isfinite().all()


def test_a_product_is_that_of_the_rounded_numbers():
    x, weight, gradient = values(32, 48), values(16, 48, seed=1), values(32, 16, seed=2).bfloat16()
    x8, weight8, gradient8 = scaled(x, FORWARD), scaled(weight, FORWARD), scaled(gradient, GRADIENT)
    x.requires_grad_()
    weight.requires_grad_()
    Float8Product.apply(x, weight).backward(gradient)
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    for found, wanted in (
        (product(x8, weight8), exact(x8) @ exact(weight8).t()),
        (x.grad, exact(gradient8) @ exact(weight8)),
        (weight.grad, exact(gradient8).t() @ exact(x8)),
    ):
        assert (found.double() - wanted).abs().max() <= wanted.abs().max() * 2**-7


def layers(*sizes, bias=True):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b, bias) for a, b in itertools.pairwise(sizes)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5, 64), (64,)])
def test_a_layer_is_near_the_ordinary_one(bias, shape):
    plain = layers(64, 32, bias=bias)
    ours = copy.deepcopy(plain)
    assert use_float8(ours) == 1
    inputs = [values(*shape).requires_grad_() for _ in range(2)]
    outputs = [model(x) for model, x in zip((plain, ours), inputs, strict=True)]
    assert outputs[0].shape == outputs[1].shape and outputs[1].dtype == torch.bfloat16
    for output in outputs:
        output.float().square().sum().backward()
    pairs = [*zip(plain.parameters(), ours.parameters(), strict=True), inputs]
    for wanted, got in [outputs, *((a.grad, b.grad) for a, b in pairs)]:
        assert (got.float() - wanted).norm() < 0.08 * wanted.norm()


def test_the_share_of_the_work_counts_weights():
    model = layers(64, 32, 10, 48, 16)  # 64 x 32 and 48 x 16 fit; 32 x 10 and 10 x 48 do not
    assert use_float8(model) == pytest.approx(
        (64 * 32 + 48 * 16) / (64 * 32 + 32 * 10 + 10 * 48 + 48 * 16)
    )
    assert [type(layer) is Float8Linear for layer in model] == [True, False, False, True]
    assert not any(isinstance(layer, Float8Linear) for layer in without_float8(model))
    for without in (layers(64, 10, 3), nn.Conv2d(16, 16, 3)):
        with pytest.raises(Unsupported, match="multiples of 16"):
            use_float8(without)


def squared_loss(model, batch, hidden):
    x, y = batch
    return nn.functional.mse_loss(model(x).float(), y), hidden


def losses_of(precision):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    trainer = sgd_trainer(model, precision, squared_loss, lr=0.5, momentum=0.9)
    inputs = [values(32, 64, seed=number) for number in range(30)]
    return [trainer.step((x, x[:, :16].tanh()))[0].item() for x in inputs], trainer


def test_training_in_fp8_follows_bf16():
    wanted, _ = losses_of("amp_bf16")
    found, trainer = losses_of("fp8")
    assert trainer.fp8_linear_fraction == 1
    assert {weight.dtype for weight in trainer.weights} == {torch.float32}
    assert found != wanted and wanted[-1] < 0.3 * wanted[0]
    assert found[-1] == pytest.approx(wanted[-1], rel=0.05)
