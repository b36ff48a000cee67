"""The words for what judge/ found, and the sentence on a run beside its baseline."""

import ast
import re
from typing import get_args

import pytest
from conftest import ROOT
from made_up_runs import HOT, SPARSE, flat, gained, profiled

from mixed_precision_study.judge import equivalence
from mixed_precision_study.judge import verdict as judging
from mixed_precision_study.judge.bottleneck import find_bottleneck
from mixed_precision_study.judge.conditions import HOST, SOFTWARE
from mixed_precision_study.judge.finding import Finding
from mixed_precision_study.judge.verdict import FASTER, NOT_PAIRED, TOO_SHORT, judge
from mixed_precision_study.report.results import reasons_of, verdict
from mixed_precision_study.report.words import (
    FOUND,
    LIMITS,
    OUTCOMES,
    REMEDIES,
    SOFTWARE_AND_HOST,
    outcome_words,
    said,
    said_of_limit,
    tried,
)
from mixed_precision_study.store.record import Status

SKIPPED = Finding("skipped", "amp_fp16", {"share": 0.4})
LOST = Finding("lost", "", {"metric": "accuracy", "own": 0.897, "base": 0.9})
SLOWED = Finding("slowed", "fp32", {"reasons": ["heat"]})
FORKED = Finding("forked", "fp32")
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


@pytest.mark.parametrize("status", NOT_OK)
def test_a_failed_run_says_why_and_a_lone_one_what_limits_it(status):
    for device in ("cuda", "cpu"):
        fields = {"status": status, "epoch_seconds": [], "device_type": device}
        text = verdict(flat(**fields, reason="the reason"), flat("fp32"), None)
        assert text.startswith("amp_fp16 ") and text.endswith(": the reason.")
        assert verdict(flat(**fields, reason="the reason."), flat("fp32"), None) == text
        # a record from elsewhere may have no reason
        assert_reads_well(verdict(flat(**fields), flat("fp32"), None))
    base = flat("fp32", status=status, reason="the reason", epoch_seconds=[])
    text = verdict(profiled(SPARSE), base, None)
    assert f"({status})" in text and said_of_limit(find_bottleneck(profiled(SPARSE))) in text
    assert_reads_well(text)


@pytest.mark.parametrize(
    "record", [profiled(SPARSE), profiled(busy=0.5, data_wait_fraction=0.4), flat()]
)
def test_a_measured_run_says_how_much_and_what_limits_it(record):
    text = verdict(record, FP32, gained(2.004, 1.9, 2.1))
    reason = reasons_of(record, FP32)
    assert reason.startswith(said_of_limit(find_bottleneck(record)))
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
        (
            {},
            {},
            gained(seconds=1.0),
            "amp_fp16 is 2.00x",
            [f"(1.90 to 2.10): {OUTCOMES[TOO_SHORT]}; "],
            1,
        ),
        (HOT, {}, None, "Caution: ", [OUTCOMES[NOT_PAIRED]], 2),
        (
            HOT,
            {},
            gained(untrained=SKIPPED),
            "amp_fp16 did not train: 40% of its steps",
            ["2.00x", "Caution: "],
            2,
        ),
        (
            {},
            {},
            gained(lost=LOST),
            "amp_fp16 is 2.00x",
            [f"(1.90 to 2.10): {FASTER}, but its accuracy ends at 0.897, not 0.9; "],
            1,
        ),
        ({}, {}, gained(apart=True, median_ratio=1.11), "amp_fp16 is 2.00x", [FASTER, "1.11x"], 1),
        (
            {},
            {},
            gained(unlike=SLOWED),
            "amp_fp16 is 2.00x",
            ["because only fp32 was slowed down (heat); "],
            1,
        ),
        (
            {},
            {},
            gained(differences=[FORKED, FORKED]),
            "Caution: only the kernel of fp32 was forked. amp_fp16 is 2.00x",
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
            {**LARGEST, "batch_size_used": 1000},
            {"batch_size_used": 500},
            gained(),
            "amp_fp16",
            ["1,000"],
            1,
        ),
        ({"device_type": "cpu"}, {"device_type": "cpu"}, gained(), "amp_fp16 ", ["CPU"], 1),
    ],
)
def test_a_sentence_says_what_is_known_and_faster_only_if_it_is(
    own, base, speedup, begins, holds, sentences
):
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


@pytest.mark.parametrize(
    "found, words",
    [
        (FORKED, "only the kernel of fp32 was forked"),
        (Finding("shared", "tf32"), "tf32 GPU shared with another process"),
        (Finding("shared"), "GPU shared with another process"),
        (
            Finding("throttled", "", {"reasons": {"heat": 0.05, "power brake": 0.5}}),
            "throttled (heat 5%, power brake 50% of the time)",
        ),
        (
            Finding("place", "tf32", {"place": None, "other": "fp32", "other_place": 1}),
            "tf32 was run unknown of its process, fp32 run 1",
        ),
        (
            Finding("code_hash", values={"own": "a" * 40, "base": None}),
            f"measuring code {'a' * 24} against unknown",
        ),
        (
            Finding("clock", values={"own": 1200.0, "base": 1980.4}),
            "clock 1200 MHz against 1980 MHz",
        ),
        (
            Finding("no_metric", "fp32", {"metric": "mean_absolute_error"}),
            "fp32 did not train: its last mean absolute error is missing or not finite",
        ),
        (
            Finding("no_metric", "fp32", {"metric": None}),
            "fp32 did not train: its last metric is missing or not finite",
        ),
        (
            Finding("not_profiled", values={"reason": None}),
            "what limits it is not known (it was not profiled)",
        ),
    ],
)
def test_a_finding_in_words(found, words):
    assert said(found) == words


def test_a_limit_is_said_with_what_stands_behind_it():
    record = profiled(busy=0.8, data_wait_fraction=0.1)
    assert said_of_limit(find_bottleneck(record)) == (
        "the GPU is idle 20% of the time and the loop waits 10% for its data, the rest between"
        " kernel launches (10%)"
    )
    gain = Finding("gain", values={"ratio": 1.25, "low": 1.09, "high": 1.42})
    found = find_bottleneck({**profiled(SPARSE, busy=0.85), "graph_gain": gain})
    assert "1.25x (1.09 to 1.42) as fast" in said_of_limit(found)
    assert tried([]) == "" and tried(["graph", "compile"]).startswith(
        f"{tried(['graph'])} or torch.compile"
    )


def literals_of(module):
    """Return the texts in a module of judge/ and, apart, the first ones of each Finding."""
    tree = ast.parse((ROOT / f"mixed_precision_study/judge/{module}.py").read_text())
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    made = [one.args[0] for one in calls if getattr(one.func, "id", "") == "Finding"]
    texts = [tree, *made]
    constants = [[one for one in ast.walk(part) if isinstance(one, ast.Constant)] for part in texts]
    found = [{one.value for one in part if isinstance(one.value, str)} for part in constants]
    return found[0], set().union(*found[1:])


def test_every_code_has_words():
    texts, codes = literals_of("bottleneck")
    assert set(LIMITS) <= texts & set(FOUND) and set(REMEDIES) <= texts
    for module in ("conditions", "trained", "divergence", "memory_reason", "ratios"):
        codes |= literals_of(module)[1]
    assert len(codes) >= 15 and codes <= set(FOUND)
    assert {*SOFTWARE, *HOST} == set(SOFTWARE_AND_HOST)
    outcomes = {*judging.OUTCOMES, *judging.TOO_FEW_PROCESSES.values(), *equivalence.AS_GOOD}
    assert all("_" not in outcome_words(one) for one in outcomes)
