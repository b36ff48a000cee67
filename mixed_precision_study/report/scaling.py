"""Section: cost as the work grows."""

import math
import re
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ..analysis.bottleneck import IDLE, find_bottleneck
from .comparisons import families, family_title, gap_text, runs_of, timed_runs
from .layout import chart_text, rate_unit, start_chart, write_gap
from .memory_use import speed_of
from .report import Report
from .section import Section
from .style import DARK_GREY, DISTURBED_MARK, PRECISIONS
from .verdicts import example, flags_in, said_once
from .words import plain, short

TITLE = "Cost as the work grows"
ABOUT = """Time per sample against batch size and depth. **Hollow**: the GPU idles for 20% of a step or more.
There kernel launches set the time: a larger batch costs nothing, and precision changes nothing."""

SIZES = {  # what grows: how its size is read; resnet18 has 18 layers, efficientnet_b0 has no size
    "batch_size": r"b(\d+)",
    "model": r"\D+(\d\d+)\D*",
}


LINE = 0.065  # of the height of a panel, between the names of two lines


@dataclass
class Cost:
    """What a sample costs in one precision at one size."""

    microseconds: float
    idle: float | None  # share of a step in which the GPU is idle
    mark: str  # of disturbed runs
    bottleneck: str


@dataclass
class Growth:
    """Comparisons in which nothing but the batch size or the depth of the model grows."""

    setting: str  # of SIZES
    title: str
    groups: dict[int, dict]  # {size: comparison}
    costs: dict[str, dict[int, Cost]]  # {precision: {size: cost}}

    def name_of_size(self, size: int) -> str:
        """Return a size as text."""
        return self.groups[size]["model"] if self.setting == "model" else f"batch {size:,}"


def size_in(group: dict, setting: str) -> int | None:
    """Return the batch size of a comparison or the layers in the name of its model, or None."""
    found = re.fullmatch(SIZES[setting], group["batch" if setting == "batch_size" else "model"])
    return int(found[1]) if found else None


def cost_of(report: Report, group: dict, precision: str) -> Cost | None:
    """Return what a sample costs; None where no run ended well."""
    speed = speed_of(timed_runs(group, precision))
    if speed is None:
        return None
    run = example(group, precision)
    idle = None if run["gpu_busy_fraction"] is None else round(1 - run["gpu_busy_fraction"], 6)
    mark = DISTURBED_MARK if flags_in(group, precision) else ""
    bottleneck = "not judged: CPU" if report.on_cpu else find_bottleneck(run)[0]
    return Cost(1e6 / speed, idle, mark, bottleneck)


def costs_of(report: Report, groups: dict[int, dict]) -> dict[str, dict[int, Cost]]:
    """Return {precision: {size: cost}} of the sizes at which a run ended well."""
    costs: dict[str, dict[int, Cost]] = {}
    for precision in PRECISIONS:
        for size, group in groups.items():
            if cost := cost_of(report, group, precision):
                costs.setdefault(precision, {})[size] = cost
    return costs


def find_growths(report: Report) -> list[Growth]:
    """Return what grows over three sizes or more, batch sizes first."""
    found = []
    for setting in SIZES:
        sized = [group for group in report.comparisons if size_in(group, setting)]
        for family in families(sized, setting, lambda group: re.sub(r"\d\d+", "", group["model"])):
            groups = dict(sorted((size_in(group, setting) or 0, group) for group in family))
            costs = costs_of(report, groups)
            if max(map(len, costs.values()), default=0) < 3:
                continue
            first, *_, last = groups.values()
            title = family_title(first)
            if setting == "model":
                title = first["title"].replace(first["model"], f"{first['model']} to {last['model']}", 1)
            found.append(Growth(setting, title, groups, costs))
    return found


def row_of_size(growth: Growth, size: int) -> dict:
    """Return a row of the table: what a sample costs in each precision, how idle the GPU is, what limits it."""
    row = {"comparison": growth.title, "size": growth.name_of_size(size)}
    for precision in PRECISIONS:
        if any(group["runs"][precision] for group in growth.groups.values()):
            row[precision] = gap_text(growth.groups[size]["runs"][precision], "no throughput")
            if cost := growth.costs.get(precision, {}).get(size):
                idle = "" if cost.idle is None else f", GPU idle {cost.idle:.0%}"
                row[precision] = f"{short(cost.microseconds)} µs{cost.mark}{idle}: {cost.bottleneck}"
    return row


def draw_growth(axes: Axes, growth: Growth) -> None:
    """Draw microseconds per sample over the size: hollow where the GPU is idle; what did not end well as text."""
    for precision, costs in growth.costs.items():
        style = PRECISIONS[precision]
        times = [cost.microseconds for cost in costs.values()]
        axes.plot(list(costs), times, color=style.colour, linestyle=style.line, linewidth=1)
        large = 9.5 - list(PRECISIONS).index(precision)  # so that markers at one place are all seen
        for size, cost in costs.items():
            face = "white" if (cost.idle or 0) >= IDLE else style.colour
            small_if_unknown = 3 if cost.idle is None else large
            marker: dict[str, Any] = {"marker": style.marker, "markersize": small_if_unknown, "markerfacecolor": face}
            axes.plot(size, cost.microseconds, color=style.colour, **marker)
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(axes.get_ylim()[0] / 1.5, axes.get_ylim()[1] * 1.5)  # so that there are ticks
    write_names(axes, growth)
    write_gaps(axes, growth)
    unit = rate_unit(next(iter(growth.groups.values()))).partition(" ")[0]
    axes.set(ylabel=f"µs per {unit.removesuffix('s')}")
    if growth.setting == "batch_size":
        axes.set_xlabel(f"batch size, {'columns of text' if unit == 'tokens' else unit} per step")
    else:
        axes.set_xlabel("depth of the model, layers")
    axes.set_xticks(list(growth.groups), [f"{size:,}" for size in growth.groups])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    title = textwrap.wrap(growth.title, 66)
    for precision, costs in growth.costs.items():
        if any(cost.mark for cost in costs.values()):
            title.append(f"{DISTURBED_MARK} {precision}")
    for precision in (name for name in PRECISIONS if name not in growth.costs):
        runs = [run for run in runs_of(growth.groups.values()) if run["precision"] == precision]
        if runs:
            title.append(f"{precision}: {gap_text(runs)}")
    axes.set_title(chart_text("\n".join(title)), size=8.5, loc="left")


def write_names(axes: Axes, growth: Growth) -> None:
    """Write the precisions at the right of their lines, lowest first, each at least a line above the last."""
    ends = {name: list(costs.values())[-1].microseconds for name, costs in growth.costs.items()}
    low, high = (math.log(limit) for limit in axes.get_ylim())
    lowest = -1.0
    for name in sorted(ends, key=ends.__getitem__):
        lowest = max((math.log(ends[name]) - low) / (high - low), lowest + LINE)
        place: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "color": PRECISIONS[name].colour}
        axes.text(1.01, lowest, name, **place)


def write_gaps(axes: Axes, growth: Growth) -> None:
    """Write what did not end well: a batch is out of memory where curves are low, a model where they are high."""
    y, va = (0.98, "top") if growth.setting == "batch_size" else (0.02, "bottom")
    for size, group in growth.groups.items():
        gaps = [
            f"{precision}: {gap_text(group['runs'][precision])}"
            for precision, costs in growth.costs.items()
            if group["runs"][precision] and size not in costs
        ]
        write_gap(axes, size, y, "\n".join(gaps), va=va, transform=axes.get_xaxis_transform())


def sentence_on_costs(growth: Growth, precision: str) -> str:
    """Return what a sample costs at the first and the last size, and up to which one kernel launches are the limit."""
    costs = growth.costs[precision]
    ends = [
        f"**{short(costs[size].microseconds)}** µs at {plain(growth.name_of_size(size))}"
        for size in (min(costs), max(costs))
    ]
    limited = [size for size, cost in costs.items() if cost.bottleneck == "kernel launches"]
    if any(cost.bottleneck == "not known" for cost in costs.values()):
        text = "not every size was profiled"
    elif len(limited) == len(costs):
        text = "kernel launches limit it at every size"
    elif limited:
        text = f"kernel launches limit it up to {plain(growth.name_of_size(max(limited)))}"
    else:
        text = "kernel launches limit it at no size"
    return f"{precision}: {' and '.join(ends)}; {text}."


def rows_of_sizes(growths: list[Growth]) -> list[dict]:
    """Return the rows of the table: a row for every size."""
    return [row_of_size(growth, size) for growth in growths for size in growth.groups]


def section(report: Report) -> Section:
    """Return the chart and the table of what grows, and where kernel launches are the limit."""
    section = Section(TITLE, ABOUT)
    growths = find_growths(report)
    if not growths:
        return section
    draw_growths(section, report, growths)
    section.table(said_once(rows_of_sizes(growths)), "Growth in figures")
    for growth in () if report.on_cpu else growths:
        lines = [f"- {sentence_on_costs(growth, precision)}" for precision in growth.costs]
        section.say("\n".join([f"**{plain(growth.title)}**, time per sample\n", *lines]))
    return section


def draw_growths(section: Section, report: Report, growths: list[Growth]) -> None:
    """Draw what grows, two panels side by side."""
    unknown = any(cost.idle is None for growth in growths for costs in growth.costs.values() for cost in costs.values())
    hollow: dict[str, Any] = {
        "color": DARK_GREY,
        "markerfacecolor": "white",
        "linestyle": "none",
        "marker": "o",
        "markersize": 6.5,
    }
    label = f"hollow: GPU idle {IDLE:.0%} of a step or more{'; small: not known' if unknown else ''}"
    bands = [growths[start : start + 2] for start in range(0, len(growths), 2)]
    legend = [Line2D([], [], **hollow, label=label)]
    figure, parts = start_chart(report, "Cost as the work grows: time per sample", [3.4] * len(bands), legend)
    for part, band in zip(parts, bands, strict=True):
        for axes, growth in zip_longest(part.subplots(1, 2), band):
            if growth:
                draw_growth(axes, growth)
            else:
                axes.set_axis_off()
    section.chart(figure, "scaling", " ".join(map(finding_of, growths)))


def finding_of(growth: Growth) -> str:
    """Return what a sample costs at both ends of a growth, as a sentence."""
    texts = []
    for precision, costs in growth.costs.items():
        first, last = costs[min(costs)], costs[max(costs)]
        texts.append(f"{precision} {short(first.microseconds)} to {short(last.microseconds)}")
    return f"{growth.title}, µs per sample from the smallest to the largest: {'; '.join(texts)}."
