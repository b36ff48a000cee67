"""Section: the loss scale, its range and the sweeps of fixed scales."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from .comparisons import ok_runs
from .layout import name_of, panel_title, panels, start_chart
from .report import Report
from .section import Section
from .style import PRECISIONS, line_style
from .verdicts import marked_in
from .words import count, plain, span

TITLE = "Loss scale"
SWEEPS_DRAWN = 2
TRACES_DRAWN = 6  # comparisons

Trace = list[tuple]  # the steps at which the loss scale was noted, and the scales


def scaling_text(runs: list[dict]) -> str:
    """Return what loss scaling did in fp16 runs: skipped steps, gradients lost without and with it."""
    steps = sum((record["steps_per_epoch"] or 0) * len(record["epoch_seconds"]) for record in runs)
    skipped = sum(record["skipped_steps"] or 0 for record in runs)
    text = f"{skipped:,} of {f'{steps:,}' if steps else 'an unknown number of'} timed steps were skipped because a"
    text += " gradient overflowed"
    if overflows := sorted({int(step) for record in runs for step in record["overflow_steps"]}):
        others = " and others" if len(overflows) > 8 else ""
        text += f" (step {', '.join(f'{step + 1:,}' for step in overflows[:8])}{others})"
    for field, where in (("scale_1", "without a loss scale"), ("scaled", "at the scale of the last step")):
        shares = [record[f"gradient_flush_fraction_{field}"] for record in runs]
        if known := [100 * share for share in shares if share is not None]:
            text += f"; fp16 loses **{span(known, '{:.3g}%')}** of the non-zero gradient elements {where}"
    return text


def fixed_scales(scales: Iterable) -> list[float]:
    """Return the scales that are numbers, in order."""
    return sorted(scale for scale in scales if type(scale) in (int, float))


def traces_of(group: dict, precision: str) -> list[Trace]:
    """Return the loss-scale traces of the ok runs."""
    traces = [[point for point in run["loss_scale_trace"] if point[1]] for run in ok_runs(group, precision)]
    return [list(zip(*trace, strict=True)) for trace in traces if trace]


def changes_in(trace: Trace) -> int:
    """Return how often the scale of a trace changes."""
    return sum(before != after for before, after in pairwise(trace[1]))


def last_loss(run: dict) -> float | None:
    """Return the last training loss of a run."""
    return run["train_loss"][-1] if run["train_loss"] else None


def skipped_percent(run: dict) -> float | None:
    """Return the percentage of the timed steps that a run skipped."""
    steps = run["steps_per_epoch"] * len(run["epoch_seconds"])
    return None if run["skipped_steps"] is None or not steps else 100 * run["skipped_steps"] / steps


def lost_percent(run: dict) -> float | None:
    """Return the percentage of the non-zero gradient elements that fp16 lost in a run."""
    share = run["gradient_flush_fraction_scaled"]
    return None if share is None else 100 * share


FIGURES: dict[str, Callable[[dict], float | None]] = {  # of a sweep, from left to right
    "last training loss": last_loss,
    "skipped steps (%)": skipped_percent,
    "gradients lost (%)": lost_percent,
}


def middle_value(runs: Iterable[dict], read: Callable[[dict], float | None]) -> float | None:
    """Return the median of what `read` finds in runs that have begun, or None."""
    values = [value for run in runs if run["steps_per_epoch"] and (value := read(run)) is not None]
    return statistics.median(values) if values else None


def draw_sweep(axes: Axes, runs: dict, read: Callable[[dict], float | None], precision: str) -> dict[float, float]:
    """Draw one figure over the fixed scales and return its values.

    Dynamic scaling is a dotted line, and a run that did not end well a label.
    """
    points = {}
    fixed = fixed_scales(runs)
    for scale in fixed:
        bad = Counter(run["status"] for run in runs[scale] if run["status"] != "ok")
        if bad:
            style: dict[str, Any] = {"rotation": 90, "size": 8, "ha": "center", "va": "center"}
            axes.text(scale, 0.5, ", ".join(bad), transform=axes.get_xaxis_transform(), **style)
        elif (value := middle_value(runs[scale], read)) is not None:
            points[scale] = value
    axes.plot(list(points), list(points.values()), **line_style(precision))
    if (dynamic := middle_value(runs.get("dynamic", ()), read)) is not None:
        axes.axhline(dynamic, color=PRECISIONS[precision].colour, linestyle=":", linewidth=1.2)
        where: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        axes.annotate("dynamic", (0.98, dynamic), (0, 2), **where, ha="right", va="bottom", size=8.5)
    axes.set_xscale("log", base=2)
    axes.set_xlim(fixed[0] / 2, fixed[-1] * 2)
    every = math.ceil(len(fixed) / 8)  # more labels would overlap
    axes.set_xticks(fixed[::every], [f"$2^{{{math.log2(scale):.3g}}}$" for scale in fixed[::every]])
    axes.minorticks_off()
    return points


def drawn_above_zero(axes: Axes) -> bool:
    """Return whether a panel has values, all of them above zero."""
    values = [value for line in axes.lines for value in line.get_ydata()]
    return bool(values) and min(values) > 0


def widen(axes: Axes, label: str) -> None:
    """Begin percentages at 0. Let a loss span at least a fifth of itself, so that chance does not look like a slope."""
    low, high = axes.get_ylim()
    if "lost" in label and drawn_above_zero(axes):
        axes.set_yscale("log")
    elif "%" in label:
        high = high if axes.dataLim.y1 > 0 else 1
        axes.set_ylim(-0.04 * high, high)
    elif (missing := 0.1 * (low + high) - (high - low)) > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)


def section(report: Report) -> Section:
    """Return the charts of the loss scale, and what it did."""
    section = Section(TITLE)
    say_loss_scales(section, report)
    draw_traces(section, report)
    for number, ((settings, precision), runs) in enumerate(report.sweeps.items(), 1):
        name = f"loss_scale_sweep_{number}" if len(report.sweeps) > 1 else "loss_scale_sweep"
        drawn = draw_sweeps(section, report, name, precision, runs, shown=number <= SWEEPS_DRAWN)
        model = plain(json.loads(dict(settings)["model"]))
        section.say(f"{precision}, {model}: {sweep_text(runs, drawn)}.")
    return section


def say_loss_scales(section: Section, report: Report) -> None:
    """Say, for every precision, what the scale of each model did, and how many gradients were lost."""
    for precision in PRECISIONS:
        ok = [run for group in report.comparisons for run in ok_runs(group, precision) if run["loss_scale_trace"]]
        fixed = [run for run in ok if fixed_scales([run.get("loss_scale")])]  # such as those of a sweep
        dynamic = [run for run in ok if not fixed_scales([run.get("loss_scale")])]
        if dynamic:
            section.say(f"{precision}: {scaling_text(dynamic)}. {scales_by_model(report, precision)}")
        if fixed:
            section.say(f"{precision} at fixed loss scales: {scaling_text(fixed)}.")


def scales_by_model(report: Report, precision: str) -> str:
    """Return the dynamic loss scale of each model: throughout, or its range."""
    found: dict[str, list[float]] = {}
    for group in report.comparisons:
        for run in ok_runs(group, precision):
            if not fixed_scales([run.get("loss_scale")]):
                scales = [scale for _, scale in run["loss_scale_trace"] if scale]
                found.setdefault(plain(group["model"]), []).extend(scales)
    moved = {model: min(scales) != max(scales) for model, scales in found.items() if scales}
    words = [f"{model} {span(found[model], '{:,.0f}')}{'' if moved[model] else ' throughout'}" for model in moved]
    return f"Loss scale: {'; '.join(words)}." if words else ""


def draw_traces(section: Section, report: Report) -> None:
    """Draw the loss scale over the steps, of the comparisons in which it changes more than once in a run."""
    traces = {key: traces_of(report.comparisons[key[0]], key[1]) for key in report.epoch_times}
    changes = {key: max(map(changes_in, found)) for key, found in traces.items() if found}
    if max(changes.values(), default=0) <= 1:
        return
    most_first = sorted(changes, key=changes.__getitem__, reverse=True)
    moved = list(dict.fromkeys(key[0] for key in most_first if changes[key] > 1))
    shown = sorted(moved[:TRACES_DRAWN])
    names = [name for name in PRECISIONS if any(changes.get((number, name)) for number in shown)]
    handles = [Line2D([], [], **line_style(name)) for name in names]
    figure, placed = panels(report, "Loss scale", 2.2, handles, shown, across=min(3, len(shown)))
    for number, (axes,) in placed:
        axes.set_title(panel_title(report, number, marked_in(report, number)), size=8.5, loc="left")
        for precision in names:
            for trace in traces.get((number, precision), ()):
                if changes_in(trace):
                    axes.plot(*trace, **line_style(precision), drawstyle="steps-post")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(xlabel="timed step", ylabel="loss scale")
    most = most_first[0]
    finding = f"The loss scale of one run changes at most {count(changes[most], 'time')} ({name_of(report, *most)})."
    section.chart(figure, "loss_scale", finding)
    section.say(finding)
    if len(moved) > len(shown):
        section.say(f"{count(len(moved) - len(shown), 'comparison')} with fewer changes not drawn.")


def draw_sweeps(
    section: Section, report: Report, name: str, precision: str, runs: dict, shown: bool = True
) -> dict[str, dict[float, float]]:
    """Draw loss, skipped steps and lost gradients over the fixed loss scales; return {figure: {scale: value}}.

    The figure joins the section if it is to be `shown`.
    """
    handles = [Line2D([], [], **line_style(precision))]
    if any(run["status"] == "ok" for run in runs.get("dynamic", ())):
        handles.append(Line2D([], [], color=PRECISIONS[precision].colour, linestyle=":", label="dynamic"))
    figure, (part,) = start_chart(report, f"Loss scale of {precision}, fixed and dynamic", [2.9], handles)
    drawn = {}
    for axes, (label, read) in zip(part.subplots(1, len(FIGURES)), FIGURES.items(), strict=True):
        drawn[label] = draw_sweep(axes, runs, read, precision)
        axes.set(xlabel="fixed loss scale", ylabel=label)
        widen(axes, label)
    if shown:
        section.chart(figure, name, f"{precision}: {sweep_text(runs, drawn)}.".replace("**", ""))
    else:
        plt.close(figure)
    return drawn


def sweep_text(runs: dict, drawn: dict[str, dict[float, float]]) -> str:
    """Return how many fixed scales ended well, and how many gradients and steps they lost."""
    fixed = fixed_scales(runs)
    ended = [[run for run in runs[scale] if run["status"] == "ok"] for scale in fixed]
    well = sum(map(bool, ended))
    text = f"{well} of {len(fixed)} fixed scales from {fixed[0]:,g} to {fixed[-1]:,.10g} ended well"
    if lost := drawn["gradients lost (%)"].values():
        text += f"; gradients lost go from {max(lost):.3g}% down to {min(lost):.3g}%"
    skipped = drawn["skipped steps (%)"]
    most = max(skipped, key=skipped.__getitem__, default=None)
    if most is not None and skipped[most] > 0:
        text += f"; at {most:,.10g} **{skipped[most]:.3g}%** of the steps were skipped"
    return text
