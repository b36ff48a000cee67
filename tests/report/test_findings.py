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
from mixed_precision_study.report.results import reasons_of, remark_on
from mixed_precision_study.report.words import (
    FOUND,
    LIMITS,
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
NOT_OK = [status for status in get_args(Status) if status != "ok"]


def assert_reads_well(text, sentences=1):
    """Check that a text is whole sentences, each with one full stop, and that nothing unknown
    was put into words.
    """
    assert text.endswith(".")
    assert not re.search(r"\.\s*[.;:,)]|\bNone\b|\bnan\b|\binf\b|\(\)|\s\s|\[|\{", text), text
    assert len(re.findall(r"\.(?=\s|$)", text)) == sentences, text


@pytest.mark.parametrize("status", NOT_OK)
def test_a_failed_run_says_why(status):
    fields = {"status": status, "epoch_seconds": []}
    text = remark_on(flat(**fields, reason="the reason"), FP32, None)
    assert text.startswith("amp_fp16 (") and text.endswith("): the reason.")
    assert remark_on(flat(**fields, reason="the reason."), FP32, None) == text
    # a record from elsewhere may have no reason
    assert_reads_well(remark_on(flat(**fields), FP32, None))


@pytest.mark.parametrize(
    "record", [profiled(SPARSE), profiled(busy=0.5, data_wait_fraction=0.4), flat()]
)
def test_a_measured_run_says_what_limits_it(record):
    reason = reasons_of(record, FP32)
    assert reason.startswith(said_of_limit(find_bottleneck(record)))
    assert remark_on(record, FP32, gained(2.004, 1.9, 2.1)) == f"amp_fp16: {reason}."
    assert remark_on(record, FP32, None) == f"amp_fp16: {reason}."


@pytest.mark.parametrize(
    ("own", "ratio", "holds", "sentences"),
    [
        (HOT, None, ["Caution: amp_fp16 throttled", "5%", "; amp_fp16 at", "40%"], 2),
        (HOT, gained(untrained=SKIPPED), ["did not train: 40% of its steps", "no speed-up"], 1),
        ({}, gained(lost=LOST), ["Caution: its accuracy ends at 0.897, not 0.9"], 2),
        ({}, gained(unlike=SLOWED), ["only fp32 was slowed down (heat)."], 2),
        ({}, gained(differences=[FORKED, FORKED]), ["only the kernel of fp32 was forked."], 2),
        ({"gpu_shared": True}, gained(), ["amp_fp16 GPU shared"], 2),
    ],
)
def test_what_disturbed_a_run_is_told(own, ratio, holds, sentences):
    text = remark_on(profiled() | own, FP32, ratio)
    assert all(text.count(one) == 1 for one in holds), text
    assert_reads_well(text, sentences)


@pytest.mark.parametrize(
    "precision, share", [("amp_bf16", 0.05), ("amp_bf16", 0.04), ("amp_fp16", 0.9)]
)
def test_bf16_that_runs_in_fp16_is_told(precision, share):
    text = remark_on(profiled(precision=precision, fp16_kernel_fraction=share), FP32, gained())
    assert ("; 5% of kernel time is in fp16" in text) is (share == 0.05) is ("in fp16" in text)
    assert_reads_well(text)


@pytest.mark.parametrize(
    ("found", "words"),
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
    found = find_bottleneck(profiled(SPARSE, busy=0.85) | {"graph_gain": gain})
    assert "1.25x (1.09 to 1.42) as fast" in said_of_limit(found)
    assert tried([]) == "" and tried(["graph", "compile"]).startswith(
        f"{tried(['graph'])} or torch.compile"
    )


def literals_of(module):
    """Return the texts in a module of judge/ and, apart, the first ones of each Finding."""
    tree = ast.parse((ROOT / "mixed_precision_study/judge" / f"{module}.py").read_text())
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
