"""Seconds and joules until a target is reached."""

import pytest

from mixed_precision_study.judge.time_to_target import target_of, to_target


def run(seconds=(10.0, 10.0, 10.0), metric=(0.5, 0.93, 0.9), **more):
    facts = {
        "metric_better": "higher",
        "metric_target": 0.92,
        "settings": {"epochs": 3},
        "energy_joules": 600.0,
    }
    return {**facts, "epoch_seconds": list(seconds), "metric": list(metric), **more}


def test_the_targets_are_the_experiments_or_the_asked_one():
    assert target_of(run()) == 0.92
    assert target_of(run(), 0.8) == 0.8
    assert [target_of(run(**{name: None})) for name in ("metric_target", "metric_better")] == [
        None
    ] * 2


def test_what_is_not_reached_has_no_seconds():
    found = [
        to_target(run(metric=one), 0.92)
        for one in ([0.5, 0.93, 0.9], [0.95, 0.9, 0.9], [None, 0.6, None])
    ]
    assert found == [(2, 20, pytest.approx(400)), (1, 10, pytest.approx(200)), (None, None, None)]
    assert to_target(run((10.0, 20.0, 30.0)), 0.92) == (2, 30, 300)
    lower = to_target(
        run(metric=(170.0, 161.0, 160.0), metric_better="lower", energy_joules=None), 160.0
    )
    assert (lower.epochs, lower.joules) == (3, None)
