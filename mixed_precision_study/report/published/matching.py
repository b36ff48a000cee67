"""Which published figures are comparable with runs here."""

import csv
import io
import json
import re
import statistics
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from typing import Any

from ..comparisons import families, gap_text, ok_runs, setting_text
from ..quality import last_metrics, quality_against_fp32
from ..reading import PLACE
from ..report import Report
from ..style import PRECISIONS
from ..verdicts import mark_of

NUMBERS = ("batch_size", "loss_scale", "epochs", "time_seconds", "memory_mib", "metric")


@dataclass
class Published:
    """The published rows and the runs of a report that are compared with them."""

    report: Report
    rows: list[dict]
    comparable: dict = field(default_factory=dict)  # {study: {numbers of the comparisons: published rows}}
    similar: dict = field(default_factory=dict)  # the same, where only the images differ
    claims: dict = field(default_factory=dict)  # {study: rows of the table of its claims}


@dataclass
class Entry:
    """The figures of one precision on one device, from runs here or from an article. Memory is in GiB."""

    label: str  # of the device, with line breaks, as the charts show it
    precision: str
    published: bool = False
    gpu: str | None = None  # of an article
    status: str = "ok"
    seconds: float | None = None  # per epoch
    training_seconds: float | None = None
    memory: float | None = None
    memory_kind: str | None = None  # of an article: "device_used" where it gives the whole device
    device_memory: float | None = None
    metrics: dict = field(default_factory=dict)  # {name: last value, best_<name>: best value of all epochs}
    epochs: str = ""
    ratio: float | None = None  # fp32 time / its time
    quality: dict | None = None  # how the last metric differs from fp32's, see quality_difference
    mark: str = ""  # the dagger of disturbed runs


def bare(text: object) -> str:
    """Return a name without case and punctuation: WideResNet-28-10 and wide_resnet28_10 are the same."""
    return re.sub(r"[\W_]", "", str(text)).lower()


def setting(group: dict, name: str) -> Any:
    """Return a parameter of a comparison, or None where its runs lack it."""
    return json.loads(group["settings"].get(name, "null"))


def published_text() -> str:
    """Return the published figures as CSV."""
    return files(__package__).joinpath("published_results.csv").read_text(encoding="utf-8")


def published_rows() -> list[dict]:
    """Return the published rows: numbers as float, empty cells as None, and seconds per epoch where known."""
    rows: list[dict] = []
    for cells in csv.DictReader(io.StringIO(published_text())):
        row: dict[str, Any] = {name: text or None for name, text in cells.items()}
        row.update({name: float(row[name]) for name in NUMBERS if row[name]})
        epochs = {"epoch": 1, "training": row["epochs"]}.get(row["time_of"])
        row["seconds"] = row["time_seconds"] / epochs if row["time_seconds"] and epochs else None
        row["judged"] = False  # whether a claim about it was judged
        rows.append(row)
    return rows


def of_same_model(report: Report, row: dict) -> list[int]:
    """Return the numbers of the comparisons with a published row's experiment and model."""
    models = {bare(model) for model in (row["model"] or "").split()}
    numbers = [n for n in report.charted if report.comparisons[n]["notebook"] == row["experiment"]]
    return [number for number in numbers if bare(report.comparisons[number]["model"]) in models]


def differences(row: dict, group: dict) -> list[str]:
    """Return why a comparison of the same model is not comparable with a published row; empty if it is."""
    found = []
    if bare(group["data"]) != bare(row["dataset"]):
        found.append(f"data here {group['data']}, published {row['dataset'] or 'not stated'}")
    if row["batch_size"] is None:
        found.append("batch size not published")
    elif group["batch"] != f"b{row['batch_size']:g}":
        found.append(f"batch here {group['batch'][1:]}, published {row['batch_size']:g}")
    if max_steps := setting(group, "max_steps"):
        found.append(f"epochs here of {max_steps} steps")
    if setting(group, "device_type") != "cuda":
        found.append("not on a GPU here")
    return found


def nearest_in_length(report: Report, numbers: tuple[int, ...], rows: list[dict]) -> tuple[int, ...]:
    """Return `numbers` with one left of those that differ only in epochs.

    That one has the most of the published precisions, then the number of epochs nearest to the published one.
    """
    modes = {row["precision"] for row in rows}
    epochs = max(row["epochs"] or 0 for row in rows)

    def closeness(group):
        return sum(bool(group["runs"][mode]) for mode in modes), -abs((setting(group, "epochs") or 0) - epochs)

    alike = families([report.comparisons[number] for number in numbers], "epochs")
    nearest = [max(groups, key=closeness) for groups in alike]
    return tuple(number for number in numbers if report.comparisons[number] in nearest)


def card_of(report: Report, number: int, numbers: tuple[int, ...]) -> list[str]:
    """Return the lines that name a comparison among others: its device, and the settings that differ."""
    settings = [report.comparisons[other]["settings"] for other in numbers]
    group = report.comparisons[number]
    names = [name for name in settings[0] if name not in PLACE and len({each.get(name) for each in settings}) > 1]
    return [group["device"], *(setting_text(name, group["settings"].get(name, "null")) for name in names)]


def height_of(bar: tuple | None) -> float | None:
    """Return the figure that a bar of the report shows; its other parts are the smallest and the largest."""
    return bar[0] if bar else None


def own_entries(report: Report, numbers: tuple[int, ...]) -> list[Entry]:
    """Return an entry for each precision of some comparisons, with labels that tell the comparisons apart."""
    keys = [(number, name) for number in numbers for name in PRECISIONS if report.comparisons[number]["runs"][name]]
    entries = []
    for key in keys:
        number, precision = key
        group = report.comparisons[number]
        runs = ok_runs(group, precision)
        last = list(last_metrics(group, precision).values())
        entry = Entry("\n".join(card_of(report, number, numbers)), precision)
        entry.status = gap_text(group["runs"][precision]) or "ok"
        entry.seconds = height_of(report.epoch_times.get(key))
        entry.memory = height_of(report.peaks.get(key))
        entry.device_memory = height_of(report.whole.get(key))
        if runs:
            entry.training_seconds = statistics.median(sum(run["epoch_seconds"]) for run in runs)
        if last:
            name, best = runs[0]["metric_name"], max if runs[0]["metric_better"] == "higher" else min
            bests = [best(value for value in run["metric"] if value is not None) for run in runs if any(run["metric"])]
            entry.metrics = {name: statistics.median(last)}
            entry.metrics |= {f"best_{name}": statistics.median(bests)} if bests else {}
        if speedup := report.speedups.get((number, precision, "fp32")):
            entry.ratio = speedup["ratio"]
        entry.epochs = "/".join(sorted({str(run["epochs"]) for run in runs if run.get("epochs")}))
        entry.quality = quality_against_fp32(group, precision)
        entry.mark = mark_of(report, number, precision)
        entries.append(entry)
    return entries


def published_entries(rows: list[dict]) -> list[Entry]:
    """Return an entry for each GPU and precision of the published rows of one setting."""
    rows = sorted(rows, key=lambda row: list(PRECISIONS).index(row["precision"]))
    entries = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        fp32_seconds = None
        for precision, found in groupby((row for row in rows if row["gpu"] == gpu), lambda row: row["precision"]):
            same = list(found)
            seconds = [row["seconds"] for row in same if row["seconds"]]
            mib = [row["memory_mib"] for row in same if row["memory_mib"]]
            entry = Entry(f"{gpu}\npublished,\nother software", precision, published=True, gpu=gpu)
            entry.status = next((row["status"] for row in same if row["status"] != "ok"), "ok")
            entry.seconds = statistics.median(seconds) if seconds else None
            entry.training_seconds = next((row["time_seconds"] for row in same if row["time_of"] == "training"), None)
            entry.memory = max(mib) / 1024 if mib else None
            entry.memory_kind = next((row["memory_kind"] for row in same if row["memory_kind"]), None)
            entry.metrics = {row["metric_name"]: row["metric"] for row in same if row["metric_name"]}
            entry.epochs = "/".join(sorted({f"{row['epochs']:g}" for row in same if row["epochs"]}))
            if precision == "fp32":
                fp32_seconds = entry.seconds
            elif fp32_seconds and entry.seconds:
                entry.ratio = fp32_seconds / entry.seconds
            entries.append(entry)
    return entries


def match_published(report: Report) -> Published:
    """Return the published rows, each with the numbers of its "comparable" and "similar" comparisons."""
    published = Published(report, published_rows())
    for row in published.rows:
        found = {number: differences(row, report.comparisons[number]) for number in of_same_model(report, row)}
        row["fits"] = {
            "comparable": tuple(number for number, why in found.items() if not why),
            "similar": tuple(n for n, why in found.items() if len(why) == 1 and why[0].endswith("own images")),
        }
    for kind, studies in (("comparable", published.comparable), ("similar", published.similar)):
        for row in published.rows:
            same = [one for one in published.rows if (one["study"], one["fits"]) == (row["study"], row["fits"])]
            row[kind] = nearest_in_length(report, row["fits"][kind], same)
            if row[kind]:
                studies.setdefault(row["study"], {}).setdefault(row[kind], []).append(row)
    return published
