"""Section: one thing added at a time, step by step, and the same training executed in another way."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import permutations, product
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ..analysis.student import MANY_RATIOS, stand_together
from ..analysis.verdict import DIFFERENT
from .charts import INK, SOFT, STATUS
from .growth import ratio_texts, several, start_panel, texts
from .names import COLOURS, ORDER, precision_name, setting_name, way_name
from .section import Section
from .tables import Tables, alike, bars_of
from .words import listed

USUAL = {"execution": "eager", "channels_last": False, "scaler": "pytorch", "compile_mode": "default"}
USUAL |= {"rounding": "nearest", "allow_fp16_accumulation": False, "loader": "gpu"}  # of settings that are ways
ABOUT = """A bar is the speed beside the first step, and the number behind it is that step's own gain over the last one.
Thin lines are 95% intervals; ~: the one of a gain includes 1. A larger batch is another training, so it is no step."""
LIMITS = ("ratio", "low", "high", "outcome")


def ladder_of(tables: Tables, family: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield (label, comparison, precision) of the steps that the study names and these comparisons have, in order.

    A step adds its settings to those of the step before. A larger batch is another training, so it is no step.
    """
    steps = [step for step in tables.show["steps"] if "batch_size" not in step]
    state = {name: USUAL[name] for step in steps for name in step if name in USUAL}
    family = family[family.batch == family.batch.min()]
    precisions, before = ORDER, (-1, "")
    for step in steps:
        state |= {name: value for name, value in step.items() if name not in ("label", "precision")}
        fits = [all(one.get(name, value) in several(value) for name, value in state.items()) for one in family.settings]
        rows = tables.trainings[tables.trainings.comparison.isin(family.index[fits]) & ~tables.trainings.explains]
        rows = rows[rows.precision.isin(several(step.get("precision", precisions)))]
        if len(rows) and before != (before := (rows.comparison.iloc[0], rows.precision.iloc[0])):
            precisions = [before[1]]
            yield step["label"], *before


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the bars_of() all ladders, a row for each step, with the number of its `ladder` and its `label`.

    `ratio` and its limits are over the first step, `gain` and those that begin with gain_ over the step before.
    """
    settings = {name for step in tables.show.get("steps", []) for name in step} - {"label", "precision"}
    families = [family for _, family in alike(tables.comparisons, *settings)] if settings else []
    rows = []
    for place, family in enumerate(families):
        first: list[dict] = []
        before: list[dict] = []
        for label, number, precision in ladder_of(tables, family):
            own, bars = tables.runs(number, precision), bars_of(tables, [number])
            over, gain = tables.between(own, first) or {}, tables.between(own, before) or {}
            first, before = first or own, own or before
            row = bars[bars.precision == precision].iloc[0].to_dict() | {"ladder": place, "label": label}
            row |= {name: over.get(name) for name in LIMITS} | {f"gain_{name}": gain.get(name) for name in LIMITS}
            rows.append(row)
    return pd.DataFrame(rows)


def draw_ladder(steps: pd.DataFrame) -> Figure:
    """Draw the speed of each step beside the first as a bar, from above, with what the step itself gains behind it."""
    figure, axes = start_panel(f"{steps.model.iloc[0]}\n{steps.task.iloc[0]}", 0.9 + 0.3 * len(steps))
    ratios = steps.ratio.astype(float).fillna(1.0).where(steps.seconds.notna(), 0.0)
    for place, (step, ratio) in enumerate(zip(steps.itertuples(), ratios, strict=True)):
        text = "" if ratio else STATUS.get(step.status, step.status)
        if pd.notna(step.low):
            axes.hlines(place, step.low, step.high, color=INK, linewidth=1.1)
        if pd.notna(step.gain_ratio):
            text = f"{'~' if step.gain_low <= 1 <= step.gain_high else ''}×{step.gain_ratio:.1f}"
        total = f" = {ratio:.1f}×" if place and step.Index == ratios[ratios > 0].index[-1] else ""
        axes.barh(place, ratio, height=0.74, color=COLOURS[step.precision], gid=f"step {step.label}")
        style: dict[str, Any] = {"weight": "bold", "color": INK} if total else {"color": SOFT}
        end = ratio if pd.isna(step.high) else step.high
        axes.annotate(text + total, (end, place), (4, 0), textcoords="offset points", va="center", **style)
    far = steps.high.astype(float).fillna(ratios).max()
    axes.set(xlabel="times as fast as the first step", xlim=(0, 1.75 * max(far, 1)), ylim=(len(steps) - 0.5, -0.5))
    axes.set_yticks(range(len(steps)), steps.label)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.grid(visible=False, axis="y")
    return figure


def adds(setting: str, before: Any, after: Any) -> bool:
    """Return whether the second value of a setting adds something to the first, as a compiled graph does to a graph."""
    if setting == "execution":
        return set(re.findall("compile|graph", before)) < set(re.findall("compile|graph", after))
    return before == USUAL[setting] and after not in (before, None)


def ways_of(tables: Tables, steps: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each precision in which one changed setting was run, but the steps of a ladder.

    The ratio is that of `after` over `before`, comparisons that are equal in all else; `memory` is a share of before's.
    """
    climbed = set(zip(steps.comparison, steps.precision, strict=True)) if len(steps) else set()
    peaks = tables.trainings.groupby(["comparison", "precision"]).gib.max()
    rows = []
    for setting, usual in USUAL.items():
        for _, family in alike(tables.comparisons, setting):
            values = {number: one.get(setting, usual) for number, one in family.settings.items()}
            pairs = [pair for pair in permutations(values, 2) if adds(setting, *map(values.get, pair))]
            for (before, after), precision in product(pairs, ORDER):
                own, base = tables.runs(after, precision), tables.runs(before, precision)
                steps_both = {(before, precision), (after, precision)} <= climbed
                found = tables.between(own, base) if own != base and not steps_both else None
                if found and found["processes"]:
                    name = way_name if setting == "execution" else partial(setting_name, setting)
                    row = {"before": before, "after": after, "precision": precision, "added": name(values[after])}
                    rows.append(row | found | {"memory": peaks[after, precision] / peaks[before, precision]})
    ways = pd.DataFrame(rows)
    if len(tests := ways.p.dropna() if len(ways) else ()) > MANY_RATIOS:
        stands = pd.Series(stand_together(list(tests)), tests.index).reindex(ways.index, fill_value=True)
        ways["outcome"] += [", not after correction" * one for one in ~stands & ways.outcome.isin(DIFFERENT)]
    return ways


def section(tables: Tables) -> Section:
    """Return the charts and the table of the steps, and the table of the ways of execution."""
    section = Section()
    steps = steps_of(tables)
    if len(steps):
        ladders = [one for _, one in steps.groupby("ladder")]
        ends = pd.concat([one.dropna(subset="ratio").iloc[-1:] for one in ladders])[["model", "ratio"]].values
        claims = [f"{model.partition(',')[0]} {ratio:.1f} times" for model, ratio in ends if not tables.on_cpu]
        section.title = f"Step by step: {listed(claims, 'and')} as fast in all" if claims else "Step by step"
        section.chart([draw_ladder(one) for one in ladders], "ladder", section.title)
        section.say(ABOUT)
        cells = {
            "model": steps.model,
            "step": steps.label,
            "precision": steps.precision.map(precision_name),
            "s per epoch": texts(steps.seconds, "{:.2f}"),
            "over the first step": ratio_texts(steps),
            "over the step before": ratio_texts(steps, "gain_"),
            "outcome": steps.gain_outcome.fillna("–"),
            "peak, GiB": texts(steps.gib, "{:.2f}"),
            "last metric": texts(steps.metric, "{:.3g}"),
        }
        section.table(pd.DataFrame(cells).to_dict("records"), "Every step in numbers")
    ways = ways_of(tables, steps)
    if len(ways):
        best = ways[ways.outcome.isin(DIFFERENT) & (ways.ratio > 1)].nlargest(1, "ratio")
        for one in best.itertuples():
            name = f"{tables.comparisons['name'][one.before]} in {precision_name(one.precision)}"
            section.title = section.title or f"{name} is {one.ratio:.1f} times as fast with another way: {one.added}"
        section.title = section.title or "One setting changed"
        cells = {
            "training": [tables.comparisons.title[number] for number in ways.before],
            "with": ways.added,
            "precision": ways.precision.map(precision_name),
            "times as fast": ratio_texts(ways),
            "n": ways.processes,
            "outcome": ways.outcome,
            "memory": texts((ways.memory - 1).round(2) + 0.0, "{:+.0%}"),
        }
        section.say("Both trainings of a row differ in this setting alone, so its ratio is what the setting gains.")
        section.table(pd.DataFrame(cells).to_dict("records"), "One setting changed")
    return section
