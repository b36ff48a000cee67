"""The section on equal runs: where their records are looked for, and that nothing else counts them."""

import made_up_records as made_up
import pytest
from drawn_reports import SECTION, explore, said_in, tables_of, write_all

from mixed_precision_study.report import aa, answer, sections
from mixed_precision_study.report.load import found, load, stop_without_records
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.section import File, Sentence


def write_equal(folder, count=8, cores=16, device=made_up.H200, parameters=None, **fields):
    """Write equal runs of 18 s each that differ by less than 1%."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        given = {"purpose": "aa", "repeat": number, "execution": "eager", **(parameters or {})}
        seconds = [6.0 + 0.01 * (number % 3)] * 3
        facts = {"order_in_comparison": number, "host_cores": cores, **fields}
        write_all(
            folder, made_up.make("cifar_resnet", "amp_bf16", device=device, seconds=seconds, parameters=given, **facts)
        )


def write_pair(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_all(folder, *(made_up.make("cifar_resnet", precision) for precision in ("fp32", "amp_bf16")))


@pytest.fixture(autouse=True)
def few_splits(monkeypatch):
    monkeypatch.setattr("mixed_precision_study.analysis.aa.MOST_SPLITS", 20)


def test_equal_runs_beside_the_folder_are_shown_and_belong_to_no_comparison(tmp_path):
    write_pair(tmp_path / "quick")
    before = load(tmp_path / "quick")
    assert list(SECTION["aa"](before)) == []
    write_equal(tmp_path / "aa")
    report = load(tmp_path / "quick")
    ((row,),) = tables_of("aa", report)
    assert (row["processes"], row["precision"], row["execution"]) == (8, "amp_bf16", "eager")
    assert row["called faster or slower"].startswith("0.0%")
    assert "8 processes of 1 run" in said_in("aa", report)
    assert found(report) == found(before)
    assert report.speedups == before.speedups
    assert [len(group["runs"]["amp_bf16"]) for group in report.comparisons] == [1]


def test_equal_runs_among_the_records_are_counted_and_not_compared(tmp_path):
    write_pair(tmp_path / "all")
    write_equal(tmp_path / "all" / "aa")
    report = load(tmp_path / "all")
    assert "10 records found" in found(report) and "10 used" in found(report)
    assert [len(group["runs"]["amp_bf16"]) for group in report.comparisons] == [1]
    assert len(tables_of("aa", report)[0]) == 1


def test_the_report_of_the_study_itself_shows_them_alone(tmp_path):
    write_equal(tmp_path / "aa")
    report, charts = explore(tmp_path / "aa")
    stop_without_records(report)
    assert (report.comparisons, charts) == ([], {})
    assert len(tables_of("aa", report)[0]) == 1


@pytest.mark.parametrize("fields", [{"cores": 8}, {"device": made_up.TURING}])
def test_equal_runs_of_another_host_or_gpu_are_not_shown(tmp_path, fields):
    write_pair(tmp_path / "quick")
    write_equal(tmp_path / "aa", **fields)
    assert list(SECTION["aa"](load(tmp_path / "quick"))) == []


def test_each_run_has_a_row_of_its_own_and_too_few_have_none(tmp_path):
    write_equal(tmp_path / "aa", parameters={"execution": "eager"})
    write_equal(tmp_path / "aa", parameters={"execution": "cuda_graph"})
    write_equal(tmp_path / "aa", parameters={"execution": "compile"}, count=5)
    (rows,) = tables_of("aa", load(tmp_path / "aa"))
    assert {row["execution"] for row in rows} == {"eager", "cuda_graph"}


def test_what_was_set_aside_as_of_other_code_does_not_count(tmp_path):
    write_equal(tmp_path / "aa" / "other_code-old")
    assert list(SECTION["aa"](load(tmp_path / "aa"))) == []


def test_on_the_cpu_they_say_nothing(tmp_path):
    write_equal(tmp_path / "aa", device=made_up.CPU)
    assert "CPU" in said_in("aa", load(tmp_path / "aa"))


def first_words(folder):
    (heading, *parts) = answer.section(load(folder)).parts
    return heading.title, "\n".join(part.text for part in parts if isinstance(part, Sentence))


def test_a_folder_of_equal_runs_has_an_answer_of_its_own(tmp_path):
    write_equal(tmp_path / "aa")
    title, said = first_words(tmp_path / "aa")
    assert title == "Equal runs against each other on one H200: resnet18"
    assert "8 runs" in said and "in 0.0% of cases. The rules allow 5%, so verdicts hold on this host." in said
    assert "No run was seen throttled" in said
    report = load(tmp_path / "aa")
    assert sections.in_order(report)[1] is sections.aa
    assert list(SECTION["comparisons"](report)) == list(SECTION["table"](report)) == []
    (file,) = (part for part in SECTION["aa"](report).parts if isinstance(part, File))
    assert file.name == "results.csv" and len(file.content.decode().splitlines()) == 1 + 8


def test_a_rate_above_the_promised_one_says_that_intervals_are_too_narrow(tmp_path, monkeypatch):
    write_equal(tmp_path / "aa", throttled=True, throttle_fractions=[["heat", 0.5]])
    monkeypatch.setattr("mixed_precision_study.analysis.aa.judge", lambda speedup: "faster")
    _, said = first_words(tmp_path / "aa")
    assert "in 100.0% of cases. That is more than 5%: intervals on this host are too narrow." in said
    assert "8 of 8 runs were throttled" in said


def test_a_rate_within_its_error_of_the_promised_one_is_no_alarm():
    runs = [{}]
    within, beyond = ({"rate": rate, "error": 0.02} for rate in (0.065, 0.075))
    assert "verdicts hold" in aa.in_words(Report(equal_rates=[(runs, within)]))
    assert "too narrow" in aa.in_words(Report(equal_rates=[(runs, within), (runs, beyond)]))


def test_too_few_equal_runs_are_said_to_be_too_few(tmp_path):
    write_equal(tmp_path / "aa", count=4)
    assert "Too few equal runs: the study makes 24 of each." in first_words(tmp_path / "aa")[1]


def test_equal_runs_on_a_cpu_are_not_judged_in_the_answer(tmp_path):
    write_equal(tmp_path / "aa", device=made_up.CPU)
    assert "verdicts hold" not in first_words(tmp_path / "aa")[1]
