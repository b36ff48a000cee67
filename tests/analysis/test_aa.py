"""Equal runs against each other: how they are split, and that the rate shows a judge that claims too much."""

import itertools
import math
from collections import Counter
from statistics import fmean

import numpy as np
import pytest
from made_up_runs import timed

from mixed_precision_study.analysis import aa
from mixed_precision_study.analysis.aa import blocks_of, equal_runs, false_positive_rate, same_host, splits_of


def equal(count=24, scatter=0.1, drift=0.0, seed=0, seconds=10.0, **fields):
    """Return equal runs in their order. Their times scatter by a share, and grow by `drift` from first to last."""
    draw = np.random.default_rng(seed).normal(0, scatter, count)
    runs = []
    for number in range(count):
        factor = math.exp(draw[number] + drift * number / count)
        facts = {"order_in_comparison": number, "started_at": f"2026-01-01T00:{number:02}:00+00:00", **fields}
        parameters = {"purpose": "aa", "repeat": number}
        runs.append(timed(np.full((3, 10), seconds * factor / 10), "amp_bf16", parameters, **facts))
    return runs


def differs_by_a_percent(pairs):
    """A judge who takes every difference for one of the precisions."""
    ratios = [math.log(sum(base["epoch_seconds"]) / sum(own["epoch_seconds"])) for own, base in pairs]
    return abs(fmean(ratios)) > 0.01


@pytest.fixture
def few_splits(monkeypatch):
    monkeypatch.setattr(aa, "MOST_SPLITS", 100)


@pytest.mark.parametrize("drift", [0.0, 0.4])
def test_the_rules_of_the_suite_call_equal_runs_different_about_as_often_as_they_promise(drift, few_splits):
    """A hundred splits of one set of 24 tell the true rate within 3%, so those of eight sets do within 1%."""
    rates = [false_positive_rate(equal(drift=drift, seed=seed))["rate"] for seed in range(8)]
    assert 0.02 < fmean(rates) < 0.08, rates


def test_a_judge_who_claims_too_much_is_seen():
    found = false_positive_rate(equal(), differs_by_a_percent)
    assert found["rate"] > 0.7
    assert found["rate"] - 3 * found["error"] > 0.2


def test_equal_runs_that_hardly_scatter_are_never_called_different(few_splits):
    found = false_positive_rate(equal(count=16, scatter=0.001))
    assert (found["rate"], found["error"], found["processes"]) == (0, 0, 16)
    assert found["scatter"] == pytest.approx(0.001, rel=0.5)


def slowed(runs, factors):
    """Return the runs, each so many times as slow."""
    times = [run["block_seconds"] for run in runs]
    return [
        timed(factor * np.reshape(seconds, (3, 10)), "amp_bf16") for factor, seconds in zip(factors, times, strict=True)
    ]


def test_a_change_from_block_to_block_is_no_difference_but_one_within_blocks_is(few_splits):
    """As in a real comparison of three processes and four precisions."""
    monotonous = equal(count=16, scatter=1e-5)
    from_block_to_block = slowed(monotonous, [1 + number // 4 for number in range(16)])
    assert false_positive_rate(from_block_to_block)["rate"] == 0
    within_blocks = slowed(monotonous, [1 + number % 2 / 2 for number in range(16)])
    assert false_positive_rate(within_blocks)["rate"] > 0.02


@pytest.mark.parametrize(
    ("count", "size", "blocks", "splits"), [(24, 4, 6, 2000), (12, 4, 3, 1728), (9, 3, 3, 216), (6, 2, 3, 8)]
)
def test_a_split_takes_two_neighbours_from_each_of_three_blocks(count, size, blocks, splits):
    runs = list(range(count))
    cut = blocks_of(runs)
    assert list(itertools.chain(*cut)) == runs
    assert [len(block) for block in cut] == [size] * blocks
    found = splits_of(cut)
    assert len(found) == splits
    assert splits_of(cut) == found  # drawn again
    for split in found:
        assert len({number for number, *_ in split}) == 3
        assert all(own != base and max(own, base) < size for _, own, base in split)
    sides = Counter(own < base for split in found for _, own, base in split)
    assert abs(sides[True] - sides[False]) < 0.05 * sides.total()
    if splits < 2000:
        assert len(set(found)) == splits


@pytest.mark.parametrize(("count", "used"), [(5, None), (6, 6), (7, 6), (23, 20)])
def test_what_does_not_fill_a_block_is_left_out(count, used):
    found = false_positive_rate(equal(count=count), lambda pairs: False)
    assert (found and found["processes"]) == used


def test_runs_that_are_too_short_to_be_judged_have_no_rate():
    found = false_positive_rate(equal(count=6, seconds=0.01))
    assert (found["rate"], found["splits"], found["error"]) == (None, 0, None)


def test_the_error_is_that_of_leaving_out_a_block():
    """Where all that is called different rests on one block, the rate is no better known than that."""
    runs = equal()
    odd = {id(run) for run in runs[4:8]}
    found = false_positive_rate(runs, lambda pairs: any(id(own) in odd for own, _ in pairs))
    assert found["rate"] == pytest.approx(0.5, abs=0.05)
    assert found["error"] == pytest.approx(0.5, abs=0.1)
    steady = false_positive_rate(runs, lambda pairs: pairs[0][0]["repeat"] % 2 == 0)
    assert steady["error"] < 0.1


def test_equal_runs_are_one_run_on_one_gpu_in_their_order():
    first = equal(count=3)
    elsewhere = equal(count=2, gpu_uuid="GPU-2")
    other_code = equal(count=2, code_hash="abc")
    failed = equal(count=1, status="failed")
    ordinary = [timed(np.ones((3, 10)), "amp_bf16", {"purpose": "time"})]
    groups = equal_runs([*reversed(first), *elsewhere, *other_code, *failed, *ordinary])
    assert sorted(map(len, groups)) == [2, 2, 3]
    assert first in groups


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"gpu_name": "NVIDIA A100"}, False),
        ({"host_id": "b"}, False),
        ({"host_id": "b", "host_cores": 8}, False),
        ({"host_cores": 8}, False),  # machines made from one image share a name
        ({"host_cpu": "EPYC"}, False),
        ({"host_id": None}, True),
        ({"host_id": None, "host_cores": 8}, False),
    ],
)
def test_a_host_is_told_by_its_identity_and_processor_else_by_its_cores(changes, same):
    record = {"gpu_name": "NVIDIA H200", "host_id": "a", "host_cores": 16}
    assert same_host(record, {**record, **changes}) is same
    assert same_host({**record, **changes}, record) is same
