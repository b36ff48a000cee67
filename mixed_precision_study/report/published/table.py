"""Tables of the published figures and of the runs compared with them."""

from collections.abc import Iterable

from ..report import Report
from ..words import short
from .matching import Entry, differences, of_same_model

UNITS = {"epoch": "s an epoch", "frame": "s a frame"}


def figure_or_dash(value: float | None, form: str = "{}") -> str:
    return "-" if value is None else form.format(short(value))


def notes_of(rows: Iterable[dict]) -> str:
    """Return the notes of published rows, each said once."""
    return "; ".join(dict.fromkeys(part for row in rows if row["note"] for part in row["note"].split("; ")))


def row_of_entry(title: str, entry: Entry) -> dict:
    """Return an entry as a row of the table."""
    metrics = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in entry.metrics.items() if name]
    return {
        "comparison": title,
        "GPU": entry.label.replace("\n", " "),
        "precision": entry.precision,
        "seconds per epoch": figure_or_dash(entry.seconds) + entry.mark,
        "whole training, s": figure_or_dash(entry.training_seconds),
        "memory, GiB": figure_or_dash(entry.memory),
        "whole device, GiB": figure_or_dash(entry.device_memory),
        "metric": ", ".join(metrics) or "-",
        "epochs": entry.epochs or "-",
        "fp32 time / its time": figure_or_dash(entry.ratio, "{}x"),
        "status": entry.status,
    }


def figures_of(row: dict) -> str:
    """Return the figures of a published row as text."""
    figures = [] if row["status"] == "ok" else [row["status"]]
    if row["time_seconds"]:
        training = f"s for {row['epochs']:g} epochs" if row["epochs"] else "s for the training"
        unit = training if row["time_of"] == "training" else UNITS[row["time_of"]]
        figures.append(f"{short(row['time_seconds'])} {unit}")
    if row["memory_mib"]:
        figures.append(f"{short(row['memory_mib'])} MiB")
    if row["metric_name"]:
        figures.append(f"{row['metric_name'].replace('_', ' ')} {row['metric']:.5g}")
    scale = f" at loss scale {row['loss_scale']:g}" if row["loss_scale"] else ""
    return f"{row['precision']}{scale}: {', '.join(figures) or 'no figures'}"


def nearest_to(report: Report, row: dict) -> str:
    """Return the comparison here that differs least from a published row, and in what."""
    groups = [report.comparisons[number] for number in of_same_model(report, row)]
    if groups:
        found = [(group["title"], differences(row, group)) for group in groups]
        title, reasons = min(found, key=lambda pair: len(pair[1]))
        return f"{title}: {'; '.join(reasons)}"
    if row["experiment"] == "none":
        return "not an experiment here"
    return f"no run of {row['model'].replace(' ', ', ')} here" if row["model"] else "no model is named"


def rows_of_rest(report: Report, rows: list[dict]) -> list[dict]:
    """Return published rows as rows of a table: one for each setting, and each study named once."""
    settings: dict[tuple, list[dict]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("study", "gpu", "model", "dataset", "batch_size"))
        settings.setdefault(key, []).append(row)
    table = []
    named = set()
    for (study, gpu, model, dataset, batch_size), alike in settings.items():
        first = alike[0]
        what = [(model or "").replace(" ", ", "), dataset, f"b{batch_size:g}" if batch_size else None]
        line = {
            "study": "" if study in named else study,
            "source": "" if study in named else f"{first['source']} ({first['year']})",
            "GPU": gpu or "-",
            "what": ", ".join(part for part in what if part) or "-",
            "published": "; ".join(dict.fromkeys(map(figures_of, alike))),
            "notes": notes_of(alike) or "-",
            "nearest here": nearest_to(report, first),
        }
        table.append(line)
        named.add(study)
    return table
