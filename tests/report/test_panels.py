"""The sections why, memory, energy and inference: the bars are the figures of the records, and titles hold for them."""

import made_up_records as made_up
import pytest
from drawn_reports import parts_of, read_all

from mixed_precision_study.report import energy_used, in_use, memory_used, why
from mixed_precision_study.report.section import Chart, Table
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


def test_a_step_is_drawn_as_arithmetic_other_kernels_and_idle_with_eager_above_the_graph(tmp_path):
    graph = step("amp_fp16", 1.0, 3.0, "cuda_graph")
    others = step("fp32", 0.9, 10.0), step("amp_fp16", 0.5), step("fp32", 1.0, 9.0, "cuda_graph")
    section = why.section(read_all(tmp_path, graph, *others))
    (chart,) = parts_of(section, Chart)
    # fp32, fp16, and as graphs
    steps = [(4.5, 4.5, 1.0), (2.0, 2.0, 4.0), (4.5, 4.5, 0.0), (1.5, 1.5, 0.0)]
    widths = [width for *_, width in bars_of(chart)]
    assert [tuple(widths[place : place + 3]) for place in range(0, 12, 3)] == steps
    assert bars_of(chart)[3:6] == [(1, 0, 2), (1, 2, 2), (1, 4, 4)]
    assert "50%" in section.title and "fp16" in section.title and why.GRAPH in section.about
    (table,) = parts_of(section, Table)
    eager = {row["precision"]: row["limited by"] for row in table.rows[:2]}
    assert eager["fp16"] == "kernel launches" and len(table.rows) == 4


@pytest.mark.parametrize(
    ("records", "in_title", "not_in_title"),
    [
        ([("fp32", 0.95), ("amp_fp16", 0.96)], "arithmetic takes only 48%", "waits"),
        ([("fp32", 0.95), ("amp_fp16", 0.6)], "40%", "without a graph"),  # no graph was run
        ([("fp32", 0.95), ("tf32", 0.3)], "where the time", "waits"),  # no AMP
    ],
)
def test_the_title_says_only_what_the_steps_show(tmp_path, records, in_title, not_in_title):
    title = why.section(read_all(tmp_path, *(step(*record) for record in records))).title
    assert in_title in title and not_in_title not in title


def test_the_parts_of_the_memory_add_up_or_are_not_shown():
    mib = {
        f"ledger_{name}_mib": 512.0 for names in memory_used.MEMORY_PARTS.values() for name in names
    }
    assert list(memory_used.memory_parts_of(mib).values()) == [2.0, 0.5, 0.5, 1.0]
    for broken in ({"ledger_slack_mib": -1.0}, dict.fromkeys(list(mib)[:6])):
        assert memory_used.memory_parts_of(mib | broken) == {}


def test_inference_is_shown_only_where_the_study_is_about_it(tmp_path):
    tables = read_all(
        tmp_path, *(made_up.make("cifar_resnet", name) for name in ("tf32", "amp_fp16"))
    )
    assert in_use.section(tables).parts == []
    tables.show = {"inference": True}
    section = in_use.section(tables)
    drawn = [[width for *_, width in bars_of(chart)] for chart in parts_of(section, Chart)]
    assert drawn == [[2.0, 3.0], [2000.0, 4000.0]] and "all 1" in section.title


def test_a_section_without_its_measurements_is_absent(tmp_path):
    bare = read_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    for tables in (bare, Tables(show={"inference": True})):
        assert all(
            module.section(tables).parts == [] for module in (why, memory_used, energy_used, in_use)
        )
