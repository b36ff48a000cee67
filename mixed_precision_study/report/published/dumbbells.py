"""The published ratios beside the ratios here, one row each."""

from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ..layout import chart_text
from ..style import GREYS, PRECISIONS
from .claims import STAND_IN
from .matching import Published, own_entries, published_entries

ROW_INCHES = 0.24


@dataclass
class Pair:
    """How many times as fast as fp32 a precision is, as published and here."""

    label: str
    precision: str  # here
    published: float
    here: float


def pairs_of(published: Published) -> list[Pair]:
    """Return the pairs of ratios that are comparable, the largest here last. Each published ratio occurs once."""
    pairs = []
    for matches in published.comparable.values():
        for numbers, rows in matches.items():
            groups = published.report.comparisons
            eager_last = sorted(numbers, key=lambda number: "eager" in groups[number]["settings"].get("execution", ""))
            entries = [entry for number in eager_last for entry in own_entries(published.report, (number,))]
            own = {entry.precision: entry for entry in entries if entry.ratio}  # the articles ran eagerly
            group = groups[numbers[0]]
            for theirs in published_entries(rows):
                entry = own.get(theirs.precision) or own.get(STAND_IN.get(theirs.precision, ""))
                if theirs.precision != "fp32" and theirs.ratio and entry and entry.ratio:
                    label = f"{group['model']}, {group['batch']}: {theirs.precision} on {theirs.gpu}"
                    pairs.append(Pair(label, entry.precision, theirs.ratio, entry.ratio))
    unique = {(pair.label, pair.published): pair for pair in pairs}
    return sorted(unique.values(), key=lambda pair: pair.here)


def draw_pairs(pairs: list[Pair]) -> Figure:
    """Draw a row for each pair: a grey ring for the published ratio, a filled dot for the one here."""
    figure, axes = plt.subplots(figsize=(9, 1.2 + ROW_INCHES * len(pairs)), layout="constrained")
    for row, pair in enumerate(pairs):
        axes.plot([pair.published, pair.here], [row, row], color=GREYS[pair.precision], linewidth=1.5, zorder=1)
        axes.plot(pair.published, row, "o", markerfacecolor="white", markeredgecolor="#555555", zorder=2)
        axes.plot(pair.here, row, "D", color=PRECISIONS[pair.precision][0], zorder=3)
    axes.axvline(1, color="#999999", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(pairs)), [chart_text(pair.label) for pair in pairs], size=9)
    axes.set_xlabel("times as fast as fp32 (ring: published, diamond: here)")
    larger = sum(pair.here > pair.published for pair in pairs)
    axes.set_title(f"{larger} of {len(pairs)} ratios are larger here than published", loc="left")
    return figure


def finding_of(pairs: list[Pair]) -> str:
    """Return what the chart shows, in a sentence."""
    larger = sum(pair.here > pair.published for pair in pairs)
    top = pairs[-1]
    return f"{larger} of {len(pairs)} ratios are larger here. The largest is {top.here:.2f} for {top.label}."
