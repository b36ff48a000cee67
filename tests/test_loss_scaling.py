"""The loss scale step by step, told without asking the device."""

import itertools
import random
import types

import pytest
import torch
from small_training import make_record

from mixed_precision_study.loss_scaling import HalfScaler, ScaleTrace


def made_trainer(scaler, fixed_scale=None):
    return types.SimpleNamespace(scaler=scaler, fixed_scale=fixed_scale, steps=0)


class Steps:
    """Takes steps with a real GradScaler over one weight, with a gradient that overflows where it is told to."""

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
def test_a_dynamic_scale_is_followed_without_asking(seed, interval, growth, backoff):
    options = {"growth_interval": interval, "growth_factor": growth, "backoff_factor": backoff, "init_scale": 1024.0}
    draw, steps, record = random.Random(seed), Steps(**options), make_record()
    trainer = made_trainer(steps.scaler)
    overflows = [draw.random() < 1 / (interval + 1) for _ in range(200)]  # about as often down as up
    expected, at = [[0, 1024.0]], iter(range(200))
    for _ in range(4):  # epochs, which go on counting
        trace = ScaleTrace(record, trainer)
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


def test_a_scale_that_settled_in_warm_up_is_where_the_trace_begins():
    steps, record = Steps(growth_interval=4), make_record()
    trainer = made_trainer(steps.scaler)
    for overflows in (True, True, False, False, False):
        steps.take(trainer, overflows)
    trainer.steps = 0  # as after warm-up
    trace = ScaleTrace(record, trainer)
    steps.take(trainer, False)  # the fourth good one
    trace.step(skipped=False)
    assert trace.scale == steps.scaler.get_scale() == 32768
    assert record.loss_scale_trace == [[0, 16384.0], [1, 32768.0]]


def test_a_scale_that_only_falls_comes_to_0_when_the_scalers_own_does():
    steps, record = Steps(), make_record()
    trainer = made_trainer(steps.scaler)
    trace, seen = ScaleTrace(record, trainer), []
    for _ in range(180):
        steps.take(trainer, overflows=True)
        trace.step(skipped=True)
        seen.append(trace.scale)
        assert trace.scale == steps.scaler.get_scale()
    assert seen.index(0.0) == 165  # 65,536 halved 166 times: fp32 ends at 2^-149
    assert record.loss_scale_trace[-1] == [166, 0.0]


def test_a_fixed_scale_stays_and_skipped_steps_are_noted():
    steps, record = Steps(init_scale=128.0), make_record()
    trainer = made_trainer(steps.scaler, fixed_scale=128.0)
    trace = ScaleTrace(record, trainer)
    for overflows in (False, True, False, True):
        steps.take(trainer, overflows)
        trace.step(skipped=overflows)
        assert trace.scale == steps.scaler.get_scale() == 128
    trace.end()
    assert record.loss_scale_trace == [[0, 128.0]]
    assert record.overflow_steps == [1, 3]


def test_a_scale_of_fp16_weights_is_fixed_too():
    record, trainer = make_record(), made_trainer(HalfScaler(64), fixed_scale=64.0)
    trace = ScaleTrace(record, trainer)
    trainer.steps = 1
    trace.step(skipped=True)
    trace.end()
    assert record.loss_scale_trace == [[0, 64.0]]
    assert record.overflow_steps == [0]


def test_without_scaling_there_is_no_trace():
    record, trainer = make_record(), made_trainer(torch.amp.GradScaler("cpu", enabled=False))
    trace = ScaleTrace(record, trainer)
    for _ in range(3):
        trainer.steps += 1
        trace.step(skipped=False)
    trace.end()
    assert record.loss_scale_trace == record.overflow_steps == []
    assert trace.scale is None


def test_each_repeat_is_counted_anew():
    record = make_record()
    for overflows in ((False, True), (True, False)):
        steps = Steps(init_scale=128.0)
        trainer = made_trainer(steps.scaler, fixed_scale=128.0)
        trace = ScaleTrace(record, trainer)
        for skipped in overflows:
            steps.take(trainer, skipped)
            trace.step(skipped)
        trace.end()
    assert record.overflow_steps == [1, 0]
    steps = Steps(init_scale=128.0)
    steps.take(made_trainer(steps.scaler), True)
    record, trainer = make_record(loss_scale_trace=[[0, 128.0], [5, 64.0]]), made_trainer(steps.scaler)
    ScaleTrace(record, trainer)
    assert record.loss_scale_trace == [[0, 128.0], [5, 64.0], [0, 64.0]]  # noted, although the scale is the same
