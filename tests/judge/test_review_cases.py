"""Comparisons of which older versions said too much, each with the answer that it should have.

One process on each side, and three alike, because one has no outcome whatever it shows.
"""

import numpy as np
import pytest
from made_up_runs import DENSE, assert_reads_well, flat

from mixed_precision_study.judge.bottleneck import find_bottleneck
from mixed_precision_study.judge.divergence import find_diverged
from mixed_precision_study.judge.ratios import paired_ratio, paired_runs
from mixed_precision_study.judge.verdict import CANNOT_BE_TOLD, FASTER, NOT_TRAINED, judge, verdict

PROFILE = {"gpu_busy_fraction": 0.95, "kernel_family_fractions": DENSE, "tensor_core_fraction": 0.6}
ACCURACY = {"metric": [0.9], "metric_better": "higher", "chance_metric": 0.1, "metric_name": "accuracy"}
ERROR = {"metric": [0.25], "metric_better": "lower", "chance_metric": 0.323, "metric_name": "mean_absolute_error"}
CLOCK = {"sm_clock_mhz_median": 1980.0, "throttled": False, "skipped_steps": 0, "samples_per_epoch": 49_920}


def blocks(epochs, seconds, scatter=0.003, between=0.0, seed=0):
    """Return an array (epochs, 10) of noisy blocks of epochs of so many seconds."""
    draw = np.random.default_rng(seed)
    by_epoch = draw.normal(0, between, (epochs, 1))
    return seconds / 10 * np.exp(draw.normal(0, scatter, (epochs, 10)) + by_epoch)


def run(precision, times, repeat=0, **fields):
    """Return the record of a run with these times, an array (epochs, blocks)."""
    parameters = {"epochs": len(times), "repeat": repeat}
    known = {**PROFILE, **ACCURACY, **CLOCK, **fields}
    known |= {"epoch_seconds": times.sum(1).tolist(), "block_seconds": times.ravel().tolist(), "batch_size_used": 128}
    return flat(precision, parameters, **known)


def three(precision, seconds, epochs=3, scatter=0.003, between=0.0, processes=0.005, **fields):
    """Return three processes of a precision that scatter."""
    draw = np.random.default_rng(len(precision))
    sizes = seconds * np.exp(draw.normal(0, processes, 3))
    times = [blocks(epochs, size, scatter, between, seed=index) for index, size in enumerate(sizes)]
    return [run(precision, one, index, **fields) for index, one in enumerate(times)]


def answer(runs, bases):
    """Return (word, sentence) on runs against their baselines."""
    speedup = paired_ratio(paired_runs(runs, bases))
    sentence = verdict(runs[0], bases[0], speedup)
    assert_reads_well(sentence, sentences=1 + ("Caution: " in sentence))
    return judge(speedup), sentence


UNTRAINED = {
    "1 most steps skipped": ({"metric": [0.249], "skipped_steps": 1134}, {}),
    "1b half as accurate": ({"metric": [0.45]}, {}),
    "2 no finite metric": ({"metric": [None]}, {}),
    "2b accuracy of exactly 0": ({"metric": [0.0]}, {}),
    "2c no finite error": ({**ERROR, "metric": [None]}, ERROR),
    "2d worse than chance": ({**ERROR, "metric": [0.5]}, ERROR),
}


@pytest.mark.parametrize("case", UNTRAINED)
def test_runs_that_did_not_train_are_not_faster_and_are_found_as_diverged(case):
    own, base = UNTRAINED[case]
    for count in (3, 1):
        word, sentence = answer(three("amp_fp16", 2.6, **own)[:count], three("fp32", 6.0, **base)[:count])
        assert word == NOT_TRAINED and FASTER not in sentence
    runs = [run("amp_fp16", blocks(3, 2.6), **own), run("fp32", blocks(3, 6.0), **base)]
    assert set(find_diverged(runs)) == ({runs[0]["run_id"]} if not case.startswith("1b") else set())


def test_hardly_learned_and_not_learned_are_not_told_apart():
    low = {"chance_metric": 0.01}
    runs = [run("amp_fp16", blocks(3, 2.6), **{**ACCURACY, **low, "metric": [0.0102]})]
    runs.append(run("fp32", blocks(3, 6.0), **{**ACCURACY, **low, "metric": [0.015]}))
    assert find_diverged(runs) == {}
    runs[1]["metric"] = [0.6]
    assert set(find_diverged(runs)) == {runs[0]["run_id"]}


def test_6_and_7_outlying_and_bimodal_epochs_have_no_outcome():
    odd = blocks(3, 6.0)
    odd[1] *= 1.5
    assert answer([run("tf32", odd)], [run("fp32", blocks(3, 6.0, seed=1))])[0] == "one process"
    runs = three("amp_fp16", 6.0, epochs=6)
    slow = [run("amp_fp16", blocks(6, 12.0, seed=repeat), repeat) for repeat in range(3)]
    assert answer([slow[0], *runs[1:]], three("fp32", 6.0, epochs=6))[0] == CANNOT_BE_TOLD


@pytest.mark.parametrize(("every", "factor"), [(3, 4), (5, 5)], ids=["8", "8b"])
def test_8_stalls_count_in_the_ratio_and_are_named(every, factor):
    runs = three("amp_fp16", 5.4, epochs=6)
    for one in runs:
        times = np.array(one["block_seconds"]).reshape(6, 10)
        times[:, ::every] *= factor
        one |= {"block_seconds": times.ravel().tolist(), "epoch_seconds": times.sum(1).tolist()}
    bases = three("fp32", 6.0, epochs=6)
    word, sentence = answer(runs, bases)
    assert word == "slower" and "median block is 1.1" in sentence
    found = paired_ratio(paired_runs(runs, bases))
    wall = sum(sum(base["epoch_seconds"]) for base in bases) / sum(sum(own["epoch_seconds"]) for own in runs)
    assert found["ratio"] == pytest.approx(wall, rel=0.01)


def test_9_a_wide_interval_draws_no_conclusion():
    idle = {"gpu_busy_fraction": 0.4}
    runs = three("amp_fp16", 6.9, 2, between=0.06, processes=0.08, **idle)
    assert answer(runs, three("fp32", 6.0, 2, between=0.06, processes=0.08, **idle))[0] == CANNOT_BE_TOLD


def test_10_of_two_causes_of_idle_time_both_are_named():
    case, because = find_bottleneck(run("amp_fp16", blocks(3, 6.0), gpu_busy_fraction=0.1, data_wait_fraction=0.44))
    assert case == "kernel launches" and "waits 44%" in because
    case, because = find_bottleneck(run("amp_fp16", blocks(3, 6.0), gpu_busy_fraction=0.1, data_wait_fraction=0.5))
    assert case == "data loading" and "kernel launches (40%)" in because
    case, because = find_bottleneck(run("amp_fp16", blocks(3, 6.0), gpu_busy_fraction=0.81, data_wait_fraction=0.6))
    assert "waits 60%" in because  # prefetch hides most of it
    case, because = find_bottleneck(run("amp_fp16", blocks(3, 6.0), gpu_busy_fraction=0.95, data_wait_fraction=0.6))
    assert "waits" not in because
