"""Section: one thing added at a time."""

import textwrap
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..analysis.bottleneck import find_bottleneck
from ..analysis.conditions import fairly_timed, flags_of
from ..analysis.verdict import DIFFERENT, FASTER, LITTLE_FASTER, LITTLE_SLOWER, SAME, SLOWER
from .comparisons import gap_text, profiled_run
from .ladder_steps import LAYERS
from .layout import chart_text, rate_unit, start_chart, write_label
from .memory_use import highest_peak, rates, speed_of
from .report import Report
from .section import Section
from .style import (
    BOX,
    DARK_GREY,
    DISTURBED_MARK,
    GAP_GREY,
    INTERVAL_GREY,
    PRECISIONS,
    bar_style,
    precision_patches,
)
from .verdicts import (
    conditions_text,
    ends_of,
    judgement,
    ratio_text,
    said_once,
    speedup_between,
    stand_after_correction,
)
from .words import count, plain, short, span

TITLE = "The ladder: one thing added at a time"
ABOUT = """Each step adds one thing to the step before: precision, a loss scaler that never waits, layout, compilation,
a CUDA graph, a larger batch. A bar is the throughput relative to the first step, with its 95% interval."""

ADDED = ("scaler=", "channels_last", "without channels_last")  # labels of what a ladder adds
LIMITED_BY = "what limits it"
COLUMNS = (
    "n",
    "seconds per 1,000 samples",
    "peak, GiB",
    "over the first step",
    "over the step before",
    "verdict",
    "quality at the end",
    "compiling + cuDNN's search, s, at most",
    LIMITED_BY,
)


@dataclass
class Step:
    """A step of a ladder; without `ok` runs it is a gap."""

    label: str
    number: int  # of its comparison
    precision: str
    runs: list[dict]
    ok: list[dict] = field(default_factory=list)  # the runs that ended well and have a throughput
    speed: float = 0.0  # samples per second
    peak: float | None = None  # GiB
    over_first: dict | None = None  # speed-up per sample over the first step that ended well
    over_last: dict | None = None  # the same over the last one before

    @property
    def gap(self) -> str:
        """Why there is no bar."""
        return gap_text(self.runs, "no throughput")

    @property
    def mark(self) -> str:
        """The mark of disturbed runs, or nothing."""
        return DISTURBED_MARK if any(map(flags_of, fairly_timed(self.ok))) else ""


def speedup_of_step(step: Step, other: Step) -> dict | None:
    """Return the speed-up per sample of a step over another."""
    return speedup_between(step.ok, other.ok, rates, more_is_faster=True)


def measured_ladder(steps: list[tuple]) -> list[Step]:
    """Return the steps of a ladder with their figures."""
    done: list[Step] = []
    measured = []
    for label, number, precision, runs in steps:
        step = Step(label, number, precision, runs, [run for run in runs if run["status"] == "ok" and rates(run)])
        measured.append(step)
        if not step.ok:
            continue
        step.speed = speed_of(fairly_timed(step.ok)) or 0.0
        step.peak = highest_peak(step.ok)
        if done:
            step.over_first = speedup_of_step(step, done[0])
            step.over_last = speedup_of_step(step, done[-1])
        done.append(step)
    return measured


def preparation_of(runs: list[dict]) -> str:
    """Return the longest that torch.compile and cuDNN's search took before a step's runs were timed."""
    most = [max((run[name] or 0 for run in runs), default=0) for name in ("compile_seconds", "search_seconds")]
    return " + ".join(f"{seconds:.1f}" for seconds in most)


def row_of_step(report: Report, steps: list[Step], step: Step) -> dict:
    """Return a step of a ladder as a row of the table."""
    row = {"comparison": title_of_ladder(report, steps), "step": step.label, "precision": step.precision}
    row |= dict.fromkeys(COLUMNS, "-")
    if not step.ok:
        reason = next((run["reason"] for run in step.runs if run["reason"]), None)
        return row | {"verdict": step.gap, LIMITED_BY: reason or "-"}
    row["n"] = count(len(step.ok), "run")
    row["seconds per 1,000 samples"] = short(1000 / step.speed) + step.mark
    row["peak, GiB"] = "not measured" if step.peak is None else short(step.peak)
    if step.over_first:
        row["over the first step"] = ratio_text(step.over_first)
    if step.over_last:
        row["over the step before"] = ratio_text(step.over_last)
    judged = "-"
    if step.over_last:
        judged = judgement(report, step.over_last) + conditions_text(step.over_last)
    row["verdict"] = ", ".join(filter(None, [judged, gap_text(step.runs)]))
    row["quality at the end"] = quality_of(step.ok)
    row["compiling + cuDNN's search, s, at most"] = preparation_of(step.ok)
    case, because = find_bottleneck(profiled_run(step.ok) or step.ok[0])
    row[LIMITED_BY] = "not judged: CPU" if report.on_cpu else f"{case}: {because}"
    return row


def quality_of(runs: list[dict]) -> str:
    """Return the last metric of runs as text, from smallest to largest."""
    ends = [run["metric"][-1] for run in runs if run["metric"] and run["metric"][-1] is not None]
    if not ends:
        return "not measured"
    return f"{metric_name(runs)} {span(ends, '{:.1f}' if min(ends) >= 100 else '{:#.3g}')}"


def metric_name(runs: list[dict]) -> str:
    """Return the name of the runs' metric."""
    return (runs[0]["metric_name"] or "").replace("_", " ")


def draw_ladder(report: Report, speeds: Axes, memory: Axes, quality: Axes, steps: list[Step]) -> None:
    """Draw the steps from above: throughput relative to the first that ended well, memory peak, and last metric."""
    finished = [step for step in steps if step.ok]
    far = max([1.0, *(ends_of(step.over_first)[1] for step in finished if step.over_first)])
    most = max([step.peak or 0 for step in finished], default=0) or 1
    metric = metric_name(finished[0].ok) if finished else ""
    style: dict[str, Any] = {"va": "center", "size": 8.5}
    for row, step in enumerate(steps):
        if not step.ok:
            speeds.text(0.01 * far, row, step.gap, color=GAP_GREY, bbox=BOX, **style)
            memory.text(0.01 * most, row, step.gap, color=GAP_GREY, bbox=BOX, **style)
            continue
        draw_speed(speeds, row, step, several_gpus=len(gpus_of(steps)) > 1)
        quality.text(0, row, quality_of(step.ok).removeprefix(metric), **style)
        if step.peak is None:
            memory.text(0.01 * most, row, "not measured", color=GAP_GREY, **style)
        else:
            memory.barh(row, step.peak, height=0.74, **bar_style(step.precision))
            write_label(memory, short(step.peak), step.peak, row, (4, 0), ha="left", bbox=BOX, **style)
    speeds.set_yticks(range(len(steps)), [tick_of(step) for step in steps])
    memory.set_yticks(range(len(steps)), [""] * len(steps))
    quality.set_yticks([])
    speeds.axvline(1, color=DARK_GREY, linestyle="--", linewidth=1, zorder=0.5)
    first = finished[0].label if finished else "nothing"
    for row, step in enumerate(steps):
        if trains_otherwise(step):
            for axes in (speeds, memory, quality):
                part_trainings(axes, row)
    far = room_for_labels(finished, several_gpus=len(gpus_of(steps)) > 1)
    speeds.set(xlim=(0, far), xlabel=f"{rate_unit(report.comparisons[steps[0].number])}, relative to {first}")
    memory.set(xlim=(0, 1.3 * most), xlabel="peak memory, GiB")
    quality.set(xlim=(0, 1), xticks=[], frame_on=False)
    quality.set_title(textwrap.fill(f"last {metric}, all runs", 16), size=8.5, loc="left")
    for axes in (speeds, memory, quality):
        axes.set_ylim(len(steps) - 0.4, -0.6)
    for axes, ticks in ((speeds, 6), (memory, 3)):
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))


def label_of(step: Step, several_gpus: bool) -> str:
    """Return the label of a bar: its ratio, its rate, and what the reader must mind."""
    ratio = step.over_first["ratio"] if step.over_first else 1.0
    elsewhere = several_gpus and step.over_first is not None and not step.over_first["processes"]
    texts = [f"{ratio:.2f}x, {short(step.speed)}/s{step.mark}", "another card" if elsewhere else ""]
    return ", ".join(filter(None, [*texts, gap_text(step.runs)]))


def room_for_labels(steps: list[Step], several_gpus: bool) -> float:
    """Return where the axis of the speed-ups ends: each label fits beside its bar, and little more."""
    ends = [1.0]
    for step in steps:
        share = min(0.6, 0.0135 * len(label_of(step, several_gpus)) + 0.02)  # of the axis
        end = ends_of(step.over_first)[1] if step.over_first else 1.0
        ends.append(end / (1 - share))
    return max(ends)


def trains_otherwise(step: Step) -> bool:
    """Return whether a step is another training, as a larger batch is: its last metric is no price of the speed."""
    return step.label.startswith("+ batch")


def tick_of(step: Step) -> str:
    """Return the name of a step beside its bar."""
    return f"{step.label}\n(another training)" if trains_otherwise(step) else step.label


def part_trainings(axes: Axes, row: int) -> None:
    """Draw a broken line above a step that trains otherwise, as a larger batch does."""
    axes.axhline(row - 0.5, color=DARK_GREY, linestyle=(0, (4, 3)), linewidth=0.9)


def draw_speed(axes: Axes, row: int, step: Step, several_gpus: bool) -> None:
    """Draw the throughput of a step with its interval and its label."""
    ratio = end = 1.0
    if step.over_first:
        ratio, end = step.over_first["ratio"], ends_of(step.over_first)[1]
        if step.over_first["low"] is not None:
            axes.hlines(row, *ends_of(step.over_first), color=INTERVAL_GREY, linewidth=2.5)
    axes.barh(row, ratio, height=0.74, **bar_style(step.precision))
    write_label(axes, label_of(step, several_gpus), end, row, (5, 0), ha="left", va="center", size=8.5, bbox=BOX)


def title_of_ladder(report: Report, steps: list[Step]) -> str:
    """Return the name of a ladder: where it begins, without what it adds; the device where there are several."""
    group = report.comparisons[steps[0].number]
    title = f"{group['notebook']}: {group['model']} · {group['data']}, from {group['batch']}"
    more = [line for line in group["lines"][2:] if line not in LAYERS and not line.startswith(ADDED)]
    if len(report.devices) > 1:
        more.append(group["device"])
    return " · ".join([title, *more])


def gpus_of(steps: list[Step]) -> set[str | None]:
    """Return the GPUs that the steps ran on."""
    return {run["gpu_uuid"] for step in steps for run in step.ok}


def measured_ladders(report: Report) -> list[list[Step]]:
    """Return every ladder with its figures."""
    return [measured_ladder(ladder) for ladder in report.ladders]


def rows_of_ladders(report: Report, ladders: list[list[Step]]) -> list[dict]:
    """Return the rows of the tables: a row for every step."""
    return [row_of_step(report, steps, step) for steps in ladders for step in steps]


def section(report: Report) -> Section:
    """Return the chart and the tables of the ladders, and which step brings most."""
    section = Section(TITLE, ABOUT)
    ladders = measured_ladders(report)
    if not ladders:
        return section
    draw_ladders(section, report, ladders)
    for steps in ladders:
        say_ladder(section, report, steps)
    rows = rows_of_ladders(report, ladders)
    section.table(said_once(rows), "The ladder in figures")
    return section


def draw_ladders(section: Section, report: Report, ladders: list[list[Step]]) -> None:
    """Draw all ladders in one chart."""
    seen = {step.precision for steps in ladders for step in steps}
    handles: list = precision_patches(name for name in PRECISIONS if name in seen)
    handles.append(Line2D([], [], color=INTERVAL_GREY, linewidth=2.5, label="95% interval"))
    heights = [0.95 + 0.26 * len(steps) for steps in ladders]
    drawn = [step.number for steps in ladders for step in steps]
    figure, bands = start_chart(report, "The ladder: throughput, memory, quality", heights, handles, numbers=drawn)
    for band, steps in zip(bands, ladders, strict=True):
        speeds, memory, quality = band.subplots(1, 3, width_ratios=[2.4, 0.9, 0.7])
        draw_ladder(report, speeds, memory, quality, steps)
        title = title_of_ladder(report, steps) + steps_text(steps)
        speeds.set_title(chart_text(title), size=9, loc="left")
    section.chart(figure, "ladder", finding_of(report, ladders))


def steps_text(steps: list[Step]) -> str:
    """Return how many steps an epoch was cut to, if it was."""
    cut = {run["max_steps"] for step in steps for run in step.ok if run.get("max_steps")}
    return f"\nepochs cut to {span(cut, '{:,}')} steps" if cut else ""


def finding_of(report: Report, ladders: list[list[Step]]) -> str:
    """Return how far each ladder comes, as the alternative text of the chart."""
    texts = []
    for steps in ladders:
        last = [step for step in steps if step.ok][-1]
        if last.over_first:
            model = report.comparisons[steps[0].number]["model"]
            texts.append(f"{model} reaches {last.over_first['ratio']:.2f} times with {last.label.removeprefix('+ ')}")
    return f"Throughput against the first step: {'; '.join(texts)}." if texts else ""


def say_ladder(section: Section, report: Report, steps: list[Step]) -> None:
    """Say what a ladder comes to, which of its steps brings most, and which bring nothing."""
    title = plain(title_of_ladder(report, steps))
    if len(gpus_of(steps)) > 1:
        section.say(f"**MIND:** {title}: its runs were on several GPUs; ratios across GPUs have no interval.")
    last = [step for step in steps if step.ok][-1]
    if last.over_first is None or report.on_cpu:
        return
    text = f"{last.label} reaches **{ratio_text(last.over_first)}** of the first step's throughput"
    judged = [(step.label, step.over_last, judgement(report, step.over_last)) for step in steps if step.over_last]
    stands = stand_after_correction([speedup for _, speedup, _ in judged])
    faster = [one for one, stand in zip(judged, stands, strict=True) if stand and one[2] in (FASTER, LITTLE_FASTER)]
    if faster:
        label, speedup, _ = max(faster, key=lambda one: one[1]["ratio"])
        text += f"; {label} brings most, {ratio_text(speedup)} over the step before"
    idle = [label for label, _, word in judged if word in (SLOWER, LITTLE_SLOWER, SAME)]
    if idle:
        text += f"; no speed-up by {', '.join(idle)}"
    open_steps = [label for label, _, word in judged if word not in DIFFERENT and label not in idle]
    if open_steps:
        text += f"; it cannot be told for {', '.join(open_steps)}"
    section.say(f"{title}: {text}.")
