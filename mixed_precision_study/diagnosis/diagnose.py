"""diagnose(): what is wrong with a training step, in which types it computes, and where its time
goes."""

import contextlib
from collections.abc import Callable
from typing import Any

from ..parameters import UserError
from .mistakes import Diagnosis
from .watch import Watch


def diagnose(
    step: Callable[[], Any] | None = None,
    *,
    steps: int = 20,
    after: int = 0,
    evaluate: Callable[[], Any] | None = None,
    on_report: Callable[[Diagnosis], Any] = print,
) -> Any:
    """Diagnose a training step, and change nothing in it.

    step(): takes one training step of yours. Without it, diagnose() is a context around a loop,
        or diagnose().start() before it and stop() of what that returns after it. There a step ends
        with scaler.step() or optimizer.step() of the loop's first optimizer.
    steps: how many are timed, after 3 that warm up (8 on a GPU). Then PyTorch's profiler looks
        into 4, which are slow.
    after: so many steps are passed over first, because some faults come late.
    evaluate(): evaluates your model once, after the steps, and returns its metric or its
        outputs, which are checked.
    on_report(report): is called as soon as all is known, or the loop ends or fails.

    Returns a Diagnosis, which the context fills in; its `mistakes` are empty where none was found.
    An error of its own ends the diagnosis and not your loop. A new diagnosis ends an older one.
    Raises UserError where `steps` or `after` is wrong, or where a diagnosis is used twice.
    """
    for name, number, least in (("steps", steps, 1), ("after", after, 0)):
        if not isinstance(number, int) or number < least:
            raise UserError(f"{name} is {number!r}; it must be a whole number of at least {least}.")
    watch = Watch(steps, evaluate, on_report, by_hand=step is not None, after=after)
    if step is None:
        return watch
    # batches that run out end it, and the report says so
    with watch as report, contextlib.suppress(StopIteration):
        while not watch.over:
            step()
            watch.safely(watch.advance)
    return report
