"""Section: one thing added at a time, step by step, and the same training executed in another
way.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd

from ..judge.axis import Axis, arm_named
from ..judge.verdict import DIFFERENT, FEW_HOSTS
from .dots import dots, dots_note, drawn_as
from .findings import outcome_words
from .growth import ratio_texts, texts
from .names import arm_name, bare, precision_name
from .section import Section
from .study import as_list
from .sure import range_of_hosts
from .tables import Tables, alike, corrected
from .words import listed, span

USUAL_WAY = {  # of settings that are ways
    "execution": "eager",
    "channels_last": False,
    "scaler": "pytorch",
    "compile_mode": "default",
    "rounding": "nearest",
    "allow_fp16_accumulation": False,
    "loader": "gpu",
}
BOTH = {"compile_cuda_graph": ("compile", "cuda_graph")}  # a way of execution that adds two things
ABOUT = """A dot compares a step with the first one. Behind it stands what the step gains over the one before, so the
gains multiply to the total. Lines are 95% intervals."""
ADDED = {
    ("cuda_graph", "compile_cuda_graph"): "torch.compile",
    ("compile", "compile_cuda_graph"): "CUDA graph",
}
LIMITS = ("ratio", "low", "high", "outcome")


def ladder_of(tables: Tables, family: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield (label, comparison, arm) of the study's steps, which add up; a larger batch is
    another training.
    """
    steps = [step for step in tables.show["steps"] if "batch_size" not in step]
    state = {name: USUAL_WAY[name] for step in steps for name in step if name in USUAL_WAY}
    family = family[family.batch == family.batch.min()]
    precision: Any = None
    before: tuple[Any, Any] | None = None
    for step in steps:
        state |= {name: value for name, value in step.items() if name not in ("label", "precision")}
        fits = [
            all(one.get(name, value) in as_list(value) for name, value in state.items())
            for one in family.settings
        ]
        rows = tables.trainings[
            tables.trainings.comparison.isin(family.index[fits]) & ~tables.trainings.explains
        ]
        if wanted := step.get("precision", precision):
            rows = rows[rows.precision.isin(as_list(wanted))]
        if len(rows) and before != (found := (rows.comparison.iloc[0], rows.arm.iloc[0])):
            before, precision = found, rows.precision.iloc[0]
            yield step["label"], *found


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the bars_of() each step of all ladders:

    `ratio` is over the first, `gain_...` over the one before.
    """
    steps = tables.show.get("steps", ())
    named = {step["label"]: len(as_list(step.get("precision"))) for step in steps}
    settings = {name for step in steps for name in step} - {"label", "precision"}
    rows = []
    for _, family in alike(tables.comparisons, *settings) if settings else ():
        first: list[dict] = []
        before: list[dict] = []
        for label, number, arm in ladder_of(tables, family):
            bars = tables.bars[tables.bars.comparison == number]
            bar = bars[bars.arm == arm].iloc[0].to_dict()
            row = bar | {"label": label, "formats": named[label], "ladder": bar["model"]}
            own = tables.runs(number, arm)
            for prefix, base in (("", first), ("gain_", before)):
                found = tables.between(own, base) or {}
                row |= {f"{prefix}{name}": found.get(name) for name in LIMITS}
            first, before = first or own, own or before
            rows.append(row)
    return pd.DataFrame(rows)


def ladder_rows(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of dots() of the steps that ended well: over the first step, and over the
    one before in words.
    """
    known = steps[steps.seconds.notna()]
    gains = known.gain_ratio.map(lambda gain: "" if pd.isna(gain) else f", step {gain:.2f}×")
    ratios = known.ratio.astype(float).fillna(1.0)
    named = known.label + (" (" + known.short + ")").where(known.formats > 1, "")
    return known.assign(
        panel=known.ladder,
        about=known.task,
        row=named,
        mark="o",
        ratio=ratios,
        label=ratios.map("{:.2f}×".format) + gains,
        ranged=False,
        takes="an epoch takes",
    )


def way_rows(ways: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of dots() of ways that differ in one setting: each over the way without
    it.
    """
    rows = ways.assign(
        panel=ways.name,
        about=ways.task,
        row=ways.run + " + " + ways.added,
        ranged=ways.outcome == FEW_HOSTS,
        seconds=float("nan"),
        takes="",
    )
    return drawn_as(rows, ways.arm.unique(), list(ways.name.unique()))


def ways_of(tables: Tables, steps: pd.DataFrame) -> pd.DataFrame:
    """Return what compared() says of `after` over `before`, unless they are a ladder's steps."""
    climbed = set(zip(steps.comparison, steps.arm, strict=True)) if len(steps) else set()
    rows = []
    for before, after, arm, added in one_setting_apart(tables):
        own, base = tables.runs(after, arm), tables.runs(before, arm)
        if own == base or {(before, arm), (after, arm)} <= climbed:
            continue
        found = tables.between(own, base)
        if found and (found["processes"] or found["outcome"] == FEW_HOSTS):
            row = {"before": before, "after": after, "arm": arm, "precision": arm, "added": added}
            short, colour = tables.arms[arm]
            rows.append(row | found | {"short": short, "colour": colour})
    ways = pd.DataFrame(rows)
    # as steps follow each other
    ways = ways.sort_values("before", kind="stable", ignore_index=True) if rows else ways
    if len(ways):
        fallen = ways.outcome.isin(DIFFERENT) & ~corrected(ways.p)
        ways["told"] = ways.outcome.map(outcome_words)
        ways["told"] = ways.told.where(~fallen, ways.told + ", not after correction")
    return ways


def one_setting_apart(tables: Tables) -> Iterator[tuple[int, int, str, str]]:
    """Yield (comparison before, after, arm, what is added) of ways and the next simpler ones."""
    for setting, usual in USUAL_WAY.items():
        axis = Axis((setting,), (arm_named([usual]),), BOTH)
        for _, family in alike(tables.comparisons, setting):
            given = {number: one.get(setting, usual) for number, one in family.settings.items()}
            ways = {n: arm_named([value]) for n, value in given.items() if value is not None}
            for (after, way), arm in product(ways.items(), tables.arms):
                known = {name: number for number, name in ways.items() if tables.runs(number, arm)}
                for base in axis.simpler_arms(way, known):
                    added = ADDED.get((base, way), arm_name(axis.settings, way))
                    yield known[base], after, arm, added


def finding_of(ways: pd.DataFrame) -> str:
    """Return what each setting gains over all models and arms, from least to most."""
    gains = [
        f"{added} {span(list(ratio), '{:.2f}')}"
        for added, ratio in ways.groupby("added", sort=False).ratio
    ]
    return f"Times as fast with one setting added: {', '.join(gains)}"


def section(tables: Tables) -> Section:
    """Return the charts and the table of the steps, and the table of the ways of execution."""
    section = Section("Steps and ways")
    steps = steps_of(tables)
    if len(steps):
        rows = ladder_rows(steps)
        last = rows.groupby("panel", sort=False).tail(1)
        totals = [f"{bare(row.panel)} {row.ratio:.1f}" for row in last.itertuples()]
        first = precision_name(steps.precision.iloc[0])
        section.finding = f"Times as fast as {first}, all steps together: {', '.join(totals)}"
        section.chart(dots(rows), "ladder", section.finding)
        section.say(ABOUT)
        batches = [
            size for step in tables.show["steps"] for size in as_list(step.get("batch_size", []))
        ]
        if batches:
            section.say(
                f"A larger batch ({listed(batches)}) is another training, so it is not a step here."
            )
        cells = {
            "model": steps.ladder,
            "step": steps.label,
            "precision": steps.precision.map(precision_name),
            "s per epoch": texts(steps.seconds, "{:.2f}"),
            "over the first step": ratio_texts(steps),
            "over the step before": ratio_texts(
                steps[["gain_ratio", "gain_low", "gain_high"]].set_axis(LIMITS[:3], axis=1)
            ),
            "outcome": steps.gain_outcome.map(outcome_words, na_action="ignore").fillna("–"),
            "peak, GiB": texts(steps.gib, "{:.2f}"),
            "last metric": texts(steps.metric, "{:.3g}"),
        }
        section.table(pd.DataFrame(cells).to_dict("records"), "Every step in numbers")
    ways = ways_of(tables, steps)
    if len(ways):
        wide = ways.outcome == FEW_HOSTS  # then the ends are those of the hosts
        ways = ways.join(tables.comparisons[["name", "task"]], on="before")
        runs = [tables.comparisons.loc[number, ["way", "more"]] for number in ways.before]
        ways["run"] = [", ".join(filter(None, run)) for run in runs]
        section.finding = section.finding or finding_of(ways)
        rows = way_rows(ways)
        section.chart(dots(rows), "ways", finding_of(ways))
        section.say(
            f"A dot says how many times as fast training is with the setting. {dots_note(rows)}"
        )
        cells = {
            "model": ways.name + ", " + ways.task,
            "run": ways.run,
            "with": ways.added,
            "precision": ways.precision.map(precision_name),
            "times as fast": pd.Series(ratio_texts(ways)).where(
                ~wide, [*map(range_of_hosts, ways.itertuples())]
            ),
            "n": ways.processes.where(~wide, ways.hosts),
            "outcome": ways.told,
            "memory": texts((-ways.saved.astype(float)).round(2) + 0.0, "{:+.0%}"),
        }
        section.say(
            "Two trainings that differ in one setting alone are compared, so the ratio "
            "is what it gains."
        )
        section.table(pd.DataFrame(cells).to_dict("records"), "One setting changed")
    return section
