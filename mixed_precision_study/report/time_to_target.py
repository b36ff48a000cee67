"""Section: time and energy to the same quality."""

from collections.abc import Callable

from ..analysis.time_to_target import ToTarget, faster_steps_only, target_of, to_target
from .comparisons import ok_runs, timed_runs
from .quality import metric_of
from .report import Report
from .section import Section
from .style import PRECISIONS
from .verdicts import baselines_of, said_once
from .words import plain, short, short_span

TITLE = "Time and energy to the same quality"
ABOUT = """Seconds and joules of training until the metric on held-out data first reaches a target
(`target_metric`; default: 92% for ResNet-18 on CIFAR-10, perplexity 160 for the LSTM). Faster steps that need
more time to it are not faster."""

NOT_REACHED = "not reached"
NOT_TIMED = "slowed by heat"


def trainings_of(group: dict, target_metric: float) -> tuple[float, dict[str, list[ToTarget]]] | None:
    """Return (target, {precision: trainings}) of a comparison; None without a target, or where none reached it."""
    runs = {name: ok_runs(group, name) for name in PRECISIONS}
    targets = [target_of(record, target_metric) for found in runs.values() for record in found]
    target = next((one for one in targets if one), None)
    if target is None:
        return None
    timed = {id(record) for name in PRECISIONS for record in timed_runs(group, name)}
    trainings = {
        name: [
            one
            for record in found
            if record["metric_better"]
            for one in to_target(record, target, timed=id(record) in timed)
        ]
        for name, found in runs.items()
    }
    trainings = {name: found for name, found in trainings.items() if found}
    reached = any(one.epochs for found in trainings.values() for one in found)
    return (target, trainings) if reached else None


def cell(trainings: list[ToTarget], read: Callable[[ToTarget], float | None]) -> str:
    """Return mean and range of a figure over trainings as text, of those that have it."""
    known = [value for value in map(read, trainings) if value is not None]
    if not known:
        return "-"
    mean = short(sum(known) / len(known))
    return mean if min(known) == max(known) else f"{mean} ({short_span(known)})"


def summary_row(title: str, target: float, precision: str, trainings: list[ToTarget]) -> dict:
    """Return one precision of a comparison as a row: means, with ranges over seeds and processes.

    Epochs are of all trainings, seconds and joules of those whose time counts.
    """
    reached = [one for one in trainings if one.epochs]
    timed = [one for one in trainings if one.timed]
    timed_way = [one for one in reached if one.timed]
    return {
        "comparison": title,
        "target": f"{target:g}",
        "precision": precision,
        "reached": f"{len(reached)} of {len(trainings)}",
        "epochs": cell(reached, lambda one: one.epochs),
        "timed": len(timed_way),
        "seconds of training": cell(timed_way, lambda one: one.seconds) if reached else NOT_REACHED,
        "joules": cell(timed_way, lambda one: one.joules),
        "s per epoch": cell(timed, lambda one: one.epoch_seconds),
        "start-up, s": cell(timed, lambda one: one.startup_seconds),
        "of it compilation, s": cell(timed, lambda one: one.compile_seconds),
    }


def training_row(title: str, training: ToTarget) -> dict:
    """Return one training as a row."""
    return {
        "comparison": title,
        "precision": training.precision,
        "seed": training.seed,
        "epochs": training.epochs or NOT_REACHED,
        "seconds of training": cell([training], lambda one: one.seconds) if training.timed else NOT_TIMED,
        "joules": cell([training], lambda one: one.joules) if training.timed else "-",
        "start-up, s": cell([training], lambda one: one.startup_seconds),
        "of it compilation, s": cell([training], lambda one: one.compile_seconds),
    }


def say_slower_ways(section: Section, title: str, trainings: dict[str, list[ToTarget]]) -> None:
    """Name the precisions with faster epochs that need more seconds to the target."""
    for precision, own in trainings.items():
        for baseline in baselines_of(precision):
            if baseline in trainings and faster_steps_only(own, trainings[baseline]):
                ways = f"**{precision}** has faster epochs than {baseline}, but is not faster to the target"
                section.say(f"{ways} ({plain(title)}).")


def section(report: Report) -> Section:
    """Return the tables of time and energy to a target; nothing where no run reaches one."""
    section = Section(TITLE, ABOUT)
    rows, every = [], []
    all_timed = True
    for group in report.comparisons:
        found = trainings_of(group, report.target_metric)
        if found is None:
            continue
        target, trainings = found
        title = f"{group['notebook']}: {group['title']}, {metric_of(group)[0]}"
        say_slower_ways(section, title, trainings)
        for precision, own in trainings.items():
            all_timed &= all(one.timed for one in own)
            rows.append(summary_row(title, target, precision, own))
            every += [training_row(title, one) for one in own]
    if rows:
        section.say(
            "Seconds are of training only, until the metric on held-out data first reaches the target: means, with the"
            " range over seeds and processes. Joules assume equal power in all epochs of a run."
        )
        if all_timed:
            rows = [{name: value for name, value in row.items() if name != "timed"} for row in rows]
        else:
            section.say("Epochs are of all trainings, seconds and joules of those that heat did not slow: see *timed*.")
        section.table(said_once(rows), "Time to the target")
        section.table(said_once(every), "Every training on its way to the target")
    return section
