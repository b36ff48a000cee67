"""diagnose(): what is wrong with a training step, in which types it computes, and where its time goes."""

import atexit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ..parameters import UserError
from . import doors
from .mistakes import REMEDIES, SENTENCES, Observations, find_mistakes
from .probe import name_of
from .watch import Watch


class Mistake(NamedTuple):
    """The name of a rule, the figures and lines in its sentence, and the sentence."""

    rule: str
    figures: dict[str, Any]
    sentence: str


class Diagnosis:
    """The result of diagnose(). `print` shows it."""

    def __init__(self) -> None:
        self.seen = Observations()
        self.mistakes: list[Mistake] = []  # empty for a sound step

    def judge(self, seen: Observations, error: BaseException | None = None) -> "Diagnosis":
        """Take in what was seen, and the error that ended the loop, if one did, which gets the remedy as a note."""
        self.seen = seen
        found = dict(find_mistakes(seen))
        self.mistakes = [Mistake(rule, it, SENTENCES[rule].format(**it)) for rule, it in found.items()]
        for part, remedy in REMEDIES.items():
            if error is not None and part in str(error):
                self.mistakes.insert(0, Mistake("error", {"message": part}, f"{type(error).__name__}: {remedy}"))
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(f"diagnose(): {remedy}")
        return self

    def __str__(self) -> str:
        if not any(self.seen.events) and not self.mistakes:
            return "Nothing was looked at, because no optimizer took a step. Try diagnose(step) with a step of yours."
        said = [f"Mistake: {mistake.sentence}" for mistake in self.mistakes] or ["No mistake was found."]
        return "\n".join([*said, *facts(self.seen), *self.seen.unseen])

    __repr__ = __str__  # as the last line of a cell shows it


def largest_first(shares: dict[str, float]) -> str:
    return ", ".join(f"{share:.0%} {name}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))


def facts(seen: Observations) -> list[str]:
    """Return a sentence each on types, time and waits, as far as they are known."""
    lines = []
    if seen.flops:
        shares = {f"in {dtype}": seen.share_of_flops(dtype) for _, dtype in seen.flops}
        lines.append(f"Its products and convolutions ran {largest_first(shares)}.")
    if any(scales[-1] < scales[0] for scales in seen.scales):
        lines.append("The loss scale is still searching, which is normal in the first steps.")
    if seen.step_ms:
        more = f", and the slowest {seen.slowest_ms:,.4g} ms" if seen.slowest_ms > 5 * seen.step_ms else ""
        lines.append(f"A step takes {seen.step_ms:,.4g} ms, which is the median of {seen.timed}{more}.")
    if seen.kernels:
        families = largest_first(dict(seen.kernels["kernel_family_fractions"][:3]))
        lines.append(f"The GPU is busy {seen.kernels['gpu_busy_fraction']:.0%} of it; of this, {families}.")
    if seen.data_wait_fraction:
        lines.append(f"The loop waits for its DataLoader {seen.data_wait_fraction:.0%} of the time.")
    if seen.watched and seen.scaler_reads >= seen.watched:
        lines.append("GradScaler waits for the GPU in every step, which an optimizer with fused=True does not need.")
    if waits := sorted(place for place, steps in seen.library_reads.items() if steps >= seen.watched):
        lines.append(f"A package waits for the GPU in every step: {'; '.join(waits[:3])}.")
    return lines


def look_at_evaluation(seen: Observations, evaluate: Callable[[], Any]) -> None:
    """Evaluate, and note whether the result is finite, and whether tensors are kept for a backward() in vain."""
    calls: list[str] = []
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    ear = SimpleNamespace(hear=lambda event, *_: calls.append(event), gave_up=lambda error: None)
    doors.listen(ear)
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = evaluate()
    finally:
        doors.leave(ear)
    if kept and "backward" not in calls:
        seen.found["evaluation with gradients"] = {}
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, float | torch.Tensor)]
    numbers = [torch.as_tensor(leaf) for leaf in leaves]
    if numbers:
        seen.evaluation_in = " and ".join(
            sorted({name_of(number.dtype) for number in numbers if number.is_floating_point()})
        )
        seen.evaluation_finite = all(bool(number.isfinite().all()) for number in numbers)
    else:
        seen.unseen.append("The numbers of the evaluation were not checked, because it returns none of them.")


class Loop:
    """A diagnosis of a loop, as a context or between start() and stop()."""

    def __init__(self, steps: int, evaluate: Callable[[], Any] | None, on_report: Callable[[Diagnosis], Any]):
        self.steps, self.evaluate, self.on_report = steps, evaluate, on_report
        self.report = Diagnosis()
        self.watch: Watch | None = None

    def start(self, by_hand: bool = False) -> "Loop":
        """Begin to watch. Where stop() is never called, as after an error at module level, the exit reports."""
        report, watch = self.report, self.watch = Diagnosis(), Watch(self.steps, by_hand)
        if not by_hand and not self.evaluate:
            watch.when_over = lambda: self.on_report(report.judge(watch.finish()))
        atexit.register(self.stop)
        return self

    def stop(self, error: BaseException | None = None) -> Diagnosis:
        """End to watch and return the report. error: what ended the loop, which gets a note with its remedy."""
        atexit.unregister(self.stop)
        watch, self.watch = self.watch, None
        if watch is not None:
            is_told, seen = watch.finished, watch.finish()
            if self.evaluate and error is None:
                look_at_evaluation(seen, self.evaluate)
            self.report.judge(seen, error)
            if not is_told:
                self.on_report(self.report)
        return self.report

    def __enter__(self) -> Diagnosis:
        return self.start().report

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.stop(error)


def diagnose(
    step: Callable[[], Any] | None = None,
    *,
    steps: int = 20,
    evaluate: Callable[[], Any] | None = None,
    on_report: Callable[[Diagnosis], Any] = print,
) -> Any:
    """Diagnose a training step, and change nothing in it.

    step(): takes one training step of yours. Without it, diagnose() is a context around a loop, or diagnose().start()
        before it and stop() of what that returns after it. There a step ends with scaler.update() or optimizer.step().
    steps: how many are timed, after 3 that warm up (8 on a GPU). Then PyTorch's profiler looks into 4, which are slow.
    evaluate(): evaluates your model once, after the steps, and returns its metric or its outputs, which are checked.
    on_report(report): is called as soon as all is known, or the loop ends or fails.

    Returns a Diagnosis, which the context fills in; its `mistakes` are empty where none was found. An error of its own
    ends the diagnosis and not your loop. Raises UserError where an argument is wrong or the batches run out.

    Example:
        from mixed_precision_study import diagnose

        with diagnose():
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
    """
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps is {steps!r}; it must be a whole number of at least 1.")
    for name, given in (("step", step), ("evaluate", evaluate), ("on_report", on_report)):
        if given is not None and not callable(given):
            raise UserError(f"{name} is {given!r}; it must be a function.")
    loop = Loop(steps, evaluate, on_report)
    if step is None:
        return loop
    watch: Any = loop.start(by_hand=True).watch
    try:
        while not watch.over:
            step()
            doors.tell("by hand", True, (watch,), {})
    except BaseException as error:
        loop.stop(error)
        if not isinstance(error, StopIteration):
            raise
        raise UserError(
            f"step ran out of batches after {watch.count} steps; diagnose needs {watch.last}. Repeat them, as with"
            " itertools.cycle, or give a smaller number of steps."
        ) from None
    return loop.stop()
