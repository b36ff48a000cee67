"""diagnose(): what is wrong with a training step, in which types it computes, and where its time goes."""

import atexit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ..analysis.bottleneck import advice_of, find_bottleneck
from ..errors import UserError
from . import doors
from .mistakes import REMEDIES, SENTENCES, Observations, find_mistakes
from .probe import name_of
from .watch import Watch


class Mistake(NamedTuple):
    """The name of a rule, the figures and lines that it names, and its sentence."""

    rule: str
    figures: dict[str, Any]
    sentence: str


class Diagnosis:
    """The result of diagnose(). `print` shows it."""

    def __init__(self) -> None:
        self.seen = Observations()
        self.mistakes: list[Mistake] = []  # empty for a sound step

    def judge(self, seen: Observations, error: BaseException | None = None) -> None:
        """Take in what was seen, and the error that ended the loop, if one did, which gets the remedy as a note."""
        self.seen = seen
        self.mistakes = [Mistake(rule, found, SENTENCES[rule].format(**found)) for rule, found in find_mistakes(seen)]
        for part, remedy in REMEDIES.items():
            if error is not None and part in str(error):
                self.mistakes.insert(0, Mistake("error", {"message": part}, f"{type(error).__name__}: {remedy}"))
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(f"diagnose(): {remedy}")

    def __str__(self) -> str:
        if not any(self.seen.events) and not self.mistakes:
            return (
                "Nothing was looked at: no optimizer took a step, and backward() was not called. Give a loop that"
                " updates its weights by hand as diagnose(step)."
            )
        lines = [f"Mistake: {one.sentence}" for one in self.mistakes] or ["No mistake was found."]
        return "\n".join([*lines, *facts(self.seen), *self.seen.unseen])

    __repr__ = __str__  # as the last line of a cell shows it


def facts(seen: Observations) -> list[str]:
    """Return a sentence each on types, time, waits and memory, as far as they are known."""
    lines = []
    if seen.flops:
        shares = {dtype: seen.share_of_flops(dtype) for _, dtype in seen.flops}
        ran = [f"{share:.0%} in {dtype}" for dtype, share in sorted(shares.items(), key=lambda item: -item[1])]
        lines.append(f"Its products and convolutions ran {' and '.join(ran)}.")
    if any(b < a for scales in seen.scales for a, b in zip(scales, scales[1:], strict=False)):
        lines.append("The loss scale is still searching, which is normal in the first steps.")
    if seen.step_ms:
        line = f"A step takes {seen.step_ms:,.4g} ms (the median of {seen.timed})."
        if seen.apart:
            line += f" {len(seen.apart)} of them did more, as in an evaluation: {max(seen.apart):,.4g} ms at most."
        lines.append(line)
    if seen.kernels:
        names = ("kernel_family_fractions", "gpu_busy_fraction", "tensor_core_fraction")
        record = {
            **{name: seen.kernels.get(name) for name in names},
            "precision": "amp" if seen.autocasts else "fp32",
            "execution": "compile" if seen.compiled else "eager",
            "data_wait_fraction": seen.data_wait_fraction,
            **dict.fromkeys(("profile_reason", "misaligned_flops_fraction", "compute_limit_fraction")),
        }
        case, because = find_bottleneck(record)
        lines.append(f"It is limited by {case}: {because}{advice_of(case, record)}.")
    elif seen.data_wait_fraction:
        lines.append(f"The loop waits for its DataLoader {seen.data_wait_fraction:.0%} of the time.")
    if seen.watched and seen.scaler_reads >= seen.watched:
        lines.append("GradScaler waits for the GPU in every step, which an optimizer with fused=True does not need.")
    waits = [place for place, steps in seen.library_reads.items() if steps >= seen.watched]
    if waits:
        lines.append(f"Packages wait for the GPU in every step, too: {'; '.join(sorted(waits)[:3])}.")
    return lines


class Loop:
    """A diagnosis of a loop, as a context or between start() and stop(). Its report is filled in as soon as possible."""

    def __init__(self, steps: int, evaluate: Callable[[], Any] | None, on_report: Callable[[Diagnosis], Any]):
        self.steps, self.evaluate, self.on_report = steps, evaluate, on_report
        self.report = Diagnosis()
        self.watch: Watch | None = None

    def start(self, by_hand: bool = False) -> "Loop":
        """Begin to watch. A loop at module level that never calls stop(), as after an error, is reported at the exit."""
        self.report = Diagnosis()
        self.watch = Watch(self.steps, by_hand, self.report_early)
        atexit.register(self.stop)
        return self

    def report_early(self) -> None:
        if self.watch and not self.watch.by_hand and not self.evaluate:
            self.report.judge(self.watch.finish())
            self.on_report(self.report)

    def stop(self, error: BaseException | None = None) -> Diagnosis:
        """End to watch and return the report. error: what ended the loop, which gets a note with its remedy."""
        watch, self.watch = self.watch, None
        if watch is not None:
            atexit.unregister(self.stop)
            told = watch.finished
            seen = watch.finish()
            if self.evaluate and error is None:
                look_at_evaluation(seen, self.evaluate)
            self.report.judge(seen, error)
            if not told:
                self.on_report(self.report)
        return self.report

    def __enter__(self) -> Diagnosis:
        return self.start().report

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.stop(error)


def look_at_evaluation(seen: Observations, evaluate: Callable[[], Any]) -> None:
    """Evaluate, and note whether the result is finite, and whether a graph was built that no backward() used."""
    calls: list[str] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        calls.append("keep")
        return tensor

    ear = SimpleNamespace(
        hear=lambda event, *_: calls.extend([event] * (event == "backward")), gave_up=lambda error: None
    )
    doors.listen(ear)
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = evaluate()
    finally:
        doors.leave(ear)
    if calls and "backward" not in calls:
        seen.found["evaluation with gradients"] = {}
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, float | torch.Tensor)]
    numbers = [torch.as_tensor(leaf) for leaf in leaves]
    if numbers:
        types = {name_of(number.dtype) for number in numbers if number.is_floating_point()}
        seen.evaluation_in = " and ".join(sorted(types))
        seen.evaluation_finite = all(bool(number.isfinite().all()) for number in numbers)
    else:
        seen.unseen.append("The numbers of the evaluation were not checked, because it returns none of them.")


def diagnose(
    step: Callable[[], Any] | None = None,
    *,
    steps: int = 20,
    evaluate: Callable[[], Any] | None = None,
    on_report: Callable[[Diagnosis], Any] = print,
) -> Any:
    """Diagnose a training step, and change nothing in it.

    step(): takes one training step of yours: batch, forward, backward, optimizer. Without it, diagnose() is a context
        around a loop, or diagnose().start() before it and stop() of what that returns after it. There a step ends with
        scaler.update() or optimizer.step().
    steps: how many are timed, after 3 that warm up (8 on a GPU). Then PyTorch's profiler looks into 4, which are slow.
    evaluate(): evaluates your model once, after the steps, and returns its metric or its outputs, which are checked.
    on_report(report): is called as soon as all is known, or the loop ends or fails.

    Returns a Diagnosis; the context fills it in. `report.mistakes` is a list of sentences, each with the name of its
    `rule`, empty where none was found. An error of diagnose() ends the diagnosis and not your loop.

    Raises UserError where an argument is wrong or the batches run out, and whatever your step raises.

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
    watch = loop.start(by_hand=True).watch
    try:
        while watch is not None and not watch.is_over:
            step()
            doors.tell("by hand", True, (watch,), {})
    except StopIteration as error:
        loop.stop(error)
        raise UserError(
            f"step ran out of batches after {watch.count} steps; diagnose needs {watch.last}. Repeat them, as with"
            " itertools.cycle, or give a smaller number of steps."
        ) from None
    except BaseException as error:
        loop.stop(error)
        raise
    finally:
        loop.stop()
    return loop.report
