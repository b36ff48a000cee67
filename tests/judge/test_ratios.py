"""How much faster: pairs, ratios, intervals and p values of made-up records whose answers are
known.
"""

import itertools
import math

import numpy as np
import pytest
from made_up_runs import flat, timed

from mixed_precision_study.judge.ratios import (
    interval_of,
    paired_ratio,
    paired_runs,
)
from mixed_precision_study.judge.verdict import judge


def test_runs_are_paired_by_seed_repetition_and_card():
    def run(precision, seed=0, repeat=0, uuid="GPU-1", **fields):
        return flat(precision, {"seed": seed, "repeat": repeat}, gpu_uuid=uuid, **fields)

    base = [run("fp32"), run("fp32", seed=1), run("fp32", repeat=1), run("fp32", uuid="GPU-2")]
    runs = [run("tf32", uuid="GPU-2"), run("tf32", repeat=1), run("tf32"), run("tf32", seed=1)]
    pairs = paired_runs(runs, base)
    assert [own for own, _ in pairs] == runs
    assert [counterpart for _, counterpart in pairs] == [base[3], base[2], base[0], base[1]]
    strangers = [
        run("tf32", seed=2),
        run("tf32", repeat=2),
        run("tf32", uuid="GPU-3"),
        run("tf32", 1, 1),
    ]
    assert paired_runs(strangers, base) == [] and paired_ratio([]) is None
    assert len(paired_runs([run("tf32"), run("tf32")], base)) == 1  # a counterpart is used once
    for unused in ({"status": "oom"}, {"purpose": "explain"}):
        assert (
            paired_runs([flat(**unused)], [flat("fp32")])
            == paired_runs([flat()], [flat("fp32", **unused)])
            == []
        )
    older = [flat("tf32"), flat("fp32")]
    for record in older:
        del record["settings"]["repeat"]
    assert paired_runs(older[:1], older[1:]) == [tuple(older)]


def test_the_counterpart_is_the_one_with_the_same_software():
    old = timed([[7.5]], "fp32", torch_version="2.9", started_at="2026-01")
    new = timed([[6.0]], "fp32", torch_version="2.11", started_at="2026-02")
    amp = timed([[5.0]], torch_version="2.11", started_at="2026-02")
    for bases in itertools.permutations([old, new]):
        ((_, counterpart),) = paired_runs([amp], list(bases))
        assert counterpart is new
    # alike: the newest
    for bases in itertools.permutations([old, {**new, "torch_version": "2.9"}]):
        ((_, counterpart),) = paired_runs([amp], list(bases))
        assert counterpart["started_at"] == "2026-02"


def test_the_ratio_is_the_geometric_mean_over_processes():
    own = [timed(np.ones((2, 2)), parameters={"seed": seed}) for seed in (0, 1)]
    base = [
        timed(times, "fp32", {"seed": seed})
        for seed, times in ((0, [[2, 2], [3, 1]]), (1, [[2, 9], [4, 1]]))
    ]
    speedup = paired_ratio(list(zip(own, base, strict=True)))
    assert speedup["ratio"] == pytest.approx(math.sqrt(2 * 4))
    assert (speedup["processes"], speedup["seeds"], speedup["seconds"]) == (2, 2, 4)


@pytest.mark.parametrize(
    "logarithms, half, half90",
    [
        ([0.7, 0.8, 0.75], 4.303 * 0.05 / 3**0.5, 2.920 * 0.05 / 3**0.5),
        ([0.0] * 11 + [0.12], 2.201 * 0.01, 1.796 * 0.01),
    ],
)
def test_the_interval_is_students_over_logarithms(logarithms, half, half90):
    found = interval_of(logarithms)
    middle = np.mean(logarithms)
    expected = [math.exp(middle + sign * width) for width in (half, half90) for sign in (-1, 1)]
    assert [found[name] for name in ("low", "high", "low90", "high90")] == pytest.approx(
        expected, rel=1e-4
    )
    assert found["smallest"] == pytest.approx(max(math.exp(half) - 1, 0.02), rel=1e-3)


def seeds_of(process, base_process, seeds, ratio=2.0):
    """Return pairs of runs of several seeds, all of the same two processes.

    They scatter a little.
    """
    pairs = []
    for seed in seeds:
        own = timed([[1 + seed / 1000]], parameters={"seed": seed}, process_id=process)
        pairs.append(
            (own, timed([[ratio]], "fp32", parameters={"seed": seed}, process_id=base_process))
        )
    return pairs


def test_seeds_of_one_process_are_no_processes():
    found = paired_ratio(seeds_of("a", "b", range(5)))
    assert (found["processes"], found["seeds"], judge(found)) == (1, 5, "one_process")
    assert {found[name] for name in ("low", "high", "low90", "high90", "p", "smallest")} == {None}
    assert found["ratio"] == pytest.approx(
        2 / math.prod(1 + seed / 1000 for seed in range(5)) ** 0.2
    )


def test_seeds_of_several_processes_are_one_mean_each():
    pairs = [
        *seeds_of("a", "b", range(2)),
        *seeds_of("c", "d", (2, 3)),
        *seeds_of("e", "f", (4, 5)),
    ]
    found = paired_ratio(pairs)
    assert (found["processes"], found["seeds"]) == (3, 6)
    means = [
        math.log(2) - (math.log(1 + seed / 1000) + math.log(1 + (seed + 1) / 1000)) / 2
        for seed in (0, 2, 4)
    ]
    assert found["low"] == pytest.approx(interval_of(means)["low"])
    # records that name none are one each
    assert paired_ratio(seeds_of(None, None, range(4)))["processes"] == 4
    assert paired_ratio([*seeds_of("a", "b", [0]), *seeds_of("a", "c", [1])])["processes"] == 2
