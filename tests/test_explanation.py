"""What explains a run: a part that fails takes nothing else down."""

import types

import pytest
import torch
from explained_training import make_record, make_trainer

from mixed_precision_study.experiment import explain


def test_on_the_cpu_every_explanation_has_a_reason_and_nothing_is_run(tmp_path):
    record, trainer = make_record(), make_trainer()
    before = vars(record).copy()
    explain(record, trainer, lambda: pytest.fail("no batch is needed"), tmp_path)
    reasons = {f"{part}_reason": "no GPU" for part in ("profile", "limit", "ledger")}
    assert vars(record) == before | reasons
    assert trainer.steps == 0


PARTS = (
    "memory.read_memory_breakdown",
    "profile_steps",
    "count_work",
    "measure_limits",
    "read_gradients",
    "read_lost_updates",
)
REASONS = ("ledger_reason", "profile_reason", "limit_reason", "limit_reason", "gradient_reason", "update_reason")


def explain_on_gpu(monkeypatch, failing=(), captured=None, folder=".", taking=None):
    """Explain a training whose parts are made up; those in `failing` raise. Return (record, what was run)."""
    ran, record = [], make_record()

    def part(name, batches):
        ran.append(name)
        if name == "measure_limits":
            assert batches == folder  # which keeps them beside the records
        if taking is not None and name in ("memory.read_memory_breakdown", "profile_steps"):
            taking.extend(next(batches) for _ in range(2))
        if name in failing:
            raise RuntimeError(f"{name} is forbidden\nwith a long story\n")

    for name in PARTS:
        replaced = lambda record, trainer, batches, *_, name=name: part(name, batches)  # noqa: E731
        monkeypatch.setattr(f"mixed_precision_study.experiment.{name}", replaced)
    trainer = types.SimpleNamespace(device=torch.device("cuda"), captured=captured)
    explain(record, trainer, lambda: iter("abc"), folder)
    return record, ran


@pytest.mark.parametrize("failing", [*([name] for name in PARTS), PARTS])
def test_a_part_that_fails_leaves_its_reason_in_one_line_and_the_others_go_on(monkeypatch, failing):
    record, ran = explain_on_gpu(monkeypatch, failing)
    assert ran == list(PARTS)
    expected = {REASONS[PARTS.index(name)]: f"RuntimeError: {name} is forbidden" for name in failing}
    assert {name: getattr(record, name) for name in REASONS} == dict.fromkeys(REASONS) | expected


def test_a_graph_is_replayed_before_steps_are_taken_outside_it_and_batches_begin_again(monkeypatch):
    taken = []
    _, ran = explain_on_gpu(monkeypatch, captured=object(), taking=taken)
    assert ran == ["profile_steps", "memory.read_memory_breakdown", *PARTS[2:]]
    assert taken == ["a", "b", "c", "a"]
