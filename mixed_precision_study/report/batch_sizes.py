"""Section: the same batch size, and the best for each precision."""

import math
import statistics
from functools import partial

from matplotlib.lines import Line2D

from .comparisons import families, family_title, ok_runs, runs_of
from .layout import chart_text, legend_of, rate_unit, start_chart
from .section import Section
from .style import BOX, PRECISIONS
from .theme import chart_style
from .verdicts import said_once, sentence_on, speedup_of
from .words import plain, short


def families_by_batch(report):
    """Return the families with several batch sizes or a search for the largest; one precision alone is a ladder's."""
    found = families(report.every_group, "batch_size")
    several = lambda groups: len({run["precision"] for run in runs_of(groups)}) > 1 < len(groups)  # noqa: E731
    return [groups for groups in found if several(groups) or groups[0] in report.largest]


def size_of(record):
    """Return the batch size that a run had; older records know only what was asked for."""
    return record["batch_size_used"] or record["batch_size"]


def timed_sizes(groups):
    """Return {precision: {batch size: samples per second}} of the timed epochs, the median of all runs."""
    speeds = {}
    for group in groups:
        for precision in PRECISIONS:
            for record in ok_runs(group, precision):
                speeds.setdefault(precision, {}).setdefault(size_of(record), []).append(record["samples_per_second"])
    return {name: {size: statistics.median(of) for size, of in sorted(sizes.items())} for name, sizes in speeds.items()}


def begin_of_search(probes):
    """Return where the probes with cuDNN's search begin: where a size that had fitted without it comes again."""
    fitted = [[size for size, status, *_ in probes[:place] if status == "ok"] for place in range(len(probes))]
    return next((place for place, before in enumerate(fitted) if probes[place][0] in before), len(probes))


def probed_sizes(groups, searched=False):
    """Return {precision: {batch size: samples per second}} of the probes that fitted, with cuDNN's search or without.

    Sizes that ran out with it are left out; with it counts the one at which the search for the largest batch ended.
    """
    probes, too_large = {}, sizes_out_of_memory(groups)
    for record in (record for record in runs_of(groups) if record["batch_probes"]):
        begin = begin_of_search(record["batch_probes"])
        for size, status, _, speed in record["batch_probes"][begin:] if searched else record["batch_probes"][:begin]:
            if status == "ok" and speed and size < too_large.get(record["precision"], math.inf):
                probes.setdefault(record["precision"], {})[size] = speed
    return {name: dict(sorted(sizes.items())) for name, sizes in probes.items()}


def failed_sizes(runs):
    """Return the batch sizes that ran out of memory, of runs and of probes."""
    runs = list(runs)
    sizes = [size for run in runs for size, status, *_ in run["batch_probes"] if status == "oom"]
    return sizes + [run["batch_size"] for run in runs if run["status"] == "oom" and run["batch_size"] != "max"]


def failing_above(size, runs):
    """Return the smallest batch size above `size` that ran out of memory, or None: how well the largest is known."""
    return min((failed for failed in failed_sizes(runs) if failed > size), default=None)


def sizes_out_of_memory(groups):
    """Return {precision: smallest batch size that ran out of memory}, of runs and of probes."""
    failed = {name: failed_sizes(run for run in runs_of(groups) if run["precision"] == name) for name in PRECISIONS}
    return {name: min(sizes) for name, sizes in failed.items() if sizes}


def gains_by_batch(report, groups, speeds):
    """Return (baseline, {precision: batch}, {precision: gain there}, {precision: (ratio, size, baseline's size)}).

    The first gain is at the largest batch at which both ended well; the second is each at its fastest, without those
    that were timed at one size alone where the baseline was at several.
    """
    baseline = next((name for name in ("fp32", "tf32") if name in speeds), None)
    at, same = {}, {}
    for group in (group for group in groups if group in report.comparisons):  # in order of their batch
        number = report.comparisons.index(group)
        here = {
            name: report.speedups[number, name, baseline]
            for name in PRECISIONS
            if (number, name, baseline) in report.speedups
        }
        at, same = at | dict.fromkeys(here, group["batch"]), same | here
    fastest = {name: max(sizes, key=sizes.get) for name, sizes in speeds.items()}
    best = {
        name: (speeds[name][size] / speeds[baseline][fastest[baseline]], size, fastest[baseline])
        for name, size in fastest.items()
        if baseline and name != baseline and len(speeds[name]) >= min(2, len(speeds[baseline]))
    }
    return baseline, at, same, best


def figures_by_batch(report, groups):
    """Return all that is shown of a family: speeds by batch size, timed and probed, what is too large, the gains."""
    family = {"groups": groups, "title": family_title(groups[0]), "speeds": timed_sizes(groups)}
    family |= {"probes": probed_sizes(groups), "searched": probed_sizes(groups, searched=True)}
    family |= {"too_large": sizes_out_of_memory(groups)}
    gains_here = gains_by_batch(report, groups, family["speeds"])
    return family | dict(zip(("baseline", "at", "same", "best"), gains_here, strict=True))


def draw_by_batch(axes, family):
    """Draw samples per second by batch size: timed epochs as filled marks, out of memory as crosses.

    Probes without cuDNN's search are a dotted line, those with it hollow marks, which no line joins: they are faster.
    """
    speeds, probes, too_large = (family[name] for name in ("speeds", "probes", "too_large"))
    for precision in (name for name in PRECISIONS if name in {**speeds, **probes, **too_large}):
        colour, _, _, marker = PRECISIONS[precision]
        timed_here, probed = speeds.get(precision, {}), probes.get(precision, {})
        if probed:
            axes.plot(probed.keys(), probed.values(), color=colour, linewidth=1, linestyle=":")
        searched = family["searched"].get(precision, {})
        hollow = {"marker": marker, "linestyle": "none", "markerfacecolor": "white", "markersize": 9}
        axes.plot(searched.keys(), searched.values(), color=colour, **hollow)
        axes.plot(timed_here.keys(), timed_here.values(), color=colour, marker=marker, linestyle="none", markersize=6)
        if precision in too_large:
            at = [size for size in {**timed_here, **probed} if size < too_large[precision]]
            height = ({**probed, **timed_here}[max(at)]) if at else 0
            axes.plot(too_large[precision], height, color=colour, marker="x", markersize=7, markeredgewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set(xlabel="batch size", ylabel=rate_unit(family["groups"][0]), ylim=(0, None))


def sizes_text(size, other):
    """Return at which batch sizes a precision and the baseline were fastest."""
    return f"both b{size:,}" if size == other else f"b{size:,} over b{other:,}"


def draw_both_gains(axes, family):
    """Draw the speed-up at the largest batch size that both had beside that with each precision at its fastest."""
    baseline, at, same, best = (family[name] for name in ("baseline", "at", "same", "best"))
    names = [name for name in PRECISIONS if name in {**same, **best}]
    if names and not same:
        style = {"ha": "center", "size": 8, "color": "#555555"}
        axes.text((len(names) - 1) / 2, 0.5, "no batch size was run\nin both precisions", **style)
    for left, gains_here in ((0, same), (1, best)):
        for place, name in enumerate(names):
            colour, hatch, *_ = PRECISIONS[name]
            x = left * (len(names) + 1) + place
            if name not in gains_here:
                axes.text(
                    x,
                    0.03,
                    "not measured" * bool(gains_here),
                    rotation=90,
                    ha="center",
                    va="bottom",
                    size=8,
                    color="#555555",
                )
                continue
            found = gains_here[name]
            ratio, note = (found["ratio"], at[name]) if left == 0 else (found[0], sizes_text(*found[1:]))
            note = note.replace(" ", "\n", 1)
            axes.bar(x, ratio, 0.9, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            low, high = (found["low"] or ratio, found["high"] or ratio) if left == 0 else (ratio, ratio)
            if low < high:
                axes.plot([x, x], [low, high], color="#888888", linewidth=2)
            style = {"textcoords": "offset points", "ha": "center", "size": 7.5, "bbox": BOX}
            axes.annotate(f"{ratio:.2f}x\n{note}", (x, max(ratio, high)), (0, 3), **style)
    if not names:
        axes.text(
            0.5, 0.5, "nothing to compare: fp32 or tf32\nbeside another precision is needed", ha="center", size=8.5
        )
        axes.set_axis_off()
        return
    middle = (len(names) - 1) / 2
    axes.set_xticks([middle, len(names) + 1 + middle], ["the largest batch of both", "each at its fastest batch"])
    axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
    highest = max(
        [1, *(speedup["high"] or speedup["ratio"] for speedup in same.values()), *(one[0] for one in best.values())]
    )
    axes.set(ylabel=f"times as fast as {baseline}", xlim=(-0.7, 2 * len(names) + 0.7), ylim=(0, 1.45 * highest))


def row_by_batch(family, precision):
    """Return a row of the table: the largest batch that trains, its memory, and the two kinds of speed-up."""
    sizes = family["speeds"].get(precision) or family["probes"].get(precision, {})  # what a search ended at was timed
    fitting, speedup, fastest = max(sizes, default=None), family["same"].get(precision), family["best"].get(precision)
    runs = [run for group in family["groups"] for run in ok_runs(group, precision)]
    peaks_there = [run["peak_allocated_mib"] for run in runs if size_of(run) == fitting]
    spread = f" ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup and speedup["low"] else ""
    row = {"comparison": family["title"], "precision": precision, "largest that trained": fitting or "-"}
    row |= {"its peak, GiB": short(max(peaks_there) / 1024) if any(peaks_there) else "-"}
    every_run = [run for group in family["groups"] for run in group["runs"][precision]]
    failing = failing_above(fitting, every_run) if fitting else None
    row |= {"out of memory at": family["too_large"].get(precision) or "not reached"}
    row |= {"resolution": f"+{failing / fitting - 1:.0%}, below {failing:,}" if failing else "-"}
    row |= {
        "at the largest batch of both": f"{speedup['ratio']:.2f}x{spread}, {family['at'][precision]}"
        if speedup
        else "-"
    }
    return row | {"each at its fastest": f"{fastest[0]:.2f}x, {sizes_text(*fastest[1:])}" if fastest else "-"}


def figures_by_batches(report):
    """Return what is shown of every family with several batch sizes."""
    return list(map(partial(figures_by_batch, report), families_by_batch(report)))


def rows_by_batch(by_batch):
    """Return the rows of the table: a row for every precision of every family."""
    return [
        row_by_batch(family, name)
        for family in by_batch
        for name in PRECISIONS
        if any(group["runs"][name] for group in family["groups"])
    ]


@chart_style()
def section(report):
    """Return the chart and the table of batch sizes, and the verdicts on the largest ones."""
    section, by_batch = Section(), figures_by_batches(report)
    if by_batch:
        handles, grey = [*legend_of(group for family in by_batch for group in family["groups"])], {"color": "#444444"}
        for handle in handles:
            handle.set_linestyle("none")
        handles += [Line2D([], [], **grey, marker="x", linestyle="none", label="out of memory")]
        if any(family["probes"] for family in by_batch):
            hollow = {"marker": "o", "markerfacecolor": "white", "linestyle": "none", "markersize": 9}
            handles += [Line2D([], [], **grey, linestyle=":", linewidth=1, label="probes without cuDNN's search")]
            handles += [Line2D([], [], **grey, **hollow, label="the last probe, with it")]
        figure, bands = start_chart(
            report, "Throughput by batch size, and two kinds of speed-up", [3.1] * len(by_batch), handles
        )
        for band, family in zip(bands, by_batch, strict=True):
            left, right = band.subplots(1, 2)
            draw_by_batch(left, family)
            draw_both_gains(right, family)
            left.set_title(chart_text(family["title"]), size=8.5, loc="left")
        section.chart(figure, "batch_size")
    else:
        section.say(
            'Every comparison was run at one batch size, so there is no chart. `batch_size="max"` searches the largest.'
        )
    if rows := rows_by_batch(by_batch):
        section.table(said_once(rows))
    for family in by_batch:
        if alike := [name for name, (_, size, other) in family["best"].items() if size == other]:
            text = f"{', '.join(alike)} and {family['baseline']} are fastest at the same batch size"
            text += ", of those that were run: that is no second gain from memory."
            section.say(f"{plain(family['title'])}: {text}")
    for group in report.largest:
        lines = []
        for precision in (name for name, runs in group["runs"].items() if runs and name != "fp32"):
            sentence = sentence_on(group, precision, "fp32", speedup_of(group, precision, "fp32"))
            lines.append(f"- {plain(sentence)}")
        if lines:
            section.say(
                "\n".join([f"**{plain(group['notebook'])}: {plain(family_title(group))}, largest batches**\n", *lines])
            )
    return section
