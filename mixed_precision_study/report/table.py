"""Section: speed-up, memory saved, change of quality, and summary.csv."""

import statistics

import pandas as pd

from ..analysis.bottleneck import find_bottleneck
from ..analysis.speedup import paired_runs
from .comparisons import gap_text, ok_runs
from .memory_use import memory_saved
from .report import Report
from .section import File, Section
from .style import CPU_WARNING, DISTURBED_MARK
from .theme import chart_style
from .training_curves import last_metrics, metric_of
from .verdicts import example, flags_in, judgement, said_once
from .words import count, span, tally

ONE_SEED = "one seed, so no verdict"


def quality_change(report: Report, group: dict, precision: str, baseline: str) -> dict:
    """Return the columns on the difference of the last metric between equal runs; None where there are none.

    They are mean, smallest, largest, number of seeds and a word. Repetitions of one seed count as one: their mean.
    """
    own, other = last_metrics(group, precision), last_metrics(group, baseline)
    by_seed: dict[int, list[float]] = {}
    for run in own.keys() & other.keys():
        by_seed.setdefault(run[0], []).append(own[run] - other[run])
    changes = [statistics.fmean(found) for found in by_seed.values()]
    if not changes:
        names = ("quality_change", "quality_change_low", "quality_change_high", "quality_seeds", "quality_verdict")
        return dict.fromkeys(names)
    mean, low, high = statistics.fmean(changes), min(changes), max(changes)
    if report.on_cpu:
        word = "not judged: CPU"
    elif abs(mean) <= 0.0005 * abs(statistics.fmean(other.values())) or low < 0 < high:
        word = "equal"
    elif len(changes) == 1:
        word = ONE_SEED
    else:
        word = "better" if (mean > 0) == (metric_of(group)[1] == "higher") else "worse"
    return {
        "quality_change": mean,
        "quality_change_low": low,
        "quality_change_high": high,
        "quality_seeds": len(changes),
        "quality_verdict": word,
    }


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
        "pairs": known.get("pairs"),
        "repetitions": known.get("repetitions"),
        "paired_seeds": known.get("seeds"),
        "paired_epochs": epochs_paired(group, precision, baseline) if speedup else None,
        "memory_saved_percent": memory_saved(group, precision, baseline),
        "metric": metric_of(group)[0],
        **quality_change(report, group, precision, baseline),
        "limit": find_bottleneck(example(group, precision))[0] if speedup and not report.on_cpu else None,
        "flags": "; ".join(flags_in(group, precision, baseline)) or None,
        "verdict_text": report.sentences[number, precision, baseline],
    }


def row_text(row: dict) -> dict:
    """Return a row of summary.csv as a row of the table."""
    speedup = interval = pairs = "-"
    if row["speed_up"]:
        speedup = f"{row['speed_up']:.2f}x{f' {DISTURBED_MARK}' if row['flags'] else ''}"
    if row["pairs"]:
        ends = [row["speed_up_low"], row["speed_up_high"]]
        interval = "-" if None in ends else span(ends, "{:.2f}")
        pairs = f"{count(row['pairs'], 'pair')}, {count(row['repetitions'], 'repetition')}"
    saved, quality = row["memory_saved_percent"], "-"
    if row["quality_change"] is not None:
        word = "one seed" if row["quality_verdict"] == ONE_SEED else row["quality_verdict"]
        quality = f"{row['metric']} {row['quality_change']:+.3g}: {word}"
        if row["quality_seeds"] > 1:
            quality += f" (seeds {span([row['quality_change_low'], row['quality_change_high']], '{:+.3g}')})"
    return {
        "comparison": f"{row['notebook']}: {row['title']}",
        "precision": row["precision"],
        "against": row["baseline"],
        "speed-up": speedup,
        "95% interval": interval,
        "n": pairs,
        "verdict": row["verdict"],
        "limited by": row["limit"] or "-",
        "memory saved": "-" if saved is None else f"{round(saved)}%",
        "quality": quality,
    }


def table_rows(report: Report) -> list[dict]:
    """Return the rows of summary.csv."""
    return [table_row(report, *key) for key in report.sentences if key[1] != "fp32"]


@chart_style()
def section(report: Report) -> Section:
    """Return the table and the file summary.csv."""
    section, rows = Section(), table_rows(report)
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
