"""Runs under other conditions: each difference is named, and some allow no outcome."""

import pytest
from made_up_runs import CASES, HOT, compared, flat, profiled, setting

from mixed_precision_study.judge.conditions import (
    HOST,
    SOFTWARE,
    conditions_of,
    differences,
    differences_in,
    fairly_timed,
    flags_of,
    no_outcome_in,
)
from mixed_precision_study.judge.finding import Finding
from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.judge.verdict import (
    CANNOT_BE_TOLD,
    FASTER,
    LITTLE_FASTER,
    OTHER_CONDITIONS,
    judge,
)

USUAL = {
    "sm_clock_mhz_median": 1980.0,
    "throttled": False,
    "throttle_fractions": [],
    "gpu_shared": False,
}
CAPPED, HEATED = CASES["power"], CASES["heat"]
FP32_FIRST = Finding("order", "fp32", {"other": "amp_fp16"})


def pair(own=None, base=None):
    """Return a run and its base, equal but for these fields."""
    return {**profiled(**USUAL), **(own or {})}, {
        **profiled(precision="fp32", **USUAL),
        **(base or {}),
    }


def test_flags_name_what_held_in_a_twentieth_of_the_samples():
    assert flags_of(flat()) == []
    assert [len(flags_of(flat(**more, gpu_shared=True))) for more in ({}, HOT)] == [1, 2]
    at_limit = flat(throttled=True, throttle_fractions=[["power cap", 0.4], ["heat", 0.04]])
    assert flags_of(at_limit) == []
    limit = Finding("power_limit", "one", {"share": 0.4})
    assert conditions_of(at_limit, "one") == [limit]
    heated = Finding("throttled", "one", {"reasons": {"heat": 0.05}})
    assert conditions_of(flat(**HOT), "one") == [heated, limit]
    assert conditions_of(flat(throttled=False, throttle_fractions=[["power cap", 0.4]])) == []


def test_equal_conditions_have_no_difference():
    assert differences(*pair()) == []
    assert no_outcome_in([pair()]) is None
    graph, eager = pair({"kernel_forked": True}, {"precision": "amp_fp16"})
    for changed, name in (
        ({"execution": "cuda_graph"}, "cuda_graph"),
        ({"batch_size": 512}, "batch_size=512"),
    ):
        assert differences(setting(graph, **changed), eager) == [Finding("forked", name)]
    assert differences(*pair(HEATED, HEATED)) == []


@pytest.mark.parametrize("field", [*SOFTWARE, *HOST])
def test_every_difference_in_software_and_host_is_named(field):
    for value in ("another", None):
        both = pair({field: "one"}, {field: value})
        (found,) = differences(*both)
        assert found == Finding(field, "", {"own": "one", "base": value})
        assert no_outcome_in([both]) is None


@pytest.mark.parametrize("own, base, named, refused", CASES["conditions"])
def test_what_is_named_and_what_allows_no_outcome(own, base, named, refused):
    both = pair(own, base)
    assert bool(differences(*both)) is named
    assert bool(no_outcome_in([both])) is bool(no_outcome_in([both[::-1]])) is refused


def test_a_precision_that_always_ran_first_is_named():
    def pairs(*orders, **base_fields):
        at = [[time and f"2026-01-01T00:{time:02}:00+00:00" for time in order] for order in orders]
        return [pair({"started_at": own}, {"started_at": base} | base_fields) for own, base in at]

    assert differences_in(pairs((11, 10), (13, 12), (15, 14))) == [FP32_FIRST]
    amp_first = Finding("order", "amp_fp16", {"other": "fp32"})
    assert differences_in(pairs((10, 11), (12, 13))) == [amp_first]
    for others in ((12, 13), (None, 14), (15, 15)):
        assert differences_in(pairs((11, 10), (13, 12), others)) == []
    assert differences_in(pairs((11, 10))) == []  # one process has no outcome anyway
    # side by side on two GPUs
    assert differences_in(pairs((11, 10), (13, 12), gpu_uuid="GPU-9")) == []


@pytest.mark.parametrize(
    "execution, outcome", [("eager", CANNOT_BE_TOLD), ("cuda_graph", LITTLE_FASTER)]
)
def test_one_order_counts_where_times_may_drift(execution, outcome):
    pairs = compared(1.04, repetitions=3)
    for runs, places in zip(pairs, ((2, 1), (4, 0), (3, 2)), strict=True):
        for run, place in zip(runs, places, strict=True):
            run |= {"started_at": "2026-01-01", "runs_before_in_process": place}
            run["settings"]["execution"] = execution
    speedup = paired_ratio(pairs)
    assert (bool(speedup["one_order"]), judge(speedup)) == (outcome == CANNOT_BE_TOLD, outcome)
    assert FP32_FIRST in speedup["differences"]


def test_pairs_slowed_by_heat_are_left_out_and_counted():
    slow = {**HEATED, "epoch_seconds": [90.0, 90.0, 90.0], "block_seconds": []}

    def said(heated, repetitions):
        pairs = compared(2.0, repetitions=repetitions)
        for number in heated:
            pairs[number] = ({**pairs[number][0], **slow}, pairs[number][1])
        speedup = paired_ratio(pairs)
        return judge(speedup), round(speedup["ratio"], 1), speedup["differences"]

    assert said([], 4) == (FASTER, 2.0, [])
    assert said([1], 4) == (
        FASTER,
        2.0,
        [Finding("left_out", values={"number": 1, "total": 4})],
    )
    assert said([1], 3)[:2] == ("two_processes", 2.0)
    word, ratio, differences = said([0, 1, 2], 3)  # nothing else is there, so nothing is left out
    codes = [one.code for one in differences]
    assert (word, ratio < 1, "left_out" in codes) == (OTHER_CONDITIONS, True, False)
    disturbed = [HEATED, {**HEATED, "throttled": False, "gpu_shared": True}]
    assert (fairly_timed([USUAL, CAPPED, *disturbed]), fairly_timed(disturbed)) == (
        [USUAL, CAPPED],
        disturbed,
    )
    pairs = compared(2.0, repetitions=3)
    pairs[1][0]["sm_clock_mhz_median"], pairs[1][1]["sm_clock_mhz_median"] = 1500.0, 1980.0
    assert judge(paired_ratio(pairs)) == OTHER_CONDITIONS  # one pair refuses the outcome of all
