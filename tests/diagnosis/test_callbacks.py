"""The callbacks for Trainer and Lightning, with frameworks that are made up so that neither has
to be installed.
"""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from diagnosis_cases import plain

from mixed_precision_study.diagnosis import callbacks
from mixed_precision_study.diagnosis.ears import INSTALLED, LISTENERS

REPORTS = []


class Callback:
    """What both frameworks call their callbacks' base."""


class MadeUpTrainer:
    """Trains as transformers.Trainer does: it holds its callbacks in a handler, and tells them
    of no error.
    """

    def __init__(self, callback, steps, fails_at=None):
        self.callback_handler, self.taken = SimpleNamespace(callbacks=[callback]), 0
        self.step, self.steps, self.fails_at = plain()[0], steps, fails_at

    def call(self, event):
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(
                SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), model=None
            )

    def training_step(self):
        self.taken += 1
        if self.taken == self.fails_at:
            raise RuntimeError("value cannot be converted to type c10::Half without overflow")
        self.step()

    def train(self):
        self.call("on_train_begin")
        for _ in range(self.steps):
            self.training_step()
        self.call("on_train_end")


@pytest.fixture
def frameworks(monkeypatch):
    REPORTS.clear()
    for name in ("transformers", "lightning", "lightning.pytorch"):
        module = ModuleType(name)
        module.TrainerCallback = module.Callback = Callback
        monkeypatch.setitem(sys.modules, name, module)
    importlib.reload(callbacks)
    yield callbacks
    assert not LISTENERS and not INSTALLED and not torch.autograd._profiler_enabled()
    for name in callbacks.MAKERS:
        vars(callbacks).pop(name, None)


def test_a_trainer_is_diagnosed_and_left_as_it_was(frameworks):
    callback = frameworks.TrainerDiagnosis(steps=1, on_report=REPORTS.append)
    trainer = MadeUpTrainer(callback, 40)
    trainer.train()
    assert isinstance(callback, Callback) and "training_step" not in vars(trainer)
    assert [report.watched for report in REPORTS] == [4]


def test_a_trainer_that_is_out_of_sight_is_watched_too(frameworks):
    callback, step = frameworks.TrainerDiagnosis(steps=1, on_report=REPORTS.append), plain()[0]
    callback.on_train_begin(None, None, None)
    step()
    callback.on_train_end(None, None, None)
    assert [report.steps for report in REPORTS] == [1]


def test_a_trainer_s_error_gets_its_note_and_ends_the_watch(frameworks):
    trainer = MadeUpTrainer(frameworks.TrainerDiagnosis(on_report=REPORTS.append), 40, fails_at=5)
    with pytest.raises(RuntimeError) as caught:
        trainer.train()
    assert not LISTENERS and "training_step" not in vars(trainer)
    assert sys.version_info < (3, 11) or "finfo" in caught.value.__notes__[0]
    assert "step 5" in REPORTS[0].ended_by and REPORTS[0].steps == 4


def test_lightning_s_hooks_begin_and_end_a_watch(frameworks):
    callback, step = frameworks.LightningDiagnosis(steps=1, on_report=REPORTS.append), plain()[0]
    callback.on_train_start(None, None)
    step()
    callback.on_exception(None, None, ValueError("of the loop"))
    assert not LISTENERS and "ValueError" in REPORTS[0].ended_by
    callback.on_train_start(None, None)
    step()
    callback.on_train_end(None, None)
    assert isinstance(callback, Callback) and [report.steps for report in REPORTS] == [1, 1]


def test_a_callback_is_asked_for_by_its_name_alone():
    with pytest.raises(AttributeError, match="KerasDiagnosis"):
        _ = callbacks.KerasDiagnosis
