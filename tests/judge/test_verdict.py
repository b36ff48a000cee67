"""The word and the sentence on made-up comparisons whose answers are known."""

import re
from typing import get_args

import pytest
from made_up_runs import HOT, SPARSE, flat, gained, profiled

from mixed_precision_study.judge.bottleneck import advice_of, find_bottleneck
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
from mixed_precision_study.store.record import Status

FP32 = profiled(precision="fp32")
LARGEST = {"settings": {**FP32["settings"], "batch_size": "max"}}
NOT_OK = [status for status in get_args(Status) if status != "ok"]


def assert_reads_well(text, sentences=1):
    """Check that a text is whole sentences, each with one full stop, and that nothing unknown
    was put into words.
    """
    assert text.endswith(".")
    assert not re.search(r"\.\s*[.;:,)]|\bNone\b|\bnan\b|\binf\b|\(\)|\s\s|\[|\{", text), text
    assert len(re.findall(r"\.(?=\s|$)", text)) == sentences, text


@pytest.mark.parametrize(
    "speedup, word",
    [
        (None, NOT_PAIRED),
        (gained(low=None, high=None, processes=0), NOT_PAIRED),
        (gained(low=None, high=None, processes=1), "one process"),
        (gained(low=None, high=None, processes=2), "two processes"),
        (gained(seconds=1.999), TOO_SHORT),
        (gained(seconds=2.0), FASTER),
        (gained(0.5, 0.4, 0.6), SLOWER),
        (gained(1.1, 1.051, 1.15, one_order="a always ran before b"), FASTER),
        (gained(1.1, 1.049, 1.15, one_order="a always ran before b"), CANNOT_BE_TOLD),
        (gained(0.9, 0.85, 0.951, one_order="a always ran before b"), CANNOT_BE_TOLD),
        (gained(1.3, 1.0, 1.6), CANNOT_BE_TOLD),
        (gained(1.3, 1.001, 1.6), FASTER),
        (gained(0.8, 0.6, 1.0), CANNOT_BE_TOLD),
        (gained(1.03, 1.02, 1.04), LITTLE_FASTER),
        (gained(0.97, 0.96, 0.98), LITTLE_SLOWER),
        (gained(1.019, 1.01, 1.03), SAME),  # steady, and below what is claimed
        (gained(0.985, 0.98, 0.99), SAME),
        (gained(1.0, 0.96, 1.04), SAME),
        (gained(1.0, 0.94, 1.06), CANNOT_BE_TOLD),
        (gained(untrained="amp_fp16 did not train: why"), NOT_TRAINED),
        (gained(unlike="clock 1200 MHz against 1980 MHz"), OTHER_CONDITIONS),
    ],
)
def test_judge(speedup, word):
    assert judge(speedup) == word


@pytest.mark.parametrize("status", NOT_OK)
def test_a_run_that_did_not_end_well_says_why(status):
    for device in ("cuda", "cpu"):
        fields = {"status": status, "epoch_seconds": [], "device_type": device}
        text = verdict(flat(**fields, reason="the reason"), flat("fp32"), None)
        assert text.startswith("amp_fp16 ") and text.endswith(": the reason.")
        assert verdict(flat(**fields, reason="the reason."), flat("fp32"), None) == text
        # a record from elsewhere may have no reason
        assert_reads_well(verdict(flat(**fields), flat("fp32"), None))
    base = flat("fp32", status=status, reason="the reason", epoch_seconds=[])
    text = verdict(profiled(SPARSE), base, None)
    assert f"({status})" in text and find_bottleneck(profiled(SPARSE))[1] in text
    assert_reads_well(text)


@pytest.mark.parametrize(
    "record", [profiled(SPARSE), profiled(busy=0.5, data_wait_fraction=0.4), flat()]
)
def test_a_measured_run_says_how_much_and_what_limits_it(record):
    text = verdict(record, FP32, gained(2.004, 1.9, 2.1))
    case, because = find_bottleneck(record)
    reason = f"{because}{advice_of(case, record)}"
    assert text == f"amp_fp16 is 2.00x as fast as fp32 (1.90 to 2.10): {FASTER}; {reason}."
    assert_reads_well(text)


@pytest.mark.parametrize(
    "own, base, speedup, begins, holds, sentences",
    [
        (
            {},
            {},
            gained(low=None, high=None, processes=1),
            "amp_fp16 is 2.00x",
            ["(one process); "],
            1,
        ),
        ({}, {}, gained(seconds=1.0), "amp_fp16 is 2.00x", [f"(1.90 to 2.10): {TOO_SHORT}; "], 1),
        (HOT, {}, None, "Caution: ", [NOT_PAIRED], 2),
        (HOT, {}, gained(untrained="the reason"), "the reason", ["2.00x", "Caution: "], 2),
        (
            {},
            {},
            gained(lost="the loss"),
            "amp_fp16 is 2.00x",
            [f"(1.90 to 2.10): {FASTER}, but the loss; "],
            1,
        ),
        ({}, {}, gained(apart=True, median_ratio=1.11), "amp_fp16 is 2.00x", [FASTER, "1.11x"], 1),
        ({}, {}, gained(unlike="the heat"), "amp_fp16 is 2.00x", ["because the heat; "], 1),
        (
            {},
            {},
            gained(differences=["this", "this"]),
            "Caution: this. amp_fp16 is 2.00x",
            [FASTER],
            2,
        ),
        (
            HOT,
            {"gpu_shared": True},
            gained(),
            "Caution: amp_fp16 ",
            ["5%", "; amp_fp16 at", "40%", "; fp32 GPU"],
            2,
        ),
        (
            LARGEST | {"batch_size_used": 1000},
            {"batch_size_used": 500},
            gained(),
            "amp_fp16",
            ["1,000"],
            1,
        ),
        ({"device_type": "cpu"}, {"device_type": "cpu"}, gained(), "amp_fp16 ", ["CPU"], 1),
    ],
)
def test_a_sentence_holds_what_is_known(own, base, speedup, begins, holds, sentences):
    runs = profiled() | own, FP32 | base
    text = verdict(*runs, speedup)
    on_gpu = "device_type" not in own
    assert text.startswith(begins) and all(one in text for one in holds)
    assert (FASTER in text) is (on_gpu and judge(speedup) == FASTER)
    assert ("2.00x" in text) is (on_gpu and speedup is not None and speedup["ratio"] == 2)
    assert_reads_well(text, sentences)
    if "as fast" in text:
        assert text.startswith(verdict(*runs, speedup, with_reason=False).removesuffix("."))


@pytest.mark.parametrize(
    "precision, share", [("amp_bf16", 0.05), ("amp_bf16", 0.04), ("amp_fp16", 0.9)]
)
def test_bf16_that_runs_in_fp16_is_told(precision, share):
    text = verdict(profiled(precision=precision, fp16_kernel_fraction=share), FP32, gained())
    assert ("; 5% of kernel time is in fp16" in text) is (share == 0.05) is ("in fp16" in text)
    assert_reads_well(text)
