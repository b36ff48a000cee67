"""The same runs with another version of PyTorch: regressions are named, and only those that can be told."""

import made_up_records as made_up
import pytest
from drawn_reports import SECTION, explore, write_all

from mixed_precision_study.report.section import Sentence
from mixed_precision_study.report.versions import changes_in, without_build

OLD, NEW = "2.9.1+cu128", "2.11.0+cu130"


def write(folder, version, factors, processes=3, **fields):
    """Write runs of a ResNet-18 whose times are multiplied by the factor of their precision."""
    for precision, factor in factors.items():
        for number in range(processes):
            seconds = [6.0 * factor * (1 + 0.001 * number)] * 3
            values = {"repeat": number}
            record = made_up.make(
                "cifar_resnet", precision, seconds=seconds, parameters=values, torch_version=version, **fields
            )
            write_all(folder, record)


def report_of(folder, old, new, processes=3, **fields):
    """Return the report of two folders of records below one, as two batches leave them."""
    for name in ("old", "new"):
        (folder / name).mkdir()
    write(folder / "old", OLD, old, processes)
    write(folder / "new", NEW, new, processes, **fields)
    return explore(folder, "versions")[0]


def said(report):
    return " ".join(part.text for part in SECTION["versions"](report) if isinstance(part, Sentence))


def test_a_regression_is_named_and_a_gain_or_a_small_loss_is_none(tmp_path):
    old = {"fp32": 1.0, "tf32": 0.5, "amp_bf16": 0.5}
    report = report_of(tmp_path, old, {"fp32": 1.08, "tf32": 0.51, "amp_bf16": 0.4})
    changes = {change.precision: change for change in changes_in(report)}
    assert {(change.old, change.new) for change in changes.values()} == {("2.9.1", "2.11.0")}
    assert changes["fp32"].speedup["ratio"] == pytest.approx(1 / 1.08, rel=1e-3)
    assert [name for name, change in changes.items() if change.slower] == ["fp32"]
    text = said(report)
    assert "**Slower by over 5%**: fp32 of resnet18" in text
    assert "tf32 of" not in text and "amp" not in text


def test_of_one_process_a_longer_time_is_no_outcome(tmp_path):
    text = said(report_of(tmp_path, {"fp32": 1.0}, {"fp32": 1.5}, processes=1))
    assert "Slower" not in text
    assert "but that is no outcome: fp32" in text and "0.67x, one process" in text


def test_more_memory_is_a_regression_of_its_own(tmp_path):
    text = said(report_of(tmp_path, {"fp32": 1.0}, {"fp32": 1.0}, peak=4096 * 1.2))
    assert "Over 5% more memory" in text and "120%" in text and "Slower" not in text


def test_where_nothing_got_worse_that_is_said_with_the_number(tmp_path):
    assert "None of 2 took over 5% more" in said(report_of(tmp_path, {"fp32": 1, "tf32": 1}, {"fp32": 1, "tf32": 1}))


def test_one_version_has_no_section_and_three_are_compared_one_by_one(tmp_path):
    write(tmp_path, OLD, {"fp32": 1.0})
    assert list(SECTION["versions"](explore(tmp_path, "versions")[0])) == []
    for version in ("2.10.0", NEW):
        folder = tmp_path / version
        folder.mkdir()
        write(folder, version, {"fp32": 1.0})
    changes = changes_in(explore(tmp_path, "versions")[0])
    assert [(change.old, change.new) for change in changes] == [("2.9.1", "2.10.0"), ("2.10.0", "2.11.0")]


def test_a_build_is_no_version():
    assert without_build(NEW) == "2.11.0"
