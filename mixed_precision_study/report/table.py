"""Section: speed-up, memory saved, change of quality, and summary.csv."""

import pandas as pd

from ..analysis.bottleneck import find_bottleneck
from ..analysis.equivalence import UNKNOWN
from ..analysis.speedup import paired_runs
from ..analysis.verdict import interval_text
from .comparisons import gap_text, ok_runs
from .memory_use import memory_saved
from .report import Report
from .section import File, Section
from .style import CPU_WARNING, DISTURBED_MARK
from .theme import chart_style
from .training_curves import metric_of, quality_against_fp32
from .verdicts import example, flags_in, judgement, said_once
from .words import count, tally

TITLE = "Speed-up, memory saved, change of quality"
ABOUT = """Every comparison against fp32 and against tf32: PyTorch's own default lies between the two. The outcomes
are those under *Verdicts*.

Memory saved leaves out the data set kept on the GPU. Quality is the last held-out metric against fp32 over equal
seeds, with a 95% interval from three seeds on. It is *equivalent* if two one-sided tests put it within a margin
that was fixed beforehand: 0.2 points of accuracy, 2% of perplexity, 0.02 of mean absolute error. That takes five
seeds. Otherwise it is *worse* or *better* where the interval excludes 0, else it *cannot be told*. The table is
saved as `summary.csv`."""

QUALITY_NAMES = {  # columns of summary.csv: keys of quality_difference()
    "quality_change": "difference",
    "quality_low": "low",
    "quality_high": "high",
    "quality_low90": "low90",
    "quality_high90": "high90",
    "quality_margin": "margin",
    "quality_is_ratio": "is_ratio",
    "quality_seeds": "seeds",
    "quality_verdict": "outcome",
}


def quality_columns(report: Report, group: dict, precision: str, baseline: str) -> dict:
    """Return the columns on the last metric against fp32; None in all of them against another baseline."""
    found = quality_against_fp32(group, precision) if baseline == "fp32" else None
    columns = {column: found[name] if found else None for column, name in QUALITY_NAMES.items()}
    diverged = sum(run["status"] == "diverged" for run in group["runs"][precision])
    if found and report.on_cpu:
        columns["quality_verdict"] = "not judged: CPU"
    elif found and diverged:  # those that did not are a selection
        columns["quality_verdict"] = f"{UNKNOWN}, because {count(diverged, 'run')} diverged"
    return columns


def quality_text(row: dict) -> str:
    """Return the quality of a row of summary.csv against fp32 with its 95% interval, as text."""
    if row["quality_change"] is None:
        return "-"
    unit, form = "", "{:+.3g}"
    if row["metric"] == "accuracy":
        unit, form = " points", "{:+.2f}"
    elif row["quality_is_ratio"]:
        unit, form = "%", "{:+.1f}"
    scale = 100 if unit else 1
    ends = [row[name] for name in ("quality_change", "quality_low", "quality_high")]
    values = [None if end is None else form.format(scale * end) for end in ends]
    interval = "" if values[1] is None else f" ({values[1]} to {values[2]})"
    seeds = count(row["quality_seeds"], "seed")
    return f"{row['metric']} {values[0]}{unit}{interval}: {row['quality_verdict']}, {seeds}"


def epochs_paired(group: dict, precision: str, baseline: str) -> int:
    """Return how many epochs of a precision have their counterpart."""
    pairs = paired_runs(ok_runs(group, precision), ok_runs(group, baseline))
    return sum(min(len(run["epoch_seconds"]) for run in pair) for pair in pairs)


def table_row(report: Report, number: int, precision: str, baseline: str) -> dict:
    """Return the figures of one precision against one baseline: a row of summary.csv."""
    group, speedup = report.comparisons[number], report.speedups.get((number, precision, baseline))
    missing = [f"{name}: {gap_text(group['runs'][name])}" for name in (precision, baseline) if not ok_runs(group, name)]
    known = speedup or {}
    return {
        **{name: group[name] for name in ("notebook", "title", "device", "data", "model")},
        "batch_size": group["batch"][1:],
        "precision": precision,
        "baseline": baseline,
        "verdict": judgement(report, speedup) if speedup else "; ".join(missing),
        "speed_up": known.get("ratio"),
        "speed_up_low": known.get("low"),
        "speed_up_high": known.get("high"),
        "speed_up_low90": known.get("low90"),
        "speed_up_high90": known.get("high90"),
        "smallest_difference": known.get("smallest"),
        "median_block_speed_up": known.get("median_ratio"),
        "stands_after_correction": (number, precision, baseline) in report.standing if speedup else None,
        "processes": known.get("processes"),
        "paired_seeds": known.get("seeds"),
        "paired_epochs": epochs_paired(group, precision, baseline) if speedup else None,
        "memory_saved_percent": memory_saved(group, precision, baseline),
        "metric": metric_of(group)[0],
        **quality_columns(report, group, precision, baseline),
        "limit": find_bottleneck(example(group, precision))[0] if speedup and not report.on_cpu else None,
        "flags": "; ".join(flags_in(group, precision, baseline)) or None,
        "other_conditions": "; ".join(known.get("differences", ())) or None,
        "verdict_text": report.sentences[number, precision, baseline],
    }


def row_text(row: dict) -> dict:
    """Return a row of summary.csv as a row of the table."""
    speedup = interval = "-"
    if row["speed_up"]:
        speedup = f"{row['speed_up']:.2f}x{f' {DISTURBED_MARK}' if row['flags'] else ''}"
        ends = {"low": row["speed_up_low"], "high": row["speed_up_high"], "processes": row["processes"]}
        interval = interval_text(ends)
    saved = row["memory_saved_percent"]
    return {
        "comparison": f"{row['notebook']}: {row['title']}",
        "precision": row["precision"],
        "against": row["baseline"],
        "speed-up": speedup,
        "95% interval": interval,
        "processes": row["processes"] or "-",
        "verdict": row["verdict"] + (f" (MIND: {row['other_conditions']})" if row["other_conditions"] else ""),
        "limited by": row["limit"] or "-",
        "memory saved": "-" if saved is None else f"{round(saved)}%",
        "quality against fp32": quality_text(row),
    }


def table_rows(report: Report) -> list[dict]:
    """Return the rows of summary.csv."""
    return [table_row(report, *key) for key in report.sentences if key[1] != "fp32"]


@chart_style()
def section(report: Report) -> Section:
    """Return the table and the file summary.csv."""
    section = Section(TITLE, ABOUT)
    rows = table_rows(report)
    if rows:
        section.table(said_once([row_text(row) for row in rows]))
        content = pd.DataFrame(rows).convert_dtypes().to_csv(index=False).encode()
        section.parts.append(File("summary.csv", content))
    words = [row["verdict"] for row in rows if row["speed_up"]]
    if report.on_cpu:
        section.say(f"**{CPU_WARNING}.**")
    else:
        section.say(f"Of {count(len(words), 'ratio')}: {tally(words, '{} {}') or 'nothing to say'}.")
    return section
