"""Section: where the time goes and how far from the limit."""

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..analysis.bottleneck import find_bottleneck
from .bars import draw_stacks, gap_lines, gap_reasons, middle_runs, name_precisions, pool, values_of
from .comparisons import gap_text
from .layout import extremes_text, panels, shown_in, write_gap, write_label
from .report import Bar, Key, Report
from .section import Section
from .style import DARK_GREY, FAMILY_STYLES, IDLE_STYLE, OTHER_KERNELS, part_patches
from .theme import chart_style
from .verdicts import mark_of, row_of_run, said_once, say_missing
from .words import count, percent, plain, short, tally

TITLE = "Where the time goes and how far from the limit"
ABOUT = """A bar is one profiled step: kernels by family, and the time in which no kernel ran. Where much is idle,
another precision cannot help.

The second chart compares what a run reached with what this GPU was measured to do: FLOPs per second against the
fastest matmul or convolution, and bytes per second against a plain copy. Bytes are counted as if no cache helped,
so that share can exceed 100%."""

LIMITS = {  # name: (field, colour, hatch)
    "compute: FLOPs per second / fastest measured": ("compute_limit_fraction", "#332288", ""),
    "memory: bytes per second / measured copy": ("bandwidth_limit_fraction", "#88ccee", "//"),
}


def limit_row(report: Report, number: int, record: dict) -> dict:
    """Return what limits a run and how near it comes, as a row of the table."""
    ceilings = [record[f"ceiling_{name}_tflop_per_second"] for name in ("matmul", "conv")]
    achieved = record["achieved_tflop_per_second"]
    ceiling = max((rate for rate in ceilings if rate is not None), default=None)
    row = {
        "GPU busy": percent(record["gpu_busy_fraction"]),
        "waits for data": percent(record["data_wait_fraction"]),
        "Tensor Cores, of kernel time": percent(record["tensor_core_fraction"]),
        "TFLOP/s": "-" if achieved is None else short(achieved),
        "measured ceiling, TFLOP/s": "-" if ceiling is None else short(ceiling),
        "of the ceiling": percent(record["compute_limit_fraction"]),
        "of the copy bandwidth": percent(record["bandwidth_limit_fraction"]),
        "limited by": find_bottleneck(record)[0],
    }
    return row_of_run(report, report.comparisons[number], record, **row)


def shares_of(record: dict, named: list[str]) -> dict[str, float]:
    """Return {family: share of the step} of the named families, the other kernels, and the idle rest."""
    busy, families = record["gpu_busy_fraction"], dict(record["kernel_family_fractions"])
    parts = {family: busy * families.get(family, 0) for family in named}
    return parts | {"other kernels": max(0, busy - sum(parts.values())), "idle": max(0, 1 - busy)}


def profiled_runs(report: Report) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle run of those that were profiled}."""
    return middle_runs(report, lambda run: run["gpu_busy_fraction"] if run["kernel_family_fractions"] else None)


def families_in(runs: dict[Key, dict]) -> list[str]:
    """Return the kernel families that have a colour of their own and occur in the runs."""
    seen = {family for record in runs.values() for family, _ in record["kernel_family_fractions"]}
    return [family for family in FAMILY_STYLES if family in seen]


def draw_limits(report: Report, axes: Axes, number: int, reached: dict[str, dict[Key, Bar]]) -> None:
    """Draw two bars for every precision of a comparison: the shares of both limits, the median over its runs."""
    gaps = gap_reasons(report, "limit_reason")
    names = shown_in(report, number)
    for x, precision in enumerate(names):
        key = (number, precision)
        for left, (field, colour, hatch) in zip((x - 0.2, x + 0.2), LIMITS.values(), strict=True):
            if key in reached[field]:
                height = 100 * reached[field][key][0]
                axes.bar(left, height, 0.36, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
                write_label(axes, f"{height:.0f}{mark_of(report, *key)}", left, height, (0, 2))
        if not any(key in bars for bars in reached.values()):
            text = gap_text(report.runs(*key)) or gaps.get(key, "not measured")
            write_gap(axes, x, 2, gap_lines(text), size=7.5)
    axes.axhline(100, color=DARK_GREY, linestyle="--", linewidth=1)
    name_precisions(axes, names)
    axes.set_ylabel("% of the measured limit")


@chart_style()
def section(report: Report) -> Section:
    """Return the charts of kernel time and of the limits reached, and what limits every run."""
    section = Section(TITLE, ABOUT)
    draw_kernel_times(section, report)
    draw_limits_reached(section, report)
    say_bottlenecks(section, report)
    return section


def draw_kernel_times(section: Section, report: Report) -> None:
    """Draw the kernels of a step by family."""
    runs = profiled_runs(report)
    if runs:
        named = families_in(runs)
        styles = {family: FAMILY_STYLES[family] for family in named}
        styles |= {"other kernels": OTHER_KERNELS, "idle": IDLE_STYLE}
        shares = {key: shares_of(record, named) for key, record in runs.items()}
        percents = {key: {part: 100 * share for part, share in parts.items()} for key, parts in shares.items()}
        labels = {key: short(run["step_ms_median"]) if run["step_ms_median"] else "" for key, run in runs.items()}
        gaps = gap_reasons(report, "profile_reason")
        title = "Where the time of a step goes (above each bar: its ms)"
        figure, placed = panels(report, title, 2.8, part_patches(styles))
        for number, (axes,) in placed:
            draw_stacks(report, axes, number, styles, percents, gaps, labels)
            axes.set(ylabel="% of the step", ylim=(0, 118), yticks=range(0, 101, 20))
        section.chart(figure, "kernel_time")
        longest = [max(run["kernel_family_fractions"], key=lambda one: one[1])[0] for run in runs.values()]
        section.say(f"The longest family of {count(len(runs), 'bar')}: {tally(map(plain, longest))}.")
        idle = {key: parts["idle"] for key, parts in shares.items()}
        section.say(f"The GPU is idle {extremes_text(report, idle, '{:.0%}'.format)} of a step.")
    say_missing(section, report, "Where the time goes", "gpu_busy_fraction", "profile_reason")


def draw_limits_reached(section: Section, report: Report) -> None:
    """Draw how near the runs come to what the GPU was measured to do."""
    reached = {field: pool(report, values_of(field)) for field, *_ in LIMITS.values()}
    if any(reached.values()):
        handles = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name)
            for name, (_, colour, hatch) in LIMITS.items()
        ]
        figure, placed = panels(report, "How far from the card's limits", 2.6, handles)
        highest = 100 * max(bar[0] for bars in reached.values() for bar in bars.values())
        for number, (axes,) in placed:
            draw_limits(report, axes, number, reached)
            axes.set_ylim(0, 1.12 * max(100, highest))
        section.chart(figure, "limit_reached")
        for name, (field, *_) in LIMITS.items():
            if shares := {key: bar[0] for key, bar in reached[field].items()}:
                text = extremes_text(report, shares, "{:.0%}".format)
                section.say(f"{name.partition(':')[0].capitalize()}: {text} of what this GPU was measured to do.")
    say_missing(section, report, "The distance from the limits of compute", "compute_limit_fraction", "limit_reason")
    say_missing(section, report, "The distance from the limits of memory", "bandwidth_limit_fraction", "limit_reason")


def say_bottlenecks(section: Section, report: Report) -> None:
    """List what limits every run."""
    runs = [record for _, record in report.timed]
    if any(run["gpu_busy_fraction"] is not None or run["achieved_tflop_per_second"] for run in runs):
        section.table(said_once([limit_row(report, *run) for run in report.timed]), "What limits every run")
        cases = tally(find_bottleneck(run)[0] for run in runs)
        section.say(f"What limits the {count(len(runs), 'run')} that ended well: {cases}.")
