"""Groups of bars, one for every comparison, and how they are read."""

import statistics
import textwrap
from itertools import zip_longest

from matplotlib.patches import Patch

from .comparisons import gap_text, ok_runs
from .layout import chart_text, facet_rows, name_of, shown_in, start_chart
from .style import BOX, PRECISIONS, UNPAIRED_MARK
from .verdicts import mark_of
from .words import plain, short, span


def pool(report, read, height=statistics.median):
    """Return {(comparison number, precision): (height, smallest, largest, n)} of the numbers `read(record)` lists."""
    pooled = {}
    for number in report.charted:
        for precision in PRECISIONS:
            ok = ok_runs(report.comparisons[number], precision)
            numbers = [value for record in ok for value in read(record) if value is not None]
            if numbers:
                pooled[number, precision] = (height(numbers), min(numbers), max(numbers), len(numbers))
    return pooled


def bar_labels(facet, bars, values, room):
    """Return ({bar: its label}, whether they would run into each other in `room` inches each)."""
    labels = {key: values.get(key, short(bar[0])) for key, bar in bars.items() if key[0] in facet}
    longest = max(map(len, "\n".join(labels.values()).split("\n")))
    return labels, room < max(0.36, 0.068 * longest)


def draw_facet(report, axes, facet, bars, absent, notes, values, inches):
    """Draw the bars of comparisons, each `inches` wide, with range and value or gap text; return {bar: (x, width)}."""
    shown = [name for name in PRECISIONS if any(report.comparisons[number]["runs"][name] for number in facet)]
    here, crowded = bar_labels(facet, bars, values, inches / len(shown))
    width = 0.86 / len(shown)
    top = max([bars[key][2] for key in here], default=0.8)
    places, labels = {}, ["\n".join([*report.comparisons[number]["lines"], *notes.get(number, [])]) for number in facet]
    for place, number in enumerate(facet):
        for slot, precision in enumerate(shown):
            x = place + (slot - (len(shown) - 1) / 2) * width
            runs = report.comparisons[number]["runs"][precision]
            text, upright = gap_text(runs, absent), {"rotation": 90 * bool(runs), "ha": "center", "va": "bottom"}
            if (number, precision) not in bars:
                axes.text(x, 0.02 * top, text if runs else "-", size=8, color="#555555", **upright)
                continue
            (height, low, high, n), (colour, hatch) = bars[number, precision], PRECISIONS[precision][:2]
            axes.bar(x, height, 0.92 * width, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            if low < high:
                axes.vlines(x, low, high, color="#8b8b8b", linewidth=2.5)
            partly = any(run["status"] != "ok" for run in runs)
            labels[place] += f"\n* {precision}: {text}" * partly
            label = (
                here[number, precision] + "*" * partly + mark_of(report, number, precision) + UNPAIRED_MARK * (n == 0)
            )
            label, turn = (label.replace("\n", " "), upright) if crowded else (label, {"ha": "center"})
            axes.annotate(
                label, (x, high), (0, 6 if values else 3), textcoords="offset points", size=7.5, bbox=BOX, **turn
            )
            places[number, precision] = (x, width)
    axes.set_xticks(range(len(facet)), [chart_text(label) for label in labels])
    axes.set(xlim=(-0.5, len(facet) - 0.5), ylim=(0, top * (1.2 + 0.2 * bool(values) + 0.25 * crowded)))
    axes.yaxis.set_major_formatter("{x:,.10g}" if places else "")
    return places


def bar_chart(report, title, unit, bars, counted, absent="not measured", notes=None, values=None, extra=()):
    """Return (figure, {(number, precision): (axes, x, width)}) with a facet per experiment, device and data.

    `bars` is what pool() returns, `counted` the word for its n, `unit(group)` the label of an axis.
    """
    rows, places = facet_rows(report), {}
    lines = 2 + max((len(report.comparisons[number]["lines"]) for number in report.charted), default=0)
    styles = {
        name: style
        for name, style in PRECISIONS.items()
        if any(report.comparisons[n]["runs"][name] for n in report.charted)
    }
    patches = [
        Patch(facecolor=style[0], hatch=style[1], edgecolor="white", label=name) for name, style in styles.items()
    ]
    figure, parts = start_chart(report, title, [2.0 + 0.14 * lines] * len(rows), [*patches, *extra])
    widest = max([3, *(sum(map(len, row)) + 0.7 * len(row) for row in rows)])
    for part, row in zip(parts, rows, strict=True):
        ratios = [len(facet) + 0.7 for facet in row]
        ratios += [widest - sum(ratios)] if widest - sum(ratios) > 0.1 else []
        for axes, facet in zip_longest(part.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0], row):
            if facet is None:
                axes.set_axis_off()
                continue
            inches = (10 * (len(facet) + 0.7) / widest - 0.6) / len(facet)
            drawn = draw_facet(report, axes, facet, bars, absent, notes or {}, values or {}, inches)
            places |= {key: (axes, *place) for key, place in drawn.items()}
            group, counts = report.comparisons[facet[0]], {bars[key][3] for key in drawn}
            titles = [group["notebook"], group["device"], f"n = {span(counts or [0])} ({counted})"]
            axes.set_title(
                chart_text("\n".join(titles if len(report.devices) > 1 else titles[::2])), size=9, loc="left"
            )
            axes.set_ylabel(unit(group))
    return figure, places


def draw_stacks(report, axes, number, styles, stacks, gaps, labels, lift=3):
    """Draw a bar of stacked parts for every precision of a comparison, its label above; a gap where there is none."""
    top = max([sum(parts.values()) for key, parts in stacks.items() if key[0] == number], default=1)
    for x, precision in enumerate(shown_in(report, number)):
        key, foot = (number, precision), 0
        if key not in stacks:
            text = textwrap.wrap(
                gap_text(report.comparisons[number]["runs"][precision]) or gaps.get(key, "not measured"), 30
            )
            text = chart_text("\n".join(text[:3]) + "..." * (len(text) > 3))
            axes.text(x, 0.02 * top, text, size=7.5, color="#555555", rotation=90, ha="center", va="bottom")
            continue
        for part, amount in stacks[key].items():
            colour, hatch = styles[part]
            axes.bar(x, amount, 0.76, foot, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
            foot += amount
        axes.annotate(
            labels[key] + mark_of(report, *key), (x, foot), (0, lift), textcoords="offset points", size=7.5, ha="center"
        )
    names = [name.replace("_", "\n") for name in shown_in(report, number)]
    axes.set_xticks(range(len(names)), names)
    axes.set(xlim=(-0.6, max(4, len(names)) - 0.4), ylim=(0, 1.2 * top))
    axes.yaxis.set_major_formatter("{x:,.10g}" if any(key[0] == number for key in stacks) else "")


def gap_reasons(report, reason):
    """Return {(comparison number, precision): why a figure of its runs is missing}, as the records say."""
    return {(number, record["precision"]): record[reason] for number, record in report.timed if record[reason]}


def middle_run(group, precision, size):
    """Return the ok run with the median of `size(record)`; None where that is nowhere known."""
    runs = sorted((record for record in ok_runs(group, precision) if size(record)), key=size)
    return runs[(len(runs) - 1) // 2] if runs else None


def middle_runs(report, size):
    """Return {(comparison number, precision): middle_run()} of those that have one."""
    keys = [(number, precision) for number in report.charted for precision in PRECISIONS]
    found = {key: middle_run(report.comparisons[key[0]], key[1], size) for key in keys}
    return {key: record for key, record in found.items() if record}


def read_extremes(section, report, bars, unit):
    """Say, for every experiment, what its smallest and its largest bar are."""
    for notebook in dict.fromkeys(report.comparisons[number]["notebook"] for number in report.charted):
        heights = {key: bars[key][0] for key in bars if report.comparisons[key[0]]["notebook"] == notebook}
        text = "nothing was measured"
        if heights:
            low, high = min(heights, key=heights.get), max(heights, key=heights.get)
            text = f"from **{short(heights[low])}** ({name_of(report, *low)})"
            text += (
                f" to **{short(heights[high])}** {plain(unit(report.comparisons[high[0]]))} ({name_of(report, *high)})"
            )
        section.say(f"{plain(notebook)}: {text}.")
