"""Speed-ups, verdicts, and the table of summary.csv."""

import itertools
import re

import made_up_records as made_up
import pytest
from conftest import EXPERIMENTS
from drawn_reports import flat, said_in, tables_of, write_all
from made_up_runs import gained

from mixed_precision_study.analysis import trained
from mixed_precision_study.analysis.verdict import FASTER, NOT_PAIRED, SAME
from mixed_precision_study.report.comparisons import group_runs, label_groups, rows_of_failed
from mixed_precision_study.report.load import load
from mixed_precision_study.report.quality import last_metrics
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.table import change_text, epochs_paired, quality_columns, table_rows
from mixed_precision_study.report.verdicts import judgement, speedup_of, stand_after_correction

H200 = "resnet18 · cifar10, b128 · H200"
ON_GPU = Report()


@pytest.fixture(scope="module")
def rows(everything):
    """{(title, precision, baseline): row of summary.csv}"""
    return {(row["title"], row["precision"], row["baseline"]): row for row in table_rows(everything[0])}


def speedup_between(*records):
    """Return the speed-up of tf32 over fp32 in the one comparison of these records."""
    (group,) = group_runs([flat(record) for record in records])
    return speedup_of(group, "tf32", "fp32")


def values_of(row, *names):
    return [row[name] for name in names]


def test_figures_of_the_table_are_those_of_the_records(rows):
    amp = rows[H200, "amp_fp16", "fp32"]
    assert values_of(amp, "speed_up", "speed_up_low", "speed_up_high") == pytest.approx([2, 2, 2])
    assert values_of(amp, "paired_epochs", "paired_seeds", "processes") == [9, 3, 3]
    assert values_of(amp, "verdict", "limit") == [FASTER, "kernels other than arithmetic"]
    assert amp["stands_after_correction"] is True
    assert amp["memory_saved_percent"] == pytest.approx(50)  # the 150 MiB of data are in neither peak
    change = values_of(amp, "quality_change", "quality_low", "quality_high", "quality_margin")
    half = 4.3027 * 0.01 / 3**0.5
    assert change == pytest.approx([0.02, 0.02 - half, 0.02 + half, 0.002], abs=1e-5)
    assert values_of(amp, "quality_seeds", "quality_verdict", "metric") == [3, "cannot be told", "accuracy"]

    level = rows[H200, "amp_bf16", "tf32"]
    assert values_of(level, "verdict", "stands_after_correction") == [SAME, False]
    assert level["quality_verdict"] is None  # the quality is compared with fp32
    alone = rows[H200, "o2_fp16", "fp32"]  # of the other two seeds one side ran out of memory
    assert values_of(alone, "processes", "verdict", "speed_up_low") == [1, "one process", None]

    single = rows["lstm · wikitext-2, b20 · H200", "tf32", "fp32"]
    assert values_of(single, "verdict", "paired_epochs", "processes") == ["one process", 1, 1]
    assert values_of(single, "speed_up_low", "speed_up_high", "limit") == [None, None, "kernel launches"]


def test_what_is_missing_is_said_in_the_table(rows):
    big = "resnet50 · cifar10, b512 · H200"
    assert rows[big, "amp_fp16", "fp32"]["verdict"] == "fp32: oom"
    assert rows[big, "amp_fp16", "tf32"]["speed_up"] == 2
    assert rows[H200, "o3_fp16", "fp32"]["verdict"] == "o3_fp16: diverged"
    assert rows["resnet18 · cifar10, b128 · RTX 2080 Ti", "tf32", "fp32"]["verdict"] == "tf32: unsupported"
    assert rows["lstm · wikitext-2, b20 · H200", "amp_fp16", "fp32"]["verdict"] == "amp_fp16: killed"


def test_runs_on_different_gpus_are_not_paired():
    other = {**made_up.H200, "gpu_uuid": "GPU-9"}
    fast = made_up.make("cifar_resnet", "tf32", device=other, seconds=[3.0] * 3)
    speedup = speedup_between(made_up.make("cifar_resnet", "fp32"), fast)
    assert speedup["ratio"] == pytest.approx(6.1 / 3)
    assert values_of(speedup, "low", "high", "processes") == [None, None, 0]
    assert judgement(ON_GPU, speedup) == NOT_PAIRED


def test_repetitions_are_paired_with_their_own():
    runs = []
    for seed, repeat, precision in itertools.product((0, 1), (0, 1), ("tf32", "fp32")):
        slow, shift = (1.0, 0.01) if precision == "tf32" else (2.0, 0.0)
        values = {"parameters": {"seed": seed, "repeat": repeat}, "shift": 0.1 * repeat + shift}
        runs.append(made_up.make("cifar_resnet", precision, seconds=[slow * (1 + seed + repeat)] * 3, **values))
    speedup = speedup_between(*runs)
    assert values_of(speedup, "ratio", "low", "high") == pytest.approx([2, 2, 2])  # any other pairing would spread
    assert values_of(speedup, "processes", "seeds") == [4, 2]
    (group,) = group_runs([flat(run) for run in runs])
    assert set(last_metrics(group, "tf32")) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert trained.by_seed(group["runs"]["tf32"]) == pytest.approx({0: 0.76, 1: 0.76})
    columns = quality_columns(ON_GPU, group, "tf32", "fp32")
    assert columns["quality_change"] == pytest.approx(0.01)
    assert values_of(columns, "quality_seeds", "quality_verdict") == [2, "cannot be told"]  # repetitions are no seeds
    assert epochs_paired(group, "tf32", "fp32") == 12


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([0.0, 0.0005, -0.0005, 0.0002, -0.0002], "equivalent"),
        ([-0.01, -0.011, -0.009, -0.01, -0.01], "worse"),
        ([0.01, 0.011, 0.009], "better"),
        ([0.01, -0.01, 0.02, -0.02, 0.0], "cannot be told"),
    ],
)
def test_quality_is_told_by_equivalence_to_fp32(changes, verdict):
    (group,) = group_runs([flat(record) for record in made_up.over_seeds(changes)])
    assert quality_columns(ON_GPU, group, "tf32", "fp32")["quality_verdict"] == verdict
    on_cpu = Report(on_cpu=True)
    assert quality_columns(on_cpu, group, "tf32", "fp32")["quality_verdict"] == "not judged: CPU"


def test_of_seeds_of_which_one_diverged_the_rest_shows_no_equivalence():
    runs = made_up.over_seeds([0.0, 0.0005, -0.0005, 0.0002, -0.0002, -0.6])
    (group,) = group_runs([flat(record) for record in runs])
    assert [run["status"] for run in group["runs"]["tf32"]].count("diverged") == 1
    assert quality_columns(ON_GPU, group, "tf32", "fp32")["quality_verdict"].startswith("cannot be told, because 1 run")


def test_a_run_that_explains_gives_its_profile_and_none_of_its_times():
    runs = []
    for repeat in range(3):
        values = {"parameters": {"repeat": repeat, "purpose": "time"}}
        runs.append(made_up.make("cifar_resnet", "fp32", **values, explained=False))
        runs.append(made_up.make("cifar_resnet", "tf32", seconds=[3.0] * 3, **values, explained=False))
    explaining = {"purpose": "explain", "repeat": 3}
    runs.append(made_up.make("cifar_resnet", "tf32", seconds=[99.0], parameters=explaining))
    failed = made_up.make_failed("cifar_resnet", "fp32", "oom", "no memory", parameters=explaining)
    (group,) = groups = group_runs([flat(run) for run in [*runs, failed]])
    label_groups(groups)
    assert [len(group["runs"][name]) for name in ("fp32", "tf32")] == [3, 3]
    assert speedup_of(group, "tf32", "fp32")["ratio"] == pytest.approx(6.1 / 3)
    assert {run["gpu_busy_fraction"] for run in group["runs"]["tf32"]} == {0.9}
    assert {run["gpu_busy_fraction"] for run in group["runs"]["fp32"]} == {None}
    report = Report(every_group=[group])
    assert [row["reason"] for row in rows_of_failed(report)] == ["no memory"]
    assert group_runs([flat(runs[-1])]) == []  # nothing was timed


def test_many_ratios_are_corrected_together():
    def speedup(p, ratio=1.2):
        return gained(ratio, 1.01 if p < 0.05 else 0.9, 1.4, p=p)

    few = [speedup(0.04)] * 3 + [speedup(0.3)]
    assert stand_after_correction(few) == [True, True, True, False]
    many = [speedup(0.0001), *(speedup(0.04) for _ in range(10)), gained(low=None, high=None, processes=1)]
    assert stand_after_correction(many) == [True] + [False] * 11
    lent = speedup(0.0045)  # stands among 11 tests, not among 12
    others = [speedup(0.5) for _ in range(10)]
    assert stand_after_correction([lent, lent, *others]) == [True, True] + [False] * 10
    assert stand_after_correction([lent, speedup(0.5), *others]) == [False] * 12


def test_what_limits_a_run_is_said_once(everything, rows):
    report, page = everything[0], said_in("verdicts", everything[0])
    amp = rows[H200, "amp_fp16", "tf32"]["verdict_text"]
    assert amp.startswith(f"amp_fp16 is 1.00x as fast as tf32 (1.00 to 1.00): {SAME}")
    assert rows[H200, "o3_fp16", "fp32"]["verdict_text"].startswith("o3_fp16 diverged")
    assert page.count(f"1.00x as fast as tf32 (1.00 to 1.00): {SAME}. ") == 2
    assert "- fp32 ran out of memory: CUDA out of memory" in page
    assert r"- amp\_fp16 has no fp32 to be compared with (oom); " in page
    assert len(report.sentences) == len(rows) + 1  # fp32 itself is in the list only where it failed
    assert "2 of 25 runs shared their GPU: † marks them." in page
    assert "1 of 25 runs ran at the card's power limit." in page


def test_a_disturbed_search_of_the_largest_batch_is_among_the_disturbed_runs(tmp_path):
    for size, flags in ((128, {}), ("max", {"throttled": True, "throttle_fractions": [["heat", 0.3]]})):
        for precision in ("fp32", "amp_fp16"):
            known = {"parameters": {"batch_size": size}, "batch_size_used": 128}
            write_all(tmp_path, made_up.make("cifar_resnet", precision, **known, **flags))
    report = load(tmp_path)
    assert "2 of 4 runs were throttled" in said_in("verdicts", report)
    ((first, second),) = tables_of("verdicts", report)
    assert first["comparison"] == "cifar_resnet: resnet18 · cifar10, bmax" and first["flags"] == second["flags"]
    assert report.disturbed == []  # no chart has a mark of theirs


def test_of_many_comparisons_the_verdicts_are_folded_by_experiment(pooled, everything):
    assert "<details>" not in said_in("verdicts", everything[0])  # a few are all seen
    pattern = r"<details><summary>(\w+): verdicts on (\d+) .*?</summary>\n\n(.*?)\n\n</details>"
    parts = re.findall(pattern, said_in("verdicts", pooled[0]), re.DOTALL)
    assert [name for name, *_ in parts] == sorted(EXPERIMENTS)
    assert sum(int(count) for _, count, _ in parts) > 12
    assert all(text.count("**\n\n- ") == int(count) for _, count, text in parts)


def test_the_number_of_ratios_and_what_they_rest_on_is_said(everything):
    text = said_in("verdicts", everything[0])
    ratios = everything[0].speedups.values()
    assert f"This report holds {len(ratios)} ratios, 5 of them with an interval" in text
    assert f"{sum(speedup['low'] is None for speedup in ratios)} ratios of fewer than 3 processes" in text


def test_quality_is_shown_with_its_interval(rows):
    row = rows[H200, "amp_fp16", "fp32"]
    assert change_text(row) == "+2.00 points (-0.48 to +4.48)"
    assert (row["quality_verdict"], row["quality_seeds"]) == ("cannot be told", 3)
    assert change_text(rows[H200, "amp_fp16", "tf32"]) == "-"
