"""Section: training curves and the quality at the end."""

import statistics

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..record import gain_over_chance
from .comparisons import gap_text, ok_runs, runs_of
from .layout import MANY, name_of, panel_title, panels, shown_in
from .section import Section
from .style import PRECISIONS, line_style
from .theme import chart_style
from .verdicts import marked_in
from .words import count, plain, span


def draw_curves(axes, group, name):
    """Draw `train_loss` or `metric` of a comparison; repeats begin again at epoch 1, single epochs stand apart."""
    for slot, precision in enumerate(PRECISIONS):
        values = {}
        for record in ok_runs(group, precision):
            epochs = record["epochs"] if type(record.get("epochs")) is int else 0
            for place, value in enumerate(record[name]):
                if value is not None:
                    values.setdefault(place % max(1, epochs or len(record[name])) + 1, []).append(value)
        x = [epoch + (0.06 * (slot - 1.5) if len(values) == 1 else 0) for epoch in values]
        axes.plot(x, [statistics.median(numbers) for numbers in values.values()], **line_style(precision))
        low, high = ([pick(numbers) for numbers in values.values()] for pick in (min, max))
        axes.fill_between(x, low, high, color=PRECISIONS[precision][0], alpha=0.15, linewidth=0)
        if len(values) == 1:
            axes.set(xlim=(0.5, 1.5), xticks=[1])
        elif values:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def metric_of(group):
    """Return (name, which way is better) of the held-out metric."""
    runs = [record for precision in PRECISIONS for record in ok_runs(group, precision) if record["metric_name"]]
    return (runs[0]["metric_name"].replace("_", " "), runs[0]["metric_better"]) if runs else ("metric", "?")


def last_metrics(group, precision):
    """Return {(seed, repetition): the last metric} of the ok runs."""
    runs = [record for record in ok_runs(group, precision) if record["metric"] and record["metric"][-1] is not None]
    return {(record["seed"], record.get("repeat")): record["metric"][-1] for record in runs}


@chart_style()
def section(report):
    """Return the chart of the curves, and the quality at the end."""
    section = Section()
    draw_training_curves(section, report)
    read_last_metrics(section, report)
    return section


def draw_training_curves(section, report):
    """Draw the training loss and the held-out metric by epoch."""
    curved = [
        number
        for number in report.charted
        if any(len(run["train_loss"]) > 1 for run in runs_of([report.comparisons[number]]))
    ]
    curved = curved if curved and len(report.charted) > MANY else report.charted
    if len(curved) < len(report.charted):
        few = count(len(report.charted) - len(curved), "comparison")
        section.say(f"{few} of one epoch: no curve; the table has what they reached.")
    shown = [name for name in PRECISIONS if any(ok_runs(report.comparisons[number], name) for number in curved)]
    handles = [Line2D([], [], **line_style(name)) for name in shown]
    figure, place_images = panels(report, "Training curves", 3.8, handles, curved, 2, min(3, len(curved)))
    for number, (above, below) in place_images:
        group = report.comparisons[number]
        gaps = [name for name, runs in group["runs"].items() if len(ok_runs(group, name)) < len(runs)]
        gaps = "; ".join(f"{name}: {gap_text(group['runs'][name])}" for name in gaps)
        above.set_title(panel_title(report, number, gaps, marked_in(report, number)), size=8.5, loc="left")
        above.set_ylabel("training loss")
        below.set(ylabel="{}\n({} is better)".format(*metric_of(group)), xlabel="epoch")
        draw_curves(above, group, "train_loss")
        draw_curves(below, group, "metric")
    section.chart(figure, "training_curves")


def read_last_metrics(section, report):
    """Say what the precisions reached, and which learned nothing."""
    widest = {}
    for group in report.comparisons:
        ends = {
            name: statistics.median(values) for name in PRECISIONS if (values := last_metrics(group, name).values())
        }
        if len(ends) > 1:
            low, high = min(ends, key=ends.get), max(ends, key=ends.get)
            gap = (ends[high] - ends[low]) / (abs(ends[low]) or 1)
            text = f"differs most from **{ends[low]:.4g}** ({low}) to **{ends[high]:.4g}** ({high})"
            text = f"{text} in {plain(group['title'])}" if gap else "does not differ"
            widest[group["notebook"]] = max(widest.get(group["notebook"], (-1,)), (gap, metric_of(group)[0], text))
    for notebook, (_, metric, text) in widest.items():
        section.say(f"{plain(notebook)}: between precisions the last {plain(metric)} {text}.")
    unlearned = []
    for number in report.charted:
        for precision in shown_in(report, number):
            gained = [gain_over_chance(run) for run in ok_runs(report.comparisons[number], precision)]
            if any(speedup is not None and speedup <= 1 for speedup in gained):
                unlearned.append(name_of(report, number, precision))
    if unlearned:
        section.say(f"**Ended no better than a model that ignores its input**: {'; '.join(unlearned)}.")
    for number in report.charted:
        runs = [(name, ok_runs(report.comparisons[number], name)) for name in shown_in(report, number)]
        tested = {
            name: [run["test_metric"] for run in found if run.get("test_metric") is not None] for name, found in runs
        }
        if words := ", ".join(f"{name} {span(values, '{:.4g}')}" for name, values in tested.items() if values):
            metric, title = metric_of(report.comparisons[number])[0], report.comparisons[number]["title"]
            section.say(f"On a test set on which no choice rests, {plain(metric)} of {plain(title)}: {words}.")
    if not widest:
        section.say("No two precisions of one comparison ended well, so there are no curves to compare.")
