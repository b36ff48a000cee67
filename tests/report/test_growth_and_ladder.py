"""Losses beside their bar, and largest batches; golden figures hold ladders and what grows."""

import made_up_records as made_up
import pytest

from mixed_precision_study.report import settings
from mixed_precision_study.store.record import flat_record


@pytest.mark.parametrize(
    "own, base, outcome",
    [
        ([4.0] * 3, [4.0] * 3, "within"),
        ([4.03] * 3, [4.0] * 3, "outside"),
        # equal runs differ by more than the distance from the bar
        ([4.03, 4.03, 4.05], [4.0] * 3, "inconclusive"),
        ([4.0] * 2, [4.0] * 3, "fewer than three runs"),
        ([], [4.0], None),
    ],
)
def test_a_loss_is_judged_beside_the_bar_and_its_scatter(own, base, outcome):
    def runs_of(losses):
        return [
            flat_record(made_up.make("lstm_language_model", "fp32", train_loss=[one]))
            for one in losses
        ]

    found = settings.judge_loss(runs_of(own), runs_of(base))
    assert (found and found["loss_outcome"]) == outcome
