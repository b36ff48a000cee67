"""Section: where the time goes and how far from the limit."""

import textwrap
from collections import Counter

from matplotlib.patches import Patch

from ..analysis.bottleneck import find_bottleneck
from .bars import draw_stacks, gap_reasons, middle_runs, pool
from .comparisons import gap_text
from .layout import chart_text, name_of, panels, shown_in
from .section import Section
from .style import FAMILY_LOOKS, IDLE_LOOK, PARTS, part_handles
from .theme import chart_style
from .verdicts import mark_of, run_row, said_once, say_missing
from .words import count, percent, plain, short


def limit_row(report, number, record):
    """Return what limits a run and how near it comes, as a row of the table."""
    ceilings = [record[f"ceiling_{name}_tflop_per_second"] for name in ("matmul", "conv")]
    row = {"GPU busy": percent(record["gpu_busy_fraction"]), "waits for data": percent(record["data_wait_fraction"])}
    row["Tensor Cores, of kernel time"] = percent(record["tensor_core_fraction"])
    rates = {"TFLOP/s": record["achieved_tflop_per_second"]}
    rates["measured ceiling, TFLOP/s"] = max((rate for rate in ceilings if rate is not None), default=None)
    row |= {name: "-" if rate is None else short(rate) for name, rate in rates.items()}
    row |= {"of the ceiling": percent(record["compute_limit_fraction"])}
    row |= {
        "of the copy bandwidth": percent(record["bandwidth_limit_fraction"]),
        "limited by": find_bottleneck(record)[0],
    }
    return run_row(report, number, record, **row)


def shares_of(record, named):
    """Return {family: share of the step} of the named families, the other kernels, and the idle rest."""
    busy, families = record["gpu_busy_fraction"], dict(record["kernel_family_fractions"])
    parts = {family: busy * families.get(family, 0) for family in named}
    return parts | {"other kernels": max(0, busy - sum(parts.values())), "idle": max(0, 1 - busy)}


def runs_in_profile(report):
    """Return {(comparison number, precision): the middle run of those that were profiled}."""
    return middle_runs(
        report, lambda record: record["gpu_busy_fraction"] if record["kernel_family_fractions"] else None
    )


def families_in(in_profile):
    """Return the kernel families that have a colour of their own and occur in the runs."""
    seen = {family for record in in_profile.values() for family, _ in record["kernel_family_fractions"]}
    return [family for family in FAMILY_LOOKS if family in seen]


LIMITS = {  # what is reached: the field, colour and hatch
    "compute: FLOPs per second / fastest measured": ("compute_limit_fraction", "#332288", ""),
    "memory: bytes per second / measured copy": ("bandwidth_limit_fraction", "#88ccee", "//"),
}


def draw_limits(report, axes, number, reached):
    """Draw two bars for every precision of a comparison: the shares of both limits, the median over its runs."""
    gaps, names = gap_reasons(report, "limit_reason"), shown_in(report, number)
    for x, precision in enumerate(names):
        bars = [reached[field].get((number, precision)) for field, *_ in LIMITS.values()]
        for place, (bar, (_, colour, hatch)) in enumerate(zip(bars, LIMITS.values(), strict=True)):
            if bar:
                at, height = x + 0.4 * (place - 0.5), 100 * bar[0]
                axes.bar(at, height, 0.36, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
                label = f"{height:.0f}{mark_of(report, number, precision)}"
                axes.annotate(label, (at, height), (0, 2), textcoords="offset points", size=7.5, ha="center")
        if not any(bars):
            text = gap_text(report.comparisons[number]["runs"][precision]) or gaps.get(
                (number, precision), "not measured"
            )
            text = chart_text(textwrap.fill(textwrap.shorten(text, 84), 30))
            axes.text(x, 2, text, size=7.5, color="#555555", rotation=90, ha="center", va="bottom")
    axes.axhline(100, color="#444444", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.set(xlim=(-0.6, max(4, len(names)) - 0.4), ylabel="% of the measured limit")


@chart_style()
def section(report):
    """Return the charts of kernel time and of the limits reached, and what limits every run."""
    section = Section()
    draw_kernel_times(section, report)
    draw_limits_reached(section, report)
    return section


def draw_kernel_times(section, report):
    """Draw the kernels of a step by family."""
    in_profile = runs_in_profile(report)
    named = families_in(in_profile)
    if in_profile:
        styles = {family: FAMILY_LOOKS[family] for family in named} | {"other kernels": PARTS[-1], "idle": IDLE_LOOK}
        kernel_shares = {key: shares_of(record, named) for key, record in in_profile.items()}
        figure, place_images = panels(
            report, "Where the time of a step goes (above each bar: its ms)", 2.8, part_handles(styles)
        )
        labels = {key: short(run["step_ms_median"]) if run["step_ms_median"] else "" for key, run in in_profile.items()}
        percents = {key: {part: 100 * share for part, share in parts.items()} for key, parts in kernel_shares.items()}
        for number, (axes,) in place_images:
            draw_stacks(report, axes, number, styles, percents, gap_reasons(report, "profile_reason"), labels)
            axes.set_ylabel("% of the step")
            axes.set(ylim=(0, 118), yticks=range(0, 101, 20))
        section.chart(figure, "kernel_time")
        longest = Counter(max(run["kernel_family_fractions"], key=lambda one: one[1])[0] for run in in_profile.values())
        text = ", ".join(f"{plain(family)} in {number}" for family, number in longest.most_common())
        section.say(f"The longest family of {count(len(kernel_shares), 'bar')}: {text}.")
        idle = {key: parts["idle"] for key, parts in kernel_shares.items()}
        low, high = min(idle, key=idle.get), max(idle, key=idle.get)
        text = f"**{idle[low]:.0%}** ({name_of(report, *low)}) to **{idle[high]:.0%}** ({name_of(report, *high)})"
        section.say(f"The GPU is idle from {text} of a step.")
    say_missing(section, report, "Where the time goes", "gpu_busy_fraction", "profile_reason")


def draw_limits_reached(section, report):
    """Draw how near the runs come to what the card was measured to do."""
    reached = {field: pool(report, lambda record, field=field: [record[field]]) for field, *_ in LIMITS.values()}
    if any(reached.values()):
        handles = [
            Patch(facecolor=c, hatch=hatch, edgecolor="white", label=name) for name, (_, c, hatch) in LIMITS.items()
        ]
        figure, place_images = panels(report, "How far from the card's limits", 2.6, handles)
        highest = 100 * max(bar[0] for bars in reached.values() for bar in bars.values())
        for number, (axes,) in place_images:
            draw_limits(report, axes, number, reached)
            axes.set_ylim(0, 1.12 * max(100, highest))
        section.chart(figure, "limit_reached")
        for name, (field, *_) in LIMITS.items():
            if shares := {key: bar[0] for key, bar in reached[field].items()}:
                low, high = min(shares, key=shares.get), max(shares, key=shares.get)
                text = f"**{shares[low]:.0%}** ({name_of(report, *low)})"
                text += f" to **{shares[high]:.0%}** ({name_of(report, *high)})"
                section.say(f"{name.partition(':')[0].capitalize()}: from {text} of what this card was measured to do.")
    say_missing(section, report, "The distance from the limits of compute", "compute_limit_fraction", "limit_reason")
    say_missing(section, report, "The distance from the limits of memory", "bandwidth_limit_fraction", "limit_reason")
    rows = [limit_row(report, *run) for run in report.timed]
    if any(
        record["gpu_busy_fraction"] is not None or record["achieved_tflop_per_second"] for _, record in report.timed
    ):
        section.table(said_once(rows), "What limits every run")
        cases = Counter(find_bottleneck(record)[0] for _, record in report.timed)
        text = ", ".join(f"{case} in {number}" for case, number in cases.most_common())
        section.say(f"What limits the {count(len(report.timed), 'run')} that ended well: {text}.")
