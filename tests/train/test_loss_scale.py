"""The loss scale step by step, told without asking the device."""

import itertools
import random
import types

import pytest
import torch
from small_training import CPU, make_record

from mixed_precision_study.train.cuda_graph import DeviceScaler
from mixed_precision_study.train.loss_scale import LossScaleTrace, OwnScaler, make_scaler
from mixed_precision_study.train.step import Trainer


def made_trainer(scaler, fixed_scale=None):
    return types.SimpleNamespace(scaler=scaler, fixed_scale=fixed_scale, steps=0)


class Steps:
    """Takes steps with a real GradScaler over one weight, whose gradient overflows on demand."""

    def __init__(self, **options):
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", **options)

    def take(self, trainer, overflows):
        self.optimizer.zero_grad()
        self.scaler.scale(self.weight.sum() * (float("inf") if overflows else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update(trainer.fixed_scale)
        trainer.steps += 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("interval", "growth", "backoff"), [(3, 2.0, 0.5), (1, 2.0, 0.5), (7, 4.0, 0.25)])
def test_a_dynamic_scale_is_followed_without_reading_it(seed, interval, growth, backoff):
    options = {"growth_interval": interval, "growth_factor": growth, "backoff_factor": backoff, "init_scale": 1024.0}
    draw, steps, record = random.Random(seed), Steps(**options), make_record()
    trainer = made_trainer(steps.scaler)
    overflows = [draw.random() < 1 / (interval + 1) for _ in range(200)]  # about as often down as up
    for overflow in (True, True, False, False):  # a warm-up, whose scale and count of good steps are kept
        steps.take(trainer, overflow)
    trainer.steps = 0
    expected, at = [[0, steps.scaler.get_scale()]], iter(range(200))
    for _ in range(4):  # epochs, which go on counting
        trace = LossScaleTrace(record, trainer)
        for step in itertools.islice(at, 50):
            steps.take(trainer, overflows[step])
            trace.step(skipped=overflows[step])
            assert trace.scale == steps.scaler.get_scale(), step
            if trace.scale != expected[-1][1]:
                expected.append([trainer.steps, trace.scale])
        trace.end()
    assert record.loss_scale_trace == expected
    assert len(expected) > 20
    assert record.overflow_steps == [step for step in range(200) if overflows[step]]


def test_a_scale_that_only_falls_comes_to_0_when_the_scalers_own_does():
    steps, record = Steps(), make_record()
    trainer = made_trainer(steps.scaler)
    trace, seen = LossScaleTrace(record, trainer), []
    for _ in range(180):
        steps.take(trainer, overflows=True)
        trace.step(skipped=True)
        seen.append(trace.scale)
        assert trace.scale == steps.scaler.get_scale()
    assert seen.index(0.0) == 165  # 65,536 halved 166 times: fp32 ends at 2^-149
    assert record.loss_scale_trace[-1] == [166, 0.0]


@pytest.mark.parametrize(
    ("precision", "trace", "overflows"),
    [("amp_fp16", [[0, 64.0]], [1, 3]), ("o3_fp16", [[0, 64.0]], [1, 3]), ("amp_bf16", [], [])],
)
def test_a_fixed_scale_has_a_trace_of_one_entry_and_no_scaling_none(precision, trace, overflows):
    record, trainer = make_record(), made_trainer(make_scaler(precision, 64, CPU), fixed_scale=64.0)
    LossScaleTrace(record, trainer).end(step in overflows for step in range(4))
    assert (record.loss_scale_trace, record.overflow_steps) == (trace, overflows)


# The scaler of each mode


@pytest.mark.parametrize(
    ("precision", "loss_scale", "own", "scale"),
    [
        *((name, "dynamic", False, None) for name in ("fp32", "amp_bf16", "o3_fp16")),
        ("tf32", 64, True, None),
        ("amp_fp16", "dynamic", False, 65536.0),
        ("o2_fp16", "dynamic", True, 65536.0),
        *((name, 64, True, 64.0) for name in ("amp_fp16", "o2_fp16", "o3_fp16")),
    ],
)
def test_each_mode_has_its_scaler_which_is_pytorchs_if_possible(precision, loss_scale, own, scale):
    scalers = [make_scaler(precision, loss_scale, CPU, on_device) for on_device in (False, True)]
    assert [type(scaler) for scaler in scalers] == [OwnScaler if own else torch.amp.GradScaler, DeviceScaler]
    assert [(scaler.is_enabled(), scaler.get_scale()) for scaler in scalers] == [(scale is not None, scale or 1.0)] * 2


def test_fp16_gradients_are_unscaled_to_those_of_the_loss():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = make_scaler("o3_fp16", 8, CPU)
    scaler.scale((weight * torch.tensor([1.0, 2.0, 4.0])).sum()).backward()
    assert weight.grad.tolist() == [8, 16, 32]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [1, 2, 4]
    scaler.step(optimizer)  # does not unscale once more
    scaler.update()
    assert weight.tolist() == [0, -1, -3]


class TwoBranches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x, branches):
        return sum(getattr(self, branch)(x) for branch in branches)


def branch_loss(network, batch, hidden):
    x, labels, *branches = batch
    x = x.to(network.left.weight.dtype)
    return torch.nn.functional.cross_entropy(network(x, branches).float(), labels), hidden


@pytest.mark.parametrize("precision", ["amp_fp16", "o2_fp16", "o3_fp16"])
def test_the_gradient_of_an_earlier_step_is_never_used_again(precision):
    trainer = Trainer(TwoBranches(), precision, branch_loss, device=CPU, loss_scale=64, lr=0.5)
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
    trainer.step((*data, "left", "right"))
    both = [weight.detach().clone() for weight in (*trainer.masters, *trainer.weights)]
    trainer.step((*data, "left"))
    moved = [not torch.equal(a, b) for a, b in zip(both, (*trainer.masters, *trainer.weights), strict=True)]
    assert moved == [True, True, False, False] * 2  # weight and bias of either side
    assert trainer.masters[2].grad is None
    trainer.step((*data, "left", "right"))
    assert not torch.equal(both[2], trainer.masters[2])
    assert trainer.skipped_steps == 0
