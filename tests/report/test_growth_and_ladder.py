"""Losses beside their bar, and largest batches; golden figures hold ladders and what grows."""

import made_up_records as made_up
import pytest
from drawn_reports import read_all

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


def test_largest_batches_trained_and_the_next_did_not_fit(tmp_path):
    runs = []
    for precision, size, seconds in (("fp32", 256, 5.0), ("amp_fp16", 512, 2.5)):
        probes = [
            [size // 2, "ok", 2000.0, 4000.0],
            [2 * size, "oom", 8000.0, None],
            [size, "ok", 4000.0, 7000.0],
        ]
        facts = {
            "batch_size_used": size,
            "samples_per_epoch": 50_000 // size * size,
            "batch_probes": probes,
            "seconds": [seconds] * 6,
            "parameters": {"batch_size": "max"},
        }
        runs.append(made_up.make("cifar_resnet", precision, **facts))
    found = read_all(tmp_path, *runs)
    rows = settings.largest_of(found).set_index("precision")
    assert rows[["batch", "too_large", "base_batch"]].to_dict("index") == {
        "fp32": {"batch": 256, "too_large": 512, "base_batch": 256},
        "amp_fp16": {"batch": 512, "too_large": 1024, "base_batch": 256},
    }
    speed = (50_000 // 512 * 512 / 2.5) / (50_000 // 256 * 256 / 5)  # per sample
    assert rows.ratio["amp_fp16"] == pytest.approx(speed)
    assert "2.0" in settings.growth_section(found).finding
