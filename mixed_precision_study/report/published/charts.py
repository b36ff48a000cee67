"""Charts of the published figures beside the runs."""

import re
from itertools import groupby

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..comparisons import families, ok_runs
from ..layout import chart_text, start_chart
from ..style import BOX, DIAMOND, GREYS, PRECISIONS
from ..words import plain, short, span
from .matching import own_entries, published_entries


def look_beside(one):
    """Return colour and hatch of a bar: the precision's, or its grey where it is published."""
    colour, hatch = PRECISIONS[one["precision"]][:2]
    return GREYS[one["precision"]] if one["published"] else colour, hatch


def groups_by_card(entries):
    """Return [(card, its entries)]."""
    return [(card, list(members)) for card, members in groupby(entries, lambda one: one["card"])]


def width_of(entries):
    """Return the room that the groups of bars need, in bars."""
    return sum(max(2, len(members)) + 0.8 for _, members in groups_by_card(entries))


def draw_beside(axes, entries, field, inches):
    """Draw a group of bars for every card; the diamond is the whole device. A text says why a bar is missing."""
    heights = [one[name] for one in entries for name in (field, "device") if name == field or field == "memory"]
    top, start, ticks = max([height for height in heights if height], default=1), 0, {}
    crowded = inches / width_of(entries) < 0.42
    for card, members in groups_by_card(entries):
        room = max(2, len(members))
        ticks[start + (room - 1) / 2] = chart_text(card)
        for x, one in enumerate(members, 1):
            x += start - 1 + (room - len(members)) / 2
            if one[field] is None:
                text = (
                    one["status"] if one["status"] != "ok" else f"not {'published' if one['published'] else 'measured'}"
                )
                axes.text(x, 0.02 * top, text, size=8, color="#555555", rotation=90, ha="center", va="bottom")
                continue
            colour, hatch = look_beside(one)
            axes.bar(x, one[field], 0.9, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            device = one["device"] if field == "memory" else None
            if device:
                axes.plot(x, device, **DIAMOND)
            label, high = short(one[field]), max(one[field], device or 0)
            label += f"{' ' if crowded else chr(10)}({short(device)})" if device else ""
            style = {"rotation": 90 * crowded, "ha": "center", "va": "bottom", "size": 7.5, "bbox": BOX}
            axes.annotate(label + one["mark"], (x, high), (0, 6 if device else 3), textcoords="offset points", **style)
        start += room + 0.8
    axes.set_xticks(list(ticks), list(ticks.values()), size=7.5)
    axes.set(xlim=(-0.9, start - 0.9), ylim=(0, top * (1.5 if crowded else 1.35)))
    axes.yaxis.set_major_formatter("{x:,.10g}")


def handles_beside(entries):
    """Return the legend: the precisions of the runs here, then the published ones in grey."""
    styles = {(one["published"], one["precision"]): look_beside(one) for one in entries}
    order = sorted(styles, key=lambda key: (key[0], list(PRECISIONS).index(key[1])))
    names = {key: f"{key[1]}, published" if key[0] else key[1] for key in order}
    bars = [Patch(facecolor=styles[key][0], hatch=styles[key][1], edgecolor="white", label=names[key]) for key in order]
    return bars + [Line2D([], [], **DIAMOND, label="(whole device, by NVML)")] * any(one["device"] for one in entries)


def read_beside(section, study, entries):
    """Say from where to where the epochs of a study go, published and here."""
    parts = []
    for where, is_published in (("published", True), ("here", False)):
        timed_here = [one for one in entries if one["published"] == is_published and one["seconds"]]
        if timed_here:
            ends = [pick(timed_here, key=lambda one: one["seconds"]) for pick in (min, max)]
            names = [f"{one['precision']}, {plain(one['card'].partition(chr(10))[0])}" for one in ends]
            ends = [f"**{short(one['seconds'])}** ({name})" for one, name in zip(ends, names, strict=True)]
            parts.append(f"{where} from {' to '.join(dict.fromkeys(ends))}")
    section.say(f"{plain(study)}, seconds per epoch: {'; '.join(parts) or 'nothing to compare'}.")


def chart_beside(section, report, kind, name, heading, parts, measure=("seconds", "seconds per epoch")):
    """Show a chart of `measure` and memory of every setting, side by side where there is room."""
    entries = [[*own, *theirs] for _, own, theirs in parts.values()]
    wide = [width_of(part) > 12 for part in entries]
    handles = handles_beside([one for part in entries for one in part])
    figure, bands = start_chart(report, heading, [5.4 if w else 2.8 for w in wide], handles)
    for band, title, part, full in zip(bands, parts, entries, wide, strict=True):
        for axes, field, unit in zip(
            band.subplots(*((2, 1) if full else (1, 2))),
            (measure[0], "memory"),
            (measure[1], "GiB"),
            strict=True,
        ):
            draw_beside(axes, part, field, 9.4 if full else 4.4)
            axes.set_ylabel(unit)
            whose = "; ".join(
                ["PyTorch's peak here"] * any(not one["published"] for one in part)
                + ["as published"] * any(one["published"] for one in part)
            )
            head = f"memory: {whose}" if field == "memory" else title
            axes.set_title(chart_text(head), size=8.5, loc="left")
    section.chart(figure, f"{kind}_{re.sub(r'[^A-Za-z0-9]+', '_', name)}")
    read_beside(section, name, [one for part in entries for one in part])


def panels_beside(published):
    """Return {study: {title: (comparisons, entries here, published entries)}}."""
    settings = {
        study: {} for study in published.beside
    }  # {study: {title: (comparisons, entries here, published entries)}}
    for study, found in published.beside.items():
        for numbers, rows_beside in found.items():
            first = published.report.comparisons[numbers[0]]
            title = f"{first['notebook']}: {' · '.join(first['lines'][:2])}"
            own = [one for number in numbers for one in own_entries(published.report, number, numbers)]
            settings[study][title] = (numbers, own, published_entries(rows_beside))
    return settings


def panels_apart(published):
    """Return likewise what an article had images of its own for: a panel for each."""
    apart = {
        study: {} for study in published.similar
    }  # likewise, where an article had images of its own: a panel for each
    for study, found in published.similar.items():
        for numbers, rows_apart in found.items():
            lines, theirs = published.report.comparisons[numbers[0]]["lines"], published_entries(rows_apart)
            title = f"{published.report.comparisons[numbers[0]]['notebook']}: {' · '.join(lines[:2])}"
            own = [one for number in numbers for one in own_entries(published.report, number, numbers)]
            apart[study] |= {title: (numbers, own, []), f"{lines[0]} · own images, as published": ((), [], theirs)}
    for parts in apart.values():
        for _, own, theirs in parts.values():
            for one in (*own, *theirs):
                one["speed"] = 3600 / one["seconds"] if one["seconds"] else None
    return apart


def tensor_cores_text(published, study):
    """Return what answers whether a mode really ran in 16 bits: the shares of kernel time that the profiles found."""
    texts = []
    for precision in PRECISIONS:
        runs = [
            run
            for ns in published.beside[study]
            for n in ns
            for run in ok_runs(published.report.comparisons[n], precision)
        ]
        shares = [run["tensor_core_fraction"] for run in runs if run["tensor_core_fraction"] is not None]
        texts += [f"{precision} {span([100 * share for share in shares], '{:.0f}%')}"] if shares else []
    return f"On Tensor Cores, of kernel time: {', '.join(texts) or 'not measured'}."


def chart_machines(section, published):
    """Show, for each experiment, what ran on several GPU models and stands in no article's chart: a group for each."""
    place_images = {
        n for parts in (*published.beside.values(), *published.similar.values()) for numbers in parts for n in numbers
    }
    for notebook in dict.fromkeys(group["notebook"] for group in published.report.comparisons):
        alone_here = [
            published.report.comparisons[n]
            for n in published.report.charted
            if n not in place_images and published.report.comparisons[n]["notebook"] == notebook
        ]
        parts = {}
        for groups in families(alone_here, "gpu_name"):
            numbers = [published.report.comparisons.index(group) for group in groups]
            title = " · ".join(groups[0]["lines"])
            own = [one for number in numbers for one in own_entries(published.report, number, numbers)]
            parts |= {title: (numbers, own, [])} if len(groups) > 1 else {}
        if parts:
            section.say(f"### {plain(notebook)}: several GPUs side by side")
            chart_beside(
                section, published.report, "machines", notebook, f"{notebook}: several GPUs side by side", parts
            )
