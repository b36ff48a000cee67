"""Whether a run learned as its baseline did, and which runs of a comparison did not train."""

import pytest
from made_up_runs import CASES, flat, setting

from mixed_precision_study.judge.divergence import find_diverged
from mixed_precision_study.judge.finding import Finding
from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.judge.trained import by_seed, quality_lost, why_not_trained

ACCURACY, ERROR, WORDS = CASES["metrics"].values()
FP32 = ACCURACY | {"metric": [0.5, 0.9]}
STEPS = {"steps_per_epoch": 390, "epoch_seconds": [4.0] * 3}


def reason(*own, base=None):
    """Return why runs of amp_fp16 did not train as fp32, all as fp32 usually does but for these
    fields.
    """
    fp32 = flat("fp32", **{**FP32, **STEPS, **(base or {})})
    return why_not_trained([(flat(**{**FP32, **STEPS, **fields}), fp32) for fields in own])


@pytest.mark.parametrize(
    "skipped, told", [(9, False), (10, False), (11, False), (12, True), (1170, True), (None, False)]
)
def test_skipped_steps_count_from_a_hundredth_on(skipped, told):
    assert bool(reason({"skipped_steps": skipped})) is told
    # a baseline that did not train is none
    assert bool(reason({}, base={"skipped_steps": skipped})) is told
    short = reason({"skipped_steps": skipped, "steps_per_epoch": 20})
    assert bool(short) is ((skipped or 0) >= 10)  # fewer are the usual search for a scale


@pytest.mark.parametrize("metric", [[0.5, None], [float("nan")], []])
def test_a_last_metric_that_is_missing_or_not_finite_is_told(metric):
    lost = {
        name: Finding("no_metric", name, {"metric": "accuracy"}) for name in ("amp_fp16", "fp32")
    }
    assert reason({"metric": metric}) == lost["amp_fp16"]
    assert reason({}, base={"metric": metric}) == lost["fp32"]
    assert reason({"metric": []}, base={"metric": []}) is None  # neither was evaluated


@pytest.mark.parametrize("kind, base, last, told", CASES["gains"])
def test_less_than_half_of_the_gain_over_chance_is_told(kind, base, last, told):
    runs = [{**kind, "metric": [one]} for one in (last, base, last)]  # their median counts
    assert bool(reason(*runs, base=runs[1])) is told
    assert not reason(*runs[:2], runs[1], base=runs[1])


def ends(precision, *last, **fields):
    """Return runs of a precision with these last metrics, one for each seed."""
    fields = {**FP32, **STEPS, **fields}
    return [
        flat(precision, {"seed": seed}, **{**fields, "metric": [one]})
        for seed, one in enumerate(last)
    ]


@pytest.mark.parametrize(
    "precision, code", [("bf16_true", "lost_by_rounding"), ("o3_fp16", "lost")]
)
def test_a_mode_without_fp32_weights_loses_quality(precision, code):
    lost = Finding(code, "", {"metric": "accuracy", "own": 0.897, "base": 0.9})
    pair = ends(precision, 0.897)[0], ends("fp32", 0.9)[0]
    assert quality_lost(pair[:1], pair[1:]) == paired_ratio([pair])["lost"] == lost
    assert paired_ratio([pair[::-1]])["lost"] is None
    assert quality_lost(ends(precision, 0.899), ends("fp32", 0.9)) is None
    assert quality_lost(ends(precision, 0.95), ends("fp32", 0.9)) is None  # better


def test_perplexity_is_lost_upwards():
    own, base = ends("bf16_true", 226.0, **WORDS), ends("fp32", 147.0, **WORDS)
    values = {"metric": "perplexity", "own": 226.0, "base": 147.0}
    assert quality_lost(own, base) == Finding("lost_by_rounding", "", values)
    tried = [setting(run, rounding="stochastic") for run in own]
    assert quality_lost(tried, base) == Finding("lost", "", values)
    assert quality_lost(ends("bf16_true", 120.0, **WORDS), base) is None


def test_other_precisions_lose_quality_beyond_the_scatter():
    assert quality_lost(ends("amp_fp16", 0.85), ends("fp32", 0.9)) is None
    assert quality_lost(ends("amp_fp16", 0.85, 0.86, 0.87), ends("fp32", 0.90, 0.91, 0.92))
    assert quality_lost(ends("amp_fp16", 0.90, 0.86, 0.93), ends("fp32", 0.90, 0.91, 0.92)) is None


def test_no_quality_is_lost_where_it_cannot_be_compared():
    own = ends("bf16_true", 0.5)
    assert quality_lost(own, []) is None
    assert quality_lost(own, ends("fp32", 0.9, chance_metric=None)) is None
    assert quality_lost(own, ends("fp32", 0.9, metric_margin=None)) is None  # no margin is known
    assert quality_lost([setting(own[0], seed=7)], ends("fp32", 0.9)) is None
    # fp32 has hardly learned
    assert quality_lost(ends("bf16_true", 0.11), ends("fp32", 0.12)) is None


NOISY = ERROR | {"metric": [0.5, 0.3, 0.25, 0.33]}
GOES_ON = [1.8, 0.7, 0.6, 0.65]


@pytest.mark.parametrize(
    "loss, has_trained",
    CASES["jumps"],
)
def test_a_metric_that_jumped_last_is_no_divergence(loss, has_trained):
    own = flat("tf32", **STEPS, **NOISY, train_loss=loss)
    base = flat("fp32", **STEPS, **{**NOISY, "metric": [0.5, 0.3, 0.25, 0.24]}, train_loss=GOES_ON)
    assert (set(find_diverged([own, base])) == set()) is has_trained
    assert (why_not_trained([(own, base)]) is None) is has_trained
    assert by_seed([own]) == {0: 0.33}  # quality keeps it
    two_bad_epochs = own | {"metric": [0.5, 0.25, 0.33, 0.33]}
    assert set(find_diverged([two_bad_epochs, base])) == {0}


def run(precision, metric, **fields):
    return flat() | {**ACCURACY, "precision": precision, "metric": metric, **fields}


@pytest.mark.parametrize("runs, diverged", CASES["diverged"])
def test_a_run_at_chance_is_found_where_another_learned(runs, diverged):
    found = find_diverged([run(str(place), **fields) for place, fields in enumerate(runs)])
    assert {place: one.code for place, one in found.items()} == diverged


@pytest.mark.parametrize("steps, told", [(16, False), (17, True), (390, True)])
def test_after_fewer_than_fifty_steps_no_metric_tells(steps, told):
    made = {**FP32, "steps_per_epoch": steps, "epoch_seconds": [4.0] * 3}
    base, half, chance = (flat(**{**made, "metric": [last]}) for last in (0.9, 0.3, 0.1))
    assert bool(why_not_trained([(half, base)])) is told
    assert bool(find_diverged([{**base, "precision": "fp32"}, chance])) is told
    tuned = chance | {"settings": {**chance["settings"], "init_from": "base.pt"}}
    assert find_diverged([{**base, "precision": "fp32"}, tuned]) == {}  # it may begin below chance


def test_runs_are_judged_by_fp32_and_by_those_that_learned():
    def found(fp32, tf32):
        runs = [run("fp32", [fp32]), run("tf32", [tf32]), run("o3_fp16", [0.1])]
        return {runs[place]["precision"] for place in find_diverged(runs)}

    assert found(0.9, 0.9) == {"o3_fp16"}
    assert found(0.1, 0.9) == {"fp32", "o3_fp16"}
    assert found(0.1, 0.4) == set()  # one lucky run is no measure
    assert found(0.3, 0.1) == {"tf32", "o3_fp16"}
