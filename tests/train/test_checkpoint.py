"""A training that was ended goes on from its checkpoint, and nothing shows it but one field."""

import copy

import pytest
import torch
from conftest import run_cells
from small_training import SCALED, everything, flagged, flagged_loss, make_record, make_trainer, same_bits

from mixed_precision_study.judge.conditions import flags_of
from mixed_precision_study.record import flat_record, read_records
from mixed_precision_study.train.checkpoint import Checkpoints
from mixed_precision_study.train.step import timed_epoch

ALWAYS = 1e-9  # minutes
SMALL = {"dataset": "synthetic", "model": "test_resnet", "batch_size": 4, "max_steps": 3, "epochs": 4}
SMALL |= {"precisions": ["fp32"], "checkpoint_minutes": ALWAYS}


def adamw(weights):
    return torch.optim.AdamW(weights, lr=0.01, eps=1e-4)


def epoch_of(number, precision):
    overflow = precision in SCALED and number in (0, 3)
    return [flagged(10 * number + step, overflow=overflow and step == 1) for step in range(4)]


def train(trainer, record, epochs, precision):
    for number in epochs:
        timed_epoch(record, trainer, epoch_of(number, precision))


@pytest.mark.parametrize("optimizer", [None, adamw], ids=["sgd", "adamw"])
@pytest.mark.parametrize("way", [{}, {"execution": "cuda_graph"}], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "o2_fp16", "bf16_true"])
def test_a_training_that_goes_on_ends_as_one_that_was_not_ended(precision, way, optimizer, tmp_path):
    def make():
        torch.manual_seed(0)
        return make_trainer(precision, flagged_loss, make_optimizer=optimizer, **way), make_record(precision)

    whole, wanted = make()
    train(whole, wanted, range(4), precision)
    first, begun = make()
    assert Checkpoints(begun, first, tmp_path, ALWAYS).resume() == 0
    checkpoints = Checkpoints(begun, first, tmp_path, ALWAYS)
    train(first, begun, range(2), precision)
    checkpoints.keep()
    second, record = make()
    second.step(flagged(99, overflow=False))  # a warm-up; what it left must be gone
    second.start_again()
    assert Checkpoints(record, second, tmp_path, ALWAYS).resume() == 2
    train(second, record, range(2, 4), precision)
    assert same_bits(everything(whole), everything(second))
    assert second.skipped_steps == whole.skipped_steps == (2 if precision in SCALED else 0)
    for name in ("train_loss", "skipped_steps", "overflow_steps", "loss_scale_trace"):
        assert getattr(record, name) == getattr(wanted, name), name
    assert len(record.epoch_seconds) == 4 and record.resumed_at_epochs == [2]


def run(folder, **more):
    (record,) = run_cells("cifar_resnet", "run", **SMALL, **more, output_dir=str(folder))["records"]
    return record


def interrupt_after(monkeypatch, epochs):
    """Let a run be interrupted, as by Ctrl-C, where it would train one more epoch."""
    from mixed_precision_study import experiment

    ordinary = experiment.timed_epoch

    def interrupted(record, *given):
        if len(record.epoch_seconds) == epochs:
            raise KeyboardInterrupt
        ordinary(record, *given)

    monkeypatch.setattr(experiment, "timed_epoch", interrupted)


@pytest.mark.slow
def test_a_notebook_that_was_interrupted_goes_on(tmp_path, monkeypatch, capsys):
    wanted = run(tmp_path / "whole")
    folder = tmp_path / "ended"
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            run(folder)
    (kept,) = folder.glob("*.checkpoint")
    assert read_records(folder) == ([], [])  # a checkpoint is no record
    record = run(folder)
    assert "goes on after epoch 3" in capsys.readouterr().out
    assert (record.train_loss, record.metric) == (wanted.train_loss, wanted.metric)
    assert record.resumed_at_epochs == [3] and wanted.resumed_at_epochs == []
    assert not kept.exists()
    assert "went on in another process after epoch 3" in flags_of(flat_record(record))


EDITS = {
    "no tensors": lambda content: content.pop("tensors"),
    "a tensor less": lambda content: content["tensors"].pop(),
    "another optimizer": lambda content: content.update(optimizer={"state": {}, "param_groups": []}),
    "other code": lambda content: content["identity"].update(code_hash="another"),
    "no losses": lambda content: content["record"].pop("train_loss"),
}


def kept_after_an_epoch(folder):
    trainer, record = make_trainer("fp32", flagged_loss), make_record()
    checkpoints = Checkpoints(record, trainer, folder, ALWAYS)
    train(trainer, record, range(1), "fp32")
    checkpoints.keep()
    return checkpoints, record


def change(path, edit):
    content = torch.load(path, weights_only=True)
    edit(content)
    torch.save(content, path)


@pytest.mark.parametrize("name", ["cut", *EDITS])
def test_a_damaged_or_edited_checkpoint_leaves_the_training_as_it_began(name, tmp_path):
    path = kept_after_an_epoch(tmp_path)[0].path
    if name == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        change(path, EDITS[name])
    trainer, record = make_trainer("fp32", flagged_loss), make_record()
    before, fields = copy.deepcopy(everything(trainer)), flat_record(record)
    assert Checkpoints(record, trainer, tmp_path, ALWAYS).resume() == 0
    assert same_bits(everything(trainer), before) and flat_record(record) == fields


def test_a_checkpoint_sets_no_other_field_of_the_record(tmp_path):
    checkpoints, record = kept_after_an_epoch(tmp_path)
    change(checkpoints.path, lambda content: content["record"].update(run_id="../../x", status="ok"))
    again = make_record()
    assert Checkpoints(again, make_trainer("fp32", flagged_loss), tmp_path, ALWAYS).resume() == 1
    assert (again.run_id, again.status) == (record.run_id, make_record().status)


def test_without_minutes_or_before_they_are_over_nothing_is_written(tmp_path):
    for minutes in (0, 60):
        trainer, record = make_trainer("fp32"), make_record()
        checkpoints = Checkpoints(record, trainer, tmp_path, minutes)
        checkpoints.keep()
        checkpoints.remove()
    assert list(tmp_path.iterdir()) == []
