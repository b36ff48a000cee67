"""Speed-ups, verdicts, and the table of summary.csv."""

import itertools
import re

import made_up_records as made_up
import pytest
from conftest import EXPERIMENTS
from drawn_reports import flat, said_in, tables_of, write_all

from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.load import load
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.table import epochs_paired, quality_change, row_text, table_rows
from mixed_precision_study.report.training_curves import last_metrics
from mixed_precision_study.report.verdicts import judgement, speedup_of

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
    assert values_of(amp, "paired_epochs", "paired_seeds", "pairs", "repetitions") == [9, 3, 9, 3]
    assert values_of(amp, "verdict", "limit") == ["faster", "kernels that move memory"]
    assert amp["memory_saved_percent"] == pytest.approx(50)  # the 150 MiB of data are in neither peak
    change = values_of(amp, "quality_change", "quality_change_low", "quality_change_high")
    assert change == pytest.approx([0.02, 0.01, 0.03])
    assert values_of(amp, "quality_seeds", "quality_verdict", "metric") == [3, "better", "accuracy"]

    level = rows[H200, "amp_bf16", "tf32"]
    assert values_of(level, "speed_up_low", "speed_up_high") == pytest.approx([1 / 1.02, 1 / 0.99])
    assert level["verdict"] == "no measurable difference"
    assert level["quality_verdict"] == "equal"  # the seeds disagree on the sign
    assert rows[H200, "o2_fp16", "fp32"]["paired_seeds"] == 1  # of the other two seeds one side ran out of memory

    slow = next(row for (title, *key), row in rows.items() if "no channels_last" in title and key[0] == "amp_fp16")
    assert values_of(slow, "verdict", "quality_verdict") == ["slower", "one seed, so no verdict"]
    single = rows["lstm · wikitext-2, b20 · H200", "tf32", "fp32"]
    assert values_of(single, "verdict", "paired_epochs", "pairs") == ["too short to tell", 1, 1]
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
    assert values_of(speedup, "low", "high", "pairs") == [None, None, 0]
    assert judgement(ON_GPU, speedup).startswith("not paired")


def test_interval_of_a_known_ratio():
    base = made_up.make("cifar_resnet", "fp32", seconds=[6.0] * 3, block_seconds=[1.5] * 12)
    half = {"seconds": [3.0] * 3, "block_seconds": [0.75] * 12}
    speedup = speedup_between(base, made_up.make("cifar_resnet", "tf32", **half))
    assert values_of(speedup, "ratio", "low", "high", "pairs", "repetitions") == [2, 2, 2, 12, 1]
    assert judgement(ON_GPU, speedup) == "faster"
    half["block_seconds"] = [0.75, 1.5] * 6  # every second block gains nothing
    speedup = speedup_between(base, made_up.make("cifar_resnet", "tf32", **half))
    assert values_of(speedup, "low", "high") == [1, 2]
    assert judgement(ON_GPU, speedup) == "no measurable difference"


def test_repetitions_are_paired_with_their_own():
    runs = []
    for seed, repeat, precision in itertools.product((0, 1), (0, 1), ("tf32", "fp32")):
        slow, shift = (1.0, 0.01) if precision == "tf32" else (2.0, 0.0)
        values = {"parameters": {"seed": seed, "repeat": repeat}, "shift": 0.1 * repeat + shift}
        runs.append(made_up.make("cifar_resnet", precision, seconds=[slow * (1 + seed + repeat)] * 3, **values))
    speedup = speedup_between(*runs)
    assert values_of(speedup, "ratio", "low", "high") == [2, 2, 2]  # any other pairing would spread
    assert values_of(speedup, "pairs", "repetitions", "seeds") == [12, 4, 2]
    (group,) = group_runs([flat(run) for run in runs])
    assert set(last_metrics(group, "tf32")) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    *change, word = quality_change(ON_GPU, group, "tf32", "fp32").values()
    assert change == pytest.approx([0.01, 0.01, 0.01, 2]) and word == "better"
    assert epochs_paired(group, "tf32", "fp32") == 12


def test_what_limits_a_run_is_said_once(everything, rows):
    report, page = everything[0], said_in("verdicts", everything[0])
    amp = rows[H200, "amp_fp16", "tf32"]["verdict_text"]
    assert amp.startswith("amp_fp16 is 1.00x as fast as tf32 (1.00 to 1.00): no measurable difference")
    assert rows[H200, "o3_fp16", "fp32"]["verdict_text"].startswith("o3_fp16 diverged")
    assert page.count("1.00x as fast as tf32 (1.00 to 1.00): no measurable difference. ") == 1
    assert "- fp32 ran out of memory: CUDA out of memory" in page
    assert r"- amp\_fp16 has no fp32 to be compared with (oom); " in page
    assert len(report.sentences) == len(rows) + 1  # fp32 itself is in the list only where it failed
    assert "2 of the 25 runs that ended well were throttled or shared" in page


def test_a_disturbed_search_of_the_largest_batch_is_among_the_disturbed_runs(tmp_path):
    for size, flags in ((128, {}), ("max", {"throttled": True, "throttle_fractions": [["power cap", 0.3]]})):
        for precision in ("fp32", "amp_fp16"):
            write_all(tmp_path, made_up.make("cifar_resnet", precision, parameters={"batch_size": size}, **flags))
    report = load(tmp_path)
    assert "2 of the 4 runs that ended well" in said_in("verdicts", report)
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


def test_one_seed_is_shorter_on_the_page_than_in_the_file(pooled):
    row = next(row for row in table_rows(pooled[0]) if row["model"] == "gru")
    assert row["quality_verdict"] in ("equal", "one seed, so no verdict")
    row |= {"quality_change": 0.5, "quality_verdict": "one seed, so no verdict", "quality_seeds": 1}
    assert row_text(row)["quality"] == "perplexity +0.5: one seed"
