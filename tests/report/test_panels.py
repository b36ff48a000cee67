"""The sections why, memory, energy and inference: what their titles say, and where they are absent."""

import made_up_records as made_up
import pytest
from drawn_reports import parts_of, read_all

from mixed_precision_study.report import costs
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.tables import Tables

BUSY = [["convolution", 0.25], ["matmul", 0.25], ["normalisation", 0.5]]


def step(precision, busy, milliseconds=8.0, execution="eager", families=BUSY, **fields):
    known = {
        "gpu_busy_fraction": busy,
        "step_ms_median": milliseconds,
        "kernel_family_fractions": families,
    }
    more = {"parameters": {"execution": execution}, "data_wait_fraction": 0.0}
    return made_up.make("cifar_resnet", precision, **known, **more, **fields)


def bars_of(chart):
    """Return the bars of a panel from above as sorted (row, left end, width)."""
    (axes,) = chart.figures[0].axes
    rows = sorted({bar.get_y() for bar in axes.patches})
    ends = [(bar.get_y(), bar.get_x(), bar.get_width()) for bar in axes.patches]
    return sorted((rows.index(y), round(left, 6), round(width, 6)) for y, left, width in ends)


@pytest.mark.parametrize(
    "records, end",
    [
        ([("fp32", 0.5), ("amp_fp16", 0.96)], "eager 4%"),
        ([("fp32", 0.95), ("amp_fp16", 0.6), ("amp_bf16", 0.75)], "eager 25 to 40%"),
        ([("fp32", 0.95), ("tf32", 0.3)], ""),  # no AMP
    ],
)
def test_the_finding_says_only_what_the_steps_show(tmp_path, records, end):
    section = costs.why_section(read_all(tmp_path, *(step(*record) for record in records)))
    assert section.finding.endswith(end) and bool(section.finding) == bool(end)


def test_the_finding_of_memory_is_what_ratios_csv_says(tmp_path):
    peaks = {"tf32": 1000.0, "amp_fp16": 750.0, "amp_bf16": 700.0}
    records = [made_up.make("cifar_resnet", name, peak=peak) for name, peak in peaks.items()]
    tables = read_all(tmp_path, *records)
    saved = sorted(f"{-100 * one:+.0f}" for one in tables.ratios.saved.dropna())
    finding = costs.memory_section(tables).finding
    assert finding.endswith(f"ResNet-18 {saved[1]} to {saved[0]}%") and "TF32" in finding


def test_the_parts_of_the_memory_add_up_or_are_not_shown():
    mib = {f"ledger_{name}_mib": 512.0 for names in costs.MEMORY_PARTS.values() for name in names}
    assert list(costs.memory_parts_of(mib).values()) == [2.0, 0.5, 0.5, 1.0]
    for broken in ({"ledger_slack_mib": -1.0}, dict.fromkeys(list(mib)[:6])):
        assert costs.memory_parts_of(mib | broken) == {}


def test_inference_is_shown_only_where_the_study_is_about_it(tmp_path):
    tables = read_all(tmp_path, *made_up.pair_of())
    assert costs.inference_section(tables).parts == []
    tables.show = {"inference": True}
    section = costs.inference_section(tables)
    drawn = [[width for *_, width in bars_of(chart)] for chart in parts_of(section, Chart)]
    assert drawn == [[2.0, 3.0], [2000.0, 4000.0]]


MAKERS = (
    costs.why_section,
    costs.memory_section,
    costs.energy_section,
    costs.inference_section,
)


def test_a_section_without_its_measurements_is_absent(tmp_path):
    bare = read_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    for tables in (bare, Tables(show={"inference": True})):
        assert all(make(tables).parts == [] for make in MAKERS)
