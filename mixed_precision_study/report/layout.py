"""How a chart is laid out: facets, panels, title and legend."""

import math
import textwrap
from itertools import groupby, zip_longest

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from .comparisons import runs_of
from .style import DAGGER, LOUD, PRECISIONS, RED
from .words import plain

MANY = 12  # from more comparisons on, charts leave out those that show little


def legend_of(groups):
    """Return the legend of lines: the precisions that any of the comparisons has runs of."""
    seen = {run["precision"] for run in runs_of(groups)}
    styles = {name: style for name, style in PRECISIONS.items() if name in seen}
    return [
        Line2D([], [], color=colour, linestyle=line, marker=marker, linewidth=0.8, label=name)
        for name, (colour, _, line, marker) in styles.items()
    ]


def facets(report, most):
    """Return lists of comparisons of one experiment, device and data; a model with three or more has its own."""
    found = []
    for _, members in groupby(report.charted, lambda n: list(report.comparisons[n].values())[:3]):
        members, begun = list(members), True
        by_model = [list(same) for _, same in groupby(members, lambda n: report.comparisons[n]["model"])]
        for same in by_model if len(members) > most else [members]:
            size = math.ceil(len(same) / math.ceil(len(same) / most))
            for part in (same[start : start + size] for start in range(0, len(same), size)):
                apart = begun or max(len(found[-1]), len(part)) > 2 or len(found[-1]) + len(part) > most
                found, begun = [*found, part] if apart else [*found[:-1], found[-1] + part], False
    return found


def facet_rows(report, most=6):
    """Return the rows of a chart as lists of facets, three at most."""
    rows = []
    for facet in facets(report, most):
        if not rows or len(rows[-1]) == 3 or sum(map(len, rows[-1])) + len(facet) > most:
            rows.append([])
        rows[-1].append(facet)
    return rows


def start_chart(report, title, heights, handles):
    """Return (figure, subfigures): title and legend above, then one subfigure for each of `heights` in inches."""
    letters = [len(handle.get_label()) + 7 for handle in handles]  # a column is as wide as its longest label
    width = lambda lines: sum(max(letters[at : at + lines]) for at in range(0, len(letters), lines))  # noqa: E731
    lines = next((lines for lines in range(1, len(letters)) if width(lines) <= 135), 1)
    columns = math.ceil(len(handles) / lines)
    head = 0.62 + 0.26 * report.on_cpu + 0.2 * bool(report.disturbed) + 0.19 * (lines - 1)
    figure = plt.figure(figsize=(10, head + sum(heights)), layout="constrained")
    figure.get_layout_engine().set(hspace=0)  # it would grow with the figure
    top, *rows = figure.subfigures(1 + len(heights), 1, squeeze=False, height_ratios=[head, *heights]).flat
    where = f" on {next(iter(report.devices))}" if len(report.devices) == 1 else ""
    style = {"va": "top", "size": 12, "weight": "bold"}
    top.text(0.008, 1 - 0.06 / head, chart_text(title + where), **style)
    if report.on_cpu:
        top.text(0.008, 1 - 0.32 / head, LOUD, color=RED, **style)
    elif report.disturbed:
        top.text(0.008, 1 - 0.3 / head, f"{DAGGER} throttled or GPU shared: see the table of runs", va="top", size=8.5)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0}
    top.legend(handles=handles, ncols=max(1, columns), frameon=False, fontsize=9, handletextpad=0.5, **place)
    return figure, rows


def chart_text(text):
    """Return text from a record as Matplotlib shows it: a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def panel_title(report, number, *more):
    """Return the title of a panel: experiment, comparison, and what else is to be said, in lines that fit."""
    group = report.comparisons[number]
    words = [group["title"], *(text for text in more if text)]
    lines = [
        line for text in words for line in textwrap.wrap(text.replace(" · ", "\xa0· "), 44)
    ]  # no line begins with a dot
    return chart_text("\n".join([group["notebook"], *lines]).replace("\xa0", " "))


def panels(report, title, inches, handles, numbers=None, rows=1, across=3):
    """Return (figure, [(comparison number, its axes from above)]): panels side by side under title and legend.

    `inches` is their height, or a function of the numbers side by side.
    """
    numbers = report.charted if numbers is None else numbers
    bands = [numbers[start : start + across] for start in range(0, len(numbers), across or 1)]
    figure, parts = start_chart(
        report, title, [inches(band) if callable(inches) else inches for band in bands], handles
    )
    place_images = []
    for part, band in zip(parts, bands, strict=True):
        columns = part.subplots(rows, across, sharex="col", squeeze=False).T
        for number, column in zip_longest(band, columns):
            if number is None:
                for axes in column:
                    axes.set_axis_off()
                continue
            column[0].set_title(panel_title(report, number), size=8.5, loc="left")
            place_images.append((number, list(column)))
    return figure, place_images


def rate_unit(group):
    """Return "images per second", or whatever the samples are."""
    units = {record["sample_unit"] for runs in group["runs"].values() for record in runs} - {None}
    return f"{units.pop() if len(units) == 1 else 'samples'} per second"


def name_of(report, number, precision):
    return f"{precision}, {plain(report.comparisons[number]['title'])}"


def shown_in(report, number):
    """Return the precisions that a comparison has runs of."""
    return [name for name, runs in report.comparisons[number]["runs"].items() if runs]
