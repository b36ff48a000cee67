"""The published figures and the runs beside them as rows of tables."""

from ..words import short
from .matching import differences, of_same_model


def figure_or_dash(value, form="{}"):
    return "-" if value is None else form.format(short(value))


def notes_of(rows):
    """Return the notes of published rows, each said once."""
    return "; ".join(dict.fromkeys(part for row in rows if row["note"] for part in row["note"].split("; ")))


def row_beside(title, one):
    """Return an entry as a row of the table."""
    row = {"comparison": title, "GPU": one["card"].replace("\n", " "), "precision": one["precision"]}
    row |= {"seconds per epoch": figure_or_dash(one["seconds"]) + one["mark"]}
    row |= {"whole training, s": figure_or_dash(one["whole"])}
    row |= {"memory, GiB": figure_or_dash(one["memory"]), "whole device, GiB": figure_or_dash(one["device"])}
    metrics = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in one["metrics"].items() if name]
    row |= {"metric": ", ".join(metrics) or "-", "epochs": one["epochs"] or "-"}
    return row | {"fp32 time / its time": figure_or_dash(one["ratio"], "{}x"), "status": one["status"]}


def figures_of(row):
    """Return the figures of a published row as text."""
    mode = row["precision"] + (f" at loss scale {row['loss_scale']:g}" if row["loss_scale"] else "")
    of_one = f"a {row['time_of']}".replace("a e", "an e")
    figures = [row["status"]] if row["status"] != "ok" else []
    if row["time_seconds"]:
        training = f"for {row['epochs']:g} epochs" if row["epochs"] else "for the training"
        figures.append(f"{short(row['time_seconds'])} s {training if row['time_of'] == 'training' else of_one}")
    figures += [f"{short(row['memory_mib'])} MiB"] if row["memory_mib"] else []
    figures += [f"{row['metric_name'].replace('_', ' ')} {row['metric']:.5g}"] if row["metric_name"] else []
    return f"{mode}: {', '.join(figures) or 'no figures'}"


def nearest_to(report, row):
    """Return the comparison here that differs least from a published row, and in what."""
    near = [
        (differences(row, report.comparisons[number]), report.comparisons[number]["title"])
        for number in of_same_model(report, row)
    ]
    if not near:
        if row["experiment"] == "none":
            return "not an experiment here"
        return f"no run of {row['model'].replace(' ', ', ')} here" if row["model"] else "no model is named"
    found, title = min(near, key=lambda pair: len(pair[0]))
    return f"{title}: {'; '.join(found)}"


def rows_of_rest(report, rows):
    """Return published rows as rows of a table, those of one setting in one."""
    rest, table = {}, []
    for row in rows:
        key = tuple(row[name] for name in ("study", "gpu", "model", "dataset", "batch_size"))
        rest.setdefault(key, []).append(row)
    for (study, gpu, model, dataset, size), alike in rest.items():
        begins = study not in [line["study"] for line in table]
        line = {
            "study": study * begins,
            "source": f"{alike[0]['source']} ({alike[0]['year']})" * begins,
            "GPU": gpu or "-",
        }
        what = [(model or "").replace(" ", ", "), dataset, f"b{size:g}" if size else None]
        line |= {"what": ", ".join(part for part in what if part) or "-"}
        line |= {"published": "; ".join(dict.fromkeys(map(figures_of, alike)))}
        table.append(line | {"notes": notes_of(alike) or "-", "nearest here": nearest_to(report, alike[0])})
    return table
