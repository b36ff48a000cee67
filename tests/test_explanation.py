"""What explains a run: a part that fails takes nothing else down."""

import types

import pytest
import torch
from explained_training import make_record, make_trainer

from mixed_precision_study.experiment import explain

GPU = torch.device("cuda")


def test_on_the_cpu_every_explanation_has_a_reason_and_nothing_is_run(tmp_path):
    record, trainer = make_record(), make_trainer()
    before = vars(record).copy()
    explain(record, trainer, lambda: pytest.fail("no batch is needed"), tmp_path)
    reasons = {f"{part}_reason": "no GPU" for part in ("profile", "limit", "ledger")}
    assert vars(record) == before | reasons
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


def explain_on_gpu(record, folder=".", batches=(1,), captured=None):
    explain(record, types.SimpleNamespace(device=GPU, captured=captured), lambda: iter(batches), folder)


@pytest.mark.parametrize(("failing", "reason"), list(zip(PARTS, REASONS, strict=True)))
def test_a_part_that_fails_leaves_its_reason_and_the_others_go_on(monkeypatch, failing, reason):
    ran, record = pretend_parts(monkeypatch, [failing]), make_record()
    explain_on_gpu(record)
    assert ran == list(PARTS)
    assert getattr(record, reason) == f"RuntimeError: {failing} is forbidden"  # one line
    others = [name for name in set(REASONS) if name != reason]
    assert [getattr(record, name) for name in others] == [None] * 3


def test_a_graph_is_replayed_before_steps_are_taken_outside_it(monkeypatch):
    ran = pretend_parts(monkeypatch)
    explain_on_gpu(make_record(), captured=object())
    assert ran == ["profile_steps", "read_memory_breakdown", *PARTS[2:]]


def test_all_parts_may_fail(monkeypatch):
    ran, record = pretend_parts(monkeypatch, PARTS), make_record()
    explain_on_gpu(record)
    assert ran == list(PARTS)
    assert all(getattr(record, reason) for reason in REASONS)


def test_batches_begin_again_when_an_epoch_is_at_its_end(monkeypatch, tmp_path):
    pretend_parts(monkeypatch)
    taken, folders = [], []
    replaced = {
        "read_memory_breakdown": lambda record, trainer, batches, hidden: taken.append(next(batches)),
        "profile_steps": lambda record, trainer, batches, hidden: taken.extend([next(batches), next(batches)]),
        "measure_limits": lambda record, trainer, folder: folders.append(folder),
    }
    for name, part in replaced.items():
        monkeypatch.setattr(f"mixed_precision_study.experiment.{name}", part)
    explain_on_gpu(make_record(), tmp_path, "ab")
    assert taken == ["a", "b", "a"]
    assert folders == [tmp_path]
