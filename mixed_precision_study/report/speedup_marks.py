"""What both forms of the figure of speed-ups share: markers, intervals, the axis, the legend and the finding."""

import statistics
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from ..analysis.conditions import fairly_timed_pairs, host_of
from ..analysis.speedup import SMALLEST_CLAIMED, paired_ratio, paired_runs
from .comparisons import ok_runs, way_of
from .quality import loses_quality, may_be_used
from .report import PairKey, Report
from .style import DARK_GREY, INTERVAL_GREY, PRECISIONS, UNPAIRED_MARK
from .verdicts import ends_of, mark_of

TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)
MORE_TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4)
FEWER_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
BASELINES = {"fp32": "o", "tf32": "D"}  # marker of a ratio over it
WITHOUT_INTERVAL = {1: "one process", 2: "two processes", 0: f"not paired {UNPAIRED_MARK}"}  # processes: words
FEW = 3  # comparisons that are named in a title


def is_no_speedup(speedup: dict) -> bool:
    """Return whether nothing follows from a ratio: the run did not train, or ran under other conditions."""
    return bool(speedup["untrained"] or speedup["unlike"])


def ratios_of_hosts(group: dict, precision: str, baseline: str) -> list[float]:
    """Return the speed-up on each host, where there are several; without a host's name its GPU stands for it."""
    hosts: dict[object, list] = {}
    pairs = paired_runs(ok_runs(group, precision), ok_runs(group, baseline))
    for own, base in fairly_timed_pairs(pairs):
        hosts.setdefault(host_of(own) or own["gpu_uuid"] or "", []).append((own, base))
    ratios = [speedup["ratio"] for pairs in hosts.values() if (speedup := paired_ratio(pairs))]
    return ratios if len(ratios) > 1 else []


def ratio_label(report: Report, key: PairKey) -> str:
    """Return a ratio with its marks, in brackets where it is no speed-up, or nothing where there is none."""
    speedup = report.speedups.get(key)
    if not speedup:
        return ""
    mark = mark_of(report, *key) + ("" if speedup["processes"] else UNPAIRED_MARK)
    text = f"{speedup['ratio']:,.2f}"
    return f"({text}){mark}" if is_no_speedup(speedup) else text + mark


def within_axis(ratio: float) -> float:
    """Return a ratio, or the end of the longest axis that lies next to it."""
    return min(max(ratio, TICKS[0]), TICKS[-1])


def fit_axis(axes: Axes, speedups: Iterable[dict]) -> None:
    """Give the axes a logarithmic scale of factors that all speed-ups fit into."""
    ends = [1.0, *(within_axis(end) for speedup in speedups for end in ends_of(speedup))]
    left, right = min(ends) / 1.12, max(ends) * 1.12
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    factor = right / left
    chosen = MORE_TICKS if factor < 4 else TICKS if factor < 12 else FEWER_TICKS
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in chosen if left <= tick <= right]))
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
    style: dict[str, Any] = {"markerfacecolor": face, "markersize": size, "markeredgewidth": 1.4}
    axes.plot(within_axis(speedup["ratio"]), y, marker=marker, color=colour, **style)


def legend_of_ratios(speedups: Iterable[dict]) -> list[Line2D]:
    """Return the legend of the signs that occur in both forms of the figure."""
    found = list(speedups)
    style: dict[str, Any] = {"linestyle": "none", "markersize": 6}
    handles = []
    if any(speedup["low"] is not None for speedup in found):
        handles.append(Line2D([], [], color=DARK_GREY, linewidth=2, label="95% interval"))
    counts = {speedup["processes"] for speedup in found if speedup["low"] is None}
    words = " or ".join(word for count, word in WITHOUT_INTERVAL.items() if count in counts)
    if words:
        label = f"hollow: {words}"
        handles.append(Line2D([], [], **style, color=DARK_GREY, marker="o", markerfacecolor="white", label=label))
    if any(map(is_no_speedup, found)):
        label = "grey, in brackets: did not train, or other conditions"
        handles.append(Line2D([], [], **style, color=INTERVAL_GREY, marker="s", label=label))
    return handles


def best_of(report: Report, number: int) -> str:
    """Return the fastest precisions against fp32 that may be recommended, with the ratio of the first, or "none"."""
    found = {}
    for precision in PRECISIONS:
        if not may_be_used(report.comparisons[number], precision):
            continue
        speedup = report.speedups.get((number, precision, "fp32"))
        if speedup and not is_no_speedup(speedup) and (speedup["low"] or speedup["ratio"]) > 1:
            found[precision] = speedup["ratio"]
    best = max(found.values(), default=0)
    if best < SMALLEST_CLAIMED:
        return "none"
    names = [name for name, ratio in found.items() if ratio * SMALLEST_CLAIMED > best]
    return f"{' and '.join(names)} {best:.2f}x"


def finding_of(report: Report, numbers: list[int]) -> str:
    """Return the title: the fastest precision of each of a few comparisons, or the medians of many."""
    compared = [number for number in numbers if any(key[0] == number and key[2] == "fp32" for key in report.speedups)]
    if report.on_cpu or not compared:
        return "Speed-up over fp32 and over tf32"
    if len(compared) > FEW:
        return median_finding(report, compared)
    names = [report.comparisons[number]["model"] for number in compared]
    if len(set(names)) < len(names):
        names = [report.comparisons[number]["title"] for number in compared]
    texts = [f"{best_of(report, number)} on {name}" for name, number in zip(names, compared, strict=True)]
    kept_whole = "; ".join(text.replace(" ", "\xa0") for text in texts)
    speedups = [speedup for key, speedup in report.speedups.items() if key[0] in compared]
    if all(speedup["processes"] == 1 for speedup in speedups):
        return f"Fastest in one process: {kept_whole}"
    return f"Fastest: {kept_whole}"


def median_finding(report: Report, numbers: list[int]) -> str:
    """Return the medians over comparisons: of those in eager mode and of graphs apart, where there are some of each."""
    ways: dict[str, list[int]] = {}
    for number in numbers:
        ways.setdefault(way_of(report.comparisons[number]), []).append(number)
    found = {way: medians for way in sorted(ways, reverse=True) if (medians := medians_of_ratios(report, ways[way]))}
    if len(found) == len(ways) > 1:
        texts = [f"{way} {medians} (median of {size})" for way, (medians, size) in found.items()]
        return f"Over fp32: {'; '.join(texts)}"
    if whole := medians_of_ratios(report, numbers):
        return f"Over fp32: {whole[0]} (median of {whole[1]} comparisons)"
    return "Speed-up over fp32"


def medians_of_ratios(report: Report, numbers: list[int]) -> tuple[str, int] | None:
    """Return the medians of the precisions that most comparisons have, over those that have them all, and how many.

    A ratio counts only where its runs are paired and the precision loses no quality.
    """
    ratios: dict[str, dict[int, float]] = {}
    for (number, precision, base), speedup in report.speedups.items():
        if number not in numbers or base != "fp32" or is_no_speedup(speedup) or not speedup["processes"]:
            continue
        if not loses_quality(report.comparisons[number], precision):
            ratios.setdefault(precision, {})[number] = speedup["ratio"]
    common = {name: ratios[name] for name in PRECISIONS if 2 * len(ratios.get(name, {})) >= len(numbers)}
    shared = set.intersection(*map(set, common.values())) if common else set()
    if len(shared) < 2:
        return None
    medians = [f"{name} {statistics.median(found[number] for number in shared):.2f}x" for name, found in common.items()]
    return ", ".join(medians), len(shared)
