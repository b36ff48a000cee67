"""Section: training curves and the quality at the end."""

import statistics

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..divergence import gain_over_chance
from .comparisons import gap_text, ok_runs, runs_of
from .layout import chart_text, most_compared, name_of, panel_title, panels, shown_in, start_chart
from .quality import last_metrics, metric_of
from .report import Report
from .section import Section
from .style import GAP_GREY, PRECISIONS, line_style
from .verdicts import marked_in
from .words import count, plain, span

TITLE = "Training"
NEAR = 3  # ranges of the marks: chance that lies farther away is told in words
CURVES = "A curve is the median over seeds, in a band from the lowest to the highest."
FEWEST_EPOCHS = 5  # of a curve
CURVES_DRAWN = 3  # comparisons
ROWS_DRAWN = 6  # comparisons that are too short for curves
NAMED = 4  # runs; of more their number is given


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


def section(report: Report) -> Section:
    """Return curves of long trainings, the last metrics of short ones, and what was reached on a test set."""
    section = Section(TITLE)
    long = [number for number, group in report.charted_groups if epochs_of(group) >= FEWEST_EPOCHS]
    short = [number for number in report.charted if number not in long]
    if long:
        section.say(CURVES)
        draw_training_curves(section, report, long)
    if short:
        draw_last_metrics(section, report, short)
    say_unlearned(section, report)
    say_test_metrics(section, report)
    return section


def epochs_of(group: dict) -> int:
    """Return how many epochs the longest run of a comparison has."""
    runs = [run for precision in PRECISIONS for run in ok_runs(group, precision)]
    return max((max(values_by_epoch([run], "metric"), default=0) for run in runs), default=0)


def draw_training_curves(section: Section, report: Report, numbers: list[int]) -> None:
    """Draw the training loss and the held-out metric by epoch."""
    shown = most_compared(report, numbers, CURVES_DRAWN)
    names = [name for name in PRECISIONS if any(ok_runs(report.comparisons[number], name) for number in shown)]
    handles = [Line2D([], [], **line_style(name)) for name in names]
    across = min(3, len(shown))
    figure, placed = panels(report, "Training curves", 3.6, handles, shown, rows=2, across=across)
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
    section.chart(figure, "training_curves", f"Training curves: {ends_in_words(report, shown)}")
    if len(shown) < len(numbers):
        section.say(f"{len(shown)} of {len(numbers)} comparisons are drawn; the table has the last metric of all.")


def is_near(value: float, ends: list[float]) -> bool:
    """Return whether a value lies so near some others that all can be told apart on one axis."""
    span = max(ends) - min(ends)
    return min(ends) - NEAR * span <= value <= max(ends) + NEAR * span


def draw_last_metrics(section: Section, report: Report, numbers: list[int]) -> None:
    """Draw the last held-out metric of trainings that are too short for a curve, beside what chance reaches."""
    shown = most_compared(report, numbers, ROWS_DRAWN)
    groups = {number: report.comparisons[number] for number in shown}
    groups = {
        number: group for number, group in groups.items() if any(last_metrics(group, name) for name in PRECISIONS)
    }
    if not groups:
        return
    names = [name for name in PRECISIONS if any(ok_runs(group, name) for group in groups.values())]
    styles = [{**line_style(name), "linestyle": "none", "markersize": 6.5} for name in names]
    handles = [Line2D([], [], **style) for style in styles]
    handles.append(Line2D([], [], color=GAP_GREY, linestyle="--", linewidth=1, label="chance"))
    title = f"Quality: fewer than {FEWEST_EPOCHS} epochs are too short to judge"
    about = "last metric on held-out data; a mark for each run"
    figure, bands = start_chart(report, title, [0.85] * len(groups), handles, about, list(groups))
    for band, number in zip(bands, groups, strict=True):
        group = groups[number]
        axes = band.subplots()
        for slot, (name, style) in enumerate(zip(names, styles, strict=True)):
            values = list(last_metrics(group, name).values())
            axes.plot(values, [-slot] * len(values), **style)
        chance = {run["chance_metric"] for run in runs_of([group])} - {None}
        metric, better = metric_of(group)
        epochs = count(epochs_of(group), "epoch")
        about_it = f"{better} is better"
        for value in chance if len(chance) == 1 else ():
            if is_near(value, [end for name in names for end in last_metrics(group, name).values()]):
                axes.axvline(value, color=GAP_GREY, linestyle="--", linewidth=1)
            else:
                about_it += f", chance is {value:.4g}"
        text = f"{group['title']}: {metric} after {epochs} ({about_it}) {marked_in(report, number)}".rstrip()
        axes.set_title(chart_text(text), size=8.5, loc="left")
        axes.set(yticks=[], ylim=(-len(names) + 0.3, 0.7))
        axes.margins(x=0.06)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
    section.chart(figure, "last_metrics", f"Last metrics: {ends_in_words(report, list(groups))}")
    if len(groups) < len(numbers):
        section.say(f"{len(groups)} of {len(numbers)} short trainings are drawn; the table has the last metric of all.")


def ends_in_words(report: Report, numbers: list[int]) -> str:
    """Return the median last metric of each precision of some comparisons, as an alternative text."""
    texts = []
    for number in numbers:
        group = report.comparisons[number]
        ends = {name: last_metrics(group, name).values() for name in PRECISIONS}
        words = [f"{name} {statistics.median(values):.4g}" for name, values in ends.items() if values]
        texts.append(f"{group['title']}, {metric_of(group)[0]}: {', '.join(words)}")
    return f"{'; '.join(texts)}."


def say_unlearned(section: Section, report: Report) -> None:
    """Say which runs ended no better than chance."""
    unlearned = []
    for number in report.charted:
        for precision in shown_in(report, number):
            gains = [gain_over_chance(run) for run in ok_runs(report.comparisons[number], precision)]
            no_better = sum(gain is not None and gain <= 0 for gain in gains)
            if no_better:
                of_all = "" if no_better == len(gains) else f" ({no_better} of {count(len(gains), 'run')})"
                unlearned.append(name_of(report, number, precision) + of_all)
    if unlearned:
        named = unlearned if len(unlearned) <= NAMED else [*unlearned[:NAMED], f"and {len(unlearned) - NAMED} more"]
        section.say(f"**No better than a model that ignores its input**: {'; '.join(named)}.")


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
            section.say(f"Test {metric} of {plain(group['title'])}: {', '.join(words)}.")
