"""Losses beside their bar, and largest batches; golden figures hold ladders and what grows."""

import made_up_records as made_up
import pytest
from conftest import CASES

from mixed_precision_study.report import settings
from mixed_precision_study.store.record import flat_record


@pytest.mark.parametrize(
    "own, base, outcome",
    CASES["losses beside a bar"],
)
def test_a_loss_is_judged_beside_the_bar_and_its_scatter(own, base, outcome):
    def runs_of(losses):
        return [
            flat_record(made_up.make("lstm_language_model", "fp32", train_loss=[one]))
            for one in losses
        ]

    found = settings.judge_loss(runs_of(own), runs_of(base))
    assert (found and found["loss_outcome"]) == outcome
