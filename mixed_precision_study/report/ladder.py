"""Section: one thing added at a time, step by step, and the same training executed in another way."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ..judge.axis import Axis, arm_named
from ..judge.verdict import DIFFERENT, FEW_HOSTS
from .charts import INK, PANEL, SOFT, STATUS
from .growth import ratio_texts, texts
from .names import WAYS, arm_name, bare, in_way, precision_name, short_name
from .panels import add_panels
from .section import Section
from .study import as_list
from .sure import range_of_hosts
from .tables import Tables, alike, corrected
from .words import listed

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
ABOUT = """A bar compares a step with the first one. The number behind it is the gain over the step before, so the gains
multiply to the total. Thin lines are 95% intervals; ~ means that 1 lies in the interval of a gain."""
ADDED = {
    ("cuda_graph", "compile_cuda_graph"): "torch.compile",
    ("compile", "compile_cuda_graph"): "CUDA graph",
}
LIMITS = ("ratio", "low", "high", "outcome")


def ladder_of(tables: Tables, family: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield (label, comparison, arm) of the study's steps, which add up; a larger batch is another training."""
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
    """Return the bars_of() each step of all ladders: `ratio` is over the first, `gain_...` over the one before."""
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


def draw_ladder(steps: pd.DataFrame) -> Figure:
    """Draw the speed of each step beside the first as a bar, from above, with what the step itself gains behind it."""
    figure, axes = plt.subplots(figsize=(PANEL, 0.75 + 0.3 * len(steps)), layout="constrained")
    ratios = steps.ratio.astype(float).fillna(
        (steps.seconds.notna() & (steps.index == steps.index[0])).astype(float)
    )
    ends = steps.high.astype(float).fillna(ratios)
    last = steps.index[steps.seconds.notna()][-1:]
    for place, (index, step) in enumerate(steps.iterrows()):
        axes.barh(
            place,
            ratios[index],
            height=0.74,
            color=step.colour,
            gid=f"step {step.label}",
        )
        if pd.notna(step.low):
            axes.hlines(place, step.low, step.high, color=INK, linewidth=1.1)
        text = STATUS.get(step.status, step.status) if pd.isna(step.seconds) else ""
        if pd.notna(step.gain_ratio):
            text = f"{'~' if step.gain_low <= 1 <= step.gain_high else ''}×{step.gain_ratio:.1f}"
        total = f" = {ratios[index]:.1f}×" if index in last and place else ""
        style = {"weight": "bold", "color": INK} if total else {"color": SOFT}
        axes.annotate(
            text + total,
            (ends[index], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            **style,
        )
    names = steps.label + (" (" + steps.short + ")").where(steps.formats > 1, "")
    axes.set_yticks(range(len(steps)), names)
    axes.set_title(steps.ladder.iloc[0], weight="bold", size=10.5)
    axes.set(xlabel="times as fast as the first step", xlim=(0, 1.6 * ends.max()))
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return figure


def ways_of(tables: Tables, steps: pd.DataFrame) -> pd.DataFrame:
    """Return what compared() says of `after` over `before`, which differ in one setting, but no ladder's steps."""
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
        ways["outcome"] = ways.outcome.where(~fallen, ways.outcome + ", not after correction")
    return ways


def one_setting_apart(tables: Tables) -> Iterator[tuple[int, int, str, str]]:
    """Yield (comparison before, after, arm, what is added) of ways, each beside the next simpler one that was run."""
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


def finding_of(tables: Tables, ways: pd.DataFrame) -> str:
    """Return what the setting with the largest gain gains for each model, at best."""
    sure = ways[ways.outcome.isin(DIFFERENT) & (ways.ratio > 1)]
    best = (sure if len(sure) else ways).sort_values("ratio", ascending=False)
    top = best.iloc[0]
    tops = best[best.added == top.added].drop_duplicates("name")
    names = [f"{bare(one.name)} in {short_name(one.precision)}" for one in tops.itertuples()]
    names[0] += " trains"
    gains = [f"{name} {ratio:.1f}" for name, ratio in zip(names, tops.ratio, strict=True)]
    how, than = f"with {top.added}", "without it"
    if top.added in WAYS.values():
        how, than = in_way(top.added), in_way(tables.comparisons.way[top.before])
    more = "" if len(sure) else f" ({top.outcome})"
    return f"{how[0].upper()}{how[1:]}, {listed(gains, 'and')} times as fast as {than}{more}"


def section(tables: Tables) -> Section:
    """Return the charts and the table of the steps, and the table of the ways of execution."""
    section = Section()
    steps = steps_of(tables)
    if len(steps):
        ladders = [one for _, one in steps.groupby("ladder", sort=False)]
        ends = [(bare(one.ladder.iloc[0]), one.ratio.dropna().iloc[-1:]) for one in ladders]
        claims = [f"{name} {float(end.iloc[0]):.1f}" for name, end in ends if len(end)]
        claims[:1] = [claim.replace(" ", " trains ", 1) for claim in claims[:1]]
        than = precision_name(steps.precision.iloc[0])
        section.title = f"Step by step, {listed(claims, 'and')} times as fast as in {than}"
        section.chart([draw_ladder(one) for one in ladders], "ladder", section.title)
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
            "outcome": steps.gain_outcome.fillna("–"),
            "peak, GiB": texts(steps.gib, "{:.2f}"),
            "last metric": texts(steps.metric, "{:.3g}"),
        }
        section.table(pd.DataFrame(cells).to_dict("records"), "Every step in numbers")
    ways = ways_of(tables, steps)
    if len(ways):
        wide = ways.outcome == FEW_HOSTS  # then the ends are those of the hosts
        ways = ways.join(tables.comparisons[["name", "task"]], on="before")
        section.title = section.title or finding_of(tables, ways)
        bars = ways.assign(
            comparison=ways.after, block="with " + ways.added, value=ways.ratio, note=""
        )
        add_panels(section, bars.assign(label=ways.ratio.map("{:.2f}×".format)), "ways")
        cells = {
            "model": ways.name + ", " + ways.task,
            "run": [
                ", ".join(filter(None, tables.comparisons.loc[number, ["way", "more"]]))
                for number in ways.before
            ],
            "with": ways.added,
            "precision": ways.precision.map(precision_name),
            "times as fast": pd.Series(ratio_texts(ways)).where(
                ~wide, [*map(range_of_hosts, ways.itertuples())]
            ),
            "n": ways.processes.where(~wide, ways.hosts),
            "outcome": ways.outcome,
            "memory": texts((-ways.saved.astype(float)).round(2) + 0.0, "{:+.0%}"),
        }
        section.say(
            "Two trainings that differ in one setting alone are compared, so the ratio is what it gains."
        )
        section.table(pd.DataFrame(cells).to_dict("records"), "One setting changed")
    return section
