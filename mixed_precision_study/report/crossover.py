"""Section: from which width of the model on each precision pays."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from .comparisons import gap_text
from .layout import chart_text, legend_of, start_chart
from .report import Report
from .section import Section
from .style import DARK_GREY, PRECISIONS
from .theme import chart_style
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
    ratio_of,
)
from .words import short

TITLE = "From which width on each precision pays"
ABOUT = f"""The same model at growing width. A mode pays in time from the width on at which it is *faster* than the
next simpler mode, there and at all larger widths. It pays in memory or energy where it takes at least 2% less. Its
last training loss may be {LOSS_BAR:g} nats higher, 2% of perplexity; that bar was set before any run. Two rules
came after the first runs: a loss is not judged where no mode has learned, nor where equal runs differ by more than the
bar and by more than the modes. Energy and loss may be from longer trainings."""

TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 12)
PANELS: tuple[tuple[str, Callable[[dict, str, str], float | None], float], ...] = (
    ("speed-up over {}", ratio_of, 1),
    ("memory, share of {}", memory_share, 1),
    ("energy, share of {}", energy_share, 1),
    ("training loss above {}, nats", loss_above, 0),
)


def rows_of(report: Report, family: Widths) -> list[dict]:
    """Return the rows of the table: one for each width and mode that has a base."""
    rows = []
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
            losses = family.for_loss[width], precision, base
            above, scatter = loss_above(*losses), loss_scatter(*losses)
            clocks = [median_of(group, name, "sm_clock_mhz_median") for name in (precision, base)]
            fp8 = median_of(group, precision, "fp8_linear_fraction")
            row |= {"time": ratio_text(speedup), "outcome": judgement(report, speedup)}
            row |= {
                name: "-" if share is None else f"{share:.0%}"
                for name, share in zip(("memory", "energy"), shares, strict=True)
            }
            row["loss, nats"] = "-" if above is None else f"{above:+.3f}"
            row["MHz, of both"] = " and ".join("-" if clock is None else f"{clock:,.0f}" for clock in clocks)
            row["equal runs differ by"] = f"{scatter:.3f}" if scatter else "-"
            row["why"] = "" if fp8 is None else f"{fp8:.0%} of the Linear work in fp8"
            rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows]


def groups_for(family: Widths, read: Callable) -> dict[int, dict]:
    """Return {width: comparison} from which a figure is read."""
    return {energy_share: family.for_energy, loss_above: family.for_loss}.get(read, family.groups)


def draw_panel(axes: Axes, family: Widths, base: str, label: str, read: Callable, neutral: float) -> None:
    """Draw one figure of every mode over the width, against the simplest mode."""
    axes.axhline(neutral, color=DARK_GREY, linewidth=0.8)
    for precision in family.precisions:
        groups = groups_for(family, read)
        points = {width: read(group, precision, base) for width, group in groups.items()}
        known = {width: value for width, value in points.items() if value is not None}
        if precision == base or not known:
            continue
        style = PRECISIONS[precision]
        line: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
        axes.plot(list(known), list(known.values()), linewidth=1, **line)
        if read is loss_above:
            unsure = [width for width in known if judge_loss(groups[width], precision, base) not in (WITHIN, OUTSIDE)]
            line |= {"linestyle": "none", "markerfacecolor": "white"}
            axes.plot(unsure, [known[width] for width in unsure], **line)
        for width in known:
            speedup = speedup_of(family.groups[width], precision, base) if read is ratio_of else None
            if speedup and speedup["low"] is not None:
                axes.plot([width, width], [speedup["low"], speedup["high"]], color=style.colour, linewidth=1)
    axes.set(xscale="log", xlabel="width")
    if neutral:
        axes.set_yscale("log")
        low, high = min(axes.get_ylim()[0], 0.7), max(axes.get_ylim()[1], 1.1)  # else equal values have no scale
        axes.set_ylim(low, high)
        ticks = [step for step in TICKS if low <= step <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks(list(family.groups), [str(width) for width in family.groups], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(chart_text(label.format(base)), size=9, loc="left")


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
    """Draw four panels a model: time, memory, energy and loss over the width."""
    groups = [group for family in families for group in family.groups.values()]
    about = "hollow: the loss is not judged"
    figure, parts = start_chart(report, TITLE, [2.9] * len(families), legend_of(groups), about, numbers=[])
    for part, family in zip(parts, families, strict=True):
        part.suptitle(chart_text(family.title), size=9.5, x=0.01, ha="left")
        for axes, (label, read, neutral) in zip(part.subplots(1, len(PANELS)), PANELS, strict=True):
            draw_panel(axes, family, family.precisions[0], label, read, neutral)
    section.chart(figure, "crossover", " ".join(map(finding_of, families)))


@chart_style()
def section(report: Report) -> Section:
    """Return the chart, a sentence for each mode, and the table."""
    section = Section(TITLE, ABOUT)
    families = report.widths
    if not families:
        return section
    draw_families(section, report, families)
    section.table(said_once([row for family in families for row in rows_of(report, family)]), "Each width in figures")
    return section
