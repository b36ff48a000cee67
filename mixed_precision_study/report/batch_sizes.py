"""Section: the same batch size, and the best for each precision."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .comparisons import families, family_title, ok_runs, runs_of
from .layout import chart_text, legend_of, rate_unit, start_chart, write_gap, write_label
from .memory_use import speed_of
from .report import Report
from .section import Section
from .style import BOX, DARK_GREY, GAP_GREY, PRECISIONS, bar_style
from .verdicts import conditions_text, ends_of, ratio_text, said_once, sentence_on, speedup_of
from .words import plain, short, span

TITLE = "Batch size: the same, and the best for each precision"
ABOUT = """Less memory per sample allows a larger batch, which keeps the GPU busier: a second gain. At the left,
throughput up to the size that runs out of memory (a cross). Filled: timed epochs; dotted: short probes. At the
right, the speed-up at **the largest batch that both ran**, beside that with **each precision at its fastest
batch**. A larger batch is another training: the table has its last metric."""

FAMILIES_DRAWN = 3
Speeds = dict[str, dict[int, float]]  # {precision: {batch size: samples per second}}
HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 9}


@dataclass
class BatchFamily:
    """Comparisons that differ in batch size alone, and what is shown of them."""

    groups: list[dict]
    title: str
    speeds: Speeds  # of timed epochs
    probes: Speeds  # of the search, without cuDNN's search
    searched: Speeds  # of the search, with cuDNN's search
    too_large: dict[str, int]  # {precision: smallest batch size that ran out of memory}
    baseline: str | None
    common: dict[str, dict] = field(default_factory=dict)  # {precision: speed-up at the largest batch that both had}
    common_batch: dict[str, str] = field(default_factory=dict)  # {precision: that batch}
    best: dict[str, tuple[float, int, int]] = field(default_factory=dict)  # see best_speedups


def size_of(record: dict) -> int:
    """Return the batch size that a run had; older records know only what was asked for."""
    return record["batch_size_used"] or record["batch_size"]


def timed_sizes(groups: list[dict]) -> Speeds:
    """Return the samples per second of the timed epochs of all runs."""
    found: dict[str, dict[int, list[dict]]] = {}
    for group in groups:
        for precision in PRECISIONS:
            for record in ok_runs(group, precision):
                found.setdefault(precision, {}).setdefault(size_of(record), []).append(record)
    return {
        name: {size: speed for size, runs in sorted(sizes.items()) if (speed := speed_of(runs))}
        for name, sizes in found.items()
    }


def start_of_cudnn_search(probes: list[list]) -> int:
    """Return the index from which probes ran with cuDNN's search: there a size that had fitted comes again."""
    fitted = set()
    for index, (size, status, *_) in enumerate(probes):
        if size in fitted:
            return index
        if status == "ok":
            fitted.add(size)
    return len(probes)


def probed_sizes(groups: list[dict], searched: bool = False) -> Speeds:
    """Return the samples per second of the probes that fitted, with cuDNN's search or without.

    Sizes are left out that ran out of memory with cuDNN's search.
    """
    probes: Speeds = {}
    too_large = sizes_out_of_memory(groups)
    for record in runs_of(groups):
        start = start_of_cudnn_search(record["batch_probes"])
        chosen = record["batch_probes"][start:] if searched else record["batch_probes"][:start]
        for size, status, _, speed in chosen:
            if status == "ok" and speed and size < too_large.get(record["precision"], math.inf):
                probes.setdefault(record["precision"], {})[size] = speed
    return {name: dict(sorted(sizes.items())) for name, sizes in probes.items()}


def failed_sizes(runs: Iterable[dict]) -> Iterator[int]:
    """Return the batch sizes that ran out of memory, of runs and of probes."""
    for run in runs:
        yield from (size for size, status, *_ in run["batch_probes"] if status == "oom")
        if run["status"] == "oom" and run["batch_size"] != "max":
            yield run["batch_size"]


def failing_above(size: int, runs: Iterable[dict]) -> int | None:
    """Return the smallest batch size above `size` that ran out of memory, or None: how well the largest is known."""
    return min((failed for failed in failed_sizes(runs) if failed > size), default=None)


def sizes_out_of_memory(groups: list[dict]) -> dict[str, int]:
    """Return {precision: smallest batch size that ran out of memory}, of runs and of probes."""
    failed = {name: list(failed_sizes(run for group in groups for run in group["runs"][name])) for name in PRECISIONS}
    return {name: min(sizes) for name, sizes in failed.items() if sizes}


def best_speedups(speeds: Speeds, baseline: str | None) -> dict[str, tuple[float, int, int]]:
    """Return {precision: (ratio, its batch size, the baseline's)} with each at its fastest batch size.

    Precisions are left out that were timed at one size alone where the baseline was at several.
    """
    if baseline is None:
        return {}
    fastest = {name: max(sizes, key=sizes.__getitem__) for name, sizes in speeds.items()}
    base_size = fastest[baseline]
    best = {}
    for name, size in fastest.items():
        if name != baseline and len(speeds[name]) >= min(2, len(speeds[baseline])):
            best[name] = (speeds[name][size] / speeds[baseline][base_size], size, base_size)
    return best


def figures_by_batch(report: Report, groups: list[dict]) -> BatchFamily:
    """Return what is shown of a family: speeds by batch size, timed and probed, what is too large, the speed-ups."""
    speeds = timed_sizes(groups)
    baseline = next((name for name in ("fp32", "tf32") if name in speeds), None)
    family = BatchFamily(
        groups,
        family_title(groups[0]),
        speeds,
        probed_sizes(groups),
        probed_sizes(groups, searched=True),
        sizes_out_of_memory(groups),
        baseline,
        best=best_speedups(speeds, baseline),
    )
    for group in (group for group in groups if group in report.comparisons):  # in order of their batch sizes
        number = report.comparisons.index(group)
        for precision in PRECISIONS:
            if speedup := report.speedups.get((number, precision, baseline or "")):
                family.common[precision] = speedup
                family.common_batch[precision] = group["batch"]
    return family


def draw_by_batch(axes: Axes, family: BatchFamily) -> None:
    """Draw samples per second by batch size: timed epochs as filled marks, out of memory as crosses.

    Probes without cuDNN's search are a dotted line. Those with it are hollow marks: they are faster, and no line joins
    them.
    """
    for precision, style in PRECISIONS.items():
        timed, probed = family.speeds.get(precision, {}), family.probes.get(precision, {})
        searched = family.searched.get(precision, {})
        if probed:
            axes.plot(list(probed), list(probed.values()), color=style.colour, linewidth=1, linestyle=":")
        if searched:
            axes.plot(list(searched), list(searched.values()), color=style.colour, marker=style.marker, **HOLLOW)
        if timed:
            axes.plot(list(timed), list(timed.values()), style.marker, color=style.colour, markersize=6)
        if precision in family.too_large:
            limit = family.too_large[precision]
            speeds = {**probed, **timed}
            below = max((size for size in speeds if size < limit), default=None)
            height = 0 if below is None else speeds[below]
            axes.plot(limit, height, color=style.colour, marker="x", markersize=7, markeredgewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set(xlabel="batch size", ylabel=rate_unit(family.groups[0]), ylim=(0, None))


def sizes_text(size: int, other: int) -> str:
    """Return at which batch sizes a precision and the baseline were fastest."""
    return f"both b{size:,}" if size == other else f"b{size:,} over b{other:,}"


def draw_speedup_bar(axes: Axes, x: float, precision: str, ratio: float, note: str, ends: tuple[float, float]) -> None:
    """Draw one speed-up with its interval, if it has one."""
    low, high = ends
    axes.bar(x, ratio, 0.9, **bar_style(precision))
    if low < high:
        axes.plot([x, x], [low, high], color="#888888", linewidth=2)
    label = f"{ratio:.2f}x\n" + note.replace(" ", "\n", 1)
    write_label(axes, label, x, max(ratio, high), (0, 3), bbox=BOX)


def draw_both_speedups(axes: Axes, family: BatchFamily) -> None:
    """Draw two groups of speed-ups: at the largest batch size that both had, and with each precision at its fastest."""
    names = [name for name in PRECISIONS if name in {**family.common, **family.best}]
    if not names:
        text = "nothing to compare: fp32 or tf32\nbeside another precision is needed"
        axes.text(0.5, 0.5, text, ha="center", size=8.5)
        axes.set_axis_off()
        return
    middle = (len(names) - 1) / 2
    fastest = {} if fastest_is_common(family) else family.best
    if not family.common:
        text = "no batch size was run\nin both precisions"
        axes.text(middle, 0.5, text, ha="center", size=8.5, color=GAP_GREY)
    highest = 1.0
    for left, name in enumerate(names):
        right = left + len(names) + 1
        if name in family.common:
            speedup = family.common[name]
            draw_speedup_bar(axes, left, name, speedup["ratio"], family.common_batch[name], ends_of(speedup))
            highest = max(highest, ends_of(speedup)[1])
        elif family.common:
            write_gap(axes, left, 0.03, "not measured")
        if name in fastest:
            ratio, *sizes = fastest[name]
            draw_speedup_bar(axes, right, name, ratio, sizes_text(*sizes), (ratio, ratio))
            highest = max(highest, ratio)
        elif fastest:
            write_gap(axes, right, 0.03, "not measured")
    both = bool(fastest or not family.best)
    if both:
        axes.set_xticks([middle, len(names) + 1 + middle], ["the largest batch of both", "each at its fastest batch"])
    else:
        axes.set_xticks([middle], ["the largest batch of both, where each is fastest"])
    axes.axhline(1, color=DARK_GREY, linestyle="--", linewidth=1)
    bars = 2 * len(names) + 1 if both else len(names)
    axes.set(ylabel=f"times as fast as {family.baseline}", xlim=(-0.7, bars - 0.3), ylim=(0, 1.45 * highest))


def fastest_is_common(family: BatchFamily) -> bool:
    """Return whether every precision is fastest at the largest batch that both ran, as is its baseline."""
    return set(family.best) == set(family.common) and all(
        size == other and family.common_batch[name] == f"b{size}" for name, (_, size, other) in family.best.items()
    )


def most_probed(by_batch: list[BatchFamily]) -> list[BatchFamily]:
    """Return the families to draw: those with the most batch sizes, of runs and of probes, in their order."""

    def points(family: BatchFamily) -> int:
        return sum(len(sizes) for speeds in (family.speeds, family.probes) for sizes in speeds.values())

    chosen = sorted(by_batch, key=points, reverse=True)[:FAMILIES_DRAWN]
    return [family for family in by_batch if family in chosen]


def ends_text(runs: list[dict], size: int | None) -> str:
    """Return the last metric of the ok runs at a batch size, from smallest to largest: what that batch costs."""
    ended = [run for run in runs if run["status"] == "ok" and size_of(run) == size and run["metric"]]
    ends = [run["metric"][-1] for run in ended if run["metric"][-1] is not None]
    if not ends:
        return "-"
    return f"{(ended[0]['metric_name'] or 'metric').replace('_', ' ')} {span(ends, '{:.3g}')}"


def row_by_batch(family: BatchFamily, precision: str) -> dict:
    """Return a row of the table: the largest batch that trains, its memory, and the two kinds of speed-up."""
    sizes = family.speeds.get(precision) or family.probes.get(precision, {})  # what a search ended at was timed
    largest = max(sizes, default=None)
    runs = [run for group in family.groups for run in group["runs"][precision]]
    peaks = [run["peak_allocated_mib"] for run in runs if run["status"] == "ok" and size_of(run) == largest]
    failing = failing_above(largest, runs) if largest else None
    speedup, best = family.common.get(precision), family.best.get(precision)
    common_text = (
        f"{ratio_text(speedup)}, {family.common_batch[precision]}{conditions_text(speedup)}" if speedup else "-"
    )
    return {
        "comparison": family.title,
        "precision": precision,
        "largest that trained": largest or "-",
        "its peak, GiB": short(max(peaks) / 1024) if any(peaks) else "-",
        "last metric there": ends_text(runs, largest),
        "last metric at the smallest batch": ends_text(runs, min(sizes, default=None)),
        "out of memory at": family.too_large.get(precision) or "not reached",
        "resolution": f"+{failing / largest - 1:.0%}, below {failing:,}" if largest and failing else "-",
        "at the largest batch of both": common_text,
        "each at its fastest": f"{best[0]:.2f}x, {sizes_text(*best[1:])}" if best else "-",
    }


def figures_by_batches(report: Report) -> list[BatchFamily]:
    """Return the families with several batch sizes or a search for the largest; one precision alone is a ladder's."""
    found = []
    for groups in families(report.every_group, "batch_size"):
        several = len(groups) > 1 and len({run["precision"] for run in runs_of(groups)}) > 1
        if several or groups[0] in report.largest:
            found.append(figures_by_batch(report, groups))
    return found


def rows_by_batch(by_batch: list[BatchFamily]) -> list[dict]:
    """Return the rows of the table: a row for every precision of every family."""
    shown = [(family, {run["precision"] for run in runs_of(family.groups)}) for family in by_batch]
    return [row_by_batch(family, name) for family, seen in shown for name in PRECISIONS if name in seen]


def finding_of(family: BatchFamily) -> str:
    """Return what the batch size brings a training, as a sentence: the largest batches and each at its fastest."""
    sizes = {name: max(found) for name, found in (family.probes | family.speeds).items() if found}
    largest = [f"{name} {size:,}" for name, size in sizes.items()]
    parts = [f"largest batch that trained: {', '.join(largest) or 'not known'}"]
    best = [f"{name} {ratio:.2f}x ({sizes_text(*both)})" for name, (ratio, *both) in family.best.items()]
    if best:
        parts.append(f"each at its fastest batch, over {family.baseline}: {', '.join(best)}")
    if best and all(size == other for _, size, other in family.best.values()):
        parts.append("the memory saved brings no further speed-up")
    return f"{family.title}: {'; '.join(parts)}."


def section(report: Report) -> Section:
    """Return the chart and the table of batch sizes, and the verdicts on the largest ones."""
    section = Section(TITLE, ABOUT)
    by_batch = figures_by_batches(report)
    if by_batch:
        drawn = most_probed(by_batch)
        draw_batch_sizes(section, report, drawn)
        if len(drawn) < len(by_batch):
            section.say(f"{len(drawn)} of {len(by_batch)} trainings are drawn; the table has all.")
        section.say("\n".join(f"- {plain(finding_of(family))}" for family in drawn))
        section.table(said_once(rows_by_batch(by_batch)), "Batch sizes in figures")
    rows = []
    for group in report.largest:
        for precision in (name for name, runs in group["runs"].items() if runs and name != "fp32"):
            sentence = sentence_on(group, precision, "fp32", speedup_of(group, precision, "fp32"))
            rows.append({"comparison": family_title(group), "precision": precision, "at the largest batch": sentence})
    if rows:
        section.table(said_once(rows), "Verdicts on the largest batches")
    return section


def draw_batch_sizes(section: Section, report: Report, by_batch: list[BatchFamily]) -> None:
    """Draw throughput by batch size and the two kinds of speed-up, a band for each family."""
    handles = legend_of(group for family in by_batch for group in family.groups)
    for handle in handles:
        handle.set_linestyle("none")
    handles.append(Line2D([], [], color=DARK_GREY, marker="x", linestyle="none", label="out of memory"))
    if any(family.probes for family in by_batch):
        label = "probes without cuDNN's search"
        handles.append(Line2D([], [], color=DARK_GREY, linestyle=":", linewidth=1, label=label))
        handles.append(Line2D([], [], color=DARK_GREY, marker="o", **HOLLOW, label="the last probe, with it"))
    title = "Throughput by batch size, and two kinds of speed-up"
    figure, bands = start_chart(report, title, [2.7] * len(by_batch), handles)
    for band, family in zip(bands, by_batch, strict=True):
        left, right = band.subplots(1, 2)
        draw_by_batch(left, family)
        draw_both_speedups(right, family)
        left.set_title(chart_text(family.title), size=8.5, loc="left")
    section.chart(figure, "batch_size", " ".join(map(finding_of, by_batch)))
