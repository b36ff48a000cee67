"""Section: what five articles measured beside the same ratio here: direction and size, with n and card."""

import re
from importlib.resources import files
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from ..judge.arms import peak_gib
from ..judge.verdict import FEW_HOSTS
from ..store.record import last_metric
from .charts import PANEL, PAPER, SOFT, chart_style
from .names import COLOURS, short_name
from .section import File, Section
from .tables import Tables, csv_of
from .words import count, listed, plain, span

ABOUT = """A run counts if model, data, batch and settings are those of the article, and for times only if it is eager,
because the articles were. Each of their figures is a single run on older software. A 95% interval stands in ( ), and
the range of hosts in [ ]. `O2` and fp16 AMP stand in for each other. EfficientNet's article has images of its own."""
TWO = "{:.2f}"
TIME_MARGIN = 0.05  # a smaller change of time counts as none
HOLDS = "holds"
# mixed precision was O2 before there was autocast
STAND_IN = {"amp_fp16": "o2_fp16", "o2_fp16": "amp_fp16"}
# of the table
ROW_FIELDS = ["article", "year", "card", "model", "batch", "settings", "precision", "about"]


def read_articles() -> pd.DataFrame:
    """Return the published figures, a row each: seconds, MiB and shares; NaN where the article says nothing.

    `value` is that of `precision`, `value_baseline` that of `baseline`. `settings` are those that a run here must have,
    as "name=value" parted by spaces; `settings_baseline` are those of the baseline where they differ. `untestable` says
    why nothing here can test a figure.
    """
    with files(__package__).joinpath("articles.csv").open(encoding="utf-8") as opened:
        return pd.read_csv(opened)


def section(tables: Tables) -> Section:
    """Return a chart of speed-ups and a table, where the study repeats articles."""
    section = Section("Articles", about=ABOUT)
    if not tables.show.get("articles"):
        return section
    articles = read_articles()
    testable = articles.untestable.isna()
    articles["ours"] = [
        counterparts(tables, row) if testable[row.Index] else [] for row in articles.itertuples()
    ]
    matched = articles[articles.ours.map(bool)]
    if matched.empty:
        return section
    section.parts.append(File("articles.csv", csv_of(claims(articles))))
    times = matched[
        (matched.quantity == "time") & (matched.baseline == "fp32") & matched.model.notna()
    ]
    if len(times):
        times = times.assign(
            theirs=times.value_baseline / times.value,
            own=[found[0]["ratio"] for found in times.ours],
        )
        times["name"] = [found[0]["name"] for found in times.ours]
        times["held"] = [
            held(theirs, found[0]) for theirs, found in zip(times.theirs, times.ours, strict=True)
        ]
        same = count(len(times), "published speed-up")
        section.finding = f"{(times.held == HOLDS).sum()} of {same} have the same direction here"
        section.chart(draw(times), "articles", f"{section.finding}.")
        for (article, year), rows in times.groupby(["article", "year"], sort=False):
            theirs, own = span(rows.theirs, TWO), span(rows.own, TWO)
            processes = span([found[0]["processes"] for found in rows.ours])
            found = f"*{plain(article)}* ({year}) found fp16 {theirs} times as fast as fp32"
            parts = [
                f"{how} for {listed(list(dict.fromkeys(some.name + ' on ' + some.card)), 'and')}"
                for how, some in rows.groupby("held", sort=False)
            ]
            direction = ", but ".join(parts) if len(parts) > 1 else rows.held.iloc[0]
            section.say(
                f"- {found}, and here it is {own} (n = {processes}). Its direction {direction}."
            )
    section.table(table_rows(matched))
    reasons = "; ".join(dict.fromkeys(articles.untestable[~testable]))
    section.say(
        f"{(~testable).sum()} of {len(articles)} published figures cannot be tested here: {reasons}."
    )
    missing = testable.sum() - len(matched)
    section.say(
        f"{missing} have no counterpart among these runs. articles.csv has each figure beside ours."
    )
    return section


def held(theirs: float, ours: dict) -> str:
    """Return whether the direction of an article's ratio holds here, as the middle of a sentence."""
    if ours["low"] and ours["low"] <= 1 <= ours["high"]:
        return "is undecided"
    up, down = (
        (ratio > 1 + TIME_MARGIN, ratio < 1 - TIME_MARGIN) for ratio in (theirs, ours["ratio"])
    )
    return HOLDS if up == down else "does not hold"


def claims(articles: pd.DataFrame) -> pd.DataFrame:
    """Return articles.csv: a row for each published figure with ours, its interval or the range of its hosts, and n.

    A time is given as times as fast as the baseline, memory and the largest batch as the ratio to the baseline's, and
    an accuracy or a loss as the difference from it. A figure without a baseline stands as it is, memory in GiB.
    """
    rows = []
    for row in articles.itertuples():
        ours = row.ours[0] if row.ours else {}
        gib = 1024 if row.unit == "MiB" else 1
        value, base = row.value / gib, row.value_baseline / gib
        if pd.isna(base):
            theirs, own = value, ours.get("value")
        elif re.search("accuracy|loss", row.quantity):
            theirs, own = value - base, ours["value"] - ours["base"] if ours else None
        else:
            theirs, own = (
                base / value if row.quantity == "time" else value / base,
                ours.get("ratio"),
            )
        batch = f"batch {row.batch:g}" if row.batch > 0 else None
        parts = [row.quantity, row.model, batch, row.settings, row.precision, row.baseline]
        line = {
            "article": row.article,
            "year": row.year,
            "card": row.card,
            "claim": ", ".join(part for part in parts if not pd.isna(part)),
            "theirs": theirs,
            "ours": own,
            **{name: ours.get(name) for name in ("low", "high", "hosts", "device")},
            "n": ours.get("processes") or ours.get("runs"),
            "testable": pd.isna(row.untestable),
            "reason": row.untestable,
        }
        rows.append(line)
    return pd.DataFrame(rows).round(4)


def counterparts(tables: Tables, row: Any) -> list[dict]:
    """Return what was found here for a published figure, once for each model; empty where nothing is comparable.

    Of several comparisons the one with the article's precision counts, then that whose time has an interval, then that
    with whole epochs, with the most processes, of the most similar length. `value` and `base` are read from runs, and a
    time has the keys of a ratio.
    """
    time = row.quantity == "time"
    if time and pd.isna(row.baseline):
        return []  # the seconds of another card alone say nothing
    best: dict[str, tuple] = {}
    for number in fitting(tables, row, row.settings):
        comparison = tables.comparisons.loc[number]
        bases = (
            [number]
            if pd.isna(row.settings_baseline)
            else fitting(tables, row, row.settings_baseline)
        )
        bases = [base for base in bases if tables.comparisons.device[base] == comparison.device]
        whole = not comparison.settings.get("max_steps")
        gap = abs(
            (comparison.settings.get("epochs") or 0) - (0 if pd.isna(row.epochs) else row.epochs)
        )
        for precision in filter(None, (row.precision, STAND_IN.get(row.precision))):
            own = tables.runs(number, precision)
            base = (
                []
                if pd.isna(row.baseline)
                else tables.runs(bases[0], row.baseline)
                if bases
                else []
            )
            if not own or not (base or pd.isna(row.baseline)):
                continue
            found: dict[str, Any] = comparison[["name", "device"]].to_dict() | {
                "precision": precision,
                "runs": len(own),
            }
            if time:
                found |= tables.between(own, base) or {}
                if "ratio" not in found or found["untrained"]:
                    continue
                if found["outcome"] == FEW_HOSTS:
                    found |= {"low": found["lowest"], "high": found["highest"]}
            else:
                sides = [
                    pd.Series([figure_of(run, row.quantity) for run in runs]).median()
                    for runs in (own, base)
                ]
                if pd.isna(sides[0]) or (base and pd.isna(sides[1])):
                    continue
                found |= {
                    "value": sides[0],
                    "base": sides[1],
                    "ratio": sides[0] / sides[1] if base else None,
                }
            length = -gap if "accuracy" in row.quantity else 0
            processes = found.get("processes", len(own))
            rank = (
                precision == row.precision,
                bool(found.get("low")),
                whole,
                length,
                processes,
                -gap,
            )
            if comparison.model not in best or rank > best[comparison.model][0]:
                best[comparison.model] = (rank, found)
    return [found for _, found in best.values()]


def fitting(tables: Tables, row: Any, settings: Any) -> list[int]:
    """Return the numbers of the comparisons with the model, data, batch and settings of a published figure."""
    wanted = {"memory_limit_gib": "0"} if row.quantity != "out of memory" else {}
    wanted |= {} if pd.isna(settings) else dict(one.split("=") for one in settings.split())
    numbers = []
    for number, ours in tables.comparisons.iterrows():
        known = {
            name: f"{one:g}" if isinstance(one, int | float) else str(one)
            for name, one in ours.settings.items()
        }
        batch = "max" if row.quantity == "largest batch" else row.batch
        fits = (
            ours.notebook == row.experiment
            and ours["data"] == row.data
            and known.get("device_type") == "cuda"
        )
        fits &= pd.isna(row.model) or ours.model == row.model
        fits &= (ours.batch != "max") if pd.isna(batch) else ours.batch == batch
        fits &= ours.execution == "eager" or row.quantity.endswith("accuracy")
        if fits and all(known.get(name, "0") == value for name, value in wanted.items()):
            numbers.append(number)
    return numbers


def figure_of(run: dict, quantity: str) -> float | None:
    """Return the figure of a run that a published quantity is about; memory in GiB."""
    if quantity in ("memory", "out of memory"):
        return peak_gib(run)
    if quantity == "card memory":
        return run["device_used_mib"] and run["device_used_mib"] / 1024
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


def draw(times: pd.DataFrame) -> list[Figure]:
    """Draw a line for each training: a diamond for ours, with its interval, and a ring for each article's card."""
    used = times.assign(used=[found[0]["precision"] for found in times.ours])
    groups = list(used.groupby(["name", "batch", "used"], sort=False, dropna=False))
    ends = (
        times[["theirs", "own"]].min(axis=None) / 1.35,
        times[["theirs", "own"]].max(axis=None) * 1.25,
    )
    half = (len(groups) + 1) // 2
    return [draw_panel(part, ends) for part in (groups[:half], groups[half:]) if part]


def draw_panel(groups: list[tuple], ends: tuple[float, float]) -> Figure:
    # hides the dotted line behind the name of a card
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0}
    near: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "bbox": ground,
        "zorder": 1,
    }
    with chart_style():
        figure, axes = plt.subplots(figsize=(PANEL, 0.8 + 0.62 * len(groups)), layout="constrained")
        for place, ((name, batch, precision), rows) in enumerate(groups):
            ours, ratios = rows.ours.iloc[0][0], [*rows.theirs, *rows.own]
            axes.vlines(1, place - 0.15, place + 0.15, color=SOFT, linestyle=":", zorder=0)
            axes.hlines(place, min(ratios), max(ratios), color=SOFT, linewidth=1.5)
            axes.plot(
                rows.theirs, [place] * len(rows), "o", markerfacecolor="none", markeredgecolor=SOFT
            )
            axes.plot(ours["ratio"], place, "D", color=COLOURS[precision], gid=f"ours {place}")
            if ours["low"]:
                axes.hlines(
                    place,
                    ours["low"],
                    ours["high"],
                    color=COLOURS[precision],
                    linewidth=4,
                    alpha=0.5,
                )
            axes.annotate(ours["device"], (ours["ratio"], place), (0, 5), **near)
            for card, ratio in rows.groupby("card").theirs.mean().items():
                axes.annotate(card, (ratio, place), (0, -6), va="top", **near)
            label = (
                f"{name}, {'' if pd.isna(batch) else f'batch {batch:g}, '}{short_name(precision)}"
            )
            axes.annotate(
                label,
                (0, place),
                (0, 17),
                axes.get_yaxis_transform(),
                "offset points",
                weight="bold",
            )
        axes.set(xscale="log", xlim=ends, ylim=(len(groups) - 0.45, -0.75), yticks=[])
        axes.set_xlabel("times as fast as fp32\nring: the article, diamond: here")
        axes.set_xticks(
            [tick for tick in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20) if ends[0] < tick < ends[1]]
        )
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.spines["left"].set_visible(False)
    return figure


def table_rows(matched: pd.DataFrame) -> list[dict]:
    """Return a row for each training of an article: time and memory in one cell, and other figures in rows below."""
    about = matched.quantity.where(~matched.quantity.isin(["time", "memory", "card memory"]), "")
    lines = []
    for _, rows in matched.assign(about=about).groupby(ROW_FIELDS, sort=False, dropna=False):
        first, ours = rows.iloc[0], rows.iloc[0].ours
        name = "any model" if pd.isna(first.model) else ours[0]["name"]
        name += " (assumed)" if "assumed" in str(first.note) else ""
        scale = first.settings if first.baseline == first.precision else ""
        parts = [
            name,
            f"batch {first.batch:g}" if first.batch > 0 else "",
            short_name(first.precision),
            scale,
        ]
        here = list(dict.fromkeys(ours_text(row.quantity, row.ours) for row in rows.itertuples()))
        if ours[0]["precision"] != first.precision:
            here.append(f"in {short_name(ours[0]['precision'])}")
        lines.append(
            {
                "Article": f"{first.article}, {first.year}",
                "Training": ", ".join(filter(None, parts)).replace("_", " ").replace("=", " "),
                "Card": "not stated" if pd.isna(first.card) else first.card,
                "There": ", ".join(map(theirs_text, rows.itertuples())),
                "Here": ", ".join(here),
                "n": ours[0].get("processes") or ours[0]["runs"],
                "Hosts": ours[0].get("hosts") or "",
                "Our card": ours[0]["device"],
            }
        )
    for line, before in reversed(list(zip(lines[1:], lines, strict=False))):
        line["Article"] = "" if line["Article"] == before["Article"] else line["Article"]
    return lines


def theirs_text(row: Any) -> str:
    gib = 1024 if row.unit == "MiB" else 1
    if row.quantity == "out of memory":
        return f"out of memory ({row.value / gib:.0f} GiB usable)"
    if pd.isna(row.value):
        return str(row.note).partition("; ")[2]
    ratio = row.value / row.value_baseline
    return text_of(
        row.quantity,
        row.value / gib,
        row.value_baseline / gib,
        1 / ratio if row.quantity == "time" else ratio,
    )


def ours_text(quantity: str, ours: list[dict]) -> str:
    """Return a figure of ours; that of several models as the range of their ratios."""
    found = ours[0]
    if len(ours) > 1:
        ratios = [one["ratio"] for one in ours]
        return f"{'' if quantity == 'time' else quantity} {min(ratios):.2f} to {max(ratios):.2f}×".strip()
    text = text_of(quantity, found.get("value"), found.get("base"), found["ratio"])
    if not found.get("low"):
        return text
    ends = f"{found['low']:.2f} to {found['high']:.2f}"
    return f"{text} [{ends}]" if found["outcome"] == FEW_HOSTS else f"{text} ({ends})"


def text_of(quantity: str, value: Any, base: Any, ratio: Any) -> str:
    if quantity == "time":
        return f"{ratio:.2f}×"
    if quantity == "largest batch":
        return f"{quantity} {ratio:.2f}×"
    if "memory" in quantity:
        name = "card memory" if quantity == "card memory" else "memory"
        change = "" if pd.isna(base) else f"{ratio - 1:+.0%}".replace("-", "−")
        return f"{name} {'the same' if change in ('+0%', '−0%') else change or f'{value:.1f} GiB'}"
    form = ".1%" if "accuracy" in quantity else ".3f"
    return f"{quantity.removeprefix('train ')}: {value:{form}}" + (
        "" if pd.isna(base) else f" against {base:{form}}"
    )
