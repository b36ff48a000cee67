"""Quality by equivalence: margins and intervals."""

import pytest
from made_up_runs import CASES

from mixed_precision_study.judge.equivalence import (
    BETTER,
    EQUIVALENT,
    NOT_WORSE,
    UNKNOWN,
    WORSE,
    quality_difference,
)


def difference(changes, metric="accuracy", better="higher", base=0.935):
    """Return the difference of runs that differ from fp32 by these changes, a seed each."""
    own = {seed: base + change for seed, change in enumerate(changes)}
    return quality_difference(own, dict.fromkeys(own, base), named(metric, better))


def named(metric, better):
    """Return what a record says of its metric."""
    margin = {"accuracy": 0.002, "perplexity": 0.02, "mean_absolute_error": 0.02}.get(metric)
    metric = {"metric_name": metric, "metric_better": better, "metric_margin": margin}
    return metric | {"metric_margin_is_share": metric["metric_name"] == "perplexity"}


@pytest.mark.parametrize("changes, outcome", CASES["accuracies"])
def test_outcomes_of_accuracy(changes, outcome):
    found = difference(changes)
    assert found["outcome"] == outcome
    assert found["seeds"] == len(changes)
    assert (found["low"] is None) == (len(changes) < 3)


def test_an_error_that_grows_is_worse():
    gain = [-0.03, 0.005, -0.025, 0.003, -0.01]
    cases = {WORSE: [0.03, 0.031, 0.029], BETTER: [-0.03, -0.031, -0.029], NOT_WORSE: gain}
    cases[UNKNOWN] = [-one for one in gain]
    for outcome, changes in cases.items():
        assert difference(changes, "mean_absolute_error", "lower", 0.25)["outcome"] == outcome


def test_perplexity_is_compared_as_a_share():
    found = difference([5.0, 5.5, 4.5, 5.0, 5.0], "perplexity", "lower", 100.0)
    assert found["difference"] == pytest.approx(0.05, abs=1e-3) and found["outcome"] == WORSE
    assert (
        difference([0.5, 0.6, 0.4, 0.5, 0.5], "perplexity", "lower", 100.0)["outcome"] == EQUIVALENT
    )
    assert found["is_ratio"] and found["low"] < found["low90"] < found["high90"] < found["high"]


def test_a_metric_without_a_margin_is_never_equivalent():
    found = difference([0.0] * 8, "f1")
    assert found["margin"] is None and found["outcome"] == UNKNOWN
    assert [difference([-0.1, -0.11, -0.09, -0.1, -0.1][:n], "f1")["outcome"] for n in (4, 5)] == [
        UNKNOWN,
        WORSE,
    ]


def test_seeds_are_paired():
    base = {seed: 0.9 + 0.01 * seed for seed in range(6)}
    own = {seed: value - 0.003 for seed, value in base.items()}
    assert quality_difference(own, base, named("accuracy", "higher"))["outcome"] == WORSE
    shifted = {seed + 6: value for seed, value in own.items()}
    assert quality_difference(shifted, base, named("accuracy", "higher")) is None
