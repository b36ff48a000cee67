"""The words for what judge/ found, and the sentence on a run beside its baseline."""

import ast
import re

import pytest
from conftest import ROOT
from made_up_runs import HOT, gained, profiled

from mixed_precision_study.judge import equivalence
from mixed_precision_study.judge import verdict as judging
from mixed_precision_study.judge.conditions import HOST, SOFTWARE
from mixed_precision_study.judge.finding import Finding
from mixed_precision_study.report.results import remark_on
from mixed_precision_study.report.words import (
    FOUND,
    LIMITS,
    REMEDIES,
    SOFTWARE_AND_HOST,
    outcome_words,
)

SKIPPED = Finding("skipped", "amp_fp16", {"share": 0.4})
LOST = Finding("lost", "", {"metric": "accuracy", "own": 0.897, "base": 0.9})
SLOWED = Finding("slowed", "fp32", {"reasons": ["heat"]})
FORKED = Finding("forked", "fp32")
FP32 = profiled(precision="fp32")


def assert_reads_well(text, sentences=1):
    """Check that a text is whole sentences, each with one full stop, and that nothing unknown
    was put into words.
    """
    assert text.endswith(".")
    assert not re.search(r"\.\s*[.;:,)]|\bNone\b|\bnan\b|\binf\b|\(\)|\s\s|\[|\{", text), text
    assert len(re.findall(r"\.(?=\s|$)", text)) == sentences, text


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
