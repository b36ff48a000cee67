"""Section: speed-up, memory saved, change of quality, and summary.csv."""

import statistics
from collections import Counter

import pandas as pd

from ..analysis.bottleneck import find_bottleneck
from ..analysis.speedup import paired_runs
from .comparisons import gap_text, ok_runs
from .memory_use import memory_saved
from .section import File, Section
from .style import DAGGER, LOUD
from .theme import chart_style
from .training_curves import last_metrics, metric_of
from .verdicts import example, flags_in, judgement, said_once
from .words import count, span


def quality_change(report, group, precision, baseline):
    """Return (mean, smallest, largest, seeds, word) of the last metric's difference between equal runs, or Nones.

    Repetitions of one seed count as one: their mean.
    """
    own, other = last_metrics(group, precision), last_metrics(group, baseline)
    by_seed = {}
    for run in own.keys() & other.keys():
        by_seed.setdefault(run[0], []).append(own[run] - other[run])
    if not (changes := [statistics.fmean(found) for found in by_seed.values()]):
        return (None,) * 5
    mean, low, high = statistics.fmean(changes), min(changes), max(changes)
    equal = abs(mean) <= 0.0005 * abs(statistics.fmean(other.values())) or low < 0 < high
    better, alone = (mean > 0) == (metric_of(group)[1] == "higher"), len(changes) == 1
    word = "equal" if equal else "one seed, so no verdict" if alone else "better" if better else "worse"
    return mean, low, high, len(changes), "not judged: CPU" if report.on_cpu else word


def epochs_paired(group, precision, baseline):
    """Return how many epochs of a precision have their counterpart."""
    pairs = paired_runs(ok_runs(group, precision), ok_runs(group, baseline))
    return sum(min(len(run["epoch_seconds"]) for run in pair) for pair in pairs)


def table_row(report, number, precision, baseline):
    """Return the figures of one precision against one baseline: a row of summary.csv."""
    group, speedup = report.comparisons[number], report.speedups.get((number, precision, baseline))
    row = {name: group[name] for name in ("notebook", "title", "device", "data", "model")}
    row |= {"batch_size": group["batch"][1:], "precision": precision, "baseline": baseline}
    missing = [f"{name}: {gap_text(group['runs'][name])}" for name in (precision, baseline) if not ok_runs(group, name)]
    row["verdict"] = judgement(report, speedup) if speedup else "; ".join(missing)
    fields = {"speed_up": "ratio", "speed_up_low": "low", "speed_up_high": "high", "pairs": "pairs"}
    fields |= {"repetitions": "repetitions", "paired_seeds": "seeds"}
    row |= {name: (speedup or {}).get(field) for name, field in fields.items()}
    row |= {"paired_epochs": epochs_paired(group, precision, baseline) if speedup else None}
    row |= {"memory_saved_percent": memory_saved(group, precision, baseline), "metric": metric_of(group)[0]}
    names = ("quality_change", "quality_change_low", "quality_change_high", "quality_seeds", "quality_verdict")
    row |= dict(zip(names, quality_change(report, group, precision, baseline), strict=True))
    row["limit"] = find_bottleneck(example(group, precision))[0] if speedup and not report.on_cpu else None
    row["flags"] = "; ".join(flags_in(group, precision, baseline)) or None
    return row | {"verdict_text": report.sentences[number, precision, baseline]}


def row_text(row):
    """Return a row as a person reads it."""
    text = {"comparison": f"{row['notebook']}: {row['title']}", "precision": row["precision"]}
    text |= {"against": row["baseline"], "speed-up": "-", "95% interval": "-", "n": "-", "verdict": row["verdict"]}
    if row["speed_up"]:
        text["speed-up"] = f"{row['speed_up']:.2f}x{f' {DAGGER}' * bool(row['flags'])}"
    if row["pairs"]:
        ends = row["speed_up_low"], row["speed_up_high"]
        text["95% interval"] = "-" if None in ends else span(ends, "{:.2f}")
        text["n"] = f"{count(row['pairs'], 'pair')}, {count(row['repetitions'], 'repetition')}"
    text["limited by"] = row["limit"] or "-"
    saved, change = row["memory_saved_percent"], row["quality_change"]
    text["memory saved"] = "-" if saved is None else f"{round(saved)}%"
    text["quality"] = "-" if change is None else f"{row['metric']} {change:+.3g}: {row['quality_verdict']}"
    if (row["quality_seeds"] or 0) > 1:
        text["quality"] += f" (seeds {span([row['quality_change_low'], row['quality_change_high']], '{:+.3g}')})"
    return text | {"quality": text["quality"].removesuffix(", so no verdict")}


def table_rows(report):
    """Return the rows of summary.csv."""
    return [table_row(report, *key) for key in report.sentences if key[1] != "fp32"]


@chart_style()
def section(report):
    """Return the table and the file summary.csv."""
    section, rows = Section(), table_rows(report)
    if rows:
        section.table(said_once([row_text(row) for row in rows]))
        content = pd.DataFrame(rows).convert_dtypes().to_csv(index=False).encode()
        section.parts.append(File("summary.csv", content))
    words = Counter(row["verdict"] for row in rows if row["speed_up"])
    said = ", ".join(f"{word} {number}" for word, number in words.items())
    section.say(
        f"**{LOUD}.**" if report.on_cpu else f"Of {count(sum(words.values()), 'ratio')}: {said or 'nothing to say'}."
    )
    return section
