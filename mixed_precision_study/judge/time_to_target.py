"""How long a run trained until its metric on held-out data first reached a target, and what energy that took."""

from dataclasses import dataclass
from itertools import accumulate

DEFAULT_TARGETS = {  # (notebook, model, data): the metric
    ("cifar_resnet", "resnet18", "cifar10"): 0.92,
    ("lstm_language_model", "lstm", "wikitext-2"): 160.0,
    ("lstm_language_model", "lstm", "wikitext-2-like"): 160.0,  # a text put in its place, such as another order
}


@dataclass(frozen=True)
class ToTarget:
    """One training and its target. What is not reached or not known is None."""

    precision: str
    seed: int
    epochs: int | None  # until the target
    timed: bool  # whether its seconds and joules count: see conditions.fairly_timed()
    seconds: float | None  # of training until the target, without evaluation, start-up and compilation
    joules: float | None  # the same share of the run's energy, as if all epochs took equal power
    startup_seconds: float | None
    compile_seconds: float | None
    epoch_seconds: float  # mean of its epochs


def target_of(record: dict, own: float = 0.0) -> float | None:
    """Return the metric that a run is to reach: `own`, or for 0 the default of its experiment; None without one."""
    if not record.get("metric_better"):
        return None
    if own:
        return own
    return DEFAULT_TARGETS.get((record["notebook"], record["model"], record.get("dataset_used") or ""))


def reaches(value: float | None, target: float, better: str) -> bool:
    """Return whether a metric is at the target or better."""
    if value is None:
        return False
    return value >= target if better == "higher" else value <= target


def trainings_in(record: dict) -> list[tuple[list[float], list[float | None]]]:
    """Return (seconds of the epochs, metrics) of each repeat of an ok run; both lists are equally long."""
    seconds, metrics = record["epoch_seconds"], record["metric"]
    epochs = record.get("epochs")
    size = epochs if type(epochs) is int and epochs > 0 else max(1, len(seconds))
    parts = [(seconds[start : start + size], metrics[start : start + size]) for start in range(0, len(seconds), size)]
    return [(times, values) for times, values in parts if times and len(times) == len(values)]


def to_target(record: dict, target: float, timed: bool = True) -> list[ToTarget]:
    """Return what each training of an ok run needed to reach a target. `timed`: whether its seconds count."""
    total = sum(record["epoch_seconds"])
    energy = record.get("energy_joules")
    found = []
    for number, (times, values) in enumerate(trainings_in(record)):
        reached = [reaches(value, target, record["metric_better"]) for value in values]
        epochs = reached.index(True) + 1 if True in reached else None
        seconds = list(accumulate(times))[epochs - 1] if epochs else None
        first = number == 0  # only the first repeat has a start-up and a compilation that were measured
        training = ToTarget(
            precision=record["precision"],
            seed=record["seed"],
            epochs=epochs,
            timed=timed,
            seconds=seconds,
            joules=None if seconds is None or energy is None else energy * seconds / total,
            startup_seconds=record.get("startup_seconds") if first else None,
            compile_seconds=record.get("compile_seconds") if first else None,
            epoch_seconds=sum(times) / len(times),
        )
        found.append(training)
    return found


def mean_or_none(values: list[float | None]) -> float | None:
    """Return the mean of numbers, or None where one is missing or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def faster_steps_only(own: list[ToTarget], base: list[ToTarget]) -> bool:
    """Return whether the epochs of `own` are faster than those of `base`, but not its way to the target.

    A target that some training of `own` did not reach, and all of `base` did, is such a case, too.
    """
    timed, base_timed = ([one for one in runs if one.timed] for runs in (own, base))
    epoch, base_epoch = (mean_or_none([one.epoch_seconds for one in runs]) for runs in (timed, base_timed))
    needed, base_needed = (mean_or_none([one.seconds for one in runs]) for runs in (timed, base_timed))
    if epoch is None or base_epoch is None or base_needed is None or epoch >= base_epoch:
        return False
    if not all(one.epochs for one in base):
        return False
    return needed is None or needed > base_needed or not all(one.epochs for one in own)
