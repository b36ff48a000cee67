"""Equal runs of the study `aa`: they are read and counted, and no comparison has them."""

import made_up_records as made_up
from drawn_reports import SECTION, explore, write_all

from mixed_precision_study.report import answer
from mixed_precision_study.report.load import load, stop_without_records
from mixed_precision_study.report.section import File


def write_equal(folder):
    for number in range(8):
        given = {"purpose": "aa", "repeat": number, "execution": "eager"}
        record = made_up.make("cifar_resnet", "amp_bf16", seconds=[6.0 + 0.01 * (number % 3)] * 3, parameters=given)
        write_all(folder, record)


def test_equal_runs_among_the_records_are_counted_and_not_compared(tmp_path):
    write_all(tmp_path, *(made_up.make("cifar_resnet", precision) for precision in ("fp32", "amp_bf16")))
    before = load(tmp_path)
    write_equal(tmp_path)
    report = load(tmp_path)
    assert (len(report.used), len(report.equal), report.left_out) == (2, 8, [])
    assert report.speedups == before.speedups
    assert [len(group["runs"]["amp_bf16"]) for group in report.comparisons] == [1]


def test_a_folder_of_equal_runs_has_its_title_and_a_table_of_its_runs_and_compares_nothing(tmp_path):
    write_equal(tmp_path)
    report, charts = explore(tmp_path)
    stop_without_records(report)
    assert (report.comparisons, charts) == ([], {})
    assert answer.kind_of(report) == "aa"
    heading, *_ = answer.section(report).parts
    assert heading.title.endswith("on one H200: resnet18")
    (file,) = SECTION["table"](report).parts
    assert isinstance(file, File) and file.name == "results.csv"
    assert len(file.content.decode().splitlines()) == 1 + 8
