"""diagnose() as a callback: TrainerDiagnosis for Hugging Face's Trainer, LightningDiagnosis for
Lightning's.

Each class is made when it is first asked for, so that neither framework is needed for the other.
They take the options of diagnose(), as in `trainer.add_callback(TrainerDiagnosis(after=1000))`.
"""

import inspect
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock, patch

from .diagnose import diagnose


class Life:
    """Keeps one watch from the beginning of a training to its end, or to its error."""

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options
        self.watch = None
        self.undo = ExitStack()

    def begin(self) -> None:
        self.end()
        self.watch = diagnose(**self.options).start()

    def end(self, error: BaseException | None = None) -> None:
        self.undo.close()
        watch = self.watch
        self.watch = None
        if watch is not None:
            watch.stop(error)


def trainer_diagnosis() -> type:
    from transformers import TrainerCallback

    class TrainerDiagnosis(Life, TrainerCallback):
        """Diagnoses Trainer.train(). Trainer tells its callbacks of no error, so its
        training_step() is watched."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.begin()
            # the Trainer does not hand itself over, but it is in a frame above; where it is not, a
            # stand-in is watched, because nothing may raise in a training
            callers = [caller.frame.f_locals.get("self") for caller in inspect.stack(0)]
            trainer: Any = next((one for one in callers if hasattr(one, "training_step")), Mock())
            before = trainer.training_step

            def training_step(*args: Any, **kwargs: Any) -> Any:
                try:
                    return before(*args, **kwargs)
                except BaseException as error:
                    self.end(error)
                    raise

            self.undo.enter_context(patch.object(trainer, "training_step", training_step))

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.end()

    return TrainerDiagnosis


def lightning_diagnosis() -> type:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningDiagnosis(Life, Callback):
        """Diagnoses Trainer.fit(). Tests, validations and predictions alone are not watched."""

        def on_train_start(self, *_: Any) -> None:
            self.begin()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self.end(exception)

        def on_train_end(self, *_: Any) -> None:
            self.end()

    return LightningDiagnosis


MAKERS = {"TrainerDiagnosis": trainer_diagnosis, "LightningDiagnosis": lightning_diagnosis}


def __getattr__(name: str) -> Any:
    if name not in MAKERS:
        raise AttributeError(f"{__name__} has no {name}")
    globals()[name] = MAKERS[name]()
    return globals()[name]
