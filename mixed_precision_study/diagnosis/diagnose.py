"""diagnose(): what is wrong with a training step, where its time and memory go, and what could be gained."""

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from .measure import Measurement, run_steps
from .report import Diagnosis

STEPS = 20


class Loop:
    """A diagnosis of a loop, as a context. What it is entered as is its report, filled in at the end."""

    def __init__(self, steps: int, evaluate: Callable[[], Any] | None):
        self.steps = steps
        self.evaluate = evaluate
        self.report = Diagnosis()

    def __enter__(self) -> Diagnosis:
        self.measurement = Measurement(self.steps)
        return self.report

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.report.judge(self.measurement.finish(self.evaluate if error is None else None), error)

    def __str__(self) -> str:
        return "a diagnosis that has not begun: use it as `with diagnose() as report:` around a loop"


def diagnose(
    step: Callable[[], Any] | None = None, *, steps: int = STEPS, evaluate: Callable[[], Any] | None = None
) -> Any:
    """Diagnose a training step, and change nothing in it.

    step(): takes one training step of yours: batch, forward, backward, optimizer. Without it, diagnose() is a context
        around a loop; there a step ends with scaler.update() or optimizer.step().
    steps: how many are timed, after 3 that warm up (8 on a GPU). Then PyTorch's profiler looks into 4, which makes
        these slow.
    evaluate(): evaluates your model once, after the steps, and returns its metric or its outputs, which are checked.

    Returns a Diagnosis; the context fills it in at its end. `print(report)` shows mistakes, where time and memory go,
    and what to try. `report.mistakes` is a list of sentences, empty where none was found. Where time and memory go is
    known on an NVIDIA GPU only, and the wait for data of a DataLoader only. What could not be looked at is said.

    It listens at functions of PyTorch (doors.py) and takes its ears away after these steps. An error of its own ends
    the diagnosis and not your loop, and no number of your training changes.

    Raises UserError where an argument is wrong or the batches run out, and whatever your step raises.

    Example:
        from mixed_precision_study import diagnose

        with diagnose() as report:
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        print(report)
    """
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps is {steps!r}; it must be a whole number of at least 1.")
    for name, given in (("step", step), ("evaluate", evaluate)):
        if given is not None and not callable(given):
            raise UserError(f"{name} is {given!r}; it must be a function without arguments.")
    if step is None:
        return Loop(steps, evaluate)
    report = Diagnosis()
    measurement = Measurement(steps, by_hand=True)
    try:
        run_steps(measurement, step)
    except Exception as error:
        report.judge(measurement.finish(), error)
        raise
    report.judge(measurement.finish(evaluate))
    return report
