"""Section: the one table of all comparisons, and the files summary.csv (every ratio) and results.csv (every run)."""

import json
import statistics
from pathlib import Path, PurePosixPath

import pandas as pd

from ..analysis.bottleneck import find_bottleneck
from ..analysis.conditions import fairly_timed_pairs
from ..analysis.speedup import paired_runs, seconds_of_epoch
from ..analysis.verdict import interval_text
from ..record import last_metric
from .comparisons import gap_text, ok_runs, over_runs, runs_of, timed_runs
from .layout import shown_in
from .memory_use import highest_peak, memory_saved, speed_of
from .quality import difference_in_words, metric_of, outcome_in_words, quality_against_fp32
from .report import Report
from .section import File, Section
from .style import DISTURBED_MARK
from .verdicts import example, flags_in, judgement
from .words import short

TITLE = "All comparisons"
ABOUT = """A row for each precision of each comparison; its name links to a record. *GiB* leaves out the data set.
Times compare runs on one card. Quality compares runs of equal seed, on any card of one model.
[results.csv](results.csv) has every run, [summary.csv](summary.csv) every ratio."""

ROWS_OPEN = 24  # of the table; a longer one is folded
WITHOUT_FP32 = ("is", "is then", "quality", "seeds")  # columns that are empty for fp32
CONSTANT = {"is": "outcome over fp32", "is then": "outcome over tf32"}  # names of columns in the caption
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
    if found:
        said = outcome_in_words(group, precision, found)
        columns["quality_verdict"] = "not judged: CPU" if report.on_cpu else said
    return columns


def change_text(row: dict) -> str:
    """Return the change of quality of a row of summary.csv against fp32, with its 95% interval."""
    if row["quality_change"] is None:
        return "-"
    change, low, high = (row[name] for name in ("quality_change", "quality_low", "quality_high"))
    return difference_in_words(change, low, high, row["metric"], row["quality_is_ratio"])


def epochs_paired(group: dict, precision: str, baseline: str) -> int:
    """Return how many timed epochs of a precision have their counterpart."""
    pairs = fairly_timed_pairs(paired_runs(ok_runs(group, precision), ok_runs(group, baseline)))
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


def ratio_cells(row: dict | None) -> tuple[str, str]:
    """Return (the ratio of a row of summary.csv with its interval, what may be said of it)."""
    if row is None:
        return "-", "-"
    mind = f" (MIND: {row['other_conditions']})" if row["other_conditions"] else ""
    if not row["speed_up"]:
        return "-", row["verdict"] + mind
    mark = f" {DISTURBED_MARK}" if row["flags"] else ""
    ends = {"low": row["speed_up_low"], "high": row["speed_up_high"], "processes": row["processes"]}
    interval = f" ({interval_text(ends)})" if row["speed_up_low"] else ""
    return f"{row['speed_up']:.2f}x{interval}{mark}", row["verdict"] + mind


def overview_row(report: Report, number: int, precision: str, judged: dict[tuple, dict]) -> dict:
    """Return all figures of one precision of a comparison as a row of the table. `judged`: rows of summary.csv."""
    group = report.comparisons[number]
    runs, timed = ok_runs(group, precision), timed_runs(group, precision)
    over_fp32, over_tf32 = (judged.get((number, precision, baseline)) for baseline in ("fp32", "tf32"))
    faster, than_tf32 = ratio_cells(over_fp32), ratio_cells(over_tf32)
    idle = over_runs(runs, lambda run: run["gpu_busy_fraction"])
    memory = highest_peak(runs)
    saved = over_fp32["memory_saved_percent"] if over_fp32 else None
    seconds = seconds_of_epoch(timed) if timed else None
    energy = over_runs(timed, lambda run: run["joules_per_1000_samples"])
    return {
        "comparison": group["title"],
        "precision": precision,
        "over fp32": faster[0],
        "is": faster[1],
        "over tf32": than_tf32[0],
        "is then": than_tf32[1],
        "s/epoch": short(seconds) if seconds is not None else gap_text(group["runs"][precision]) or "-",
        "samples/s": cell_of(speed_of(timed)),
        "GiB": "-" if memory is None else f"{memory:.2f}",
        "saved": "-" if saved is None else f"{round(saved)}%",
        "J per 1,000": cell_of(energy),
        "idle": "-" if idle is None else f"{max(0.0, 1 - idle):.0%}",
        "limited by": find_bottleneck(example(group, precision))[0] if runs and not report.on_cpu else "-",
        # a mean, as the change beside it is a difference of means
        "last metric": cell_of(over_runs(runs, last_metric, statistics.fmean)),
        "change": change_text(over_fp32) if over_fp32 else "-",
        "quality": (over_fp32 or {}).get("quality_verdict") or "-",
        "seeds": (over_fp32 or {}).get("quality_seeds") or "-",
        "processes": len(runs),
    }


def cell_of(value: float | None) -> str:
    """Return a number with three significant digits, "-" for None."""
    return "-" if value is None else short(value)


def overview_rows(report: Report, judged: list[dict]) -> tuple[list[dict], list[str]]:
    """Return (a row for each precision of each comparison, the address of a record of each)."""
    keys = [key for key in report.sentences if key[1] != "fp32"]
    by_key = dict(zip(keys, judged, strict=True))
    rows, links = [], []
    for number, group in enumerate(report.comparisons):
        for precision in shown_in(report, number):
            rows.append(overview_row(report, number, precision, by_key))
            links.append(address_of(report, group["runs"][precision][0]))
    return rows, links


def address_of(report: Report, record: dict) -> str:
    """Return the address of a record beside the report, or "" where it lies in an archive or on another drive."""
    path = str(record.get("path", ""))
    return path if not PurePosixPath(path).is_absolute() and Path(report.folder, path).is_file() else ""


def without_constants(rows: list[dict]) -> tuple[list[dict], str]:
    """Return the rows without the columns that hold one value or nothing, and a caption that names those values."""
    told = {}
    for name in list(rows[0])[2:]:
        values = {row[name] for row in rows}
        if name in WITHOUT_FP32:
            values -= {"-"}
        if len(values) <= 1 and len(rows) > 1:
            value = next(iter(values), "-")
            told[name] = None if value == "-" else value
    kept = [{name: value for name, value in row.items() if name not in told} for row in rows]
    known = [f"{CONSTANT.get(name, name)}: {value}" for name, value in told.items() if value is not None]
    return kept, f"In all rows: {'; '.join(known)}." if known else ""


def result_row(report: Report, number: int, record: dict, judged: dict[tuple, dict]) -> dict:
    """Return all that is known of a run as a row of results.csv: lists of numbers as median and count."""
    row: dict = {}
    for name, value in record.items():
        if not isinstance(value, list):
            row[name] = value
        elif all(isinstance(one, int | float) for one in value):
            row[f"{name}_median"] = statistics.median(value) if value else None
            row[f"{name}_count"] = len(value)
        else:
            row[name] = json.dumps(value)
    for baseline in ("fp32", "tf32"):
        found = judged.get((number, record["precision"], baseline), {})
        for name in ("speed_up", "speed_up_low", "speed_up_high", "verdict"):
            row[f"{name}_over_{baseline}"] = found.get(name)
    found = judged.get((number, record["precision"], "fp32"), {})
    return row | {name: found.get(name) for name in ("memory_saved_percent", "quality_change", "quality_verdict")}


def results_csv(report: Report, judged: dict[tuple, dict]) -> bytes:
    """Return results.csv: every run of the report, with its parameters, its figures and what was judged of it."""
    numbers = {id(run): number for number, group in enumerate(report.comparisons) for run in runs_of([group])}
    rows = [result_row(report, numbers.get(id(run), -1), run, judged) for run in report.measured]
    return csv_of(rows)


def csv_of(rows: list[dict]) -> bytes:
    """Return rows as CSV. A text that a spreadsheet would run as a formula, or a key, begins with an apostrophe."""
    frame = pd.DataFrame([{inert(name): inert(value) for name, value in row.items()} for row in rows])
    return frame.convert_dtypes().to_csv(index=False).encode()


def inert(value: object) -> object:
    """Return a value with an apostrophe before a text that begins as a formula does. Numbers stay what they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def table_rows(report: Report) -> list[dict]:
    """Return the rows of summary.csv."""
    return [table_row(report, *key) for key in report.sentences if key[1] != "fp32"]


def section(report: Report) -> Section:
    """Return the table and the files summary.csv and results.csv."""
    section = Section(TITLE, ABOUT) if report.used else Section()
    judged = table_rows(report)
    keys = [key for key in report.sentences if key[1] != "fp32"]
    rows, links = overview_rows(report, judged)
    if rows:
        kept, caption = without_constants(rows)
        folded = TITLE if len(kept) > ROWS_OPEN else ""
        section.table(kept, folded, caption=caption, links=links, sortable=True)
        section.parts.append(File("summary.csv", csv_of(judged)))
    if report.measured:
        section.parts.append(File("results.csv", results_csv(report, dict(zip(keys, judged, strict=True)))))
    return section
