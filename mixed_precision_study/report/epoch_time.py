"""Section: time of an epoch, scaled time, speed-up."""

from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..analysis.verdict import interval_text
from ..record import samples_in_epoch
from .bars import bar_chart, pool, say_extremes
from .comparisons import gap_text, ok_runs, runs_of
from .layout import extremes_text, name_of, panels, rate_unit, shown_in, write_label
from .report import Bar, Key, Report
from .section import Section
from .style import BOX, CPU_WARNING, DARK_GREY, GAP_GREY, PRECISIONS
from .theme import chart_style
from .verdicts import baselines_of, ends_of, judgement, mark_of, speedup_of
from .words import count, span, tally

TITLE = "Time"
ABOUT = """Training only, without warm-up and evaluation. A bar is the median of all timed epochs; its whisker runs
from the shortest to the longest.

The second and third chart compare processes of the same seed, repetition and GPU. They show the mean ratio of their
total times, and its 95% interval from three processes on.
‡ marks runs without a counterpart on the same GPU; they are compared as a whole, without an interval. In the second
chart 0.5 means half the time of fp32; in the third 2 means twice as fast."""


def uneven_experiments(report: Report) -> set[str]:
    """Return the experiments whose epochs are unequal work; an incomplete last batch makes less than 1%."""
    samples: dict[str, list[float]] = {}
    for record in runs_of(group for _, group in report.charted_groups):
        if record["status"] == "ok":
            samples.setdefault(record["notebook"], []).append(samples_in_epoch(record))
    return {notebook for notebook, found in samples.items() if 0 < 1.01 * min(found) < max(found)}


def times_of(report: Report, record: dict) -> list[float]:
    """Return the seconds of the timed epochs, or microseconds per sample where epochs are unequal work."""
    work = samples_in_epoch(record) / 1e6 if record["notebook"] in report.uneven else 1
    return [seconds / work for seconds in record["epoch_seconds"]]


def time_unit(report: Report, group: dict) -> str:
    """Return the unit of times_of()."""
    return f"µs per {rate_unit(group).split('s ')[0]}" if group["notebook"] in report.uneven else "seconds per epoch"


def scaled_times(report: Report) -> tuple[dict[Key, Bar], dict[int, list[str]]]:
    """Return the bars of the time relative to fp32, or to tf32 without fp32, and {number: notes on the baseline}."""
    scaled = {}
    notes = {}
    for number, group in report.charted_groups:
        baseline = next((name for name in ("fp32", "tf32") if ok_runs(group, name)), None)
        if baseline is None:
            notes[number] = ["(no fp32, no tf32)"]
            continue
        notes[number] = ["(no fp32: tf32 = 1)"] if baseline == "tf32" else []
        for precision in PRECISIONS:
            speedup = report.speedups.get((number, precision, baseline)) or speedup_of(group, precision, baseline)
            if speedup:
                low, high = ends_of(speedup)
                scaled[number, precision] = (1 / speedup["ratio"], 1 / high, 1 / low, speedup["processes"])
    return scaled, notes


def draw_speed_up(report: Report, axes: Axes, y: float, number: int, precision: str, baseline: str) -> None:
    """Draw one speed-up with its interval: filled over fp32, hollow over tf32."""
    speedup = report.speedups[number, precision, baseline]
    style = PRECISIONS[precision]
    low, high = ends_of(speedup)
    ends: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.4} if speedup["low"] else {}
    axes.plot([low, high], [y, y], color=style.colour, linewidth=2, **ends)
    face = style.colour if baseline == "fp32" else "white"
    axes.plot(speedup["ratio"], y, marker=style.marker, color=style.colour, markerfacecolor=face, markersize=5.5)
    text = f"{speedup['ratio']:.2f}x" + mark_of(report, number, precision, baseline)
    if not speedup["low"]:
        text += f" ({interval_text(speedup)})"
    write_label(axes, text, high, y, (7, 0), ha="left", va="center", bbox=BOX)


def draw_forest(report: Report, axes: Axes, number: int, right: float, lines: int) -> None:
    """Draw the speed-ups of a comparison: a line for each precision, over fp32 above, over tf32 below."""
    names = [name for name in shown_in(report, number) if name != "fp32"]
    for row, precision in enumerate(names):
        baselines = [base for base in baselines_of(precision) if (number, precision, base) in report.speedups]
        if not baselines:
            if ok_runs(report.comparisons[number], precision):
                text = f"fp32: {gap_text(report.runs(number, 'fp32'))}"
            else:
                text = gap_text(report.runs(number, precision))
            axes.text(0.03 * right, row, text, size=8, color=GAP_GREY, va="center", bbox=BOX)
        elif len(baselines) == 1:
            draw_speed_up(report, axes, row, number, precision, baselines[0])
        else:
            draw_speed_up(report, axes, row - 0.2, number, precision, "fp32")
            draw_speed_up(report, axes, row + 0.2, number, precision, "tf32")
    axes.axvline(1, color=DARK_GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, right), ylim=(lines - 0.5, -0.5), xlabel="times as fast")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


@chart_style()
def section(report: Report) -> Section:
    """Return the charts of time and speed-up, and sentences on them."""
    section = Section(TITLE, ABOUT)
    draw_epoch_times(section, report)
    draw_scaled_times(section, report)
    draw_speed_ups(section, report)
    return section


def draw_epoch_times(section: Section, report: Report) -> None:
    """Draw the seconds of an epoch."""
    title = "Time of a training epoch"
    if report.uneven:
        title = "Time of training (per sample, where epochs are unequal work)"
    times = pool(report, partial(times_of, report))
    figure, _ = bar_chart(report, title, partial(time_unit, report), times, "epochs")
    section.chart(figure, "epoch_time")
    say_extremes(section, report, times, partial(time_unit, report))
    spreads = {key: (high - low) / middle for key, (middle, low, high, n) in report.epoch_times.items() if n > 1}
    if spreads:
        worst = max(spreads, key=spreads.__getitem__)
        where = name_of(report, *worst)
        section.say(f"Epochs of one bar differ by at most {spreads[worst]:.1%} of their median ({where}).")


def draw_scaled_times(section: Section, report: Report) -> None:
    """Draw the time relative to fp32."""
    scaled, notes = scaled_times(report)
    title = "Scaled time (fp32 = 1) with 95% interval"
    figure, places = bar_chart(
        report, title, lambda group: "time / time in fp32", scaled, "paired processes", "not scaled", notes
    )
    tallest = max([bar[2] for bar in scaled.values()], default=1)
    for axes in {place[0] for place in places.values()}:
        axes.axhline(1, color=DARK_GREY, linestyle="--", linewidth=1)
        axes.set_ylim(0, 1.35 * tallest)
    section.chart(figure, "scaled_time")
    for precision in list(PRECISIONS)[1:]:
        over_fp32 = [speedup for key, speedup in report.speedups.items() if key[1:] == (precision, "fp32")]
        found = [speedup for speedup in over_fp32 if not speedup["untrained"]]
        if found and not report.on_cpu:
            words = tally(judgement(report, speedup) for speedup in found)
            times = span([1 / speedup["ratio"] for speedup in found], "{:.2f}")
            section.say(f"{precision} takes **{times}** of fp32's time in {count(len(found), 'comparison')}: {words}.")


def draw_speed_ups(section: Section, report: Report) -> None:
    """Draw the speed-ups over fp32 and over tf32."""
    compared = {key[0] for key in report.speedups}
    lines = {number: max(1, len(set(shown_in(report, number)) - {"fp32"})) for number in sorted(compared)}
    if lines:
        style: dict[str, Any] = {"color": DARK_GREY, "linewidth": 2}
        handles = [
            Line2D([], [], **style, marker="o", label="over fp32"),
            Line2D([], [], **style, marker="o", markerfacecolor="white", label="over tf32"),
            Line2D([], [], **style, marker="|", markersize=9, label="95% interval"),
            Line2D([], [], color=DARK_GREY, linestyle="--", linewidth=1, label="no gain"),
        ]
        title = "Speed-up over fp32 and over tf32 with 95% interval"
        figure, placed = panels(
            report, title, lambda band: 1.05 + 0.34 * max(lines[number] for number in band), handles, list(lines)
        )
        right = 1.6 * max(1, *(ends_of(speedup)[1] for speedup in report.speedups.values()))
        for index, (number, (axes,)) in enumerate(placed):
            start = index // 3 * 3
            most = max(lines[other] for other, _ in placed[start : start + 3])
            draw_forest(report, axes, number, right, most)
        section.chart(figure, "speed_up")
    if report.on_cpu:
        section.say(f"**{CPU_WARNING}.** Nothing follows from these ratios.")
        return
    for baseline in ("fp32", "tf32"):
        ratios = {key: speedup["ratio"] for key, speedup in report.speedups.items() if key[2] == baseline}
        if ratios:
            words = tally((judgement(report, report.speedups[key]) for key in ratios), "{} {}")
            by_run = {key[:2]: ratio for key, ratio in ratios.items() if key in report.standing}
            extremes = f"; {extremes_text(report, by_run, '{:.2f}x'.format)}" if by_run else ""
            section.say(f"Over {baseline}: {words}{extremes}.")
        else:
            section.say(f"Over {baseline} there is no speed-up: no comparison has it and another precision.")
