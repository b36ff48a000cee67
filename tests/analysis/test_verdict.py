"""The word and the sentence on made-up comparisons whose answers are known."""

import re

import pytest
from made_up_runs import CASES, DENSE, FIGURES, HOT, SPARSE, assert_reads_well, compared, flat, gained, profiled

from mixed_precision_study.analysis.bottleneck import advice_of
from mixed_precision_study.analysis.speedup import paired_ratio, paired_runs
from mixed_precision_study.analysis.verdict import flags_of, judge, verdict
from mixed_precision_study.record import STATUSES


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
    assert flags_of(flat()) == []
    assert flags_of(flat(throttled=False, throttle_fractions=[["heat", 0.04]], gpu_shared=False)) == []
    assert flags_of(flat(**HOT)) == ["throttled (power cap 40%, heat 5% of the time)"]
    assert flags_of(flat(gpu_shared=True)) == ["GPU shared with another process"]
    assert len(flags_of(flat(**HOT, gpu_shared=True))) == 2
    assert flags_of(flat(throttle_fractions=None)) == []


@pytest.mark.parametrize(
    "status, words",
    [
        ("oom", "amp_fp16 ran out of memory: the reason."),
        ("unsupported", "amp_fp16 cannot run here: the reason."),
        ("diverged", "amp_fp16 diverged: the reason."),
        ("failed", "amp_fp16 failed: the reason."),
    ],
)
def test_a_run_that_did_not_end_well_says_why(status, words):
    fields = {"status": status, "epoch_seconds": []}
    assert verdict(flat(**fields, reason="the reason"), flat("fp32"), None) == words
    on_cpu = flat(**fields, reason="the reason", device_type="cpu")
    assert verdict(on_cpu, flat("fp32"), None) == words
    # A notebook's own sentence has its full stop, and a record from elsewhere may have no reason.
    assert verdict(flat(**fields, reason="the reason."), flat("fp32"), None) == words
    assert_reads_well(verdict(flat(**fields), flat("fp32"), None))


def test_a_run_on_the_cpu_measures_nothing():
    text = verdict(flat(device_type="cpu"), flat("fp32", device_type="cpu"), gained())
    assert text == "amp_fp16 ran on the CPU, which proves that it works and measures nothing."


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_sentence(status):
    text = verdict(profiled(status=status, reason="the reason"), profiled(precision="fp32"), gained())
    assert text.startswith("amp_fp16 ")
    assert ("the reason" in text) == (status != "ok")
    assert_reads_well(text)


@pytest.mark.parametrize("case", CASES)
def test_a_measured_run_says_how_much_whether_that_is_certain_and_why(case):
    record = CASES[case]
    text = verdict(record, profiled(precision="fp32"), gained(2.004, 1.9, 2.1))
    assert text.startswith(f"{record['precision']} is 2.00x as fast as fp32 (1.90 to 2.10): faster; ")
    assert FIGURES[case] in text
    assert advice_of(case, record) in text
    assert_reads_well(text)


@pytest.mark.parametrize("case", CASES)
def test_only_where_the_gpu_idles_precision_is_called_beside_the_point(case):
    words = "so precision is not what limits you"
    equal = verdict(CASES[case], flat("fp32"), gained(1.0, 0.98, 1.02))
    assert ": no measurable difference; " in equal
    assert (words in equal) == (case in ("data loading", "kernel launches"))
    assert words not in verdict(CASES[case], flat("fp32"), gained())
    assert_reads_well(equal)


def test_too_short_and_unpaired_runs_are_not_judged():
    text = verdict(profiled(), flat("fp32"), gained(low=None, high=None))
    assert text.startswith("amp_fp16 is 2.00x as fast as fp32: too short to tell; ")
    assert_reads_well(text)
    text = verdict(profiled(), flat("fp32"), gained(seconds=1.0))
    assert "(1.90 to 2.10): too short to tell; " in text
    text = verdict(profiled(), flat("fp32"), None)
    assert text == "amp_fp16 cannot be set beside fp32: not paired: other card, seed or repetition."
    assert_reads_well(text)


@pytest.mark.parametrize("status", ["oom", "unsupported", "diverged", "failed", "timeout", "killed"])
def test_a_run_without_its_baseline_still_says_what_limits_it(status):
    base = flat("fp32", status=status, reason="the reason", epoch_seconds=[])
    text = verdict(CASES["kernels that move memory"], base, None)
    assert text.startswith(f"amp_fp16 has no fp32 to be compared with ({status}); 75% of kernel time moves memory")
    assert_reads_well(text)


def test_what_disturbed_either_run_comes_first():
    text = verdict(profiled(**HOT), profiled(precision="fp32", gpu_shared=True), gained())
    start = "MIND: amp_fp16 throttled (power cap 40%, heat 5% of the time); fp32 GPU shared with another process. "
    assert text.startswith(f"{start}amp_fp16 is 2.00x as fast as fp32")
    assert_reads_well(text, sentences=2)
    assert_reads_well(verdict(profiled(**HOT), flat("fp32"), None), sentences=2)
    assert verdict(profiled(), profiled(precision="fp32"), gained()).startswith("amp_fp16 is")


def test_bf16_that_runs_in_fp16_is_told():
    def text(precision, share, families=DENSE):
        record = profiled(families, precision=precision, fp16_kernel_fraction=share)
        return verdict(record, profiled(precision="fp32"), gained())

    assert "30% of kernel time is in fp16 all the same" in text("amp_bf16", 0.3)
    assert "in fp16 all the same" in text("amp_bf16", 0.05)
    for precision, share in (("amp_bf16", 0.04), ("amp_bf16", None), ("amp_fp16", 0.9)):
        assert "in fp16 all the same" not in text(precision, share)
    assert_reads_well(text("amp_bf16", 0.3))
    # What to try is said of the limit, not of the fp16 kernels.
    assert re.search(r"optimizer 10%\): try channels_last or torch.compile; 30% of", text("amp_bf16", 0.3, SPARSE))


def test_a_whole_comparison_from_records_to_the_sentence():
    pairs = paired_runs(*zip(*compared(2.0, repetitions=3), strict=True))
    own, base = pairs[0]
    text = verdict(own, base, paired_ratio(pairs))
    assert re.match(
        r"amp_fp16 is (1\.9\d|2\.0\d)x as fast as fp32 \(1\.9\d to 2\.0\d\): faster; what limits it is", text
    )
    assert_reads_well(text)
