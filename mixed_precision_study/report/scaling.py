"""Section: cost as the work grows."""

import re
import statistics
import textwrap
from itertools import zip_longest

from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ..analysis.bottleneck import IDLE, find_bottleneck
from .comparisons import families, family_title, gap_text, ok_runs, runs_of
from .layout import chart_text, legend_of, rate_unit, start_chart
from .section import Section
from .style import DAGGER, PRECISIONS
from .theme import chart_style
from .verdicts import example, flags_in, said_once
from .words import plain, short

SIZES = {
    "batch_size": r"b(\d+)",
    "model": r"\D+(\d\d+)\D*",
}  # what grows; resnet18: 18 layers; efficientnet_b0: unknown


def size_in(group, setting):
    """Return the batch size of a comparison, or the layers that the name of its model tells, or None."""
    found = re.fullmatch(SIZES[setting], group["batch" if setting == "batch_size" else "model"])
    return found and int(found[1])


def name_of_size(growth, size):
    return growth["groups"][size]["model"] if growth["setting"] == "model" else f"batch {size:,}"


def cost_of(report, group, precision):
    """Return microseconds per sample, idle share of a step, and what limits it; None where no run ended well."""
    speeds = [run["samples_per_second"] for run in ok_runs(group, precision) if run["samples_per_second"]]
    if not speeds:
        return None
    run, cost = example(group, precision), {"us": 1e6 / statistics.median(speeds)}
    cost["idle"] = None if run["gpu_busy_fraction"] is None else round(1 - run["gpu_busy_fraction"], 6)
    cost["mark"] = DAGGER * bool(flags_in(group, precision))
    return cost | {"case": "not judged: CPU" if report.on_cpu else find_bottleneck(run)[0]}


def find_growths(report):
    """Return what grows, batch sizes first: dicts of setting, title, {size: comparison}, {precision: {size: cost}}."""
    found = []
    for setting in SIZES:
        sized = [group for group in report.comparisons if size_in(group, setting)]
        for family in families(sized, setting, lambda group: re.sub(r"\d\d+", "", group["model"])):
            sizes = {size_in(group, setting): group for group in family}
            groups = dict(sorted(sizes.items()))
            costs = {
                name: {size: cost_of(report, group, name) for size, group in groups.items()} for name in PRECISIONS
            }
            costs = {name: {size: cost for size, cost in of.items() if cost} for name, of in costs.items()}
            if max(map(len, costs.values())) < 3:
                continue
            first, *_, last = groups.values()
            title = family_title(first)
            if setting == "model":
                title = first["title"].replace(first["model"], f"{first['model']} to {last['model']}", 1)
            found.append({"setting": setting, "title": title, "groups": groups})
            found[-1]["costs"] = {name: of for name, of in costs.items() if of}
    return found


def row_of_size(growth, size, group):
    """Return a row of the table: what a sample costs in each precision, how idle the GPU is, what limits it."""
    row = {"comparison": growth["title"], "size": name_of_size(growth, size)}
    for name in (name for name in PRECISIONS if any(one["runs"][name] for one in growth["groups"].values())):
        row[name] = gap_text(group["runs"][name], "no throughput")
        if cost := growth["costs"].get(name, {}).get(size):
            idle = "" if cost["idle"] is None else f", GPU idle {cost['idle']:.0%}"
            row[name] = f"{short(cost['us'])} µs{cost['mark']}{idle}: {cost['case']}"
    return row


def draw_growth(axes, growth):
    """Draw microseconds per sample over the size: hollow where the GPU is idle; what did not end well as text."""
    groups, costs, batch = growth["groups"], growth["costs"], growth["setting"] == "batch_size"
    for precision, known in costs.items():
        colour, _, line, marker = PRECISIONS[precision]
        axes.plot(known.keys(), [cost["us"] for cost in known.values()], color=colour, linestyle=line, linewidth=1)
        large = 9.5 - list(PRECISIONS).index(precision)  # so that markers at one place are all seen
        for size, cost in known.items():
            style = {"marker": marker, "color": colour, "markersize": 3 if cost["idle"] is None else large}
            axes.plot(size, cost["us"], **style, markerfacecolor="white" if (cost["idle"] or 0) >= IDLE else colour)
    for size, group in groups.items():  # a batch is out of memory where curves are low, a model where they are high
        gaps = {name: runs for name, runs in group["runs"].items() if runs and size not in costs.get(name, [size])}
        place = {"x": size, "y": 0.98 if batch else 0.02, "va": "top" if batch else "bottom", "ha": "center"}
        style = {"rotation": 90, "size": 8, "color": "#555555", "transform": axes.get_xaxis_transform()}
        axes.text(s="\n".join(f"{name}: {gap_text(runs)}" for name, runs in gaps.items()), **place, **style)
    unit = rate_unit(next(iter(groups.values()))).partition(" ")[0]
    per_step = "columns of text" if unit == "tokens" else unit
    axes.set(xscale="log", yscale="log", ylabel=f"µs per {unit.removesuffix('s')}")
    axes.set_ylim(axes.get_ylim()[0] / 1.5, axes.get_ylim()[1] * 1.5)  # so that there are ticks
    axes.set_xlabel(f"batch size, {per_step} per step" if batch else "depth of the model, layers")
    axes.set_xticks(list(groups), [f"{size:,}" for size in groups])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    notes = [f"{DAGGER} {name}" for name, known in costs.items() if any(cost["mark"] for cost in known.values())]
    for name in (name for name in PRECISIONS if name not in costs):
        runs = [run for run in runs_of(groups.values()) if run["precision"] == name]
        notes += [f"{name}: {gap_text(runs)}"] * bool(runs)
    axes.set_title(chart_text("\n".join([*textwrap.wrap(growth["title"], 66), *notes])), size=8.5, loc="left")


def sentence_on_costs(growth, precision):
    """Return what a sample costs at the first and the last size, and up to which one launching kernels is the limit."""
    costs = growth["costs"][precision]
    ends = [f"**{short(costs[at]['us'])}** µs at {plain(name_of_size(growth, at))}" for at in (min(costs), max(costs))]
    bound = [size for size, cost in costs.items() if cost["case"] == "kernel launches"]
    reach = f"up to {plain(name_of_size(growth, max(bound)))}" if bound else "at no size"
    text = f"kernel launches limit it {'at every size' if len(bound) == len(costs) else reach}"
    text = text if all(cost["case"] != "not known" for cost in costs.values()) else "not every size was profiled"
    return f"{precision}: {' and '.join(ends)}; {text}."


def rows_of_sizes(growths):
    """Return the rows of the table: a row for every size."""
    return [row_of_size(growth, *one) for growth in growths for one in growth["groups"].items()]


@chart_style()
def section(report):
    """Return the chart and the table of what grows, and what launching kernels limits."""
    section = Section()
    if growths := find_growths(report):
        handles = legend_of(group for growth in growths for group in growth["groups"].values())
        hollow = {"color": "#444444", "markerfacecolor": "white", "linestyle": "none", "marker": "o", "markersize": 6.5}
        handles += [Line2D([], [], **hollow, label=f"hollow: GPU idle {IDLE:.0%} of a step or more; small: not known")]
        bands = [growths[start : start + 2] for start in range(0, len(growths), 2)]
        figure, parts = start_chart(report, "Cost as the work grows: time per sample", [3.4] * len(bands), handles)
        for part, band in zip(parts, bands, strict=True):
            for axes, growth in zip_longest(part.subplots(1, 2), band):
                draw_growth(axes, growth) if growth else axes.set_axis_off()
        section.chart(figure, "scaling")
    else:
        section.say(
            "No runs differ in batch size or depth alone, at three sizes (`python run_all.py scaling` makes them)."
        )
    if rows := rows_of_sizes(growths):
        section.table(said_once(rows))
    for growth in () if report.on_cpu else growths:
        lines = [f"- {sentence_on_costs(growth, precision)}" for precision in growth["costs"]]
        section.say("\n".join([f"**{plain(growth['title'])}**, time per sample\n", *lines]))
    return section
