"""The word and the sentence on made-up comparisons whose answers are known."""

import re

import pytest
from made_up_runs import CASES, DENSE, FIGURES, HOT, SPARSE, assert_reads_well, compared, flat, gained, profiled

from mixed_precision_study.analysis.bottleneck import advice_of, find_bottleneck
from mixed_precision_study.analysis.speedup import paired_ratio, paired_runs
from mixed_precision_study.analysis.verdict import flags_of, judge, verdict
from mixed_precision_study.record import STATUSES

FP32 = profiled(precision="fp32")
NOT_OK = [status for status in STATUSES if status != "ok"]


@pytest.mark.parametrize(
    "speedup, word",
    [
        (None, "not paired: other card, seed or repetition"),
        (gained(low=None, high=None), "too short to tell"),
        (gained(seconds=1.999), "too short to tell"),
        (gained(seconds=2.0), "faster"),
        (gained(), "faster"),
        (gained(0.5, 0.4, 0.6), "slower"),
        (gained(1.3, 0.99, 1.6), "no measurable difference"),
        (gained(1.3, 1.0, 1.6), "no measurable difference"),
        (gained(1.3, 1.001, 1.6), "faster"),
        (gained(0.8, 0.6, 1.0), "no measurable difference"),
        (gained(0.8, 0.6, 0.999), "slower"),
        (gained(1.009, 1.008, 1.0095), "no measurable difference"),  # steady, and below what can be told apart
        (gained(1.011, 1.005, 1.02), "faster"),
        (gained(0.991, 0.9905, 0.992), "no measurable difference"),
        (gained(0.989, 0.98, 0.995), "slower"),
        (gained(1.0, 1.0, 1.0), "no measurable difference"),
        (gained(1.3, 0.9, 1.6, seconds=1.0), "too short to tell"),
    ],
)
def test_judge(speedup, word):
    assert judge(speedup) == word


def test_flags_name_what_held_in_a_twentieth_of_the_samples():
    assert flags_of(flat()) == flags_of(flat(throttle_fractions=None)) == []
    assert flags_of(flat(throttled=False, throttle_fractions=[["heat", 0.04]], gpu_shared=False)) == []
    assert flags_of(flat(**HOT)) == ["throttled (power cap 40%, heat 5% of the time)"]
    assert len(flags_of(flat(gpu_shared=True))) == 1
    assert len(flags_of(flat(**HOT, gpu_shared=True))) == 2


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
    text = verdict(CASES["kernels that move memory"], base, None)
    assert f"({status})" in text and FIGURES["kernels that move memory"] in text
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
    assert ": no measurable difference; " in equal
    assert (beside_the_point in equal) == (case in ("data loading", "kernel launches"))
    assert beside_the_point not in text
    assert_reads_well(equal)


def test_too_short_and_unpaired_runs_are_not_judged():
    for speedup, start in (
        (gained(low=None, high=None), "amp_fp16 is 2.00x as fast as fp32: too short to tell; "),
        (gained(seconds=1.0), "amp_fp16 is 2.00x as fast as fp32 (1.90 to 2.10): too short to tell; "),
    ):
        text = verdict(profiled(), FP32, speedup)
        assert text.startswith(start)
        assert_reads_well(text)
    text = verdict(profiled(), FP32, None)
    assert judge(None) in text and "x as fast" not in text
    assert_reads_well(text)


def test_what_disturbed_either_run_comes_first():
    text = verdict(profiled(**HOT), profiled(precision="fp32", gpu_shared=True), gained())
    assert text.startswith("MIND: amp_fp16 throttled (power cap 40%, heat 5% of the time); fp32 GPU shared")
    assert ". amp_fp16 is 2.00x as fast as fp32" in text
    assert_reads_well(text, sentences=2)
    assert_reads_well(verdict(profiled(**HOT), FP32, None), sentences=2)
    assert verdict(profiled(), FP32, gained()).startswith("amp_fp16 is")


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
    assert re.match(r"amp_fp16 is (1\.9\d|2\.0\d)x as fast as fp32 \(1\.9\d to 2\.0\d\): faster; ", text)
    assert_reads_well(text)
