"""What explains a run: a part that fails takes nothing else down."""

import types

import pytest
import torch
from explained_training import make_record, make_trainer

from mixed_precision_study.experiment import explain

GPU = torch.device("cuda")


def test_on_the_cpu_every_explanation_has_a_reason_and_nothing_is_run(tmp_path):
    record, trainer = make_record(), make_trainer()
    explain(record, trainer, lambda: pytest.fail("no batch is needed"), tmp_path)
    assert record.profile_reason == record.limit_reason == record.ledger_reason == "no GPU"
    explained = (
        "gpu_busy",
        "kernel",
        "tensor_core",
        "flops",
        "bytes",
        "ceiling",
        "compute_limit",
        "bandwidth",
        "ledger",
    )
    fields = [name for name in vars(record) if name.startswith(explained) and not name.endswith("reason")]
    assert len(fields) >= 20
    assert all(getattr(record, name) in (None, []) for name in fields)  # never zero
    assert trainer.steps == 0


PARTS = ("read_memory_breakdown", "profile_steps", "count_work", "measure_limits", "read_gradients")
REASONS = ("ledger_reason", "profile_reason", "limit_reason", "limit_reason", "gradient_reason")


def pretend_parts(monkeypatch, failing=()):
    """Replace the parts of the explanation; those in `failing` raise. Returns the list of what was run."""
    ran = []

    def replace(name):
        def part(record, trainer, *_):
            ran.append(name)
            if name in failing:
                raise RuntimeError(f"{name} is forbidden\nwith a long story\n")

        monkeypatch.setattr(f"mixed_precision_study.experiment.{name}", part)

    for name in PARTS:
        replace(name)
    return ran


@pytest.mark.parametrize(("failing", "reason"), list(zip(PARTS, REASONS, strict=True)))
def test_a_part_that_fails_leaves_its_reason_and_the_others_go_on(monkeypatch, tmp_path, failing, reason):
    ran, record = pretend_parts(monkeypatch, [failing]), make_record()
    explain(record, types.SimpleNamespace(device=GPU, captured=None), lambda: iter([1]), tmp_path)
    assert ran == list(PARTS)
    assert getattr(record, reason) == f"RuntimeError: {failing} is forbidden"  # one line
    others = [name for name in set(REASONS) if name != reason]
    assert [getattr(record, name) for name in others] == [None] * 3


def test_a_graph_is_replayed_before_steps_are_taken_outside_it(monkeypatch, tmp_path):
    ran = pretend_parts(monkeypatch)
    trainer = types.SimpleNamespace(device=GPU, captured=object())
    explain(make_record(), trainer, lambda: iter([1]), tmp_path)
    assert ran == ["profile_steps", "read_memory_breakdown", *PARTS[2:]]


def test_all_parts_may_fail_and_reasons_stay_short(monkeypatch, tmp_path):
    ran, record = pretend_parts(monkeypatch, PARTS), make_record()
    monkeypatch.setattr("mixed_precision_study.experiment.profile_steps", lambda *_: torch.empty(2**60))  # no memory
    explain(record, types.SimpleNamespace(device=GPU, captured=None), lambda: iter([1]), tmp_path)
    assert ran == [name for name in PARTS if name != "profile_steps"]
    assert all(getattr(record, reason) for reason in REASONS)
    assert max(len(getattr(record, reason)) for reason in REASONS) <= 200
    assert all("\n" not in getattr(record, reason) for reason in REASONS)


def test_batches_begin_again_when_an_epoch_is_at_its_end(monkeypatch, tmp_path):
    pretend_parts(monkeypatch)
    taken, folders = [], []
    monkeypatch.setattr(
        "mixed_precision_study.experiment.read_memory_breakdown",
        lambda record, trainer, batches, hidden: taken.append(next(batches)),
    )
    monkeypatch.setattr(
        "mixed_precision_study.experiment.profile_steps",
        lambda record, trainer, batches, hidden: taken.extend([next(batches), next(batches)]),
    )
    monkeypatch.setattr(
        "mixed_precision_study.experiment.measure_limits", lambda record, trainer, folder: folders.append(folder)
    )
    explain(make_record(), types.SimpleNamespace(device=GPU, captured=None), lambda: iter("ab"), tmp_path)
    assert taken == ["a", "b", "a"]
    assert folders == [tmp_path]
