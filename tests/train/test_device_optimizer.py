"""The optimizers of the device update as PyTorch's own."""

import itertools

import pytest
import torch
from conftest import seeded
from torch import nn
from torch.optim import SGD, AdamW

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train import device_optimizer
from mixed_precision_study.train.device_optimizer import DeviceAdamW, DeviceSGD, on_device

OF_SGD = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.01},
    {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
]


OF_ADAMW = [{}, {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.3}]


def make_weights(dtype):
    """Weights in both layouts, with sizes of 1, whose strides are ambiguous."""
    generator = seeded(0)
    weights = [
        torch.randn(*shape, generator=generator)
        for shape in ((4, 3, 3, 3), (4, 1, 3, 3), (4, 3, 1, 1), (5,), (2,))
    ]
    weights = [
        w.to(memory_format=torch.channels_last) if w.dim() == 4 and n != 2 else w
        for n, w in enumerate(weights)
    ]
    return [nn.Parameter(weight.to(dtype)) for weight in weights]


@pytest.mark.parametrize(
    "kind, options, dtype",
    [
        *itertools.product([SGD], OF_SGD, [torch.float32, torch.float16, torch.bfloat16]),
        *itertools.product([AdamW], OF_ADAMW, [torch.float32, torch.bfloat16]),
    ],
)
def test_the_update_is_that_of_torch_with_its_settings(kind, options, dtype):
    ours, theirs = make_weights(dtype), make_weights(dtype)
    optimizers = on_device(kind(ours, 0.1, **options)), kind(theirs, 0.1, foreach=True, **options)
    for step in range(5):
        generator = seeded(step)
        # the last has no gradient, so it stays
        for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
            # always contiguous: another layout
            other.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            mine.grad = other.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    # torch rounds to 16 bits in between
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
    assert type(optimizers[0]) is {SGD: DeviceSGD, AdamW: DeviceAdamW}[kind]
    assert all(a is b for a, b in zip(optimizers[0].weights, ours, strict=True))


class OwnSGD(SGD):
    """A user's own update rule, which the fused kernel does not know."""


@pytest.mark.parametrize(
    "kind, options, says",
    [
        (torch.optim.Adam, {}, "Adam"),
        (OwnSGD, {}, "OwnSGD"),
        (SGD, {"momentum": 0.9, "dampening": 0.1}, "dampening"),
        *((kind, {"maximize": True}, "maximize") for kind in (SGD, AdamW)),
        (AdamW, {"amsgrad": True}, "amsgrad"),
    ],
)
def test_another_optimizer_is_unsupported_on_the_device(kind, options, says):
    with pytest.raises(Unsupported, match=says):
        on_device(kind([nn.Parameter(torch.ones(3))], lr=0.1, **options))


def test_weights_in_pieces_are_updated_as_all_together(monkeypatch):
    found = []
    for numbers in (device_optimizer.AT_ONCE, 200):
        monkeypatch.setattr(device_optimizer, "AT_ONCE", numbers)
        torch.manual_seed(1)
        weights = [torch.nn.Parameter(torch.randn(9, 9).bfloat16()) for _ in range(5)]
        optimizer = on_device(AdamW(weights, 0.1), "kahan")
        for weight in weights:
            weight.grad = torch.randn(9, 9).bfloat16()
        sizes = [len(piece) for piece in device_optimizer.in_pieces([[one] for one in weights])]
        optimizer.step()
        found.append((torch.stack(weights), sizes))
    assert found[0][0].equal(found[1][0])
    assert [sizes for _, sizes in found] == [[5], [2, 2, 1]]
