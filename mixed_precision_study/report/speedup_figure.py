"""Section: the speed-up of every precision, with its time and its memory."""

import statistics
from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from ..analysis.speedup import SMALLEST_CLAIMED, paired_ratio, paired_runs
from .bars import pool
from .comparisons import gap_text, ok_runs
from .epoch_time import times_of
from .layout import MANY, NARROW, chart_text, shown_in, start_chart
from .report import PairKey, Report
from .section import Section
from .style import BOX, CPU_WARNING, DARK_GREY, GAP_GREY, INTERVAL_GREY, PRECISIONS, UNPAIRED_MARK
from .theme import chart_style
from .time_and_memory import draw_time_and_memory
from .verdicts import baselines_of, ends_of, mark_of
from .words import gibibytes, short

TITLE = "Speed-up, time and memory"
ABOUT = """Training only, without warm-up and evaluation. A ratio compares processes of the same seed, repetition and
GPU by their total times. It has a 95% interval from three processes on; a hollow marker has none."""

TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
ROW = 0.25  # inches
LINE = 0.185  # inches of a row in the long list
LETTERS = 44  # of a name in the long list
OVER = {"fp32": "o", "tf32": "D"}  # baseline: marker
COLUMNS = (0.19, 0.42, 0.7, 1.0)  # right ends of the columns in the figure with a row per precision
COLUMN_NAMES = ("over fp32", "over tf32", "time", "memory")


def is_no_speedup(speedup: dict) -> bool:
    """Return whether nothing follows from a ratio: the run did not train, or ran under other conditions."""
    return bool(speedup["untrained"] or speedup["unlike"])


def ratios_of_hosts(group: dict, precision: str, baseline: str) -> list[float]:
    """Return the speed-up on each host, where there are several; without a host's name its GPU stands for it."""
    pairs = paired_runs(ok_runs(group, precision), ok_runs(group, baseline))
    hosts: dict[str, list] = {}
    for own, base in pairs:
        hosts.setdefault(own.get("host_id") or own["gpu_uuid"] or "", []).append((own, base))
    ratios = [speedup["ratio"] for of_host in hosts.values() if (speedup := paired_ratio(of_host))]
    return ratios if len(ratios) > 1 else []


def ratio_label(report: Report, key: PairKey) -> str:
    """Return a ratio with its marks, or nothing where there is none."""
    speedup = report.speedups.get(key)
    if not speedup:
        return ""
    mark = mark_of(report, *key) + ("" if speedup["processes"] else UNPAIRED_MARK)
    return f"{speedup['ratio']:,.2f}x{mark}"


def fit_axis(axes: Axes, speedups: Iterable[dict], room: float = 1.12) -> None:
    """Give the axes a logarithmic scale of factors that all speed-ups fit into."""
    ends = [1.0]
    for speedup in speedups:
        ends += [min(max(end, TICKS[0]), TICKS[-1]) for end in ends_of(speedup)]
    left = min(ends) / room
    right = max(ends) * room
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    ticks = [tick for tick in TICKS if left <= tick <= right]
    if len(ticks) > 9:
        ticks = [tick for tick in ticks if f"{tick:g}".strip("0.")[0] in "125" and tick != 15]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color="black", linewidth=1.2, zorder=1)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


def draw_ratio(axes: Axes, y: float, speedup: dict, precision: str, marker: str, size: float) -> None:
    """Draw a ratio with its interval; hollow without one, and grey where it is no speed-up."""
    colour = INTERVAL_GREY if is_no_speedup(speedup) else PRECISIONS[precision].colour
    if speedup["low"] is not None:
        axes.plot(ends_of(speedup), [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    face = "white" if speedup["low"] is None else colour
    ratio = min(max(speedup["ratio"], TICKS[0]), TICKS[-1])
    axes.plot(ratio, y, marker=marker, color=colour, markerfacecolor=face, markersize=size, markeredgewidth=1.4)


def sorted_names(report: Report, number: int) -> list[str]:
    """Return the precisions of a comparison but fp32: the fastest first, at the end those without a ratio."""

    def speed(name: str) -> float:
        found = [report.speedups.get((number, name, base)) for base in baselines_of(name)]
        return max([speedup["ratio"] for speedup in found if speedup], default=0)

    return sorted((name for name in shown_in(report, number) if name != "fp32"), key=speed, reverse=True)


def time_label(report: Report, number: int, precision: str, times: dict) -> str:
    """Return the time of an epoch or of a sample with its unit, or nothing."""
    bar = times.get((number, precision))
    return f"{short(bar[0])} {'µs' if report.comparisons[number]['notebook'] in report.uneven else 's'}" if bar else ""


def memory_label(report: Report, number: int, precision: str) -> str:
    """Return the peak of memory with its unit, or nothing."""
    bar = report.peaks.get((number, precision))
    return f"{gibibytes(bar[0])} GiB" if bar else ""


def write_columns(axes: Axes, y: float, texts: Iterable[str], **style: Any) -> None:
    """Write texts into the columns beside a row, each ending where its column ends."""
    for right, text in zip(COLUMNS, texts, strict=True):
        axes.text(right, y, text, ha="right", va="center", **{"size": 9, **style})


def draw_precision(report: Report, axes: Axes, y: float, number: int, precision: str) -> None:
    """Draw the speed-ups of a precision: over fp32, and a little lower over tf32; a reason where there is none."""
    group = report.comparisons[number]
    baselines = [base for base in baselines_of(precision) if (number, precision, base) in report.speedups]
    for base in baselines:
        shift = 0.18 * (-1 if base == "fp32" else 1) * (len(baselines) - 1)
        for ratio in ratios_of_hosts(group, precision, base):
            axes.plot(ratio, y + shift, marker="|", color=INTERVAL_GREY, markersize=9, markeredgewidth=1.2, zorder=1)
        size = 7 if base == "fp32" else 5
        draw_ratio(axes, y + shift, report.speedups[number, precision, base], precision, OVER[base], size)
    if not baselines:
        text = gap_text(report.runs(number, precision)) or "nothing to compare with"
        style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "color": GAP_GREY, "size": 9, "va": "center"}
        axes.text(0.02, y, text, **style)


def legend_of_ratios(report: Report, numbers: list[int], marker: bool) -> list[Line2D]:
    """Return the legend of the signs that occur; `marker`: baselines are told apart by their markers."""
    found = {key: speedup for key, speedup in report.speedups.items() if key[0] in numbers}
    style: dict[str, Any] = {"color": DARK_GREY, "linestyle": "none", "markersize": 6}
    handles = []
    if marker:
        for base in (base for base in OVER if any(key[2] == base for key in found)):
            handles.append(Line2D([], [], **style, marker=OVER[base], label=f"over {base}"))
    if any(speedup["low"] is not None for speedup in found.values()):
        handles.append(Line2D([], [], color=DARK_GREY, linewidth=2, label="95% interval"))
    words = without_interval(found.values())
    if words:
        handles.append(Line2D([], [], **style, marker="o", markerfacecolor="white", label=f"hollow: {words}"))
    if marker and any(ratios_of_hosts(report.comparisons[key[0]], *key[1:]) for key in found):
        handles.append(Line2D([], [], **{**style, "color": INTERVAL_GREY}, marker="|", label="one host"))
    if any(map(is_no_speedup, found.values())):
        label = "grey: did not train, or other conditions"
        handles.append(Line2D([], [], **{**style, "color": INTERVAL_GREY}, marker="s", label=label))
    return handles


def without_interval(speedups: Iterable[dict]) -> str:
    """Return why some ratios have no interval, such as "one process", or nothing."""
    counts = {speedup["processes"] for speedup in speedups if speedup["low"] is None}
    words = {1: "one process", 2: "two processes", 0: f"not paired ({UNPAIRED_MARK})"}
    return ", ".join(word for number, word in words.items() if number in counts)


def best_of(report: Report, number: int) -> str:
    """Return the precision that is the fastest against fp32 with its ratio, or "none"."""
    found = {}
    for precision in PRECISIONS:
        speedup = report.speedups.get((number, precision, "fp32"))
        if speedup and not is_no_speedup(speedup) and (speedup["low"] or speedup["ratio"]) > 1:
            found[precision] = speedup["ratio"]
    best = max(found, key=found.__getitem__, default="")
    return f"{best} {found[best]:.2f}x" if best and found[best] >= SMALLEST_CLAIMED else "none"


def finding_of(report: Report, numbers: list[int]) -> str:
    """Return the title: the fastest precision of each of a few comparisons, or the medians of many."""
    compared = [number for number in numbers if any(key[0] == number and key[2] == "fp32" for key in report.speedups)]
    if report.on_cpu or not compared:
        return "Speed-up over fp32 and over tf32"
    if len(compared) <= 3:
        names = [report.comparisons[number]["model"] for number in compared]
        if len(set(names)) < len(names):
            names = [report.comparisons[number]["title"] for number in compared]
        texts = [f"{name}: {best_of(report, number)}" for name, number in zip(names, compared, strict=True)]
        kept_whole = "; ".join(text.replace(" ", "\xa0") for text in texts)
        return f"Fastest against fp32: {kept_whole}"
    medians = []
    for precision in PRECISIONS:
        found = [report.speedups.get((number, precision, "fp32")) for number in compared]
        ratios = [speedup["ratio"] for speedup in found if speedup and not is_no_speedup(speedup)]
        if 2 * len(ratios) >= len(compared):
            medians.append(f"{precision} {statistics.median(ratios):.2f}x")
    text = f" (medians of {len(compared)} comparisons)" if medians else ""
    return f"Against fp32: {', '.join(medians)}{text}" if medians else "Speed-up over fp32"


def alternative_text(report: Report, numbers: list[int]) -> str:
    """Return the ratios over fp32 of a few comparisons, or the title of many."""
    if len(numbers) > MANY:
        return f"{finding_of(report, numbers)}."
    texts = []
    for number in numbers:
        found = [
            f"{name} {ratio_label(report, (number, name, 'fp32'))}"
            for name in sorted_names(report, number)
            if (number, name, "fp32") in report.speedups
        ]
        texts.append(f"{report.comparisons[number]['title']}, over fp32: {', '.join(found) or 'no ratio'}.")
    return " ".join(texts)


def draw_few(section: Section, report: Report, numbers: list[int]) -> None:
    """Draw a row for every precision of the comparisons, with its numbers in columns at the right."""
    names = {number: sorted_names(report, number) for number in numbers}
    rows = sum(1.3 + len(found) for found in names.values())
    handles = legend_of_ratios(report, numbers, marker=True)
    about = "times as fast in training; time of an epoch (µs: of a sample) and peak of PyTorch's memory"
    title = finding_of(report, numbers)
    figure, (part,) = start_chart(report, title, [0.62 + ROW * rows], handles, about, numbers, NARROW)
    plot, columns = part.subplots(1, 2, width_ratios=[1, 0.72], sharey=True)
    columns.set_axis_off()
    columns.set_xlim(0, 1)
    times = {}
    for samples in (False, True):
        bars = pool(report, partial(times_of, per_sample=samples))
        times |= {key: bar for key, bar in bars.items() if samples == is_uneven(report, key[0])}
    write_columns(columns, -0.95, COLUMN_NAMES, color=GAP_GREY)
    y = 0.0
    ticks = {}
    for number in numbers:
        group = report.comparisons[number]
        style: dict[str, Any] = {"va": "center", "weight": "bold", "size": 9, "bbox": BOX}
        plot.text(0.01, y, chart_text(group["title"]), transform=plot.get_yaxis_transform(), **style)
        if group["runs"]["fp32"]:
            gap = gap_text(group["runs"]["fp32"])
            texts = ("fp32", "", time_label(report, number, "fp32", times), memory_label(report, number, "fp32"))
            write_columns(columns, y, (*texts[:2], gap or texts[2], texts[3]), color=GAP_GREY)
        for precision in names[number]:
            y += 1
            ticks[y] = precision
            draw_precision(report, plot, y, number, precision)
            ratios = [ratio_label(report, (number, precision, base)) for base in OVER]
            figures = (time_label(report, number, precision, times), memory_label(report, number, precision))
            write_columns(columns, y, (*ratios, *figures))
        y += 1.3
    plot.set_ylim(y - 0.6, -1.3)
    plot.set_yticks(list(ticks), list(ticks.values()))
    fit_axis(plot, [speedup for key, speedup in report.speedups.items() if key[0] in numbers])
    section.chart(figure, "speedup", alternative_text(report, numbers))


def is_uneven(report: Report, number: int) -> bool:
    """Return whether the time of a comparison is given for a sample."""
    return report.comparisons[number]["notebook"] in report.uneven


def baseline_of(report: Report, number: int) -> str | None:
    """Return fp32, or tf32 where no run of fp32 can be compared with, or None."""
    found = {key[2] for key in report.speedups if key[0] == number}
    return next((base for base in OVER if base in found), None)


def draw_many(section: Section, report: Report, numbers: list[int]) -> None:
    """Draw a row for every comparison, grouped by experiment and model, with the ratios in columns at the right."""
    compared = [number for number in numbers if baseline_of(report, number)]
    shown = [name for name in PRECISIONS if any(key[1] == name and key[0] in compared for key in report.speedups)]
    kinds = [
        (kind, list(members))
        for kind, members in groupby(compared, key=lambda number: kind_of(report.comparisons[number]))
    ]
    rows = len(compared) + 1.2 * len(kinds)
    styles = {name: PRECISIONS[name] for name in shown}
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle="none", markersize=6, label=name)
        for name, style in styles.items()
    ]
    handles += legend_of_ratios(report, compared, marker=False)
    about = "times as fast in training as fp32"
    title = finding_of(report, compared)
    figure, (part,) = start_chart(report, title, [0.7 + LINE * rows], handles, about, compared, NARROW)
    labels, plot, columns = part.subplots(1, 3, width_ratios=[0.92, 1, 0.155 * len(shown)], sharey=True)
    ends = [(place + 1) / len(shown) for place in range(len(shown))]
    for axes in (labels, columns):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
    for right, name in zip(ends, shown, strict=True):
        columns.text(right, -1.1, name.replace("_", "\n"), ha="right", va="center", size=8.5)
    y = 0.0
    for (experiment, model), members in kinds:
        labels.text(0, y, chart_text(f"{model} · {experiment}"), va="center", size=8.5, weight="bold")
        for number in members:
            y += 1
            base = baseline_of(report, number) or ""
            labels.text(0.03, y, chart_text(label_of(report, number, base)), va="center", size=8.5)
            for right, name in zip(ends, shown, strict=True):
                if speedup := report.speedups.get((number, name, base)):
                    draw_ratio(plot, y, speedup, name, styles[name].marker, 5)
                    text = ratio_label(report, (number, name, base)).replace("x", "")
                    columns.text(right, y, text, ha="right", va="center", size=8.5)
            plot.axhline(y, color="#e8e8e8", linewidth=0.6, zorder=0.4)
        y += 1.2
    plot.set_ylim(y - 0.5, -2.0)
    plot.set_yticks([])
    fit_axis(plot, [speedup for key, speedup in report.speedups.items() if key[0] in compared])
    plot.tick_params(labeltop=True)
    section.chart(figure, "speedup", alternative_text(report, compared))


def kind_of(group: dict) -> tuple[str, str]:
    """Return the experiment and the model of a comparison."""
    return group["notebook"], group["model"]


def label_of(report: Report, number: int, base: str) -> str:
    """Return the name of a comparison in a line of the long list, without its model."""
    group = report.comparisons[number]
    words = [*group["lines"][1:], *([group["device"]] if len(report.devices) > 1 else [])]
    text = " · ".join([*words, *([f"over {base}"] if base != "fp32" else [])])
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."


@chart_style()
def section(report: Report) -> Section:
    """Return the chart of the speed-ups, and the bars of time and memory."""
    section = Section(TITLE, ABOUT)
    if not report.charted:
        return section
    if report.on_cpu:
        section.say(f"**{CPU_WARNING}.** Nothing follows from these ratios.")
    if len(report.charted) <= MANY:
        draw_few(section, report, report.charted)
    elif any(baseline_of(report, number) for number in report.charted):
        draw_many(section, report, report.charted)
    draw_time_and_memory(section, report)
    return section

