"""What fills the memory, and what 16 bits save of it."""

import made_up_records as made_up
import pytest
from drawn_reports import explore, flat, panel_of, said_in, tables_of, texts, write_all

from mixed_precision_study.report.load import load
from mixed_precision_study.report.memory_breakdown import (
    findings,
    memory_parts_of,
    runs_with_breakdown,
    section,
    total_label,
)

H200 = "resnet18 · cifar10, b128 · H200"
PARTS = ("parameters", "gradients", "optimizer", "masters", "data", "activations", "slack", "context")


def holding(precision, **mib):
    """Return the record of a run whose memory holds these MiB, and nothing else."""
    amounts = {f"ledger_{name}_mib": float(mib.get(name, 0)) for name in PARTS}
    return made_up.make("cifar_resnet", precision, parameters=mib.get("parameters_of"), **amounts)


def found_in(folder, *records):
    write_all(folder, *records)
    report = load(folder)
    return findings(report, {key: memory_parts_of(record) for key, record in runs_with_breakdown(report).items()})


def test_the_parts_have_one_sum(everything):
    report, charts = everything
    axes = panel_of(charts["memory_breakdown"], H200)
    first = [bar for bar in axes.patches if abs(bar.get_y() + bar.get_height() / 2) < 0.01]  # of fp32
    assert sum(bar.get_width() for bar in first) == pytest.approx((4096 + 200 + 1290) / 1024)
    ends = [0, *(bar.get_x() + bar.get_width() for bar in first)]
    assert [bar.get_x() for bar in first] == pytest.approx(ends[:-1])
    runs = runs_with_breakdown(report)
    key = next(key for key in runs if report.comparisons[key[0]]["title"] == H200 and key[1] == "o2_fp16")
    assert memory_parts_of(runs[key])["weights, gradients, optimizer"] == pytest.approx(4 * 43 / 1024)
    said = texts(charts["memory_breakdown"])
    assert {"nvidia-ml-py is not installed", "not measured", "oom", "diverged"} <= set(said)
    assert {"weights, gradients, optimizer", "activations and workspace", "context and libraries"} <= set(said)
    assert any("5.46 GiB" in text for text in said)
    assert "0.4%" in said_in("memory_breakdown", report)
    (rows,) = tables_of("memory_breakdown", report)
    assert len(rows) == len(runs) and rows[0]["all, GiB"] == "5.46"


def test_without_the_context_the_sum_is_a_lower_bound():
    record = flat(made_up.make("cifar_resnet", "fp32", ledger_context_mib=None, ledger_reason="no NVML"))
    assert sum(memory_parts_of(record).values()) == pytest.approx((4096 + 200) / 1024)
    assert total_label(record).startswith("≥ 4.20")
    assert memory_parts_of(flat(made_up.make("cifar_resnet", "fp32", explained=False))) == {}
    assert memory_parts_of(flat(made_up.make("cifar_resnet", "fp32", ledger_slack_mib=-1.0))) == {}


def test_a_run_made_for_its_time_alone_has_no_parts(tmp_path):
    unknown = {f"ledger_{name}_mib": None for name in PARTS if name not in ("slack", "context")}
    half = made_up.make("cifar_resnet", "amp_fp16", **unknown, ledger_reason="the run was made for its time alone")
    assert half.ledger_slack_mib and half.ledger_context_mib
    assert memory_parts_of(flat(half)) == {}
    assert found_in(tmp_path, holding("fp32", activations=900), half) == []


def test_halved_activations_are_called_so(tmp_path):
    (clause,) = found_in(
        tmp_path, holding("fp32", activations=8000, context=2000), holding("amp_fp16", activations=4000, context=2000)
    )
    assert "halve the activations" in clause and " 40% of the memory" in clause and "resnet18" in clause


def test_what_is_saved_is_told_of_every_16_bit_mode(tmp_path):
    base = holding("fp32", activations=8000, context=2000)
    halves = [holding("amp_fp16", activations=4000, context=2500), holding("amp_bf16", activations=4000, context=2000)]
    (clause,) = found_in(tmp_path, base, *halves)
    assert " 35 to 40% of the memory" in clause


def test_other_cuts_are_given_as_a_share(tmp_path):
    (clause,) = found_in(tmp_path, holding("fp32", activations=1000), holding("amp_bf16", activations=700))
    assert "by 30%" in clause and "halve" not in clause


def test_what_16_bits_cannot_shrink_is_named(tmp_path):
    (clause,) = found_in(
        tmp_path, holding("fp32", activations=400, context=600), holding("amp_fp16", activations=380, context=600)
    )
    assert "save nothing: activations stay at 95%" in clause and "context and libraries take 60%" in clause


def test_activations_that_stay_are_not_blamed_on_another_part(tmp_path):
    (clause,) = found_in(tmp_path, holding("fp32", activations=1000), holding("amp_fp16", activations=990))
    assert "nothing where" not in clause and " 1%" in clause and " 99% of fp32's" in clause


def test_without_fp32_nothing_is_saved(tmp_path):
    assert found_in(tmp_path, holding("tf32", activations=1000), holding("amp_fp16", activations=500)) == []


def test_the_peak_of_the_warm_up_is_said_where_it_is_far_higher(tmp_path):
    for precision, mib in (("fp32", 4096.0), ("tf32", 1024.0)):
        write_all(tmp_path, made_up.make("cifar_resnet", precision, peak=1024.0, peak_allocated_with_warmup_mib=mib))
    assert "up to 4.0 times the peak of training: 4.00 GiB (fp32, resnet18" in said_in(
        "memory_breakdown", load(tmp_path)
    )
    write_all(
        tmp_path / "little", made_up.make("cifar_resnet", "fp32", peak=1024.0, peak_allocated_with_warmup_mib=1100.0)
    )
    assert "warm-up" not in said_in("memory_breakdown", load(tmp_path / "little"))


def test_without_a_breakdown_the_section_is_absent(tmp_path):
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    _, charts = explore(tmp_path, "memory_breakdown")
    assert charts == {} and list(section(load(tmp_path))) == []
