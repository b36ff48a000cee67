"""Section: what five articles measured beside the same figure here, what differs, n and card."""

import re
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pandas as pd
from pandas import DataFrame, isna

from ..judge.verdict import FEW_HOSTS
from ..store.record import Runs, last_metric
from .charts import SOFT, dots
from .section import File, Section
from .tables import Tables, csv_of
from .words import LOOKS, count, short_name, span

ABOUT_ARTICLES = """A run counts if model, data, batch and settings are those of a row, and for
times only if it is eager, because the articles were. Each of their figures is a single run on older
software and another card. What differs besides stands in its row, so no row is a verdict on its
article. A 95% interval stands in ( ), and the range of machines in [ ]. Memory is what nvidia-smi
shows, because the articles read it there, and ours is without the data set."""
TWO = "{:.2f}"
NO_RUN = "no run here has this form"
# of the table
ROW_FIELDS = ["article", "year", "card", "model", "batch", "settings", "precision"]
ROW_FIELDS += ["baseline", "settings_baseline", "about"]
NUMBERS = ("batch", "epochs", "value", "value_baseline")


def read_articles() -> DataFrame:
    """Return the published figures, a row each: seconds, GiB and shares; NaN, or of texts "", where
    the article says nothing.

    `value` is that of `precision`, `value_baseline` that of `baseline`. `settings` are those that a
    run here must have, as "name=value" parted by spaces; `settings_baseline` are those of the
    baseline where they differ, also its batch. `differs` says what is other here, and `untestable`
    why nothing here can test a figure.
    """
    with files(__package__).joinpath("articles.csv").open(encoding="utf-8") as opened:
        found = pd.read_csv(opened, keep_default_na=False, na_values=dict.fromkeys(NUMBERS, ""))
    found.loc[found.unit == "MiB", ["value", "value_baseline"]] /= 1024
    return found


def articles_section(tables: Tables) -> Section:
    """Return a chart of speed-ups and a table, where the study repeats articles."""
    section = Section("Articles", about=ABOUT_ARTICLES)
    if not tables.show.get("articles"):
        return section
    articles = read_articles()
    testable = articles.untestable.eq("")
    articles["ours"] = [
        counterparts(tables, row) if testable[row.Index] else [] for row in articles.itertuples()
    ]
    articles["theirs"] = [
        change_of(row.quantity, row.value, row.value_baseline) for row in articles.itertuples()
    ]
    found = articles.ours.map(bool)
    articles["differs"] = articles.differs.where(found)
    articles["reason"] = articles.untestable.replace("", NO_RUN).mask(found)
    matched = articles[found]
    if matched.empty:
        return section
    section.parts.append(File("articles.csv", csv_of(claims(articles))))
    many = count(len(articles), "published figure")
    section.finding = f"{len(matched)} of {many} stand beside ours, with what differs"
    over = matched.quantity.eq("time") & matched.baseline.isin(["fp32", "tf32"])
    over &= matched.settings_baseline.eq("") & matched.theirs.notna()
    if over.any():
        drawn = dots(article_rows(matched[over & matched.model.ne("")]))
        section.chart(drawn, "articles", f"{section.finding}.")
    section.table(table_rows(matched))
    reasons = "; ".join(dict.fromkeys(articles.untestable[~testable]))
    section.say(f"{(~testable).sum()} cannot be tested here: {reasons}.")
    missing = testable.sum() - len(matched)
    section.say(
        f"{missing} have no counterpart among these runs. articles.csv has each figure beside ours."
    )
    return section


def article_rows(times: DataFrame) -> DataFrame:
    """Return the rows of dots() of speed-ups over fp32: those of an article, a grey dot for
    each card, and ours below them.
    """
    rows = []
    for one in times.itertuples():
        ours = one.ours[0]
        batch = f"batch {one.batch:g}, " if one.batch > 0 else ""
        row = f"{ours['name']}, {batch}{short_name(one.precision)}"
        row += ", over TF32" if one.baseline == "tf32" else ""
        where = {
            "panel": f"{one.article}, {one.year}",
            "about": "times as fast as fp32, or TF32 where said; coloured: here",
            "row": row,
            "ranged": False,
        }
        there = dict(
            arm=one.card,
            ratio=one.theirs,
            label=one.card or "card not stated",
            colour=SOFT,
            mark="o",
        )
        colour, mark = LOOKS[one.precision]
        here = {name: ours[name] for name in ("ratio", "low", "high")}
        here |= dict(arm=one.precision, label=ours["device"], colour=colour, mark=mark)
        here["ranged"] = ours["outcome"] == FEW_HOSTS
        rows += [where | there, where | here]
    # a training of several cards stands once beside them
    found = DataFrame(rows).drop_duplicates(["panel", "row", "arm", "ratio"], keep="last")
    found["label"] += found.ratio.map(" {:.2f}×".format)
    return found.assign(seconds=float("nan"), takes="", strong=False)


def change_of(quantity: str, value: Any, base: Any) -> Any:
    """Return what a value says beside that of its baseline; without one it stands as it is.

    A time is told as times as fast, an accuracy or a loss as the difference, all else as the ratio.
    """
    if isna(base):
        return value
    if re.search("accuracy|loss", quantity):
        return value - base
    return base / value if quantity == "time" else value / base


def claims(articles: DataFrame) -> DataFrame:
    """Return articles.csv: a row for each published figure with ours, its interval or the range of
    its machines, n and what differs, or the reason why there is none.

    Both are told as change_of() tells them, and memory without a baseline in GiB.
    """
    rows = []
    for row in articles.itertuples():
        ours = row.ours[0] if row.ours else {}
        batch = f"batch {row.batch:g}" if row.batch > 0 else ""
        parts = [row.quantity, row.model, batch, row.settings, row.precision, row.baseline]
        parts.append(row.settings_baseline)
        rows.append(
            {
                "article": row.article,
                "year": row.year,
                "card": row.card,
                "claim": ", ".join(filter(None, parts)),
                "theirs": row.theirs,
                "ours": ours.get("change"),
                **{name: ours.get(name) for name in ("low", "high", "hosts", "device")},
                "n": ours.get("processes") or ours.get("runs"),
                "differs": row.differs,
                "reason": row.reason,
            }
        )
    return DataFrame(rows).round(4)


def counterparts(tables: Tables, row: Any) -> list[dict]:
    """Return what was found here for a published figure, once for each model; empty where nothing
    is comparable.

    Of several comparisons that whose time has an interval counts, then that with the most
    processes, with whole epochs, of the most similar length. For an accuracy the length is first.
    """
    best: dict = {}
    for number in fitting(tables, row, row.settings):
        comparison = tables.comparisons.loc[number]
        whole = not comparison.settings.get("max_steps")
        gap = abs((comparison.settings.get("epochs") or 0) - (row.epochs if row.epochs > 0 else 0))
        length = -gap if "accuracy" in row.quantity else 0
        own = tables.runs(number, row.precision)
        found = beside(tables, row, own, base_runs(tables, row, number))
        if not found:
            continue
        found |= {"name": comparison["name"], "device": comparison.device, "runs": len(own)}
        n = found.get("processes", len(own))
        rank = (bool(found.get("low")), length, n, whole, -gap)
        if comparison.model not in best or rank > best[comparison.model][0]:
            best[comparison.model] = (rank, found)
    return [found for _, found in best.values()]


def base_runs(tables: Tables, row: Any, number: int) -> Runs:
    """Return the runs here of a published figure's baseline, on the card of a comparison."""
    if not row.baseline:
        return []
    numbers = [number]
    if row.settings_baseline:
        device = tables.comparisons.device
        numbers = [
            one
            for one in fitting(tables, row, row.settings_baseline)
            if device[one] == device[number]
        ]
    return tables.runs(numbers[0], row.baseline) if numbers else []


def beside(tables: Tables, row: Any, own: Runs, base: Runs) -> dict:
    """Return what compared() says of a time, else `value` and `base`; and the `change`. Or {}.

    The seconds of another card say nothing without a baseline.
    """
    if row.quantity == "time":
        found = tables.between(own, base)
        if not found or found["untrained"]:
            return {}
        hosts = {"low": found["lowest"], "high": found["highest"]}
        return found | {"change": found["ratio"]} | (hosts if found["outcome"] == FEW_HOSTS else {})
    value, other = (
        pd.Series([figure_of(run, row.quantity) for run in runs], dtype=float).median()
        for runs in (own, base)
    )
    if isna(value) or isna(other) == bool(row.baseline):
        return {}
    return {"value": value, "base": other, "change": change_of(row.quantity, value, other)}


def fitting(tables: Tables, row: Any, settings: str) -> list[int]:
    """Return the numbers of the comparisons with the model, data, batch and settings of a
    published figure.
    """
    wanted = {"device_type": "cuda"}
    if row.quantity != "out of memory":
        wanted["memory_limit_gib"] = "0"
    if row.batch > 0:
        wanted["batch_size"] = f"{row.batch:g}"
    if "batch_size" in row.settings_baseline:
        wanted["max_steps"] = "0"  # epochs of other batches are compared whole
    wanted |= dict(one.split("=") for one in settings.split())
    ours = tables.comparisons
    fits = ours.notebook.eq(row.experiment) & ours["data"].eq(row.data)
    if row.model:
        fits &= ours.model.eq(row.model)
    if not row.quantity.endswith("accuracy"):
        fits &= ours.execution.eq("eager")
    if "batch_size" not in wanted:
        fits &= ours.batch.ne("max")
    return [
        number
        for number, known in ours.settings[fits].items()
        if all(as_text(known.get(name, 0)) == value for name, value in wanted.items())
    ]


def as_text(value: Any) -> str:
    return str(value) if isinstance(value, bool | str) else f"{value:g}"


def figure_of(run: dict, quantity: str) -> float | None:
    """Return the figure of a run that a published quantity is about; memory in GiB."""
    if quantity in ("memory", "out of memory"):
        data = run["data_on_device_mib"] or 0
        return run["device_used_mib"] and (run["device_used_mib"] - data) / 1024
    if quantity == "largest batch":
        return run["batch_size_used"]
    if quantity == "best accuracy":
        return max((one for one in run["metric"] if one is not None), default=None)
    if logged := re.fullmatch(r"train (loss|accuracy) at step (\d+)", quantity):
        column = {"loss": 2, "accuracy": 3}[logged[1]]
        return next(
            (
                line[column]
                for line in run["training_log"]
                if tuple(line[:2]) == (1, int(logged[2]))
            ),
            None,
        )
    return last_metric(run) if quantity == "accuracy" else None


def table_rows(matched: DataFrame) -> list[dict]:
    """Return a row for each training of an article: time and memory in one cell, and other
    figures in rows below.
    """
    about = matched.quantity.where(~matched.quantity.isin(["time", "memory"]), "")
    lines = []
    for _, rows in matched.assign(about=about).groupby(ROW_FIELDS, sort=False, dropna=False):
        first = rows.iloc[0]
        ours = first.ours
        over = first.settings_baseline
        parts = [
            ours[0]["name"] if first.model else "any model",
            f"batch {first.batch:g}" if first.batch > 0 else "",
            short_name(first.precision),
            first.settings,
            f"over {over}" if over else "",
        ]
        here = dict.fromkeys(ours_text(row.quantity, row.ours) for row in rows.itertuples())
        lines.append(
            {
                "Article": f"{first.article}, {first.year}",
                "Training": ", ".join(filter(None, parts)).replace("_", " ").replace("=", " "),
                "Card": first.card or "not stated",
                "There": ", ".join(map(theirs_text, rows.itertuples())),
                "Here": ", ".join(here),
                "Differs": first.differs,
                "n": ours[0].get("processes") or ours[0]["runs"],
                "Machines": ours[0].get("hosts") or "",
                "Our card": ours[0]["device"],
            }
        )
    for before, line in reversed([*pairwise(lines)]):
        line["Article"] = "" if line["Article"] == before["Article"] else line["Article"]
    return lines


def theirs_text(row: Any) -> str:
    if row.quantity == "out of memory":
        return f"out of memory ({row.value:.0f} GiB usable)"
    if isna(row.value):
        return row.note.partition("; ")[2]
    found = {"value": row.value, "base": row.value_baseline, "change": row.theirs}
    return text_of(row.quantity, found)


def ours_text(quantity: str, ours: list[dict]) -> str:
    """Return a figure of ours; that of several models as the range of their changes."""
    found = ours[0]
    if len(ours) > 1:
        ends = span([one["change"] for one in ours], TWO)
        return f"{'' if quantity == 'time' else quantity} {ends}×".strip()
    text = text_of(quantity, found)
    if not found.get("low"):
        return text
    ends = f"{found['low']:.2f} to {found['high']:.2f}"
    return f"{text} [{ends}]" if found["outcome"] == FEW_HOSTS else f"{text} ({ends})"


def text_of(quantity: str, found: dict) -> str:
    """Return a figure as text, with its change where it has a baseline."""
    change = found["change"]
    value = found.get("value")
    base = found.get("base")
    if quantity == "time":
        return f"{change:.2f}×"
    if quantity == "largest batch":
        return f"{quantity} {change:.2f}×"
    if "memory" in quantity:
        if isna(base):
            return f"memory {value:.1f} GiB"
        percent = f"{change - 1:+.0%}".replace("-", "−")
        return f"memory {'the same' if percent[1:] == '0%' else percent}"
    form = ".1%" if "accuracy" in quantity else ".3f"
    against = "" if isna(base) else f" against {base:{form}}"
    return f"{quantity.removeprefix('train ')}: {value:{form}}{against}"
