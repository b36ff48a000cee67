"""Section: from which width of the model on each precision pays."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from .comparisons import gap_text
from .layout import chart_text, legend_of, start_chart
from .report import Report
from .section import Section
from .style import DARK_GREY, PRECISIONS
from .verdicts import judgement, ratio_text, said_once, speedup_of
from .widths import (
    LOSS_BAR,
    OUTSIDE,
    WITHIN,
    Widths,
    energy_share,
    judge_loss,
    loss_above,
    loss_scatter,
    median_of,
    memory_share,
    nats_text,
    ratio_of,
)
from .words import short

TITLE = "From which width on each precision pays"
ABOUT = f"""The same model at growing width. A mode pays in time from the width on at which it is *faster* than the
next simpler mode, there and at all larger widths. It pays in memory or energy where it takes at least 2% less. Its
last training loss may be {LOSS_BAR:g} nats higher, 2% of perplexity; that bar was set before any run. Two rules
came after the first runs. A loss is not judged where neither mode has learned. It cannot be told where equal runs
differ by as much as its distance from the bar. Energy and loss may be from other trainings of that width. Of several
the loss is from one in which the modes have learned, with three runs that differ least."""

TICKS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12)
MORE_TICKS = (0.7, 0.85, 1.2, 1.5)  # of an axis that is not long
LOSS_TICKS = (-1, -0.3, -0.1, -LOSS_BAR, 0, LOSS_BAR, 0.1, 0.3, 1)  # of an axis that is logarithmic beyond the bar
PANELS: tuple[tuple[str, Callable[[dict, str, str], float | None]], ...] = (
    ("speed-up", ratio_of),
    ("memory, share", memory_share),
    ("energy, share", energy_share),
    ("training loss above, nats", loss_above),
)


def rows_of(report: Report, family: Widths) -> list[dict]:
    """Return the rows of the table: one for each width and mode that has a base."""
    rows = []
    for_loss = {pair: family.for_loss(*pair) for pair in family.pairs}
    for width, group in family.groups.items():
        for precision, base in family.pairs:
            if not group["runs"][precision]:
                continue
            row: dict[str, Any] = {"comparison": family.title, "width": width, "precision": precision, "against": base}
            speedup = speedup_of(group, precision, base)
            if speedup is None:
                reasons = {run["reason"] for run in group["runs"][precision] if run["reason"]}
                rows.append(row | {"time": gap_text(group["runs"][precision], "no base"), "why": "; ".join(reasons)})
                continue
            shares = [memory_share(group, precision, base), energy_share(family.for_energy[width], precision, base)]
            losses = for_loss[precision, base].get(width, group), precision, base
            above, scatter = loss_above(*losses), loss_scatter(*losses)
            clocks = [median_of(group, name, "sm_clock_mhz_median") for name in (precision, base)]
            fp8 = median_of(group, precision, "fp8_linear_fraction")
            row |= {"time": ratio_text(speedup), "outcome": judgement(report, speedup)}
            row |= {
                name: "-" if share is None else f"{share:.0%}"
                for name, share in zip(("memory", "energy"), shares, strict=True)
            }
            row["loss, nats"] = "-" if above is None else nats_text(above)
            row["MHz, of both"] = " and ".join("-" if clock is None else f"{clock:,.0f}" for clock in clocks)
            row["equal runs differ by"] = f"{scatter:.3f}" if scatter else "-"
            row["why"] = "" if fp8 is None else f"{fp8:.0%} of the Linear work in fp8"
            rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows]


def groups_for(family: Widths, read: Callable, precision: str, base: str) -> dict[int, dict]:
    """Return {width: comparison} from which a figure of two modes is read."""
    if read is loss_above:
        return family.for_loss(precision, base)
    return family.for_energy if read is energy_share else family.groups


def joined_widths(groups: dict[int, dict], widths: list[int], read: Callable) -> list[list[int]]:
    """Return the widths that a line joins: all, or of losses those of trainings of one length and rate."""
    if read is not loss_above:
        return [widths]
    training = {width: [groups[width]["settings"].get(name) for name in ("epochs", "lr")] for width in widths}
    return [list(part) for _, part in groupby(widths, training.get)]


def draw_panel(axes: Axes, family: Widths, pairs: list[tuple[str, str]], label: str, read: Callable) -> None:
    """Draw one figure of every mode over the width, against a base each. A line joins no loss that is not judged."""
    axes.axhline(0 if read is loss_above else 1, color=DARK_GREY, linewidth=0.8)
    for precision, base in pairs:
        groups = groups_for(family, read, precision, base)
        points = {width: read(group, precision, base) for width, group in groups.items()}
        known = {width: value for width, value in points.items() if value is not None}
        certain = joined = list(known)
        intervals = {}
        if read is loss_above:
            certain = joined = [w for w in known if judge_loss(groups[w], precision, base) in (WITHIN, OUTSIDE)]
            scatter = {width: loss_scatter(groups[width], precision, base) for width in known}
            intervals = {width: (known[width] - scatter[width], known[width] + scatter[width]) for width in known}
        elif read is ratio_of:
            speedups = {width: speedup_of(groups[width], precision, base) for width in known}
            intervals = {w: (one["low"], one["high"]) for w, one in speedups.items() if one and one["low"] is not None}
            certain = list(intervals)
        style = PRECISIONS[precision]
        for part in joined_widths(groups, joined, read):
            axes.plot(part, [known[width] for width in part], color=style.colour, linestyle=style.line, linewidth=1)
        for width, value in known.items():
            fill = style.colour if width in certain else "white"
            axes.plot(width, value, color=style.colour, marker=style.marker, markerfacecolor=fill)
        for width, ends in intervals.items():
            axes.plot([width, width], ends, color=style.colour, linewidth=1)
    axes.set(xscale="log", xlabel="width")
    if read is loss_above:
        scale_losses(axes)
    elif read is ratio_of:
        scale_ratios(axes)
    else:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.1))
    axes.set_xticks(list(family.groups), [str(width) for width in family.groups], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(chart_text(label), size=9, loc="left")


def scale_ratios(axes: Axes) -> None:
    """Give speed-ups a logarithmic axis."""
    axes.set_yscale("log")
    low, high = min(axes.get_ylim()[0], 0.9), max(axes.get_ylim()[1], 1.1)  # else equal values have no scale
    axes.set_ylim(low, high)
    set_ticks(axes, TICKS + (MORE_TICKS if high < 8 * low else ()))


def scale_losses(axes: Axes) -> None:
    """Give losses that lie far apart an axis that is logarithmic beyond the bar, and say so."""
    if max(map(abs, axes.get_ylim())) <= 5 * LOSS_BAR:
        return
    axes.set_yscale("symlog", linthresh=LOSS_BAR)
    axes.set_ylim(*(1.5 * end if abs(end) > LOSS_BAR else end for end in axes.get_ylim()))  # room for markers
    set_ticks(axes, LOSS_TICKS)
    axes.text(0.03, 0.03, f"logarithmic\nbeyond {LOSS_BAR:g}", size=7, color=DARK_GREY, transform=axes.transAxes)


def set_ticks(axes: Axes, steps: tuple[float, ...]) -> None:
    """Set those of some ticks that are on the axis."""
    low, high = axes.get_ylim()
    ticks = [step for step in steps if low <= step <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def finding_of(family: Widths) -> str:
    """Return what the panels of a family show, as a sentence."""
    base = family.precisions[0]
    texts = []
    for precision in family.precisions[1:]:
        ratios = {width: ratio_of(group, precision, base) for width, group in family.groups.items()}
        known = {width: ratio for width, ratio in ratios.items() if ratio is not None}
        if known:
            first, last = min(known), max(known)
            texts.append(f"{precision} {short(known[first])}x at width {first} and {short(known[last])}x at {last}")
    return f"{family.title}, speed-up over {base}: {'; '.join(texts)}."


def draw_families(section: Section, report: Report, families: list[Widths]) -> None:
    """Draw time, memory and energy over the width, above beside the simplest mode, below beside the next simpler.

    The loss is below alone: above it would be from other trainings.
    """
    groups = [group for family in families for group in family.groups.values()]
    about = "vertical: a speed-up's 95% interval, or how far the losses of equal runs differ; hollow: nothing can be "
    about += "said; dotted: the bar of the loss; memory without the data set"
    drawn = {name for family in families for name in family.precisions[1:]}
    legend = [handle for handle in legend_of(groups) if handle.get_label() in drawn]
    figure, parts = start_chart(report, TITLE, [2.7] * 2 * len(families), legend, about, numbers=[])
    for family, above, below in zip(families, parts[::2], parts[1::2], strict=True):
        simplest = family.precisions[0]
        rows = (
            (above, [(name, simplest) for name in family.precisions[1:]], f"{family.title}, over {simplest}"),
            (below, family.pairs, "over a simpler mode: " + ", ".join(f"{a} over {b}" for a, b in family.pairs)),
        )
        for part, pairs, title in rows:
            part.suptitle(chart_text(title), size=9.5, x=0.01, ha="left")
            panels = part.subplots(1, len(PANELS))
            for axes, (label, read) in zip(panels, PANELS, strict=True):
                if part is above and read is loss_above:
                    axes.remove()
                else:
                    draw_panel(axes, family, pairs, label, read)
            if part is below:
                panels[-1].axhline(LOSS_BAR, color=DARK_GREY, linewidth=0.8, linestyle=":")
    section.chart(figure, "crossover", " ".join(map(finding_of, families)))


def section(report: Report) -> Section:
    """Return the chart, a sentence for each mode, and the table."""
    section = Section(TITLE, ABOUT)
    families = report.widths
    if not families:
        return section
    draw_families(section, report, families)
    section.table(said_once([row for family in families for row in rows_of(report, family)]), "Each width in figures")
    return section
