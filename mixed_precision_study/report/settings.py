"""Sections on what a setting changes: steps that add one thing at a time, ways of execution, and
sizes that grow.
"""

import math
import re
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from ..judge.axis import Axis, arm_named
from ..judge.divergence import skipped_fraction
from ..judge.ratios import FEWEST_PROCESSES
from ..judge.trained import has_learned
from ..judge.verdict import DIFFERENT, FASTER, FEW_HOSTS, LITTLE_FASTER, OUTCOMES
from ..store.record import Runs
from .charts import INK, SOFT, dots, dots_note, drawn_as, framed, write_ticks
from .files import as_list
from .results import range_of_hosts
from .section import Section, ratio_texts, spans, texts
from .tables import Tables, alike, bars_of, corrected
from .words import (
    AMP,
    COLOURS,
    arm_name,
    bare,
    outcome_words,
    precision_name,
    span,
)

USUAL_WAY = {  # of settings that are ways
    "execution": "eager",
    "fused": False,
    "channels_last": False,
    "scaler": "pytorch",
    "compile_mode": "default",
    "cudnn_benchmark": True,
    "rounding": "nearest",
    "allow_fp16_accumulation": False,
    "loader": "gpu",
}
BOTH = {"compile_cuda_graph": ("compile", "cuda_graph")}  # a way of execution that adds two things
ABOUT_STEPS = """A dot compares a step with the first one. Behind it stands what the step gains over
the one before, so the gains multiply to the total. Lines are 95% intervals. A larger batch is
another training, so it is no step."""
ADDED = {
    ("cuda_graph", "compile_cuda_graph"): "torch.compile",
    ("compile", "compile_cuda_graph"): "CUDA graph",
}
LIMITS = ("ratio", "low", "high", "outcome")


def ladder_of(tables: Tables, family: DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield (label, comparison, arm) of the study's steps, which add up; a larger batch is
    another training.
    """
    steps = [step for step in tables.show["steps"] if "batch_size" not in step]
    state = {name: USUAL_WAY[name] for step in steps for name in step if name in USUAL_WAY}
    family = family[family.batch == family.batch.min()]
    precision = None
    before = None
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
            before = found
            precision = rows.precision.iloc[0]
            yield step["label"], *found


def ladder_steps(tables: Tables) -> DataFrame:
    """Return the bars_of() each step of all ladders:

    `ratio` is over the first, `gain_...` over the one before.
    """
    steps = tables.show.get("steps", ())
    named = {step["label"]: len(as_list(step.get("precision"))) for step in steps}
    settings = {name for step in steps for name in step} - {"label", "precision"}
    rows = []
    for _, family in alike(tables.comparisons, *settings) if settings else ():
        first: Runs = []
        before: Runs = []
        for label, number, arm in ladder_of(tables, family):
            bars = tables.bars[tables.bars.comparison == number]
            bar = bars[bars.arm == arm].iloc[0].to_dict()
            row = bar | {"label": label, "formats": named[label], "ladder": bar["model"]}
            own = tables.runs(number, arm)
            for prefix, base in (("", first), ("gain_", before)):
                found = tables.between(own, base) or {}
                row |= {f"{prefix}{name}": found.get(name) for name in LIMITS}
            first = first or own
            before = own or before
            rows.append(row)
    return DataFrame(rows)


def ladder_rows(steps: DataFrame) -> DataFrame:
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
        ratio=ratios,
        label=ratios.map("{:.2f}×".format) + gains,
        ranged=False,
        takes="an epoch takes",
    )


def way_rows(ways: DataFrame) -> DataFrame:
    """Return the rows of dots() of ways that differ in one setting: each over the way without it,
    which stands behind it, because a long name is cut at its end.
    """
    rows = ways.assign(
        panel=ways.name,
        about=ways.task,
        row=("+ " + ways.added + " (" + ways.run + ")").str.removesuffix(" ()"),
        ranged=ways.outcome == FEW_HOSTS,
        seconds=float("nan"),
        takes="",
        strong=False,
    )
    return drawn_as(rows, list(ways.name.unique()))


def ways_of(tables: Tables, steps: DataFrame) -> DataFrame:
    """Return what compared() says of `after` over `before`, unless they are a ladder's steps."""
    climbed = set(zip(steps.comparison, steps.arm, strict=True)) if len(steps) else set()
    rows = []
    for before, after, arm, added in one_setting_apart(tables):
        own = tables.runs(after, arm)
        base = tables.runs(before, arm)
        if own == base or {(before, arm), (after, arm)} <= climbed:
            continue
        found = tables.between(own, base)
        if found and (found["processes"] or found["outcome"] == FEW_HOSTS):
            rows.append(
                {
                    "before": before,
                    "after": after,
                    "arm": arm,
                    "precision": arm,
                    "added": added,
                    **found,
                    **tables.looks.loc[arm],
                }
            )
    ways = DataFrame(rows)
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


def ways_finding(ways: DataFrame) -> str:
    """Return what each setting gains over all models and arms, from least to most."""
    gains = spans(ways.ratio, ways.added, "{:.2f}")
    return f"Times as fast with one setting added: {gains}"


def steps_section(tables: Tables) -> Section:
    """Return the charts and the table of the steps, and the table of the ways of execution."""
    section = Section("Steps and ways")
    steps = ladder_steps(tables)
    if len(steps):
        rows = ladder_rows(steps)
        last = rows.groupby("panel", sort=False).tail(1)
        totals = [f"{bare(row.panel)} {row.ratio:.1f}" for row in last.itertuples()]
        first = precision_name(steps.precision.iloc[0])
        section.finding = f"Times as fast as {first}, all steps together: {', '.join(totals)}"
        section.chart(dots(rows), "ladder", section.finding)
        section.say(ABOUT_STEPS)
        cells = {
            "model": steps.ladder,
            "step": steps.label,
            "precision": steps.precision.map(precision_name),
            "s per epoch": texts(steps.seconds, "{:.2f}"),
            "over the first step": ratio_texts(steps),
            "over the step before": ratio_texts(
                steps[["gain_ratio", "gain_low", "gain_high"]].set_axis(LIMITS[:3], axis=1)
            ),
            "outcome": steps.gain_outcome.map(outcome_words, na_action="ignore"),
            "peak, GiB": texts(steps.gib, "{:.2f}"),
            "last metric": texts(steps.metric, "{:.3g}"),
        }
        section.table(cells, "Every step in numbers")
    ways = ways_of(tables, steps)
    if len(ways):
        wide = ways.outcome == FEW_HOSTS  # then the ends are those of the machines
        ways = ways.join(tables.comparisons[["name", "task", "run"]], on="before")
        section.finding = section.finding or ways_finding(ways)
        rows = way_rows(ways)
        section.say(dots_note(rows))
        section.chart(dots(rows), "ways", ways_finding(ways))
        section.say("A dot says how many times as fast training is with the setting.")
        cells = {
            "model": ways.name + ", " + ways.task,
            "run": ways.run,
            "with": ways.added,
            "precision": ways.precision.map(tables.called),
            "times as fast": pd.Series(ratio_texts(ways)).where(
                ~wide, [*map(range_of_hosts, ways.itertuples())]
            ),
            "n": ways.processes.where(~wide, ways.hosts),
            "outcome": ways.told,
            "memory": texts((-ways.saved.astype(float)).round(2) + 0.0, "{:+.0%}"),
        }
        section.say(
            "Two trainings that differ in one setting are compared. A CUDA graph also brings a "
            "fused optimizer and a loss scaler on the GPU, so its ratio holds their gain."
        )
        section.table(cells, "One setting changed")
    return section


ABOUT_GROWTH = """Upright lines are 95% intervals; a line is dashed where a point has none, because
it rests on too few processes or machines. The table compares each precision with the next simpler
one, because only that shows what the precision itself adds. A training loss may end 0.02 nats
higher, or 2% in perplexity; this bar was fixed before any run. A loss is inconclusive where equal
runs scatter by as much as its distance from the bar."""
ABOUT_LARGEST = """Less memory for each sample allows a larger batch, so each precision ran at the
largest that fits. Ratios are per sample, because the batches differ. A larger batch is another
training, so see its last metric."""
LOSS_BAR = 0.02  # nats that the last training loss may be above the simpler precision's
# settings of a training that may change with the width of its model
LENGTHS = ("epochs", "lr", "max_steps")
# the width that such a ViT has
VIT = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}
# {axis: a size in a sentence}
SIZES = {"width": "width {:,}", "layers": "{:,} layers", "batch size": "batch {:,}"}
FEWEST_SCALES = 3  # fixed ones of a sweep
# NaN where unknown
TOLD = (
    "ratio",
    "low",
    "high",
    "outcome",
    "saved",
    "energy",
    "above",
    "loss_outcome",
    "loss_comparison",
)


def size_of(setting: str, settings: dict) -> tuple[str, int, str] | None:
    """Return (axis, size, kind of model) of a comparison in a setting that grows, or None where
    it has no size.
    """
    model = str(settings["model"])
    value = settings.get(setting)
    if setting == "model" and (found := re.search("|".join(VIT), model)):
        return "width", VIT[found[0]], model.partition("_")[0]
    if setting == "model" and (found := re.search(r"\d\d+", model)):
        return "layers", int(found[0]), model.replace(found[0], "")
    axis = {"units": "width", "width": "width", "batch_size": "batch size"}.get(setting)
    return (axis, value, model) if axis and isinstance(value, int) else None


def families_of(tables: Tables) -> list[DataFrame]:
    """Return the parts of `comparisons` that grow over three sizes or more, in order, with `axis`,
    `size` and `family`.

    Of several at one size the first is that of most precisions, energies and runs.
    """
    over = tables.show.get("over") or []
    more = tables.show.get("with", ())
    timed = tables.trainings[tables.trainings.timed]
    most = {
        "modes": ("arm", "nunique"),
        "energies": ("joules", "count"),
        "runs": ("seed", "size"),
    }
    found: dict = {}
    several = tables.comparisons.device.nunique() > 1
    for setting in [over] if isinstance(over, str) else over:
        sizes = tables.comparisons.settings.map(partial(size_of, setting)).dropna()
        sizes = DataFrame([*sizes], sizes.index, ["axis", "size", "kind"])
        rows = tables.comparisons.join(sizes, how="inner")
        for (axis, _), kind in rows.groupby(["axis", "kind"], sort=False):
            for _, family in alike(kind, setting, *more, *(LENGTHS if axis == "width" else ())):
                runs = timed[timed.comparison.isin(family.index)]
                if family["size"].nunique() < 3 or runs.arm.nunique() < 2:
                    continue
                family = family.join(runs.groupby("comparison").agg(**most))
                family = family.sort_values(
                    ["size", *most], ascending=[True, False, False, False], kind="stable"
                )
                first = family.iloc[0]
                name = re.split("[-,]", first["name"])[0]
                task = first.task
                if axis == "batch size":
                    name = first["name"]
                    task = task.partition(", batch")[0]
                name = f"{name}\n{task}, {first.way}" + f", {first.device}" * several
                if name in found:
                    name += f" ({len(found)})"
                found[name] = family.assign(family=name)
    return list(found.values())


def judge_loss(own: Runs, base: Runs) -> dict | None:
    """Return by how many nats (above) the last losses of ok runs are above those of a base in the
    median, or None.

    It is inconclusive where equal runs scatter by its distance from the bar. The largest `certain`
    tells most.
    """
    ends = [[run["train_loss"][-1] for run in runs if run["train_loss"]] for runs in (own, base)]
    if not all(ends):
        return None
    above = statistics.median(ends[0]) - statistics.median(ends[1])
    scatter = max(max(losses) - min(losses) for losses in ends)
    runs = min(FEWEST_PROCESSES, *map(len, ends))
    learned = has_learned(own) or has_learned(base)
    outcome = "within" if above < LOSS_BAR else "outside"
    if not learned:
        outcome = "hardly trained"
    elif runs < FEWEST_PROCESSES:
        outcome = "fewer than three runs"
    elif scatter >= abs(above - LOSS_BAR):
        outcome = "inconclusive"
    return {
        "above": above,
        "scatter": scatter,
        "loss_outcome": outcome,
        "certain": (learned, runs, -scatter),
    }


def pairs_of(tables: Tables, family: DataFrame) -> DataFrame:
    """Return a row for each size, arm and simpler arm (`base`), of whose memory and energy it has
    shares.

    The loss is from `loss_comparison`, whose runs have learned and differ least; all else is from
    `comparison`.
    """
    ok = tables.trainings[tables.trainings.timed & tables.trainings.comparison.isin(family.index)]
    shown = [arm for arm in tables.arms if arm in set(ok.arm)]
    sides = [(arm, base) for arm in shown for base in tables.axis.simpler_arms(arm, shown)]
    named = family.iloc[0][["family", "axis"]].to_dict()
    rows = []
    for (number, size), (arm, base) in product(
        family.drop_duplicates("size")["size"].items(), sides
    ):
        every = tables.runs(number, arm, ok=False)
        status = outcome_words(every[0]["status"]) if every else "not run"
        found = tables.between(tables.runs(number, arm), tables.runs(number, base))
        row = dict.fromkeys(TOLD) | named | (found or {"outcome": status})
        row |= {"size": size, "precision": arm, "base": base, "comparison": number}
        judged = [
            (one, judge_loss(tables.runs(one, arm), tables.runs(one, base)))
            for one in family.index[family["size"] == size]
        ]
        losses = [found | {"loss_comparison": one} for one, found in judged if found]
        rows.append(row | max(losses, key=lambda one: one["certain"], default={}))
    return DataFrame(rows)


def lines_of(tables: Tables, family: DataFrame) -> DataFrame:
    """Return the bars_of() a family that have a ratio over TF32, or fp32 where there is none,
    with their `size`.
    """
    sizes = family.drop_duplicates("size")["size"]
    bars = bars_of(tables, sizes.index).dropna(subset="ratio")
    bars = bars.assign(size=bars.comparison.map(sizes), **family.iloc[0][["axis", "family"]])
    return bars.sort_values("size", kind="stable")


def draw_lines(rows: DataFrame, looks: DataFrame, label: str) -> Figure:
    """Draw ratios over the size, a line for each arm in `looks`; dashed where a point has no
    interval.
    """
    title, about = rows.family.iloc[0].split("\n")
    about = ": ".join(filter(None, [about, label]))
    figure, axes = framed(title, about, 2.2, foot=1, ends=(0.14, 0.98))
    axes.axhline(1, color=SOFT, linewidth=1)
    for look in looks[looks.index.isin(rows.arm)].itertuples():
        line = rows[rows.arm == look.Index].astype({"low": float, "high": float})
        dashes = "--" if line.low.isna().any() else "-"
        style = {"color": look.colour, "marker": look.mark, "markersize": 5, "linestyle": dashes}
        axes.plot(line["size"], line.ratio, label=look.short, gid=f"line {look.Index}", **style)
        axes.vlines(line["size"], line.low, line.high, color=look.colour, linewidth=1.5)
    axes.set_xscale("log")
    write_ticks(axes, sorted(rows["size"].unique(), reverse=True), "{:,}")
    ends = min(0.75, 0.95 * rows.ratio.min()), max(1.25, 1.1 * rows.ratio.max())
    axes.set(xlabel=rows.axis.iloc[0], ylim=ends)
    figure.legend(loc="lower left", ncols=4, borderpad=0, handlelength=1.4, columnspacing=1)
    return figure


def growth_finding(pairs: DataFrame) -> str:
    """Return from which size of each family on its arm is faster, or nothing where nothing is
    judged.
    """
    if not pairs.outcome.isin(OUTCOMES).any():
        return ""
    own = precision_name(pairs.precision.iloc[0])
    base = precision_name(pairs.base.iloc[0])
    families = [one for _, one in pairs.groupby(["family", "axis"], sort=False)]
    claims = [f"{faster_from(one)} ({one.family.iloc[0].split()[0]})" for one in families]
    return f"Compared with {base}, {own} is faster {', '.join(claims)}"


def faster_from(family: DataFrame) -> str:
    """Return at which sizes an arm is faster; only where it is at all larger ones it is "from"."""
    sizes = [SIZES[family.axis.iloc[0]].format(size) for size in family["size"]]
    faster = list(family.outcome.isin((FASTER, LITTLE_FASTER)))
    if not any(faster):
        return f"at no size up to {sizes[-1]}"
    if all(faster[faster.index(True) :]):
        return f"from {sizes[faster.index(True)]} on"
    return f"at {sum(faster)} of {len(sizes)} sizes"


def growth_section(tables: Tables) -> Section:
    """Return the charts and the table over what the study lets grow, the largest batches, and
    the loss scales.
    """
    section = Section("Growth")
    if families := families_of(tables):
        add_growth(section, tables, families)
    if (tables.comparisons.batch == "max").any():
        add_largest(section, tables)
    if "loss_scale" in (tables.show.get("over") or []):
        add_scales(section, tables)
    return section


def add_growth(section: Section, tables: Tables, families: list[DataFrame]) -> None:
    """Add a panel for each family, one more for fp8 over bf16, and the table.

    The title is the finding.
    """
    pairs = pd.concat([pairs_of(tables, family) for family in families], ignore_index=True)
    told = pairs.dropna(subset="ratio")
    own = next(
        (name for name in ("fp8", *AMP, "tf32") if name in set(told.precision)),
        None,
    )
    headline = told[told.precision == own]
    if len(headline) and not tables.on_cpu:
        section.finding = growth_finding(headline[headline.base == headline.base.iloc[0]])
    drawn = [lines for family in families if len(lines := lines_of(tables, family))]
    figures = [
        draw_lines(lines, tables.looks, f"times as fast as {lines.base_short.iloc[0]}")
        for lines in drawn
    ]
    fp8 = told[(told.precision == "fp8") & (told.base == "amp_bf16")]
    if len(fp8):
        figures.append(draw_lines(*families_as_arms(fp8), "times as fast as bf16 AMP"))
    section.chart(figures, "growth", section.finding or "Speed-up over what grows")
    section.say(ABOUT_GROWTH)
    cells = {
        "model": pairs.family.str.partition("\n")[0],
        "size": [
            SIZES[axis].format(size) for axis, size in zip(pairs.axis, pairs["size"], strict=True)
        ],
        "precision": pairs.precision.map(precision_name),
        "against": pairs.base.map(precision_name),
        "times as fast": ratio_texts(pairs),
        "outcome": pairs.outcome.map(outcome_words).str.partition(":")[0],
        "memory": texts(1 - pairs.saved.astype(float), "{:.0%}"),
        "energy": texts(pairs.energy, "{:.0%}"),
        "loss, nats": texts(pairs.above, "{:+.3f}"),
        "beside the bar": pairs.loss_outcome,
    }
    section.table(cells, "Every size in numbers")


def families_as_arms(pairs: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows and the looks of draw_lines() for one precision, with a line for each
    family.
    """
    families = pairs.family.unique()
    names = [family.split()[0] for family in families]
    colours = [INK, SOFT, *COLOURS.values()][: len(families)]
    looks = DataFrame({"short": names, "colour": colours, "mark": "o"}, families)
    own = precision_name(pairs.precision.iloc[0])
    base = precision_name(pairs.base.iloc[0])
    return pairs.assign(arm=pairs.family, family=f"{own} over {base}\n"), looks


def largest_of(tables: Tables) -> DataFrame:
    """Return the bars_of() trainings at the largest `batch`, with the base's and the smallest
    that was `too_large`.
    """
    rows = bars_of(tables, tables.comparisons.index[tables.comparisons.batch == "max"])
    runs = [tables.runs(one.comparison, one.arm) for one in rows.itertuples()]
    rows["batch"] = [max((run["batch_size_used"] for run in one), default=math.nan) for one in runs]
    probes = [[probe for run in one for probe in run["batch_probes"]] for one in runs]
    rows["too_large"] = [
        min((size for size, end, *_ in tried if end == "oom" and size > batch), default=math.nan)
        for batch, tried in zip(rows.batch, probes, strict=True)
    ]
    sizes = rows.set_index(["comparison", "arm"]).batch.rename("base_batch")
    return rows.join(sizes, on=["comparison", "baseline"])


def add_largest(section: Section, tables: Tables) -> None:
    """Add the table of the largest batches: how far each precision comes, and what that gains
    per sample.
    """
    rows = largest_of(tables)
    gain = (rows.batch / rows.base_batch)[rows.arm.isin(AMP)].dropna()
    if len(gain) and not section.finding:
        section.finding = (
            f"At its largest batch, AMP takes {span(list(gain), '{:.1f}')} times the samples "
            "at once"
        )
    section.say(ABOUT_LARGEST)
    cells = {
        "training": [tables.comparisons.title[number] for number in rows.comparison],
        "precision": rows.precision.map(precision_name),
        "largest batch": texts(rows.batch, "{:,.0f}"),
        "out of memory at": texts(rows.too_large, "{:,.0f}"),
        "samples/s": texts(rows.samples_per_second, "{:,.0f}"),
        "times as fast": ratio_texts(rows),
        "as": rows.base_short.where(rows.ratio.notna()),
        "last metric": texts(rows.metric, "{:.3g}"),
    }
    section.table(cells, "Largest batches")


def add_scales(section: Section, tables: Tables) -> None:
    """Add the table of the sweeps of FEWEST_SCALES fixed loss scales or more: skipped steps, ends.

    `fixed` is NaN for dynamic.
    """
    runs = tables.trainings.join(tables.comparisons[["name", "task"]], "comparison", how="inner")
    runs = runs[runs.precision.str.contains("fp16")]
    scales = runs.record.map(lambda run: run["settings"].get("loss_scale"))
    runs = runs.assign(fixed=pd.to_numeric(scales, errors="coerce"))
    sweep = ["name", "task", "precision"]
    several = runs.groupby(sweep).fixed.transform("nunique") >= FEWEST_SCALES
    rows = runs[several].sort_values([*sweep, "fixed"])
    if rows.empty:
        return
    cells = {
        "training": [tables.comparisons.title[number] for number in rows.comparison],
        "precision": rows.precision.map(precision_name),
        "loss scale": [text or "dynamic" for text in texts(rows.fixed, "{:,.10g}")],
        "skipped steps": texts(rows.record.map(skipped_fraction), "{:.2%}"),
        "last metric": texts(rows.metric, "{:.3g}"),
        "ended": rows.status.replace("ok", "well").map(outcome_words),
    }
    section.table(cells, "Loss scales")
