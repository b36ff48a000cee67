"""A study whose arms are no precisions needs nothing but `axis` and `base` in study.yaml."""

import csv
import io
import itertools
import math

import made_up_records as made_up
import pytest
import yaml
from conftest import CASES, refuses
from drawn_reports import all_parts, failures_in, write_all

from mixed_precision_study.report.section import Cards, Chart, File, Table
from mixed_precision_study.report.tables import bars_of, read_tables

SECONDS = {"none": 4.0, "blocks": 5.0}
GIB = {"none": 2.0, "blocks": 0.5}
SCATTER = (0.95, 1.0, 1.05)


def checkpointed(arm, repeat=0, seconds=None, precision="fp32", **fields):
    time = seconds or SECONDS[arm] * (SCATTER[repeat] if arm == "blocks" else 1.0)
    parameters = {"checkpointing": arm, "repeat": repeat, **fields.pop("parameters", {})}
    peak = 150 + 1024 * GIB.get(arm, 1.0)
    return made_up.make(
        "cifar_resnet", precision, parameters=parameters, seconds=[time] * 3, peak=peak, **fields
    )


def study_in(folder, records, **said):
    folder.mkdir(exist_ok=True)
    write_all(folder, *records)
    said = {"name": "remedies", "axis": "checkpointing", "base": "none", **said}
    (folder / "study.yaml").write_text(yaml.safe_dump(said))
    return read_tables(folder)


def parts_in(tables, kind):
    return [part for part in all_parts(tables) if isinstance(part, kind)]


@pytest.fixture(scope="module")
def remedies(tmp_path_factory):
    runs = [checkpointed(arm, repeat) for repeat, arm in itertools.product(range(3), SECONDS)]
    return study_in(tmp_path_factory.mktemp("outside") / "remedies", runs)


def test_an_arm_has_its_ratio_with_an_interval_over_its_base(remedies):
    (ratio,) = remedies.ratios.to_dict("records")
    assert (ratio["axis"], ratio["arm"], ratio["base"]) == ("checkpointing", "blocks", "none")
    middle = 0.8 / math.prod(SCATTER) ** (1 / 3)
    assert (ratio["ratio"], ratio["processes"]) == (pytest.approx(middle), 3)
    assert ratio["low"] < middle < ratio["high"] < 1 and ratio["outcome"] == "slower"
    assert (ratio["saved"], ratio["precision"], ratio["baseline"]) == (0.75, "fp32", "fp32")
    (file,) = (part for part in parts_in(remedies, File) if part.name == "ratios.csv")
    (row,) = csv.DictReader(io.StringIO(file.content.decode()))
    assert (row["arm"], row["base"], row["ratio"]) == ("blocks", "none", f"{ratio['ratio']:.8g}")


@pytest.mark.slow
def test_its_report_has_charts_and_tables_and_no_failed_section(remedies):
    assert failures_in(remedies) == []
    (card,) = parts_in(remedies, Cards)[0].cards
    assert card["numbers"]["blocks"].endswith("0.80×") and "none" in card["against"]
    ratios, time, memory = (chart.figures[0] for chart in parts_in(remedies, Chart)[:3])
    (label,) = [
        text.get_text() for text in ratios.axes[0].texts if " blocks " in f"{text.get_gid()} "
    ]
    assert label.endswith("0.80×")
    for figure, unit in ((time, " s"), (memory, " GiB")):
        labels = [text.get_text() for text in figure.axes[0].texts]
        assert sum(label.endswith(unit) for label in labels) == 2
    cells = [row for table in parts_in(remedies, Table) for row in table.rows]
    assert any("blocks over none" in row and "(" in row["blocks over none"] for row in cells)
    assert any(row.get("over none") == "0.80" for row in cells)


def test_each_precision_is_a_comparison_of_its_own(tmp_path):
    runs = [
        checkpointed(arm, repeat, precision=precision)
        for repeat in range(3)
        for arm in SECONDS
        for precision in ("fp32", "amp_bf16")
    ]
    found = study_in(tmp_path / "both", runs)
    assert list(found.comparisons.arms) == [2, 2] and len(found.ratios) == 2
    assert {"bf16 AMP", "fp32"} <= set(" · ".join(found.comparisons.title).split(" · "))
    assert set(bars_of(found).colour) == set(found.looks.colour)


@pytest.mark.parametrize(
    "axis, base, arms",
    CASES["arms"],
)
def test_an_arm_is_a_number_a_switch_or_several_settings(tmp_path, axis, base, arms):
    settings = axis if isinstance(axis, list) else [axis]
    runs = []
    for arm in arms:
        values = dict(zip(settings, map(yaml.safe_load, arm.split(", ")), strict=True))
        precision = values.pop("precision", "fp32")
        runs.append(made_up.make("cifar_resnet", precision, parameters=values))
    found = study_in(tmp_path / "arms", runs, axis=axis, base=base)
    assert list(found.arms) == arms and set(found.ratios.base) == {arms[0]}
    assert found.called(arms[0]) != arms[0]
    assert failures_in(found) == []


@pytest.mark.parametrize(
    "said",
    [
        {"base": None},
        {"axis": []},
        {"axis": {"a": 1}},
        {"base": ["none", "blocks"]},
        {"base": {"none": 1}},
    ],
)
def test_an_axis_that_says_too_little_is_refused_in_a_sentence(tmp_path, said):
    with refuses(r"axis|base"):
        study_in(tmp_path / "wrong", [checkpointed("none")], **said)
