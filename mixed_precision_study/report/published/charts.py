"""Charts of the published figures and of the runs compared with them."""

import re
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..comparisons import families, ok_runs
from ..layout import chart_text, start_chart
from ..report import Report
from ..section import Section
from ..style import BOX, DIAMOND, GREYS, PRECISIONS
from ..words import plain, short, span
from .matching import Entry, Published, own_entries, published_entries

WHOLE_DEVICE: dict[str, Any] = {**DIAMOND, "label": "(whole device, by NVML)"}
GAP = 0.8  # between two groups of bars, in bars
WIDE = 12  # bars; a panel with more takes the whole width
CROWDED = 0.42  # inches for a bar; with less its label is turned
UNITS = {"seconds": "seconds per epoch", "epochs_per_hour": "epochs per hour", "memory": "GiB"}
HEADINGS = {  # by the kind of a chart
    "published": "published beside the runs",
    "similar": "published (own images, below) beside the runs",
    "machines": "several GPUs side by side",
}


def bar_style(entry: Entry) -> tuple[str, str]:
    """Return colour and hatch of a bar: the precision's, in grey if it is published."""
    colour, hatch = PRECISIONS[entry.precision][:2]
    return GREYS[entry.precision] if entry.published else colour, hatch


def groups_by_label(entries: list[Entry]) -> list[tuple[str, list[Entry]]]:
    """Return [(label, its entries)], one for each group of bars."""
    return [(label, list(members)) for label, members in groupby(entries, lambda entry: entry.label)]


def width_of(entries: list[Entry]) -> float:
    """Return the width that the groups of bars need, in bars."""
    return sum(max(2, len(members)) + GAP for _, members in groups_by_label(entries))


def draw_groups(axes: Axes, entries: list[Entry], field: str, inches: float) -> None:
    """Draw a group of bars for every device; a diamond marks the memory of the whole device."""
    heights = [getattr(entry, field) for entry in entries]
    if field == "memory":
        heights += [entry.device_memory for entry in entries]
    top = max((height for height in heights if height), default=1)
    crowded = inches / width_of(entries) < CROWDED
    start = 0.0
    ticks = {}
    for label, members in groups_by_label(entries):
        room = max(2, len(members))
        ticks[start + (room - 1) / 2] = chart_text(label)
        for place, entry in enumerate(members):
            x = start + place + (room - len(members)) / 2
            if getattr(entry, field) is None:
                text = missing_text(entry)
                axes.text(x, 0.02 * top, text, size=8, color="#555555", rotation=90, ha="center", va="bottom")
            else:
                draw_bar(axes, entry, field, x, crowded)
        start += room + GAP
    axes.set_xticks(list(ticks), list(ticks.values()), size=7.5)
    axes.set(xlim=(-0.9, start - 0.9), ylim=(0, top * (1.5 if crowded else 1.35)))
    axes.yaxis.set_major_formatter("{x:,.10g}")


def missing_text(entry: Entry) -> str:
    """Return why a bar is missing."""
    if entry.status != "ok":
        return entry.status
    return "not published" if entry.published else "not measured"


def draw_bar(axes: Axes, entry: Entry, field: str, x: float, crowded: bool) -> None:
    """Draw one bar with its label."""
    height = getattr(entry, field)
    colour, hatch = bar_style(entry)
    axes.bar(x, height, 0.9, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    label = short(height)
    above = 3
    if field == "memory" and entry.device_memory:
        axes.plot(x, entry.device_memory, **WHOLE_DEVICE)
        label += f"{' ' if crowded else chr(10)}({short(entry.device_memory)})"
        height = max(height, entry.device_memory)
        above = 6
    style: dict[str, Any] = {"rotation": 90 if crowded else 0, "ha": "center", "va": "bottom", "size": 7.5, "bbox": BOX}
    axes.annotate(label + entry.mark, (x, height), (0, above), textcoords="offset points", **style)


def legend_handles(entries: list[Entry]) -> list:
    """Return the legend: the precisions of the runs here, then the published ones in grey."""
    styles = {(entry.published, entry.precision): bar_style(entry) for entry in entries}
    handles: list = []
    for published in (False, True):
        for precision in (name for name in PRECISIONS if (published, name) in styles):
            colour, hatch = styles[published, precision]
            name = f"{precision}, published" if published else precision
            handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name))
    if any(entry.device_memory for entry in entries):
        handles.append(Line2D([], [], **WHOLE_DEVICE))
    return handles


def say_range(section: Section, name: str, entries: list[Entry]) -> None:
    """Say the shortest and the longest epoch, published and here."""
    parts = []
    for where, is_published in (("published", True), ("here", False)):
        timed = [entry for entry in entries if entry.published == is_published and entry.seconds]
        ends = [pick(timed, key=lambda entry: entry.seconds or 0) for pick in (min, max)] if timed else []
        texts = [f"**{short(one.seconds or 0)}** ({one.precision}, {plain(one.label.splitlines()[0])})" for one in ends]
        if texts:
            parts.append(f"{where} from {' to '.join(dict.fromkeys(texts))}")
    section.say(f"{plain(name)}, seconds per epoch: {'; '.join(parts) or 'nothing to compare'}.")


def memory_title(entries: list[Entry]) -> str:
    """Return the title of a panel of memory: where its figures come from."""
    sources = {entry.published: "as published" if entry.published else "PyTorch's peak here" for entry in entries}
    return f"memory: {'; '.join(sources[published] for published in sorted(sources))}"


def add_chart(section: Section, report: Report, kind: str, name: str, panels: dict) -> None:
    """Add a chart of {title: entries} with two panels for each title, and a sentence on its range.

    The panels show seconds per epoch, or epochs per hour where the images differ, and memory.
    """
    everything = [entry for entries in panels.values() for entry in entries]
    field = "epochs_per_hour" if kind == "similar" else "seconds"
    wide = {title: width_of(entries) > WIDE for title, entries in panels.items()}
    heights = [5.4 if wide[title] else 2.8 for title in panels]
    figure, bands = start_chart(report, f"{name}: {HEADINGS[kind]}", heights, legend_handles(everything))
    for band, (title, entries) in zip(bands, panels.items(), strict=True):
        both = band.subplots(2, 1) if wide[title] else band.subplots(1, 2)
        titles = {field: title, "memory": memory_title(entries)}
        for axes, (drawn, text) in zip(both, titles.items(), strict=True):
            draw_groups(axes, entries, drawn, 9.4 if wide[title] else 4.4)
            axes.set_ylabel(UNITS[drawn])
            axes.set_title(chart_text(text), size=8.5, loc="left")
    section.chart(figure, f"{kind}_{re.sub(r'[^A-Za-z0-9]+', '_', name)}")
    say_range(section, name, everything)


def find_panels(published: Published, matches: dict) -> dict[str, list[Entry]]:
    """Return {title: entries} of the runs here and of the article; on other images each has panels of its own.

    `matches` are {numbers of comparisons: published rows} of a study.
    """
    panels = {}
    for numbers, rows in matches.items():
        first = published.report.comparisons[numbers[0]]
        title = f"{first['notebook']}: {' · '.join(first['lines'][:2])}"
        own, theirs = own_entries(published.report, numbers), published_entries(rows)
        if rows[0]["similar"]:
            panels[title] = own
            panels[f"{first['lines'][0]} · own images, as published"] = theirs
        else:
            panels[title] = own + theirs
    return panels


def tensor_cores_text(published: Published, study: str) -> str:
    """Return the share of kernel time on Tensor Cores, which shows whether a mode really ran in 16 bits."""
    numbers = [number for group in published.comparable[study] for number in group]
    texts = []
    for precision in PRECISIONS:
        runs = [run for number in numbers for run in ok_runs(published.report.comparisons[number], precision)]
        shares = [100 * run["tensor_core_fraction"] for run in runs if run["tensor_core_fraction"] is not None]
        if shares:
            texts.append(f"{precision} {span(shares, '{:.0f}%')}")
    return f"Share of kernel time on Tensor Cores: {', '.join(texts) or 'not measured'}."


def chart_several_gpus(section: Section, published: Published) -> None:
    """Add a chart for each experiment of what ran on several GPU models and is in no article's chart."""
    report = published.report
    studies = [*published.comparable.values(), *published.similar.values()]
    shown = {number for matches in studies for numbers in matches for number in numbers}
    for notebook in dict.fromkeys(group["notebook"] for group in report.comparisons):
        numbers = [n for n in report.charted if n not in shown and report.comparisons[n]["notebook"] == notebook]
        groups = families([report.comparisons[number] for number in numbers], "gpu_name")
        panels = {
            " · ".join(alike[0]["lines"]): own_entries(report, tuple(map(report.comparisons.index, alike)))
            for alike in groups
            if len(alike) > 1
        }
        if panels:
            section.say(f"### {plain(notebook)}: {HEADINGS['machines']}")
            add_chart(section, report, "machines", notebook, panels)
