"""What 16-bit weights lose to rounding, and stochastic rounding, which loses nothing on average."""

import pytest
import torch
from explained_training import Weights, linear_loss, make_record
from small_training import sgd_trainer
from torch.optim import AdamW

from mixed_precision_study.explain.lost_updates import read_lost_updates
from mixed_precision_study.train.device_optimizer import (
    rounded_at_random,
)


def trainer_of(precision="bf16_true", **options):
    return sgd_trainer(Weights(1000, 1.0), precision, linear_loss, **options)


def gradients(value):
    return iter([torch.full((1000,), value)] * 3)


def adamw(weights):
    return AdamW(weights, lr=1e-3, weight_decay=0.0)


def measured(value, **options):
    record, trainer = make_record("bf16_true"), trainer_of(**options)
    read_lost_updates(record, trainer, gradients(value))
    return record


def test_an_update_below_half_a_unit_is_lost():
    """Around 1 the next smaller bf16 is 1 - 2^-8: an update of 2^-10 is lost, one of 2^-8
    arrives.
    """
    torch.manual_seed(0)
    small, large = (measured(1.0, lr=lr) for lr in (2**-10, 2**-8))
    assert (small.lost_update_fraction, small.kept_update_fraction) == (1, 0)
    assert (large.lost_update_fraction, large.kept_update_fraction) == (0, 1)
    at_random = measured(1.0, lr=2**-10, rounding="stochastic")
    # a quarter of the step: one weight in four
    assert at_random.lost_update_fraction == pytest.approx(0.75, abs=0.06)
    assert at_random.kept_update_fraction == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize(
    "options", [{}, {"scaler": "device"}, {"execution": "cuda_graph"}], ids=str
)
def test_the_optimizers_state_counts(options):
    record, trainer = make_record("bf16_true"), trainer_of(make_optimizer=adamw, **options)
    for batch in gradients(1.0):
        trainer.step(batch)
    read_lost_updates(record, trainer, gradients(1.0))
    # 1e-3 is a quarter of 2^-8
    assert (record.lost_update_fraction, record.kept_update_fraction) == (1, 0)


def test_modes_with_fp32_weights_have_none():
    record = make_record("fp32")
    read_lost_updates(record, trainer_of("fp32", lr=0.1), gradients(1.0))
    assert (
        record.lost_update_fraction is record.kept_update_fraction is record.update_reason is None
    )
    nothing = measured(0.0, lr=0.1)
    assert (
        nothing.lost_update_fraction is None and nothing.update_reason == "the step updated nothing"
    )


def test_rounding_at_random_is_right_on_average():
    torch.manual_seed(0)
    for value in (1 + 2**-9, -3.3, 1e-20, 0.1):
        rounded = rounded_at_random(torch.full((40_000,), value))
        assert rounded.dtype == torch.bfloat16 and len(rounded.unique()) == 2
        spacing = (rounded.float().max() - rounded.float().min()).item()
        assert abs(rounded.double().mean().item() - value) < 0.02 * spacing
    kept = torch.tensor([0.0, 1.0, -2.5, float("inf"), -float("inf")])
    assert torch.equal(rounded_at_random(kept).float(), kept)
    assert rounded_at_random(torch.tensor([float("nan")])).isnan().all()
