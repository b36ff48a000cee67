"""Section: what mixed precision buys as one setting grows: a model's width or depth, the batch,
the loss scale.
"""

import math
import re
import statistics
from collections.abc import Iterable
from itertools import product

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..judge.divergence import skipped_fraction
from ..judge.ratios import FEWEST_PROCESSES
from ..judge.trained import has_learned
from ..judge.verdict import FASTER, LITTLE_FASTER, OUTCOMES
from .charts import PANEL, SOFT, STATUS
from .names import AMP, COLOURS, precision_name
from .section import Section
from .tables import Tables, alike, bars_of
from .words import span

ABOUT = """The table compares each precision with the next simpler one, because only that shows what the precision
itself adds. A training loss may end 0.02 nats higher, or 2% in perplexity; this bar was fixed before any run. A loss is
inconclusive where equal runs scatter by as much as its distance from the bar."""
ABOUT_LARGEST = """Less memory for each sample allows a larger batch, so each precision ran at the largest that fits.
Ratios are per sample, because the batches differ. A larger batch is another training, so see its last metric."""
LOSS_BAR = 0.02  # nats that the last training loss may be above the simpler precision's
# settings of a training that may change with the width of its model
LENGTHS = ("epochs", "lr", "max_steps")
# the width that such a ViT has
VIT = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}
# {axis: a size in a sentence}
SIZES = {"width": "width {:,}", "layers": "{:,} layers", "batch size": "batch {:,}"}
APART = 1.4  # factor between two sizes of which both are written below a chart
# NaN where unknown
TOLD = ("ratio", "low", "high", "outcome", "energy", "above", "loss_outcome", "loss_comparison")


def size_of(setting: str, settings: dict) -> tuple[str, int, str] | None:
    """Return (axis, size, kind of model) of a comparison in a setting that grows, or None where
    it has no size.
    """
    model, value = str(settings["model"]), settings.get(setting)
    if setting == "model" and (found := re.search("|".join(VIT), model)):
        return "width", VIT[found[0]], model.partition("_")[0]
    if setting == "model" and (found := re.search(r"\d\d+", model)):
        return "layers", int(found[0]), model.replace(found[0], "")
    axis = {"units": "width", "width": "width", "batch_size": "batch size"}.get(setting)
    return (axis, value, model) if axis and isinstance(value, int) else None


def families_of(tables: Tables) -> list[pd.DataFrame]:
    """Return the parts of `comparisons` that grow over three sizes or more, in order, with `axis`,
    `size` and `family`.

    Of several at one size the first is that of most precisions, energies and runs.
    """
    over, more = tables.show.get("over") or [], tables.show.get("with", ())
    timed = tables.trainings[tables.trainings.timed]
    most = {
        "modes": ("arm", "nunique"),
        "energies": ("joules", "count"),
        "runs": ("seed", "size"),
    }
    found: dict[str, pd.DataFrame] = {}
    several = tables.comparisons.device.nunique() > 1
    for setting in [over] if isinstance(over, str) else over:
        sizes = tables.comparisons.settings.map(
            lambda one, setting=setting: size_of(setting, one)
        ).dropna()
        rows = tables.comparisons.loc[sizes.index]
        rows = rows.assign(
            **{name: sizes.str[place] for place, name in enumerate(("axis", "size", "kind"))}
        )
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
                name, task = re.split("[-,]", first["name"])[0], first.task
                if axis == "batch size":
                    name, task = first["name"], task.partition(", batch")[0]
                name = f"{name}\n{task}, {first.way}" + f", {first.device}" * several
                name += f" ({len(found)})" * (name in found)
                found[name] = family.assign(family=name)
    return list(found.values())


def judge_loss(own: list[dict], base: list[dict]) -> dict | None:
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


def pairs_of(tables: Tables, family: pd.DataFrame) -> pd.DataFrame:
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
        status = STATUS.get(every[0]["status"], every[0]["status"]) if every else "not run"
        found = tables.between(tables.runs(number, arm), tables.runs(number, base))
        row = dict.fromkeys(TOLD) | named | (found or {"outcome": status})
        row |= {"size": size, "precision": arm, "base": base, "comparison": number}
        row["memory"] = 1 - row["saved"] if row.get("saved") is not None else math.nan
        judged = [
            (one, judge_loss(tables.runs(one, arm), tables.runs(one, base)))
            for one in family.index[family["size"] == size]
        ]
        losses = [found | {"loss_comparison": one} for one, found in judged if found]
        rows.append(row | max(losses, key=lambda one: one["certain"], default={}))
    return pd.DataFrame(rows)


def lines_of(tables: Tables, family: pd.DataFrame) -> pd.DataFrame:
    """Return the bars_of() a family that have a ratio over TF32, or fp32 where there is none,
    with their `size`.
    """
    sizes = family.drop_duplicates("size")["size"]
    bars = bars_of(tables, sizes.index).dropna(subset="ratio")
    return bars.assign(size=bars.comparison.map(sizes), **family.iloc[0][["axis", "family"]])


def draw_lines(
    rows: pd.DataFrame, by: str, looks: dict[str, tuple[str, str]], title: str, label: str
) -> Figure:
    """Draw ratios over the size, a line for each value of a column in `looks`; dashed where a
    point has no interval.
    """
    figure, axes = plt.subplots(figsize=(PANEL, 2.8), layout="constrained")
    axes.axhline(1, color=SOFT, linewidth=1)
    for name, (text, colour) in looks.items():
        line = rows[(rows[by] == name) & rows.ratio.notna()].astype({"low": float, "high": float})
        style = {
            "color": colour,
            "marker": "o",
            "markersize": 4,
            "linestyle": "--" if line.low.isna().any() else "-",
        }
        if len(line):
            axes.plot(line["size"], line.ratio, label=text, gid=f"line {name}", **style)
            axes.vlines(line["size"], line.low, line.high, color=colour, linewidth=1.5)
    axes.set_xscale("log")
    ticks: list[int] = []
    for size in sorted(rows["size"].unique(), reverse=True):
        ticks += [size] if not ticks or size * APART <= ticks[-1] else []
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=rows.axis.iloc[0], ylabel=label)
    name, task = title.split("\n")
    axes.set_title(name, pad=34, weight="bold", size=10.5)
    axes.annotate(task, (0, 1), (0, 21), "axes fraction", "offset points")
    axes.set_ylim(min(0.75, 0.95 * rows.ratio.min()), max(1.25, 1.1 * rows.ratio.max()))
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=5,
        borderpad=0,
        handlelength=1.2,
        columnspacing=1,
    )
    return figure


def finding_of(pairs: pd.DataFrame) -> str:
    """Return from which size of each family on its precision is faster, or how one changes if
    nothing is judged.
    """
    own, base = precision_name(pairs.precision.iloc[0]), precision_name(pairs.base.iloc[0])
    families = [one for _, one in pairs.groupby(["family", "axis"], sort=False)]
    claims = []
    for one in families:
        sizes = [SIZES[one.axis.iloc[0]].format(size) for size in one["size"]]
        faster = list(one.outcome.isin((FASTER, LITTLE_FASTER)))
        claim = f"at no size up to {sizes[-1]}"
        if any(faster):  # only where it holds at all larger sizes is it a size from which on
            on = all(faster[faster.index(True) :])
            claim = (
                f"from {sizes[faster.index(True)]} on"
                if on
                else f"at {sum(faster)} of {len(sizes)} sizes"
            )
        claims.append(f"{claim} ({one.family.iloc[0].split()[0]})")
    if pairs.outcome.isin(OUTCOMES).any():
        return f"Compared with {base}, {own} is faster {', '.join(claims)}"
    one = max(families, key=lambda one: abs(math.log(one.ratio.iloc[-1] / one.ratio.iloc[0])))
    first, last = (SIZES[one.axis.iloc[0]].format(one["size"].iloc[place]) for place in (0, -1))
    change = f"from {one.ratio.iloc[0]:.2f} to {one.ratio.iloc[-1]:.2f} times as fast as {base}"
    return f"From {first} to {last}, {own} goes {change} ({one.family.iloc[0].split()[0]})"


def texts(column: Iterable, form: str) -> list[str]:
    """Return numbers as the cells of a column, "–" where one is unknown."""
    return ["–" if pd.isna(value) else form.format(value).replace("-", "−") for value in column]


def ratio_texts(rows: pd.DataFrame) -> list[str]:
    """Return "1.52 (1.50–1.54)" for each row, "1.52" where there is no interval, "–" where there
    is no ratio.
    """
    limits = [
        f" ({low:.2f}–{high:.2f})" if low == low else ""
        for low, high in rows[["low", "high"]].to_numpy(float)
    ]
    return [ratio + limit for ratio, limit in zip(texts(rows.ratio, "{:.2f}"), limits, strict=True)]


def section(tables: Tables) -> Section:
    """Return the charts and the table over what the study lets grow, the largest batches, and
    the loss scales.
    """
    section = Section("Growth")
    if families := families_of(tables):
        add_growth(section, tables, families)
    if len(tables.comparisons) and (tables.comparisons.batch == "max").any():
        add_largest(section, tables)
    if "loss_scale" in (tables.show.get("over") or []):
        add_scales(section, tables)
    return section


def add_growth(section: Section, tables: Tables, families: list[pd.DataFrame]) -> None:
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
        section.finding = finding_of(headline[headline.base == headline.base.iloc[0]])
    drawn = [lines for family in families if len(lines := lines_of(tables, family))]
    fp8 = told[(told.precision == "fp8") & (told.base == "amp_bf16")]
    figures = []
    for lines in drawn:
        label = f"times as fast as {lines.base_short.iloc[0]}"
        figures.append(draw_lines(lines, "arm", tables.arms, lines.family.iloc[0], label))
    if len(fp8):
        colours = zip(
            fp8.family.unique(), (COLOURS["fp8"], SOFT, COLOURS["amp_bf16"]), strict=False
        )
        looks = {name: (name.split()[0], colour) for name, colour in colours}
        figures.append(
            draw_lines(fp8, "family", looks, "fp8 over bf16 AMP\n", "times as fast as bf16 AMP")
        )
    section.chart(figures, "growth", section.finding or "Speed-up over what grows")
    dashes = (
        "A line is dashed where a point has no interval, because it rests on too few "
        "processes or hosts."
    )
    solid = "Upright lines are 95% intervals; most are shorter than a marker."
    known = pd.concat([lines.low for lines in drawn] or [pd.Series(dtype=float)])
    section.say(
        " ".join(
            [solid] * bool(known.notna().any()) + [dashes] * bool(known.isna().any()) + [ABOUT]
        )
    )
    cells = {
        "model": pairs.family.str.partition("\n")[0],
        "size": [
            SIZES[axis].format(size) for axis, size in zip(pairs.axis, pairs["size"], strict=True)
        ],
        "precision": pairs.precision.map(precision_name),
        "against": pairs.base.map(precision_name),
        "times as fast": ratio_texts(pairs),
        "outcome": pairs.outcome.str.partition(":")[0],
        "memory": texts(pairs.memory, "{:.0%}"),
        "energy": texts(pairs.energy, "{:.0%}"),
        "loss, nats": texts(pairs.above, "{:+.3f}"),
        "beside the bar": pairs.loss_outcome.fillna("–"),
    }
    section.table(pd.DataFrame(cells).to_dict("records"), "Every size in numbers")


def largest_of(tables: Tables) -> pd.DataFrame:
    """Return the bars_of() trainings at the largest `batch`, with the base's and the smallest
    that was `too_large`.
    """
    rows = bars_of(tables, tables.comparisons.index[tables.comparisons.batch == "max"])
    runs = [tables.runs(one.comparison, one.arm) for one in rows.itertuples()]
    rows["batch"] = [max((run["batch_size_used"] for run in one), default=math.nan) for one in runs]
    failed = [
        [probe[0] for run in one for probe in run["batch_probes"] if probe[1] == "oom"]
        for one in runs
    ]
    above = zip(rows.batch, failed, strict=True)
    rows["too_large"] = [
        min((size for size in sizes if size > batch), default=math.nan) for batch, sizes in above
    ]
    sizes = rows.set_index(["comparison", "arm"]).batch
    return rows.assign(
        base_batch=[sizes.get(key) for key in zip(rows.comparison, rows.baseline, strict=True)]
    )


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
        "as": rows.base_short.where(rows.ratio.notna(), "–"),
        "last metric": texts(rows.metric, "{:.3g}"),
    }
    section.table(pd.DataFrame(cells).to_dict("records"), "Largest batches")


def add_scales(section: Section, tables: Tables) -> None:
    """Add one sentence and the table of the sweeps of three fixed loss scales or more;

    `fixed` is NaN for dynamic.
    """
    runs = tables.trainings[
        tables.trainings.precision.str.contains("fp16") & (tables.trainings.comparison >= 0)
    ]
    runs = runs.assign(
        fixed=pd.to_numeric(
            runs.record.map(lambda run: run["settings"].get("loss_scale")), errors="coerce"
        )
    )
    families = [
        runs[runs.comparison.isin(family.index)]
        for _, family in alike(tables.comparisons, "loss_scale")
    ]
    sweeps = [
        sweep.sort_values("fixed")
        for family in families
        for _, sweep in family.groupby("precision")
    ]
    rows = pd.concat([runs.head(0), *(sweep for sweep in sweeps if sweep.fixed.nunique() >= 3)])
    if rows.empty:
        return
    scales, well = rows.fixed.dropna(), int((rows.status[rows.fixed.notna()] == "ok").sum())
    said = (
        f"{well} of {len(scales)} trainings at fixed loss scales from "
        f"{span(list(scales), '{:,.10g}')} ended well"
    )
    section.finding = section.finding or said
    section.say(f"{said}. The table shows how many steps each skipped.")
    cells = {
        "training": [tables.comparisons.title[number] for number in rows.comparison],
        "precision": rows.precision.map(precision_name),
        "loss scale": [text.replace("–", "dynamic") for text in texts(rows.fixed, "{:,.10g}")],
        "skipped steps": texts(rows.record.map(skipped_fraction), "{:.2%}"),
        "last metric": texts(rows.metric, "{:.3g}"),
        "ended": [STATUS.get(status, status) for status in rows.status.replace("ok", "well")],
    }
    section.table(pd.DataFrame(cells).to_dict("records"), "Loss scales")
