"""Which published figures can be set beside runs here."""

import csv
import io
import json
import re
import statistics
from dataclasses import dataclass, field
from importlib.resources import files

from ..comparisons import gap_text, ok_runs, setting_text
from ..layout import shown_in
from ..reading import PLACE
from ..report import Report
from ..style import PRECISIONS
from ..training_curves import last_metrics
from ..verdicts import mark_of

NUMBERS = ("batch_size", "loss_scale", "epochs", "time_seconds", "memory_mib", "metric")
ALIKE = 0.03  # the share up to which two figures without an interval count as alike
ACCURACY_ALIKE = 0.01  # of accuracies the difference: what single runs of several seeds differ by, roughly
CARD_GIB = {"Titan RTX": 24, "RTX 2080 Ti": 11, "2080 Ti and 1080 Ti": 11}  # memory, as sold


def bare(text):
    """Return a name without case and punctuation: WideResNet-28-10 and wide_resnet28_10 are one."""
    return re.sub(r"[\W_]", "", str(text)).lower()


@dataclass
class Published:
    """The published figures and the runs of a report that stand beside them."""

    report: Report
    rows: list
    beside: dict = field(default_factory=dict)  # {study: {numbers of the comparisons: published rows}}
    similar: dict = field(default_factory=dict)  # the same of articles with images of their own
    claims: dict = field(default_factory=dict)  # {study: rows of the table of its claims}


def published_text():
    """Return the published figures as CSV."""
    return files(__package__).joinpath("published_results.csv").read_text(encoding="utf-8")


def published_rows():
    """Return the published figures as dicts: numbers as float, nothing as None, and seconds per epoch."""
    rows = [{name: text or None for name, text in row.items()} for row in csv.DictReader(io.StringIO(published_text()))]
    for row in rows:
        row.update({name: float(row[name]) for name in NUMBERS if row[name]})
        epochs = {"epoch": 1, "training": row["epochs"]}.get(row["time_of"])
        row["seconds"] = row["time_seconds"] / epochs if row["time_seconds"] and epochs else None
    return rows


def of_same_model(report, row):
    """Return the numbers of the comparisons with a published row's experiment and model."""
    models = set(map(bare, (row["model"] or "").split()))
    groups = [
        (n, report.comparisons[n]) for n in report.charted if report.comparisons[n]["notebook"] == row["experiment"]
    ]
    return [number for number, group in groups if bare(group["model"]) in models]


def differences(row, group):
    """Return what forbids to set a comparison of the same model beside a published row."""
    settings, found = group["settings"], []
    if bare(group["data"]) != bare(row["dataset"]):
        found.append(f"data here {group['data']}, published {row['dataset'] or 'not stated'}")
    if row["batch_size"] is None:
        found.append("batch size not published")
    elif group["batch"] != f"b{row['batch_size']:g}":
        found.append(f"batch here {group['batch'][1:]}, published {row['batch_size']:g}")
    if settings.get("max_steps", "null") not in ("0", "null"):
        found.append(f"epochs here of {settings['max_steps']} steps")
    return found + ["not on a GPU here"] * (settings["device_type"] != '"cuda"')


def nearest_of(report, numbers, rows):
    """Return, of comparisons that differ in length alone, the one nearest to `rows`."""
    modes, epochs = {row["precision"] for row in rows}, max(row["epochs"] or 0 for row in rows)
    values = {n: report.comparisons[n]["settings"] for n in numbers}
    rest = {n: [item for item in values[n].items() if item[0] != "epochs"] for n in numbers}
    fit = {
        n: (len(modes & set(shown_in(report, n))), -abs((json.loads(values[n].get("epochs", "0")) or 0) - epochs))
        for n in numbers
    }
    return tuple(n for n in numbers if n == max((m for m in numbers if rest[m] == rest[n]), key=fit.get))


def card_of(report, number, numbers):
    """Return the lines that name a comparison among others: its device, and the settings that differ."""
    keys = [report.comparisons[other]["settings"] for other in numbers]
    names = [name for name in keys[0] if name not in PLACE and len({key.get(name) for key in keys}) > 1]
    settings_here = report.comparisons[number]["settings"]
    return [
        report.comparisons[number]["device"],
        *(setting_text(name, settings_here.get(name, "null")) for name in names),
    ]


def own_entries(report, number, numbers):
    """Return what is shown of a comparison here: a dict for each of its precisions; memory in GiB."""
    group, entries = report.comparisons[number], []
    card = "\n".join(card_of(report, number, numbers))
    for precision in shown_in(report, number):
        key, runs = (number, precision), ok_runs(group, precision)
        known = {
            "seconds": report.epoch_times.get(key),
            "memory": report.peaks.get(key),
            "device": report.whole.get(key),
        }
        one = {name: bar[0] if bar else None for name, bar in known.items()}
        one["whole"] = statistics.median(sum(run["epoch_seconds"]) for run in runs) if runs else None
        last = list(last_metrics(group, precision).values())
        one |= {"metrics": {runs[0]["metric_name"]: statistics.median(last)} if last else {}, "runs": len(last)}
        one["epochs"] = "/".join(sorted({str(run["epochs"]) for run in runs if run.get("epochs")}))
        one["ratio"] = (report.speedups.get((*key, "fp32")) or {}).get("ratio")
        one |= {"card": card, "published": False, "precision": precision, "mark": mark_of(report, *key)}
        entries.append({**one, "status": gap_text(group["runs"][precision]) or "ok"})
    return entries


def published_entries(rows):
    """Return what is shown of the published rows of one setting, likewise: a dict for each card and precision."""
    found = {}
    for row in sorted(rows, key=lambda row: list(PRECISIONS).index(row["precision"])):
        found.setdefault(row["gpu"], {}).setdefault(row["precision"], []).append(row)
    entries = []
    for gpu, modes in found.items():
        for precision, same in modes.items():
            seconds, mib = ([row[name] for row in same if row[name]] for name in ("seconds", "memory_mib"))
            one = {"seconds": statistics.median(seconds) if seconds else None}
            one |= {"memory": max(mib) / 1024 if mib else None, "device": None}
            one["whole"] = next((row["time_seconds"] for row in same if row["time_of"] == "training"), None)
            one["kind"] = next((row["memory_kind"] for row in same if row["memory_kind"]), None)
            one["metrics"] = {row["metric_name"]: row["metric"] for row in same if row["metric_name"]}
            one["epochs"] = "/".join(sorted({f"{row['epochs']:g}" for row in same if row["epochs"]}))
            one |= {"card": f"{gpu}\npublished,\nother software", "published": True, "precision": precision, "mark": ""}
            entries.append(
                {**one, "gpu": gpu, "status": next((r["status"] for r in same if r["status"] != "ok"), "ok")}
            )
    for one in entries:
        base = next((e for e in entries if (e["gpu"], e["precision"]) == (one["gpu"], "fp32")), one)
        times = base["seconds"], one["seconds"]
        one["ratio"] = times[0] / times[1] if base is not one and all(times) else None
    return entries


def match_published(report):
    """Return the published figures, each with the comparisons beside which it can stand."""
    published, beside, similar = published_rows(), {}, {}
    for row in published:
        found = {number: differences(row, report.comparisons[number]) for number in of_same_model(report, row)}
        row["fits"] = {"beside": tuple(n for n, words in found.items() if not words)}
        row["fits"]["similar"] = tuple(
            n for n, words in found.items() if [word.endswith("own images") for word in words] == [True]
        )
    for (kind, places), row in (
        (pair, row) for pair in (("beside", beside), ("similar", similar)) for row in published
    ):
        same = [one for one in published if (one["study"], one["fits"]) == (row["study"], row["fits"])]
        row[kind] = nearest_of(report, row["fits"][kind], same)
        if row[kind]:
            places.setdefault(row["study"], {}).setdefault(row[kind], []).append(row)
    return Published(report, published, beside, similar)
