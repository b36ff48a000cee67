"""Section: from which width of the model on each precision pays."""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from ..analysis.verdict import DIFFERENT, judge
from .comparisons import gap_text, ok_runs, timed_runs
from .layout import chart_text, legend_of, start_chart
from .report import Report
from .section import Section
from .style import DARK_GREY, PRECISIONS
from .theme import chart_style
from .verdicts import judgement, ratio_text, said_once, speedup_of
from .words import plain, short

TITLE = "From which width on each precision pays"
LOSS_BAR = 0.02  # nats: what the last training loss may be above the base's; 2% of perplexity
ABOUT = f"""The same model at growing width. A mode pays in time from the width on at which it is *faster* than the
next simpler mode there and at all larger widths. It pays in memory or energy where it takes at least 2% less. Its
last training loss may be {LOSS_BAR:g} nats higher; that bar was set before any run."""

LESS = 0.98  # of the base's memory or energy
VIT_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}
WIDTH_SETTINGS = {  # what may differ between the widths
    "transformer": ("units", "heads", "max_steps"),
    "vit": ("model", "max_steps"),
}
TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 12)
SIMPLER = {  # the mode that a mode is measured against, the first that was run
    "tf32": ("fp32",),
    "amp_fp16": ("tf32", "fp32"),
    "amp_bf16": ("tf32", "fp32"),
    "o2_fp16": ("amp_fp16", "tf32", "fp32"),
    "o3_fp16": ("amp_fp16", "tf32", "fp32"),
    "bf16_true": ("amp_bf16", "tf32", "fp32"),
    "fp8": ("amp_bf16", "tf32", "fp32"),
}


@dataclass
class Widths:
    """Comparisons of one model in which nothing but its width differs."""

    title: str
    groups: dict[int, dict]  # {width: comparison}

    @property
    def precisions(self) -> list[str]:
        """The modes that were run at any width."""
        return [name for name in PRECISIONS if any(group["runs"][name] for group in self.groups.values())]


def width_of(group: dict) -> tuple[str, int] | None:
    """Return the kind of a model (a key of WIDTH_SETTINGS) and its width, or None."""
    if group["model"] == "transformer" and "units" in group["settings"]:
        return "transformer", int(json.loads(group["settings"]["units"]))
    if found := re.match(rf"vit_({'|'.join(VIT_WIDTHS)})_", group["model"]):
        return "vit", VIT_WIDTHS[found[1]]
    return None


def find_widths(report: Report) -> list[Widths]:
    """Return the models that were run at three widths or more, in at least two modes."""
    found: dict[tuple, dict[int, dict]] = {}
    for group in report.comparisons:
        if width := width_of(group):
            kind, number = width
            rest = tuple(item for item in group["settings"].items() if item[0] not in WIDTH_SETTINGS[kind])
            found.setdefault((kind, rest), {})[number] = group
    families = []
    for groups in (groups for groups in found.values() if len(groups) >= 3):
        first = next(iter(groups.values()))
        name = "ViT" if first["model"].startswith("vit") else "Transformer language model"
        family = Widths(f"{name}, {first['data']}, {first['batch']}", dict(sorted(groups.items())))
        if len(family.precisions) > 1:
            families.append(family)
    return families


def simpler(family: Widths, precision: str) -> str | None:
    """Return the mode that a mode is measured against, or None for the simplest."""
    return next((name for name in SIMPLER.get(precision, ()) if name in family.precisions), None)


def median_of(group: dict, precision: str, read: Callable[[dict], float | None]) -> float | None:
    """Return the median over the ok runs of a precision, None where none has the figure."""
    values = [value for run in timed_runs(group, precision) if (value := read(run)) is not None]
    return statistics.median(values) if values else None


def share_of(field: str) -> Callable[[dict, str, str], float | None]:
    """Return a function of (comparison, mode, base): the mode's median of a field as a share of the base's."""

    def share(group: dict, precision: str, base: str) -> float | None:
        own, other = (median_of(group, name, lambda run: run[field]) for name in (precision, base))
        return own / other if own is not None and other else None

    return share


def loss_above(group: dict, precision: str, base: str) -> float | None:
    """Return by how many nats the last training loss of a mode is above that of the base."""
    own, other = (
        median_of(group, name, lambda run: run["train_loss"][-1] if run["train_loss"] else None)
        for name in (precision, base)
    )
    return None if own is None or other is None else own - other


memory_share = share_of("peak_allocated_mib")
energy_share = share_of("joules_per_1000_samples")


def ratio_of(group: dict, precision: str, base: str) -> float | None:
    """Return the speed-up of a mode over a base, or None."""
    speedup = speedup_of(group, precision, base)
    return speedup["ratio"] if speedup else None


PANELS: tuple[tuple[str, Callable[[dict, str, str], float | None], float], ...] = (
    ("speed-up over {}", ratio_of, 1),
    ("memory, share of {}", memory_share, 1),
    ("energy, share of {}", energy_share, 1),
    ("training loss above {}, nats", loss_above, 0),
)


def first_width(values: dict[int, Any], holds: Callable[[Any], bool]) -> int | None:
    """Return the smallest width from which on `holds(value)` is true at every width, or None. Widths are in order."""
    found = None
    for width, value in reversed(values.items()):
        if not holds(value):
            break
        found = width
    return found


def is_faster(group: dict, precision: str, base: str) -> bool:
    """Return whether a mode may be called faster than a base."""
    speedup = speedup_of(group, precision, base)
    return speedup is not None and judge(speedup) in DIFFERENT and speedup["ratio"] > 1


def takes_less(share: float | None) -> bool:
    return share is not None and share <= LESS


def from_width(width: int | None) -> str:
    return "at no width" if width is None else f"from width {width:,} on"


def sentence_on(family: Widths, precision: str, base: str) -> str:
    """Return from which width on a mode pays over a base, in time, memory, energy and loss."""
    groups = family.groups
    told = [group for group in groups.values() if ok_runs(group, precision) and ok_runs(group, base)]
    if not told:
        return f"{precision}: {', '.join(sorted({gap_text(group['runs'][precision]) for group in groups.values()}))}."
    speedups = [speedup for group in told if (speedup := speedup_of(group, precision, base))]
    if all(speedup["low"] is None for speedup in speedups):
        ends = f"{speedups[0]['ratio']:.2f}x at the smallest width to {speedups[-1]['ratio']:.2f}x at the largest"
        time = f"{ends}, numbers without an interval"
    else:
        time = f"faster {from_width(first_width(groups, lambda group: is_faster(group, precision, base)))}"
    parts = [time]
    for name, share in (("memory", memory_share), ("energy", energy_share)):
        if any(share(group, precision, base) is not None for group in told):
            shares = {width: share(group, precision, base) for width, group in groups.items()}
            parts.append(f"less {name} {from_width(first_width(shares, takes_less))}")
    above = [amount for group in told if (amount := loss_above(group, precision, base)) is not None]
    if above:
        worst = max(above)
        parts.append(f"loss {'within' if worst <= LOSS_BAR else 'outside'} the bar (at most {worst:+.3f} nats)")
    return f"{precision} against {base}: {'; '.join(parts)}."


def rows_of(report: Report, family: Widths) -> list[dict]:
    """Return the rows of the table: one for each width and mode that has a base."""
    rows = []
    for width, group in family.groups.items():
        for precision in family.precisions:
            base = simpler(family, precision)
            if base is None or not group["runs"][precision]:
                continue
            row: dict[str, Any] = {"comparison": family.title, "width": width, "precision": precision, "against": base}
            speedup = speedup_of(group, precision, base)
            if speedup is None:
                reasons = {run["reason"] for run in group["runs"][precision] if run["reason"]}
                rows.append(row | {"time": gap_text(group["runs"][precision], "no base"), "why": "; ".join(reasons)})
                continue
            shares = [share(group, precision, base) for share in (memory_share, energy_share)]
            above = loss_above(group, precision, base)
            fp8 = median_of(group, precision, lambda run: run["fp8_linear_fraction"])
            row |= {"time": ratio_text(speedup), "outcome": judgement(report, speedup)}
            row |= {
                name: "-" if share is None else f"{share:.0%}"
                for name, share in zip(("memory", "energy"), shares, strict=True)
            }
            row["loss, nats"] = "-" if above is None else f"{above:+.3f}"
            row["why"] = "" if fp8 is None else f"{fp8:.0%} of the Linear work in fp8"
            rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows]


def draw_panel(axes: Axes, family: Widths, base: str, label: str, read: Callable, neutral: float) -> None:
    """Draw one figure of every mode over the width, against the simplest mode."""
    axes.axhline(neutral, color=DARK_GREY, linewidth=0.8)
    for precision in family.precisions:
        points = {width: read(group, precision, base) for width, group in family.groups.items()}
        known = {width: value for width, value in points.items() if value is not None}
        if precision == base or not known:
            continue
        style = PRECISIONS[precision]
        line: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
        axes.plot(list(known), list(known.values()), linewidth=1, **line)
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
    title = "From which width on each precision pays"
    figure, parts = start_chart(report, title, [2.9] * len(families), legend_of(groups))
    for part, family in zip(parts, families, strict=True):
        part.suptitle(chart_text(family.title), size=9.5, x=0.01, ha="left")
        for axes, (label, read, neutral) in zip(part.subplots(1, len(PANELS)), PANELS, strict=True):
            draw_panel(axes, family, family.precisions[0], label, read, neutral)
    section.chart(figure, "crossover", " ".join(map(finding_of, families)))


@chart_style()
def section(report: Report) -> Section:
    """Return the chart, a sentence for each mode, and the table."""
    section = Section(TITLE, ABOUT)
    families = find_widths(report)
    if not families:
        return section
    draw_families(section, report, families)
    for family in () if report.on_cpu else families:
        pairs = [(name, base) for name in family.precisions if (base := simpler(family, name))]
        section.say(
            "\n".join([f"**{plain(family.title)}**\n", *(f"- {plain(sentence_on(family, *p))}" for p in pairs)])
        )
    section.table(said_once([row for family in families for row in rows_of(report, family)]), "Each width in figures")
    return section
