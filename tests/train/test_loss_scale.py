"""The loss scale step by step, told without asking the device, and which gradients fp16 would
lose.
"""

import math
import random
import types

import pytest
import torch
from conftest import CASES, seeded
from explained_training import Weights, linear_loss, make_record
from explained_training import make_trainer as trainer_of
from small_training import CPU, SCALED, sgd_trainer
from torch import nn
from torch.amp import GradScaler
from torch.backends import cudnn

from mixed_precision_study.train.cuda_graph import DeviceScaler
from mixed_precision_study.train.loss_scale import (
    LossScaleTrace,
    OwnScaler,
    flush_fraction,
    make_scaler,
    read_gradients,
)


def made_trainer(scaler, fixed_scale=None):
    return types.SimpleNamespace(scaler=scaler, fixed_scale=fixed_scale, steps=0)


@pytest.mark.any_python
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "interval, growth, backoff, share",  # the last only falls, until fp32 ends at 2^-149
    [(3, 2.0, 0.5, 1 / 4), (1, 2.0, 0.5, 1 / 2), (7, 4.0, 0.25, 1 / 8), (2000, 2.0, 0.5, 1)],
)
def test_a_dynamic_scale_is_followed_without_reading_it(seed, interval, growth, backoff, share):
    rule = {
        "growth_interval": interval,
        "growth_factor": growth,
        "backoff_factor": backoff,
        "init_scale": 1024.0,
    }
    draw, weight, scaler = (
        random.Random(seed),
        nn.Parameter(torch.zeros(1)),
        GradScaler("cpu", **rule),
    )
    optimizer, record, trainer = (
        torch.optim.SGD([weight], lr=0.1),
        make_record(),
        made_trainer(scaler),
    )
    overflows = [draw.random() < share for _ in range(200)]

    def take(overflow):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        trainer.steps += 1

    # a warm-up, whose scale and count of good steps are kept
    for overflow in (True, True, False, False):
        take(overflow)
    trainer.steps = 0
    expected = [[0, scaler.get_scale()]]
    for epoch in range(4):  # which go on counting
        trace, skipped = LossScaleTrace(record, trainer), overflows[50 * epoch : 50 * epoch + 50]
        for overflow in skipped:
            take(overflow)
            if scaler.get_scale() != expected[-1][1]:
                expected.append([trainer.steps, scaler.get_scale()])
        trace.end(skipped)
    assert record.loss_scale_trace == expected
    assert len(expected) > 20 and (expected[-1][1] == 0) is (share == 1)
    assert record.overflow_steps == [step for step in range(200) if overflows[step]]


@pytest.mark.parametrize(
    "precision, loss_scale, own, scale",
    CASES["scalers"],
)
def test_each_mode_has_its_scaler_which_is_pytorchs_if_possible(precision, loss_scale, own, scale):
    scalers = [make_scaler(precision, loss_scale, CPU, on_device) for on_device in (False, True)]
    assert [type(scaler) for scaler in scalers] == [
        OwnScaler if own else GradScaler,
        DeviceScaler,
    ]
    assert [(scaler.is_enabled(), scaler.get_scale()) for scaler in scalers] == [
        (scale is not None, scale or 1.0)
    ] * 2


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, branches):
        return sum(getattr(self, branch)(x) for branch in branches)


def branch_loss(network, batch, hidden):
    x, labels, *branches = batch
    x = x.to(network.left.weight.dtype)
    return nn.functional.cross_entropy(network(x, branches).float(), labels), hidden


@pytest.mark.parametrize("precision", SCALED)
def test_the_gradient_of_an_earlier_step_is_never_used_again(precision):
    trainer = sgd_trainer(TwoBranches(), precision, branch_loss, loss_scale=64, lr=0.5)
    data = torch.randn(8, 4, generator=seeded(1)), torch.arange(8) % 3
    trainer.step((*data, "left", "right"))
    both = [weight.detach().clone() for weight in (*trainer.masters, *trainer.weights)]
    trainer.step((*data, "left"))
    moved = [
        not torch.equal(a, b)
        for a, b in zip(both, (*trainer.masters, *trainer.weights), strict=True)
    ]
    assert moved == [True, True, False, False] * 2  # weight and bias of either side
    assert trainer.masters[2].grad is None
    trainer.step((*data, "left", "right"))
    assert not torch.equal(both[2], trainer.masters[2])
    assert trainer.skipped_steps == 0


@pytest.mark.parametrize(
    "values, scale, fraction",
    CASES["lost in fp16"],
)
def test_the_fraction_that_is_lost_in_fp16(values, scale, fraction):
    gradients = torch.tensor(values) * 2**-24
    assert flush_fraction([gradients], scale) == pytest.approx(fraction)
    # over all tensors
    assert flush_fraction(list(gradients.split(1)), scale) == pytest.approx(fraction)


@pytest.mark.parametrize(
    "precision, last, lost, reason",
    [
        *((name, 0.5, (3 / 4, 1 / 4), None) for name in ("amp_fp16", "o2_fp16")),
        ("amp_fp16", math.inf, (None, None), "the gradients are not finite even in fp32"),
        *((name, 0.5, (None, None), None) for name in ("fp32", "amp_bf16")),
    ],
)
def test_lost_gradients_are_measured_with_either_scale(monkeypatch, precision, last, lost, reason):
    monkeypatch.setattr(cudnn, "benchmark", True)
    seen = []

    def loss(network, batch, hidden):
        seen.append(cudnn.benchmark)
        return linear_loss(network, batch, hidden)

    record, trainer = (
        make_record(precision),
        trainer_of(precision, loss, Weights(5), loss_scale=1024.0),
    )
    # the third is lost, but twice it is not
    batch = torch.tensor([2.0**-40, 2.0**-30, 2.0**-25, 0.0, last])
    trainer.step(batch)
    read_gradients(record, trainer, iter([batch]))
    assert (record.gradient_flush_fraction_scale_1, record.gradient_flush_fraction_scaled) == lost
    assert record.gradient_reason == reason
    assert trainer.steps == 1
    assert seen == [True, False][: 1 + ("fp16" in precision)] and cudnn.benchmark
