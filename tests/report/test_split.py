"""The split of what two settings gain together, from made-up records of known factors."""

import io
import itertools
import math

import made_up_records as made_up
import pandas as pd
import pytest
from drawn_reports import all_parts, failures_in
from test_axis import study_in

from mixed_precision_study.report.section import File, Table
from mixed_precision_study.report.split import splits_of

PRODUCTS, ATTENTION = 2.0, 1.5  # what each gains alone; both gain HELP times as much
HELP = 1.25
SCATTER = (0.99, 1.0, 1.01)


def run_of(precision, attention, repeat, seconds):
    settings = {"attention_dtype": attention, "repeat": repeat, "execution": "cuda_graph"}
    return made_up.make("cifar_resnet", precision, parameters=settings, seconds=[seconds] * 3)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return the Tables of four arms, in whose repetitions the clock and the help differ."""
    runs = [run_of("tf32", "fp32", 3, 9.0), run_of("amp_bf16", "efficient", 0, 3.0)]
    for repeat, (precision, attention) in itertools.product(
        range(3), itertools.product(("tf32", "amp_bf16"), ("fp32", "bf16"))
    ):
        gain = PRODUCTS ** (precision == "amp_bf16") * ATTENTION ** (attention == "bf16")
        if (precision, attention) == ("amp_bf16", "bf16"):
            gain *= HELP * SCATTER[repeat]
        runs.append(run_of(precision, attention, repeat, 12 * (1 + repeat / 10) / gain))
    axis, base = ["precision", "attention_dtype"], ["tf32", "fp32"]
    return study_in(tmp_path_factory.mktemp("outside") / "split", runs, axis=axis, base=base)


@pytest.mark.parametrize(
    ("part", "ratio", "exact"),
    [
        ("first_alone", PRODUCTS, True),
        ("second_alone", ATTENTION, True),
        ("first_after", PRODUCTS * HELP, False),
        ("second_after", ATTENTION * HELP, False),
        ("both", PRODUCTS * ATTENTION * HELP, False),
        ("interaction", HELP, False),
    ],
)
def test_a_split_finds_factors_and_their_scatter(split, part, ratio, exact):
    found = splits_of(split).set_index("part").loc[part]
    middle = ratio * (1 if exact else math.prod(SCATTER) ** (1 / 3))
    # Student's t for 2 degrees of freedom, times the standard error of the logarithms
    width = 0 if exact else 4.302653 * pd.Series(SCATTER).map(math.log).sem()
    assert (found.ratio, found.processes) == (pytest.approx(middle), 3)
    assert found.low == pytest.approx(middle * math.exp(-width))
    assert found.high == pytest.approx(middle * math.exp(width))


def test_a_split_is_a_table_and_a_file_of_the_report(split):
    parts = all_parts(split)
    (file,) = (part for part in parts if isinstance(part, File) and part.name == "splits.csv")
    written = pd.read_csv(io.BytesIO(file.content)).set_index("part")
    assert written.gain["second_after"] == "attention dtype bf16 after bf16 AMP"
    assert set(written.arm) == {"amp_bf16, bf16"}
    cells = [row for part in parts if isinstance(part, Table) for row in part.rows]
    (row,) = (row for row in cells if row.get("with") == "both")
    assert row["times as fast"].startswith("3.75 (") and row["n"] == 3
    assert failures_in(split) == []


def test_without_all_four_arms_there_is_no_split(tmp_path):
    runs = [run_of("tf32", "fp32", 0, 9.0), run_of("tf32", "bf16", 0, 6.0)]
    runs += [run_of("amp_bf16", "fp32", 0, 5.0), run_of("amp_bf16", "bf16", 1, 3.0)]
    said = {"axis": ["precision", "attention_dtype"], "base": ["tf32", "fp32"]}
    assert splits_of(study_in(tmp_path / "three", runs, **said)).empty
