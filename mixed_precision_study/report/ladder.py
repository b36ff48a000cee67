"""Section: one thing added at a time."""

import statistics
import textwrap

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..analysis.bottleneck import find_bottleneck
from ..analysis.verdict import flags_of
from .comparisons import gap_text
from .ladder_steps import LAYERS
from .layout import chart_text, rate_unit, start_chart
from .memory_use import rates
from .section import Section
from .style import BOX, DAGGER, PRECISIONS
from .theme import chart_style
from .verdicts import judgement, said_once, speedup_between
from .words import count, plain, short, span


def speedy(runs):
    """Return the runs that ended well and have a throughput."""
    return [run for run in runs if run["status"] == "ok" and rates(run)]


def gain_of_step(runs, others):
    """Return the gain per sample of a step's runs over another's, or None where one has none that ended well."""
    return speedup_between(speedy(runs), speedy(others), rates, more_is_faster=True)


def measured_ladder(steps):
    """Return the steps as dicts with their `gain` over the first that ended well, and `more` over the last before."""
    done, measured = [], []
    for label, number, precision, runs in steps:
        step = {"label": label, "number": number, "precision": precision, "runs": runs, "gain": None, "more": None}
        step |= {"gap": gap_text(runs, "no throughput"), "ok": speedy(runs)}
        if step["ok"]:
            step["speed"] = statistics.median(speed for run in step["ok"] for speed in rates(run))
            peaks_here = [run["peak_allocated_mib"] for run in step["ok"] if run["peak_allocated_mib"] is not None]
            step |= {"peak": max(peaks_here) / 1024 if peaks_here else None}
            for name, before in zip(("gain", "more"), (done[:1], done[-1:]), strict=True):
                step[name] = gain_of_step(runs, before[0]["runs"]) if before else None
            step["mark"] = DAGGER * any(map(flags_of, step["ok"]))
            done.append(step)
        measured.append(step)
    return measured


def preparation_of(runs):
    """Return the longest that torch.compile and cuDNN's search took before a step's runs were timed, as text."""
    most = [max((run[name] or 0 for run in runs), default=0) for name in ("compile_seconds", "search_seconds")]
    return " + ".join(f"{seconds:.1f}" for seconds in most)


def row_of_step(report, steps, step):
    """Return a step of a ladder as a row of the table."""
    row = {"comparison": title_of_ladder(report, steps), "step": step["label"], "precision": step["precision"]}
    row |= dict.fromkeys(COLUMNS, "-")
    if not step["ok"]:
        reason = next((run["reason"] for run in step["runs"] if run["reason"]), None)
        return row | {"verdict": step["gap"], "what limits it": reason or "-"}
    row |= {"n": count(len(step["ok"]), "run"), COLUMNS[1]: short(1000 / step["speed"]) + step["mark"]}
    row["peak, GiB"] = "not measured" if step["peak"] is None else short(step["peak"])
    for name, speedup in (("over the first step", step["gain"]), ("over the step before", step["more"])):
        row[name] = with_spread(speedup) if speedup else "-"
    words = [judgement(report, step["more"]) if step["more"] else "-", gap_text(step["runs"])]
    row |= {"verdict": ", ".join(filter(None, words)), "quality at the end": quality_of_step(step)}
    row["compiling + cuDNN's search, s, at most"] = preparation_of(step["ok"])
    case, because = find_bottleneck(step["ok"][0])
    return row | {"what limits it": "not judged: CPU" if report.on_cpu else f"{case}: {because}"}


COLUMNS = ("n", "seconds per 1,000 samples", "peak, GiB", "over the first step", "over the step before", "verdict")
COLUMNS += ("quality at the end", "compiling + cuDNN's search, s, at most", "what limits it")


def quality_of_step(step):
    """Return the last metric of a step's runs as text, from smallest to largest."""
    ends = [run["metric"][-1] for run in step["ok"] if run["metric"] and run["metric"][-1] is not None]
    form = "{:.1f}" if ends and min(ends) >= 100 else "{:#.3g}"
    return f"{step['ok'][0]['metric_name'].replace('_', ' ')} {span(ends, form)}" if ends else "not measured"


def draw_ladder(report, speeds, memory, quality, steps):
    """Draw the steps from above: throughput relative to the first that ended well, memory peak, and last metric."""
    ends = [step["gain"]["high"] or step["gain"]["ratio"] for step in steps if step["gain"]]
    far, most = max([1.0, *ends]), max([step["peak"] or 0 for step in steps if step["ok"]], default=0) or 1
    metric = next((step["ok"][0]["metric_name"] or "" for step in steps if step["ok"]), "").replace("_", " ")
    for row, step in enumerate(steps):
        colour, hatch = PRECISIONS[step["precision"]][:2]
        bar = {"height": 0.74, "color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        beside = {"va": "center", "size": 8}
        if not step["ok"]:
            for axes, right in ((speeds, far), (memory, most)):
                axes.text(0.01 * right, row, step["gap"], color="#555555", bbox=BOX, **beside)
            continue
        speedup = step["gain"]
        ratio, end = (speedup["ratio"], speedup["high"] or speedup["ratio"]) if speedup else (1.0, 1.0)
        speeds.barh(row, ratio, **bar)
        if speedup and speedup["low"] is not None:
            speeds.hlines(row, speedup["low"], speedup["high"], color="#8b8b8b", linewidth=2.5)
        text = f"{ratio:.2f}x, {short(step['speed'])}/s{step['mark']}"
        text += ", another card" if speedup and not speedup["pairs"] and len(gpus_of(steps)) > 1 else ""
        failed_there = gap_text(step["runs"])
        text += f", {failed_there}" * bool(failed_there)
        style = {"textcoords": "offset points", "bbox": BOX, **beside}
        quality.text(0, row, quality_of_step(step).removeprefix(metric), **beside)
        speeds.annotate(text, (end, row), (5, 0), **style)
        if step["peak"] is None:
            memory.text(0.01 * most, row, "not measured", color="#555555", **beside)
        else:
            memory.barh(row, step["peak"], **bar)
            memory.annotate(short(step["peak"]), (step["peak"], row), (4, 0), **style)
    speeds.set_yticks(range(len(steps)), [step["label"] for step in steps])
    memory.set_yticks(range(len(steps)), [""] * len(steps))
    speeds.axvline(1, color="#444444", linestyle="--", linewidth=1, zorder=0.5)
    first = next((step["label"] for step in steps if step["ok"]), "nothing")
    speeds.set(xlim=(0, 1.65 * far), xlabel=f"{rate_unit(report.comparisons[steps[0]['number']])}, relative to {first}")
    memory.set(xlim=(0, 1.3 * most), xlabel="peak memory, GiB")
    quality.set(xlim=(0, 1), xticks=[], frame_on=False)
    quality.set_xlabel(textwrap.fill(f"last {metric}", 16), labelpad=7)
    for axes in (speeds, memory, quality):
        axes.set_ylim(len(steps) - 0.4, -0.6)
    quality.set_yticks([])
    for axes in (speeds, memory):
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(6 if axes is speeds else 3, steps=[1, 2, 5, 10]))


def title_of_ladder(report, steps):
    """Return the name of a ladder: where it begins, without what it adds; the card where there are several."""
    group = report.comparisons[steps[0]["number"]]
    title = f"{group['notebook']}: {group['model']} · {group['data']}, from {group['batch']}"
    more = [line for line in group["lines"][2:] if line not in LAYERS and "channels_last" not in line]
    return " · ".join([title, *more, *([group["device"]] * (len(report.devices) > 1))])


def gpus_of(steps):
    return {run["gpu_uuid"] for step in steps for run in step["ok"]}


def with_spread(speedup):
    """Return a ratio with its interval as text."""
    spread = f" ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup["low"] is not None else ""
    return f"{speedup['ratio']:.2f}x{spread}" + ", not paired" * (not speedup["pairs"])


def measured_ladders(report):
    """Return every ladder with its gains."""
    return list(map(measured_ladder, report.ways_up))


def rows_of_ladders(report, ladders):
    """Return the rows of the tables: a row for every step."""
    return [row_of_step(report, steps, step) for steps in ladders for step in steps]


@chart_style()
def section(report):
    """Return the chart and the tables of the ladders, and which step gains most."""
    section, ladders = Section(), measured_ladders(report)
    if ladders:
        seen = {step["precision"] for steps in ladders for step in steps}
        styles = {name: style for name, style in PRECISIONS.items() if name in seen}
        handles = [
            Patch(facecolor=style[0], hatch=style[1], edgecolor="white", label=name) for name, style in styles.items()
        ]
        handles += [Line2D([], [], color="#8b8b8b", linewidth=2.5, label="95% interval")]
        figure, bands = start_chart(
            report, "The ladder: throughput, memory, quality", [0.95 + 0.26 * len(steps) for steps in ladders], handles
        )
        for band, steps in zip(bands, ladders, strict=True):
            axes = band.subplots(1, 3, width_ratios=[2.4, 0.9, 0.7])
            draw_ladder(report, *axes, steps)
            axes[0].set_title(chart_text(title_of_ladder(report, steps)), size=9, loc="left")
        section.chart(figure, "ladder")
    else:
        section.say("No runs form a ladder (`python run_all.py ladder` makes them), so there is no chart.")
    for steps in ladders:
        finished = [step for step in steps if step["gain"]]
        if len(gpus_of(steps)) > 1:
            title = plain(title_of_ladder(report, steps))
            section.say(f"**MIND:** {title}: not all on one card; ratios across cards have no interval.")
        if finished and not report.on_cpu:
            gained = [step for step in finished if judgement(report, step["more"]) == "faster"]
            words = f"{finished[-1]['label']} comes to **{with_spread(finished[-1]['gain'])}**"
            words += " of the first step's throughput"
            if gained:
                top = max(gained, key=lambda step: step["more"]["ratio"])
                words += f"; most is gained by {top['label']}, {with_spread(top['more'])} over the step before"
            idle = [
                step["label"]
                for step in finished
                if judgement(report, step["more"]) in ("slower", "no measurable difference")
            ]
            words += f"; no gain by {', '.join(idle)}" * bool(idle)
            section.say(f"{plain(title_of_ladder(report, steps))}: {words}.")
    rows = rows_of_ladders(report, ladders)
    limits_of_steps = [{name: row[name] for name in ("comparison", "step", COLUMNS[-1])} for row in rows]
    figures_of_steps = [{name: value for name, value in row.items() if name != COLUMNS[-1]} for row in rows]
    for table in (figures_of_steps, limits_of_steps) if ladders else ():
        section.table(said_once(table))
    return section
