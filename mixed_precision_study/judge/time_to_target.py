"""How long a run trained until its metric on held-out data first reached a target, and what
energy that took.
"""

from typing import NamedTuple


class ToTarget(NamedTuple):
    """One training and its target. What is not reached or not known is None."""

    epochs: int | None  # until the target
    # of training until the target, without evaluation, start-up and compilation
    seconds: float | None
    joules: float | None  # the same share of the run's energy, as if all epochs took equal power


def target_of(record: dict, own: float = 0.0) -> float | None:
    """Return the metric that a run is to reach:

    `own`, or for 0 that of its experiment; None without one.
    """
    return (own or record["metric_target"]) if record["metric_better"] else None


def to_target(record: dict, target: float) -> ToTarget:
    """Return what an ok run that was evaluated needed to reach a target."""
    sign = 1 if record["metric_better"] == "higher" else -1
    times = record["epoch_seconds"]
    energy = record["energy_joules"]
    metrics = enumerate(record["metric"], 1)
    reached = (n for n, value in metrics if value is not None and sign * value >= sign * target)
    epochs = next(reached, None)
    seconds = sum(times[:epochs]) if epochs else None
    joules = None if seconds is None or energy is None else energy * seconds / sum(times)
    return ToTarget(epochs, seconds, joules)
