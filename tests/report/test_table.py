"""The one table of all comparisons, and results.csv."""

import csv
import io

import made_up_records as made_up
import pandas as pd
import pytest
from drawn_reports import SECTION, explore, write_all

from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import File, Table
from mixed_precision_study.report.table import address_of


def table_in(folder):
    """Return the table of a folder's report and its files as {name: DataFrame}."""
    parts = SECTION["table"](load(folder)).parts
    (table,) = [part for part in parts if isinstance(part, Table)]
    return table, {part.name: pd.read_csv(io.BytesIO(part.content)) for part in parts if isinstance(part, File)}


def test_each_precision_has_one_row_with_both_ratios_and_a_link_to_its_record(tmp_path):
    seconds = {"fp32": 4.0, "tf32": 2.0, "amp_fp16": 1.0}
    write_all(tmp_path, *(made_up.make("cifar_resnet", name, seconds=[one] * 3) for name, one in seconds.items()))
    table, _ = table_in(tmp_path)
    assert [row["precision"] for row in table.rows] == list(seconds)
    assert [row["over fp32"] for row in table.rows] == ["-", "2.00x", "4.00x"]
    assert [row["over tf32"] for row in table.rows] == ["-", "-", "2.00x"]
    assert all((tmp_path / link).is_file() and name in link for link, name in zip(table.links, seconds, strict=True))
    assert table.sortable
    assert "outcome over fp32: one process" in table.caption  # said once
    assert "is" not in table.rows[0]


def test_every_run_is_a_row_of_results_csv_with_what_was_judged_of_it(tmp_path):
    for precision, end in (("fp32", 4.0), ("amp_fp16", 1.0)):
        for repeat in range(3):
            values = {"repeats": 1, "repeat": repeat}
            seconds = [end + 0.01 * repeat] * 3
            write_all(tmp_path, made_up.make("cifar_resnet", precision, seconds=seconds, parameters=values))
    failed = made_up.make_failed("cifar_resnet", "tf32", "oom", "out of memory, 'here', \"there\"")
    write_all(tmp_path, failed)
    _, files = table_in(tmp_path)
    results = files["results.csv"].set_index("run_id")
    assert len(results) == 7
    assert set(results["epoch_seconds_count"].dropna()) == {0, 3}
    fast = results[results["precision"] == "amp_fp16"]
    assert fast["speed_up_over_fp32"].round(1).tolist() == [4.0] * 3
    assert set(fast["verdict_over_fp32"]) == {"faster"}
    assert results.loc[failed.run_id, "reason"] == failed.reason
    assert results[results["precision"] == "fp32"]["speed_up_over_fp32"].isna().all()


def test_no_text_of_a_record_is_a_formula_of_a_spreadsheet(tmp_path):
    texts = {"note": "=HYPERLINK(1)", "=1+1": "@SUM(1)", "-2": "+3", "tab": "\t=1", "number": -0.5, "plain": "a=1"}
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", parameters=texts))
    files = {part.name: part for part in SECTION["table"](load(tmp_path)).parts if isinstance(part, File)}
    content = files["results.csv"].content
    rows = list(csv.reader(io.StringIO(content.decode())))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t")) or cell == "-2"]
    row = dict(zip(*rows, strict=True))
    assert row["'=1+1"] == "'@SUM(1)" and (row["number"], row["plain"]) == ("-0.5", "a=1")


def test_the_last_metric_is_a_mean_like_the_change_beside_it(tmp_path):
    for precision, ends in (("fp32", (0.5, 0.5, 0.8)), ("amp_fp16", (0.6, 0.6, 0.9))):
        for seed, end in enumerate(ends):
            run = made_up.make("cifar_resnet", precision, parameters={"seed": seed}, metric=[0.2, 0.3, end])
            write_all(tmp_path, run)
    table, _ = table_in(tmp_path)
    assert [row["last metric"] for row in table.rows] == ["0.600", "0.700"]
    assert table.rows[1]["change"].startswith("+10.00 points")


def test_runs_that_are_no_better_than_a_guess_are_counted(tmp_path):
    for repeat, end in enumerate((0.05, 0.12, 0.13)):
        values = {"repeats": 3, "repeat": repeat}
        run = made_up.make("cifar_resnet", "fp32", parameters=values, metric=[0.2, 0.3, end], chance_metric=0.1)
        write_all(tmp_path, run)
    parts = SECTION["training_curves"](load(tmp_path)).parts
    (text,) = [part.text for part in parts if "ignores its input" in getattr(part, "text", "")]
    assert text.endswith("(1 of 3 runs).")


@pytest.mark.parametrize(("chance", "drawn"), [(0.1, False), (0.55, True)])
def test_chance_that_lies_far_from_all_runs_is_told_in_words(tmp_path, chance, drawn):
    for repeat, end in enumerate((0.60, 0.62)):
        values = {"repeats": 2, "repeat": repeat}
        write_all(tmp_path, made_up.make("cifar_resnet", "fp32", parameters=values, metric=[end], chance_metric=chance))
    _, charts = explore(tmp_path, "training_curves")
    axes = charts["last_metrics"].axes[0]
    assert ("chance is 0.1" in axes.get_title(loc="left")) is not drawn
    assert any(line.get_linestyle() == "--" for line in axes.lines) is drawn
    assert axes.get_xlim()[0] > 0.5


def test_what_cannot_be_linked_to_has_no_link(tmp_path):
    (tmp_path / "sub").mkdir()
    record = made_up.make("cifar_resnet", "fp32")
    write_all(tmp_path / "sub", record)
    report = load(tmp_path)
    (run,) = report.used
    assert address_of(report, run) == f"sub/{record.run_id}.json"
    for path in ("../outside.json", "/etc/passwd", "records.zip/one.json", "javascript:alert(1)"):
        assert address_of(report, {"path": path}) == ""
