"""The word and the sentence on made-up comparisons whose answers are known."""

import re
from typing import get_args

import pytest
from made_up_runs import CASES, DENSE, FIGURES, HOT, SPARSE, assert_reads_well, compared, flat, gained, profiled

from mixed_precision_study.judge.bottleneck import advice_of, find_bottleneck
from mixed_precision_study.judge.ratios import paired_ratio, paired_runs
from mixed_precision_study.judge.verdict import (
    CANNOT_BE_TOLD,
    FASTER,
    LITTLE_FASTER,
    LITTLE_SLOWER,
    NOT_PAIRED,
    NOT_TRAINED,
    OTHER_CONDITIONS,
    SAME,
    SLOWER,
    TOO_SHORT,
    judge,
    verdict,
)
from mixed_precision_study.record import Status

FP32 = profiled(precision="fp32")
NOT_OK = [status for status in get_args(Status) if status != "ok"]


@pytest.mark.parametrize(
    "speedup, word",
    [
        (None, NOT_PAIRED),
        (gained(low=None, high=None, processes=0), NOT_PAIRED),
        (gained(low=None, high=None, processes=1), "one process"),
        (gained(low=None, high=None, processes=2), "two processes"),
        (gained(seconds=1.999), TOO_SHORT),
        (gained(seconds=2.0), FASTER),
        (gained(), FASTER),
        (gained(0.5, 0.4, 0.6), SLOWER),
        (gained(1.1, 1.051, 1.15, one_order="a always ran before b"), FASTER),
        (gained(1.1, 1.049, 1.15, one_order="a always ran before b"), CANNOT_BE_TOLD),
        (gained(0.9, 0.85, 0.951, one_order="a always ran before b"), CANNOT_BE_TOLD),
        (gained(1.0, 0.99, 1.01, one_order="a always ran before b"), CANNOT_BE_TOLD),
        (gained(1.3, 0.99, 1.6), CANNOT_BE_TOLD),
        (gained(1.3, 1.0, 1.6), CANNOT_BE_TOLD),
        (gained(1.3, 1.001, 1.6), FASTER),
        (gained(0.8, 0.6, 1.0), CANNOT_BE_TOLD),
        (gained(0.8, 0.6, 0.999), SLOWER),
        (gained(1.03, 1.02, 1.04), LITTLE_FASTER),
        (gained(1.03, 1.01, 1.06), FASTER),
        (gained(0.97, 0.96, 0.98), LITTLE_SLOWER),
        (gained(1.019, 1.01, 1.03), SAME),  # steady, and below what is claimed
        (gained(0.985, 0.98, 0.99), SAME),
        (gained(1.0, 1.0, 1.0), SAME),
        (gained(1.0, 0.96, 1.04), SAME),
        (gained(1.0, 0.94, 1.06), CANNOT_BE_TOLD),
        (gained(1.0, 0.8, 1.2), CANNOT_BE_TOLD),
        (gained(untrained="amp_fp16 did not train: why"), NOT_TRAINED),
        (gained(unlike="clock 1200 MHz against 1980 MHz"), OTHER_CONDITIONS),
        (gained(differences=["PyTorch 2.9 against 2.11"]), FASTER),
    ],
)
def test_judge(speedup, word):
    assert judge(speedup) == word


def test_a_precision_is_faster_where_the_other_is_slower():
    opposite = {FASTER: SLOWER, LITTLE_FASTER: LITTLE_SLOWER, CANNOT_BE_TOLD: CANNOT_BE_TOLD}
    for ratio, low, high in ((1.3, 1.1, 1.5), (1.0201, 1.01, 1.03), (1.1, 0.9, 1.3)):
        here = judge(gained(ratio, low, high))
        assert judge(gained(1 / ratio, 1 / high, 1 / low)) == opposite[here]


@pytest.mark.parametrize("status", NOT_OK)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_run_that_did_not_end_well_says_why(status, device):
    fields = {"status": status, "epoch_seconds": [], "device_type": device}
    text = verdict(flat(**fields, reason="the reason"), flat("fp32"), None)
    assert text.startswith("amp_fp16 ") and text.endswith(": the reason.")
    assert verdict(flat(**fields, reason="the reason."), flat("fp32"), None) == text
    assert_reads_well(verdict(flat(**fields), flat("fp32"), None))  # a record from elsewhere may have no reason


@pytest.mark.parametrize("status", NOT_OK)
def test_a_run_without_its_baseline_still_says_what_limits_it(status):
    base = flat("fp32", status=status, reason="the reason", epoch_seconds=[])
    text = verdict(CASES["kernels other than arithmetic"], base, None)
    assert f"({status})" in text and FIGURES["kernels other than arithmetic"] in text
    assert_reads_well(text)


def test_a_run_on_the_cpu_measures_nothing():
    text = verdict(flat(device_type="cpu"), flat("fp32", device_type="cpu"), gained())
    assert "measures nothing" in text and "2.00x" not in text


@pytest.mark.parametrize("case", CASES)
def test_a_measured_run_says_how_much_whether_that_is_certain_and_why(case):
    record = CASES[case]
    text = verdict(record, FP32, gained(2.004, 1.9, 2.1))
    assert text.startswith(f"{record['precision']} is 2.00x as fast as fp32 (1.90 to 2.10): faster; ")
    assert find_bottleneck(record)[0] == case
    assert FIGURES[case] in text
    assert advice_of(case, record) in text
    assert_reads_well(text)
    equal = verdict(record, FP32, gained(1.0, 0.98, 1.02))
    beside_the_point = "so precision is not what limits you"
    assert f": {SAME}; " in equal
    assert (beside_the_point in equal) == (case in ("data loading", "kernel launches"))
    assert_reads_well(equal)
    for other in (gained(1.0, 0.7, 1.4), gained(1.03, 1.02, 1.04), gained(low=None, high=None, processes=1)):
        assert beside_the_point not in verdict(record, FP32, other)
    assert beside_the_point not in text


def test_what_cannot_be_told_says_what_could_have_been_seen():
    text = verdict(profiled(), FP32, gained(1.03, 0.8, 1.3))
    assert f"(0.80 to 1.30): {CANNOT_BE_TOLD}" in text and "26%" in text
    assert_reads_well(text)


def test_few_processes_have_their_number_in_place_of_the_interval():
    for processes, words in ((1, "one process"), (2, "two processes")):
        text = verdict(profiled(), FP32, gained(low=None, high=None, processes=processes))
        assert text.startswith(f"amp_fp16 is 2.00x as fast as fp32 ({words}); ")
        assert not re.search("faster|slower", text)
        assert_reads_well(text)


def test_a_run_that_did_not_train_is_not_called_faster():
    reason = "amp_fp16 did not train: 97% of its steps were skipped"
    for hot in ({}, HOT):
        text = verdict(profiled(**hot), FP32, gained(untrained=reason))
        assert text.startswith(reason)
        assert "faster" not in text and "no speed-up" in text
        assert_reads_well(text, sentences=1 + bool(hot))


def test_quality_that_is_lost_stands_beside_the_speed_up():
    text = verdict(profiled(), FP32, gained(lost="its accuracy ends at 0.8, not 0.9"))
    assert text.startswith(
        "amp_fp16 is 2.00x as fast as fp32 (1.90 to 2.10): faster, but its accuracy ends at 0.8, not"
    )
    assert_reads_well(text)
    assert "but its" not in verdict(profiled(), FP32, gained())


def test_a_median_block_that_parts_from_the_total_time_is_said():
    text = verdict(profiled(), FP32, gained(apart=True, median_ratio=1.11))
    short = verdict(profiled(), FP32, gained(apart=True, median_ratio=1.11), with_reason=False)
    assert text.startswith(short.removesuffix(".") + "; ") and short.endswith("so some blocks took far longer.")
    assert "median block is 1.11x" in text
    assert_reads_well(text)


def test_too_short_and_unpaired_runs_are_not_judged():
    text = verdict(profiled(), FP32, gained(seconds=1.0))
    assert text.startswith(f"amp_fp16 is 2.00x as fast as fp32 (1.90 to 2.10): {TOO_SHORT}; ")
    assert_reads_well(text)
    text = verdict(profiled(), FP32, None)
    assert judge(None) in text and "x as fast" not in text
    assert_reads_well(text)


def test_what_disturbed_either_run_comes_first():
    text = verdict(profiled(**HOT), profiled(precision="fp32", gpu_shared=True), gained())
    assert text.startswith(
        "Caution: amp_fp16 throttled (heat 5% of the time); amp_fp16 at its power limit 40% of the time; fp32 GPU"
    )
    assert ". amp_fp16 is 2.00x as fast as fp32" in text
    assert_reads_well(text, sentences=2)
    assert_reads_well(verdict(profiled(**HOT), FP32, None), sentences=2)
    assert verdict(profiled(), FP32, gained()).startswith("amp_fp16 is")


def test_other_conditions_come_first_and_may_allow_no_outcome():
    text = verdict(profiled(), FP32, gained(differences=["driver 580 against 570", "driver 580 against 570"]))
    assert text.startswith("Caution: driver 580 against 570. amp_fp16 is 2.00x as fast as fp32 (1.90 to 2.10): faster")
    assert_reads_well(text, sentences=2)
    text = verdict(profiled(), FP32, gained(unlike="only fp32 was slowed down (heat)"))
    assert "no outcome, because only fp32 was slowed down (heat)" in text and "faster" not in text
    assert_reads_well(text)


@pytest.mark.parametrize(
    "precision, share, families, told",
    [
        ("amp_bf16", 0.3, DENSE, True),
        ("amp_bf16", 0.3, SPARSE, True),  # with advice before it
        ("amp_bf16", 0.05, DENSE, True),
        ("amp_bf16", 0.04, DENSE, False),
        ("amp_bf16", None, DENSE, False),
        ("amp_fp16", 0.9, DENSE, False),
    ],
)
def test_bf16_that_runs_in_fp16_is_told(precision, share, families, told):
    record = profiled(families, precision=precision, fp16_kernel_fraction=share)
    text = verdict(record, FP32, gained())
    assert ("of kernel time is in fp16" in text) is told
    assert not told or f"; {share:.0%} of kernel time is in fp16" in text
    assert_reads_well(text)


def test_a_whole_comparison_from_records_to_the_sentence():
    pairs = paired_runs(*zip(*compared(2.0, repetitions=3), strict=True))
    text = verdict(*pairs[0], paired_ratio(pairs))
    assert re.match(r"amp_fp16 is (1\.9\d|2\.0\d)x as fast as fp32 \(1\.\d\d to 2\.\d\d\): faster; ", text)
    assert_reads_well(text)
