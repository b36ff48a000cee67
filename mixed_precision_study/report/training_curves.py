"""Section: training curves and the quality at the end."""

import statistics
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..analysis.equivalence import quality_difference
from ..record import gain_over_chance
from .comparisons import gap_text, ok_runs, runs_of
from .layout import MANY, name_of, panel_title, panels, shown_in
from .report import Report
from .section import Section
from .style import PRECISIONS, line_style
from .theme import chart_style
from .verdicts import marked_in
from .words import count, plain, span

TITLE = "Training"
ABOUT = """Training loss above, quality on held-out data below: the median over seeds, in a band from the lowest to
the highest."""


def values_by_epoch(records: list[dict], name: str) -> dict[int, list[float]]:
    """Return {epoch: values} of `train_loss` or `metric`; repeats begin again at epoch 1."""
    values: dict[int, list[float]] = {}
    for record in records:
        epochs = record["epochs"] if type(record.get("epochs")) is int else 0
        epochs = epochs or max(1, len(record[name]))
        for index, value in enumerate(record[name]):
            if value is not None:
                values.setdefault(index % epochs + 1, []).append(value)
    return values


def draw_curves(axes: Axes, group: dict, name: str) -> None:
    """Draw `train_loss` or `metric` of a comparison: medians, and the range of the runs. Single epochs stand apart."""
    for slot, precision in enumerate(PRECISIONS):
        values = values_by_epoch(ok_runs(group, precision), name)
        x: list[float] = list(values)
        if len(values) == 1:
            x = [x[0] + 0.06 * (slot - 1.5)]
        axes.plot(x, [statistics.median(numbers) for numbers in values.values()], **line_style(precision))
        low, high = ([pick(numbers) for numbers in values.values()] for pick in (min, max))
        axes.fill_between(x, low, high, color=PRECISIONS[precision].colour, alpha=0.15, linewidth=0)
        if len(values) == 1:
            axes.set(xlim=(0.5, 1.5), xticks=[1])
        elif values:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def metric_of(group: dict) -> tuple[str, str]:
    """Return (name, which way is better) of the held-out metric."""
    runs = [record for precision in PRECISIONS for record in ok_runs(group, precision) if record["metric_name"]]
    return (runs[0]["metric_name"].replace("_", " "), runs[0]["metric_better"]) if runs else ("metric", "?")


def last_metrics(group: dict, precision: str) -> dict[tuple, float]:
    """Return {(seed, repetition): the last metric} of the ok runs."""
    runs = [record for record in ok_runs(group, precision) if record["metric"] and record["metric"][-1] is not None]
    return {(record["seed"], record.get("repeat")): record["metric"][-1] for record in runs}


def by_seed(metrics: Mapping[tuple, float]) -> dict[int, float]:
    """Return {seed: last metric} from {(seed, repetition): last metric}: repetitions of a seed count as their mean."""
    found: dict[int, list[float]] = {}
    for (seed, *_), value in metrics.items():
        found.setdefault(seed, []).append(value)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def quality_against_fp32(group: dict, precision: str) -> dict | None:
    """Return how the last metric of a precision differs from fp32's over equal seeds, see quality_difference."""
    own = by_seed(last_metrics(group, precision))
    base = by_seed(last_metrics(group, "fp32"))
    name, better = metric_of(group)
    return quality_difference(own, base, name.replace(" ", "_"), better)


@chart_style()
def section(report: Report) -> Section:
    """Return the chart of the curves, and the quality at the end."""
    section = Section(TITLE, ABOUT)
    draw_training_curves(section, report)
    say_differences(section, report)
    say_unlearned(section, report)
    say_test_metrics(section, report)
    return section


def draw_training_curves(section: Section, report: Report) -> None:
    """Draw the training loss and the held-out metric by epoch; of many comparisons, those of several epochs."""
    shown = report.charted
    if len(shown) > MANY:
        several = [
            n for n, group in report.charted_groups if any(len(run["train_loss"]) > 1 for run in runs_of([group]))
        ]
        shown = several or shown
    if len(shown) < len(report.charted):
        few = count(len(report.charted) - len(shown), "comparison")
        section.say(f"{few} of one epoch have no curve; the table has their last metric.")
    names = [name for name in PRECISIONS if any(ok_runs(report.comparisons[number], name) for number in shown)]
    handles = [Line2D([], [], **line_style(name)) for name in names]
    figure, placed = panels(report, "Training curves", 3.8, handles, shown, rows=2, across=min(3, len(shown)))
    for number, (above, below) in placed:
        group = report.comparisons[number]
        gaps = [f"{name}: {gap_text(runs)}" for name, runs in group["runs"].items() if runs and gap_text(runs)]
        title = panel_title(report, number, "; ".join(gaps), marked_in(report, number))
        above.set_title(title, size=8.5, loc="left")
        above.set_ylabel("training loss")
        metric, better = metric_of(group)
        below.set(ylabel=f"{metric}\n({better} is better)", xlabel="epoch")
        draw_curves(above, group, "train_loss")
        draw_curves(below, group, "metric")
    section.chart(figure, "training_curves")


def say_differences(section: Section, report: Report) -> None:
    """Say, for every experiment, in which comparison the precisions' last metrics differ most."""
    widest: dict[str, tuple[float, str, str]] = {}
    for group in report.comparisons:
        metrics = {name: last_metrics(group, name).values() for name in PRECISIONS}
        ends = {name: statistics.median(values) for name, values in metrics.items() if values}
        if len(ends) > 1:
            low, high = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
            gap = (ends[high] - ends[low]) / (abs(ends[low]) or 1)
            text = "does not differ"
            if gap:
                text = f"differs most from **{ends[low]:.4g}** ({low}) to **{ends[high]:.4g}** ({high})"
                text += f" in {plain(group['title'])}"
            found = (gap, metric_of(group)[0], text)
            widest[group["notebook"]] = max(widest.get(group["notebook"], found), found)
    for notebook, (_, metric, text) in widest.items():
        section.say(f"{plain(notebook)}: between precisions the last {plain(metric)} {text}.")
    if not widest:
        section.say("No two precisions of one comparison ended well, so there are no curves to compare.")


def say_unlearned(section: Section, report: Report) -> None:
    """Say which runs ended no better than chance."""
    unlearned = []
    for number in report.charted:
        for precision in shown_in(report, number):
            gains = [gain_over_chance(run) for run in ok_runs(report.comparisons[number], precision)]
            if any(gain is not None and gain <= 0 for gain in gains):
                unlearned.append(name_of(report, number, precision))
    if unlearned:
        section.say(f"**Ended no better than a model that ignores its input**: {'; '.join(unlearned)}.")


def say_test_metrics(section: Section, report: Report) -> None:
    """Say what the precisions reached on a test set, where there is one."""
    for number, group in report.charted_groups:
        words = []
        for precision in shown_in(report, number):
            tested = [run["test_metric"] for run in ok_runs(group, precision) if run.get("test_metric") is not None]
            if tested:
                words.append(f"{span(tested, '{:.4g}')} in {precision}")
        if words:
            metric = plain(metric_of(group)[0])
            section.say(f"Test {metric}: {plain(group['model'])} {', '.join(words)}.")
