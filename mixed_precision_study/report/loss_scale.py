"""Section: the loss scale, its range and the sweeps of fixed scales."""

import json
import math
import statistics
from collections import Counter
from itertools import pairwise

from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from .comparisons import ok_runs
from .layout import MANY, name_of, panel_title, panels, start_chart
from .section import Section
from .style import PRECISIONS, line_style
from .theme import chart_style
from .verdicts import marked_in
from .words import count, plain, span


def scaling_text(runs):
    """Return what the loss scale did in fp16 runs: skipped steps, its range, gradients lost without and with it."""
    steps = sum((record["steps_per_epoch"] or 0) * len(record["epoch_seconds"]) for record in runs)
    skipped = sum(record["skipped_steps"] or 0 for record in runs)
    text = f"{skipped:,} of {f'{steps:,}' if steps else 'an unknown number of'} timed steps were skipped because a"
    text += " gradient overflowed"
    if places := sorted({int(step) for record in runs for step in record["overflow_steps"]}):
        text += f" (step {', '.join(map(str, places[:8]))}{' and others' * (len(places) > 8)}, counted from 0)"
    scales = [scale for record in runs for _, scale in record["loss_scale_trace"] if scale]
    fixed = bool(fixed_scales(record.get("loss_scale") for record in runs))
    text += f"; the loss scale {'was' if fixed else 'went from'} {span(scales, '{:,.0f}')}" if scales else ""
    most = sum(map(skipped_most, runs))
    text += f"; {most} of {count(len(runs), 'run')} skipped more than half of the steps" * bool(most)
    for field, where in (("scale_1", "without a loss scale"), ("scaled", "at the scale of the last step")):
        shares = [record[f"gradient_flush_fraction_{field}"] for record in runs]
        shares = [100 * share for share in shares if share is not None]
        text += (
            f"; fp16 loses **{span(shares, '{:.3g}%')}** of the non-zero gradient elements {where}" if shares else ""
        )
    return text


def fixed_scales(scales):
    return sorted(scale for scale in scales if type(scale) in (int, float))  # a text is not


def skipped_most(run):
    """Return whether a run skipped more than half of its timed steps: it ended, but hardly trained."""
    return (run["skipped_steps"] or 0) > (run["steps_per_epoch"] or math.inf) * len(run["epoch_seconds"]) / 2


def traces_of(group, precision):
    """Return the loss-scale traces of the ok runs, as lists of steps and scales."""
    traces = [[point for point in run["loss_scale_trace"] if point[1]] for run in ok_runs(group, precision)]
    return [list(zip(*trace, strict=True)) for trace in traces if trace]


def changes_in(trace):
    """Return how often the scale of a trace changes."""
    return sum(before != after for before, after in pairwise(trace[1]))


def percentage(part, whole):
    return None if part is None or not whole else 100 * part / whole


LINES = {  # what a sweep shows from above, with how it is read from a record
    "last training loss": lambda run: (run["train_loss"] or [None])[-1],
    "skipped steps (%)": lambda run: percentage(
        run["skipped_steps"], run["steps_per_epoch"] * len(run["epoch_seconds"])
    ),
    "gradients lost (%)": lambda run: percentage(run["gradient_flush_fraction_scaled"], 1),
}


def middle_value(runs, read):
    """Return the median of what `read` finds in runs that have begun, or None."""
    values = [value for run in runs if run["steps_per_epoch"] and (value := read(run)) is not None]
    return statistics.median(values) if values else None


def draw_sweep(axes, runs, read, precision):
    """Draw one figure over the fixed scales; dynamic scaling is a dashed line, a run that did not end well a label."""
    points, fixed = {}, fixed_scales(runs)
    for scale in fixed:
        bad = Counter(run["status"] for run in runs[scale] if run["status"] != "ok")
        if bad:
            text = axes.get_xaxis_transform()
            axes.text(scale, 0.5, ", ".join(bad), rotation=90, size=8, ha="center", va="center", transform=text)
        elif (value := middle_value(runs[scale], read)) is not None:
            points[scale] = value
    axes.plot(list(points), list(points.values()), **line_style(precision))
    if (dynamic := middle_value(runs.get("dynamic", ()), read)) is not None:
        axes.axhline(dynamic, color=PRECISIONS[precision][0], linestyle=":", linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xlim(fixed[0] / 2, fixed[-1] * 2)
    axes.set_xticks(fixed, [f"$2^{{{math.log2(scale):.3g}}}$" for scale in fixed])
    axes.minorticks_off()
    return points


def widen(axes, label):
    """Let percentages begin at 0, and a loss span a fifth of itself at least, lest chance look like a slope."""
    low, high = axes.get_ylim()
    if "%" in label:
        high = high if axes.dataLim.y1 > 0 else 1
        axes.set_ylim(-0.04 * high, high)
    elif (missing := 0.1 * (low + high) - (high - low)) > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)


@chart_style()
def section(report):
    """Return the charts of the loss scale, and what it did."""
    section = Section()
    read_loss_scales(section, report)
    draw_traces(section, report)
    draw_sweeps(section, report)
    return section


def read_loss_scales(section, report):
    """Say how many steps were skipped and how many gradients lost."""
    for precision in PRECISIONS:
        ok = [
            record for group in report.comparisons for record in ok_runs(group, precision) if record["loss_scale_trace"]
        ]
        fixed = [record for record in ok if fixed_scales([record.get("loss_scale")])]  # such as those of a sweep
        for which, runs in (("", [record for record in ok if record not in fixed]), (" at fixed loss scales", fixed)):
            if runs:
                section.say(f"{precision}{which}: {scaling_text(runs)}.")


def draw_traces(section, report):
    """Draw the loss scale over the steps."""
    traces = {key: traces_of(report.comparisons[key[0]], key[1]) for key in report.epoch_times}
    changes = {key: max(map(changes_in, found)) for key, found in traces.items() if found}
    changing = sorted({key[0] for key, number in changes.items() if number > 1 or len(report.charted) <= MANY})
    if any(number > 1 for number in changes.values()):
        names = [name for name in PRECISIONS if any(found for key, found in traces.items() if key[1] == name)]
        handles = [Line2D([], [], **line_style(name)) for name in names]
        figure, place_images = panels(report, "Loss scale", 2.2, handles, changing)
        for number, (axes,) in place_images:
            axes.set_title(panel_title(report, number, marked_in(report, number)), size=8.5, loc="left")
            for precision in names:
                for trace in traces.get((number, precision), ()):
                    axes.plot(*trace, **line_style(precision), drawstyle="steps-post")
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_locator(LogLocator(base=2, numticks=6))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.set(xlabel="timed step", ylabel="loss scale")
        section.chart(figure, "loss_scale")
        most = max(changes, key=changes.get)
        section.say(
            f"The loss scale of one run changes {count(changes[most], 'time')} at most ({name_of(report, *most)})."
        )


def draw_sweeps(section, report):
    """Draw loss, skipped steps and lost gradients over the fixed loss scales."""
    for number, ((settings, precision), runs) in enumerate(report.sweeps.items(), 1):
        handles = [Line2D([], [], **line_style(precision))]
        if any(run["status"] == "ok" for run in runs.get("dynamic", ())):
            handles += [Line2D([], [], color=PRECISIONS[precision][0], linestyle=":", label="dynamic")]
        figure, (part,) = start_chart(report, f"Loss scale of {precision}, fixed and dynamic", [2.9], handles)
        drawn = {}
        for axes, (label, read) in zip(part.subplots(1, len(LINES)), LINES.items(), strict=True):
            drawn[label] = draw_sweep(axes, runs, read, precision)
            axes.set(xlabel="fixed loss scale", ylabel=label)
            widen(axes, label)
        section.chart(figure, f"loss_scale_sweep_{number}" if len(report.sweeps) > 1 else "loss_scale_sweep")
        lost, fixed = drawn["gradients lost (%)"], fixed_scales(runs)
        ended = [[run for run in runs[scale] if run["status"] == "ok"] for scale in fixed]
        idle = sum(bool(found) and all(map(skipped_most, found)) for found in ended)
        well = sum(map(bool, ended)) - idle
        text = f"{well} of {len(fixed)} fixed scales from {fixed[0]:,g} to {fixed[-1]:,.10g} ended well"
        text += f", {idle} more ended with more than half of the steps skipped" * bool(idle)
        if lost:
            text += f"; gradients lost go from {max(lost.values()):.3g}% down to {min(lost.values()):.3g}%"
        skipped = drawn["skipped steps (%)"]
        if skipped and (most := max(skipped, key=skipped.get)) and skipped[most] > 0:
            text += f"; at {most:,.10g} **{skipped[most]:.3g}%** of the steps were skipped"
        section.say(f"{precision}, {plain(json.loads(dict(settings)['model']))}: {text}.")
