"""Section: how far each precision ends from fp32 in quality, in units of a margin that was fixed
beforehand.
"""

import textwrap
from statistics import fmean

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from ..judge.divergence import gain_over_chance
from ..judge.equivalence import AS_GOOD, FEWEST_SEEDS_FOR_OUTCOME, WORSE
from ..judge.time_to_target import ToTarget, target_of, to_target
from ..store.record import Runs
from .charts import GROUND, LETTER, LINE_HIGH, PANEL, SOFT, framed
from .section import Section
from .tables import Tables
from .words import count, listed, outcome_words, plain, short, span

ABOUT_QUALITY = """The last metric on held-out data is compared with that of fp32 over equal seeds.
*Equivalent* means that the 90% interval lies inside the margin (shaded), and *not worse* that its
worse end does; a verdict takes five seeds."""
WIDEST = 4.0  # margins on either side of 0: what lies beyond stands as an arrow at the edge
LONG_NAME = 24  # letters of an arm's name in a line


def quality_section(tables: Tables) -> Section:
    """Return the differences from fp32, or why quality cannot be judged, and how the trainings
    went.
    """
    section = Section("Quality")
    if tables.on_cpu or tables.comparisons.empty or tables.trainings.metric.isna().all():
        return section
    labels = tables.comparisons["name"] + (", " + tables.comparisons.run).str.rstrip(", ")
    asked = bool(tables.show.get("quality"))  # then a single seed is shown, too
    cases = tables.quality.dropna(subset=["margin"] if asked else ["low90", "margin"])
    limits = dict.fromkeys(("difference", "low90", "high90"), float)
    cases = cases.astype(limits).assign(
        label=cases.comparison.map(labels), short=cases.arm.map(tables.short)
    )
    judged = cases.seeds.ge(FEWEST_SEEDS_FOR_OUTCOME) | cases.outcome.isin([*AS_GOOD, WORSE])
    if judged.any() or (asked and len(cases)):
        counts = cases.outcome.replace(dict.fromkeys(AS_GOOD, "no loss beyond the margin"))
        found = [
            f"{outcome_words(outcome)} in {number}"
            for outcome, number in counts.value_counts().items()
        ]
        section.finding = f"Of {count(len(cases), 'case')}: {', '.join(found)}"
        if not judged.any():
            section.finding = "Each case has fewer than five seeds, so nothing is judged"
        section.about = ABOUT_QUALITY
        rows = [row_of(case) for case in cases.to_dict("records")]
        ends = cases[["difference", "low90", "high90"]].abs().max(axis=1) / cases.margin
        widest = min(WIDEST, max(1.5, ends.max() + 0.2))
        groups = cases.groupby("comparison", sort=False)
        figures = [draw(tables, one, widest) for _, one in groups]
        section.chart(figures, "quality", "; ".join(", ".join(row.values()) for row in rows) + ".")
        section.table(rows)
    say_unlearned(section, tables)
    add_targets(section, tables, labels)
    return section


def row_of(case: dict) -> dict:
    """Return a difference from fp32 and its margin as texts.

    The 90% interval decides on equivalence.
    """
    scale, unit, form = (100, "%", "+.1f") if case["is_ratio"] else (1, "", "+.4f")
    if case["metric"] == "accuracy":
        scale = 100
        unit = " points"
        form = "+.2f"
    mean, low, high = (f"{scale * case[name]:{form}}" for name in ("difference", "low90", "high90"))
    interval = f" ({low} to {high})" if pd.notna(case["low90"]) else ""
    diverged = f": {count(case['diverged'], 'run')} diverged" if case["diverged"] else ""
    return {
        "training": case["label"],
        "arm": case["short"],
        "metric": f"{case['metric'].replace('_', ' ')} ({case['better']} is better)",
        "difference (90% interval)": f"{mean}{unit}{interval}",
        "margin": f"{scale * case['margin']:g}{unit}",
        "seeds": str(case["seeds"]),
        "outcome": outcome_words(case["outcome"]) + diverged,
    }


def draw(tables: Tables, cases: pd.DataFrame, widest: float) -> Figure:
    """Draw a row per arm with its 90% interval in margins: worse is at the left and better at the
    right.
    """
    sign = cases.better.map({"higher": 1, "lower": -1}) / cases.margin
    ends = cases[["difference", "low90", "high90"]].mul(sign, axis=0)
    title, run = tables.comparisons.loc[cases.comparison.iloc[0], ["name", "run"]]
    names = [textwrap.fill(name, LONG_NAME) for name in cases.short]
    left = max(len(line) for name in names for line in name.split("\n")) * LETTER / PANEL + 0.03
    lines = max(name.count("\n") + 1 for name in names)
    figure, axes = framed(title, run, LINE_HIGH * (lines * len(cases) + 1.5), 0.5, (left, 1))
    axes.axvspan(-1, 1, color=GROUND, linewidth=0, zorder=0)
    axes.axvline(0, color=SOFT, linewidth=1, zorder=1)
    for place, (index, arm) in enumerate(cases.arm.items()):
        mean, *limits = ends.loc[index].clip(-widest, widest)
        look = tables.looks.loc[arm]
        beyond = "<" if mean < 0 else ">"
        mark = look.mark if mean == ends.difference[index] else beyond
        whole = [min(limits), mean, max(limits)]
        style = {"color": look.colour, "gid": f"{cases.comparison[index]} {arm}"}
        axes.plot(whole, [place] * 3, linewidth=2.5, solid_capstyle="butt", **style)
        axes.plot(mean, place, mark, markersize=7, color=look.colour, clip_on=False)
    axes.set(xlim=(-widest, widest), ylim=(len(cases) - 0.4, -1.6))
    narrow = left > 0.5
    axes.set_xlabel("margins: 1 is the loss we allow", loc="right" if narrow else "center")
    axes.set_yticks(range(len(cases)), names)
    axes.xaxis.set_major_locator(MultipleLocator(1 + narrow))
    axes.grid(visible=False)
    axes.text(-widest, -1, "← worse", color=SOFT, va="center")
    if not narrow:  # "worse" alone has room
        axes.text(widest, -1, "better →", color=SOFT, va="center", ha="right")
    return figure


def say_unlearned(section: Section, tables: Tables) -> None:
    """Say how many runs of a comparison ended no better than chance, and in which precisions."""
    for number, title in tables.comparisons.title.items():
        gains = [
            (arm, gain_over_chance(run)) for arm in tables.arms for run in tables.runs(number, arm)
        ]
        lost = [name for name, gain in gains if gain is not None and gain <= 0]
        if lost:
            names = listed([tables.called(arm) for arm in dict.fromkeys(lost)], "and")
            who = f"{len(lost)} of {count(len(gains), 'run')} ended no better than chance ({names})"
            section.say(plain(f"{who}: {title}."))


def add_targets(section: Section, tables: Tables, labels: pd.Series) -> None:
    """Add what each precision needed to reach the same metric.

    Seconds and joules are those of timed_runs(), as everywhere, but every run counts for the
    epochs.
    """
    rows = []
    for number, label in labels.items():
        runs = {arm: records for arm in tables.arms if (records := tables.runs(number, arm))}
        targets = [target_of(run, tables.target_metric) for own in runs.values() for run in own]
        target = next(filter(None, targets), None)
        if target is None:
            continue
        ways = {arm: ways_to(records, target) for arm, records in runs.items()}
        if not any(one.epochs for found in ways.values() for one in found):
            continue
        for arm, own in ways.items():
            rows.append(
                {
                    "training": label,
                    "target": f"{target:g}",
                    "precision": tables.called(arm),
                    **target_row(own, ways_to(tables.timed_runs(number, arm), target)),
                }
            )
    if rows:
        section.table(rows, folded="Training until the same quality")


def ways_to(runs: Runs, target: float) -> list[ToTarget]:
    """Return what each of some ok runs that were evaluated needed to reach a target."""
    return [to_target(run, target) for run in runs if run["metric"]]


def target_row(own: list[ToTarget], timed: list[ToTarget]) -> dict:
    """Return the cells of a precision: what all its runs reached, and the means of the timed
    ones.
    """
    epochs = [one.epochs for one in own if one.epochs]
    seconds = [one.seconds for one in timed if one.seconds]
    joules = [one.joules for one in timed if one.joules is not None]
    return {
        "reached": f"{len(epochs)} of {len(own)}",
        "epochs": span(epochs) if epochs else None,
        "timed": str(len(seconds)),
        "seconds": short(fmean(seconds)) if seconds else None,
        "kilojoules": short(fmean(joules) / 1000) if joules else None,
    }
