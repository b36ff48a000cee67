"""What two settings gain, one after the other, from made-up records of known factors."""

import itertools
import math

import made_up_records as made_up
import pytest
from drawn_reports import all_parts, failures_in
from test_axis import study_in

from mixed_precision_study.judge.ratios import interaction
from mixed_precision_study.report.section import Sentence, Table

PRODUCTS, ATTENTION, HELP = 2.0, 1.5, 1.25  # what each gains alone, and the last besides together
SCATTER = (1 / 1.01, 1.0, 1.01)  # of the help
BASE, FIRST, SECOND, BOTH = "tf32, fp32", "amp_bf16, fp32", "tf32, bf16", "amp_bf16, bf16"
AXIS = {"axis": ["precision", "attention_dtype"], "base": ["tf32", "fp32"]}
# Student's t for 2 degrees of freedom, times the standard error of the logarithms
WIDTH = 4.302653 * math.log(1.01) / math.sqrt(3)


def run_of(arm, repeat, gain=1.0):
    precision, attention = arm.split(", ")
    settings = {"attention_dtype": attention, "repeat": repeat, "execution": "cuda_graph"}
    # each repetition has a clock of its own
    seconds = [12 * (1 + repeat / 10) / gain] * 3
    return made_up.make("cifar_resnet", precision, parameters=settings, seconds=seconds)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    gains = {BASE: 1, FIRST: PRODUCTS, SECOND: ATTENTION, "amp_bf16, efficient": 2.5}
    runs = [run_of(arm, repeat, gains[arm]) for arm, repeat in itertools.product(gains, range(3))]
    together = PRODUCTS * ATTENTION * HELP
    runs += [run_of(BOTH, repeat, together * one) for repeat, one in enumerate(SCATTER)]
    return study_in(tmp_path_factory.mktemp("outside") / "split", runs, **AXIS)


@pytest.mark.parametrize(
    ("arm", "base", "ratio", "width"),
    [
        (FIRST, BASE, PRODUCTS, 0),
        (SECOND, BASE, ATTENTION, 0),
        (BOTH, SECOND, PRODUCTS * HELP, WIDTH),
        (BOTH, FIRST, ATTENTION * HELP, WIDTH),
        (BOTH, BASE, PRODUCTS * ATTENTION * HELP, WIDTH),
    ],
)
def test_each_setting_has_its_gain_in_both_orders(split, arm, base, ratio, width):
    rows = split.ratios[(split.ratios.arm == arm) & (split.ratios.base == base)]
    (found,) = rows.itertuples()
    assert (found.ratio, found.processes) == (pytest.approx(ratio, rel=1e-4), 3)
    assert found.low == pytest.approx(ratio * math.exp(-width), rel=1e-4)
    assert found.high == pytest.approx(ratio * math.exp(width), rel=1e-4)


def test_an_interaction_has_an_interval_over_repetitions(split):
    runs = [split.runs(0, arm) for arm in (BASE, FIRST, SECOND, BOTH)]
    found, other = interaction(*runs), interaction(runs[0], runs[2], runs[1], runs[3])
    assert found["ratio"] == pytest.approx(HELP, rel=1e-4) == other["ratio"]
    assert found["low"] == pytest.approx(HELP * math.exp(-WIDTH), rel=1e-4)
    assert interaction(*runs[:3], runs[3][:2])["low"] is None
    assert interaction(*runs[:3], []) == {}


def test_a_report_names_both_orders_and_their_interaction(split):
    parts = all_parts(split)
    alone = "attention dtype bf16 over TF32"
    rows = (row for part in parts if isinstance(part, Table) for row in part.rows)
    (row,) = (row for row in rows if alone in row)
    assert row[alone] == "1.50 (1.50–1.50)"
    assert row["bf16, attention dtype bf16 over bf16"].startswith("1.87 (1.83")
    assert any("1.25 (1.22–1.28)" in part.text for part in parts if isinstance(part, Sentence))
    assert failures_in(split) == []
