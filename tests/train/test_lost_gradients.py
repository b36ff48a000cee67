"""Which gradients fp16 would lose."""

import math

import pytest
import torch
from explained_training import Weights, linear_loss, make_record, make_trainer

from mixed_precision_study.train.loss_scale import flush_fraction, read_gradients


@pytest.mark.parametrize(
    ("values", "scale", "fraction"),
    [
        # The smallest number of fp16 is 2^-24; 2^-25 lies halfway to 0 and is rounded to it.
        ([2**-24, 2**-25, 2**-26, 1.5 * 2**-25, -(2**-30)], 1.0, 3 / 5),
        ([2**-24, 2**-25, 2**-26, 1.5 * 2**-25, -(2**-30)], 1024.0, 0),
        ([2**-24, 2**-35, -(2**-36), 2**-34], 1024.0, 2 / 4),
        ([0.0, 0.0, 1.0, 2**-30], 1.0, 1 / 2),  # elements that are 0 are not counted
        ([0.0, 0.0], 1.0, 0),
        ([1.0, 2.0], 2.0**20, 0),  # what overflows is not lost to 0
    ],
)
def test_the_fraction_that_is_lost_in_fp16(values, scale, fraction):
    gradients = torch.tensor(values)
    assert flush_fraction([gradients], scale) == pytest.approx(fraction)
    assert flush_fraction(list(gradients.split(1)), scale) == pytest.approx(fraction)  # over all tensors


@pytest.mark.parametrize(
    ("precision", "last", "lost", "reason"),
    [
        *((name, 0.5, (3 / 4, 1 / 4), None) for name in ("amp_fp16", "o2_fp16")),
        ("amp_fp16", math.inf, (None, None), "the gradients are not finite even in fp32"),
        *((name, 0.5, (None, None), None) for name in ("fp32", "amp_bf16")),
    ],
)
def test_lost_gradients_of_fp16_are_measured_with_and_without_the_scale_and_without_a_search(
    monkeypatch, precision, last, lost, reason
):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = []

    def loss(network, batch, hidden):
        seen.append(torch.backends.cudnn.benchmark)
        return linear_loss(network, batch, hidden)

    record, trainer = make_record(precision), make_trainer(precision, loss, Weights(5), loss_scale=1024.0)
    batch = torch.tensor([2.0**-40, 2.0**-30, 2.0**-25, 0.0, last])  # the third is lost, but twice it is not
    trainer.step(batch)
    read_gradients(record, trainer, iter([batch]), None)
    assert (record.gradient_flush_fraction_scale_1, record.gradient_flush_fraction_scaled) == lost
    assert record.gradient_reason == reason
    assert trainer.steps == 1
    assert seen == [True, False][: 1 + ("fp16" in precision)] and torch.backends.cudnn.benchmark
