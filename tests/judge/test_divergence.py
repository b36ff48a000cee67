"""Which runs of a comparison did not train."""

import pytest

from mixed_precision_study.judge.divergence import find_diverged


def run(precision, metric, better="higher", chance=0.1, status="ok"):
    figures = {"metric": metric, "metric_better": better, "chance_metric": chance}
    return {"run_id": precision, "status": status, **figures}


SKIPPED = {"skipped_steps": 8, "steps_per_epoch": 5, "epoch_seconds": [1.0] * 3}


@pytest.mark.parametrize(
    ("runs", "diverged"),
    [
        ([run("a", [0.2, 0.6]), run("b", [0.3, 0.1]), run("c", [0.12])], {"b", "c"}),
        ([run("a", [150.0], "lower", 900.0), run("b", [910.0], "lower", 900.0)], {"b"}),
        ([run("a", [0.1]), run("b", [0.09])], set()),  # none learned
        ([run("a", []), run("b", [0.1], chance=None)], set()),
        ([run("a", [0.9]), run("b", [0.1], status="oom")], set()),
        ([run("a", [0.9]), run("b", [0.1]) | {"purpose": "explain"}], set()),  # what only explains learns nothing
        ([run("a", [0.9]), run("b", [0.4]) | SKIPPED, run("c", [None])], {"b", "c"}),
    ],
)
def test_a_run_at_chance_is_found_where_another_learned(runs, diverged):
    found = find_diverged(runs)
    assert set(found) == diverged
    assert all(found.values())


def test_runs_are_judged_by_fp32_and_by_others_only_where_these_clearly_learned():
    def found(fp32, tf32):
        runs = [run("fp32", [fp32]) | {"precision": "fp32"}, run("tf32", [tf32]) | {"precision": "tf32"}]
        return set(find_diverged([*runs, run("o3_fp16", [0.1]) | {"precision": "o3_fp16"}]))

    assert found(0.9, 0.9) == {"o3_fp16"}
    assert found(0.1, 0.9) == {"fp32", "o3_fp16"}
    assert found(0.1, 0.4) == set()  # one lucky run is no measure
    assert found(0.3, 0.1) == {"tf32", "o3_fp16"}
