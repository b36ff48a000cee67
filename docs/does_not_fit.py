"""What each remedy for memory saves and costs: the tables and the picture of its answer."""

import functools
import itertools
import math
import re
import sys
import textwrap
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import fit_budget  # noqa: E402

from mixed_precision_study.judge.arms import peak_gib  # noqa: E402
from mixed_precision_study.judge.axis import Axis  # noqa: E402
from mixed_precision_study.judge.equivalence import AS_GOOD  # noqa: E402
from mixed_precision_study.report.charts import (  # noqa: E402
    INK,
    LINE_HIGH,
    LONG_LINE,
    RATIO_TICKS,
    SOFT,
    chart_style,
    framed,
)
from mixed_precision_study.report.tables import Tables, read_tables  # noqa: E402
from mixed_precision_study.report.words import LOOKS, TRUTH, setting_name  # noqa: E402
from mixed_precision_study.store.reading import read_records  # noqa: E402

FOLDER = "main/fit-h200"
STUDY = "fit"  # whose models the answer shows; the others have one model more, or time alone
SAVES_NOTHING = 0.03  # share of the peak, below which a remedy did nothing here
NUMBER_SIDES = (  # of a dot, in turn, because neighbours may touch
    {"xytext": (5, 4), "ha": "left", "va": "bottom"},
    {"xytext": (-5, -4), "ha": "right", "va": "top"},
)
HIGH, FOOT = 2.6, 0.55  # inches of a panel of the picture, and below it down to its list
NAMES = {  # of settings; others are named as everywhere
    "checkpointing 1": "every block again",
    "checkpointing 2": "every second block again",
    "loss_chunks 8": "loss in 8 parts",
    "execution compile": "compiled",
    "moments bf16": "bf16 moments",
    "precision bf16_true": "bf16 weights",
    "rounding stochastic": "",  # of all bf16 weights here
    "clip 0": "",  # of every optimizer in the backward pass
    "optimizer_in_backward true": "optimizer in backward",
    "offload true": "offload",
    "adapters 16": "LoRA",
    "micro_batches 2": "2 micro-batches",
    "precision tf32": "TF32 instead",
}
PLAIN = "bf16 AMP"  # what remedies are compared with
PARTS = ("parameters", "gradients", "optimizer", "activations")
CALLED = {"parameters": "weights", "optimizer": "moments"}  # others are called as they are
ENDS = ((min, "low90"), (max, "high90"))  # of an interval, over several
LOSSES = {  # of single remedies; others do other arithmetic, or train another model
    "every block again": "=",
    "every second block again": "=",
    "offload": "=",
    "loss in 8 parts": "≈",
    "2 micro-batches": "≈",
    "compiled": "≈",
}


def name_of(axis: Axis, arm: str) -> str:
    """Return what an arm changes of bf16 AMP in eager mode."""
    rows = zip(axis.settings, arm.split(", "), fit_budget.plain_of(axis).split(", "), strict=True)
    changed = [(name, value) for name, value, usual in rows if value != usual]
    names = (
        NAMES.get(f"{name} {value}", setting_name(name, TRUTH.get(value, value)))
        for name, value in changed
    )
    return " + ".join(filter(None, names)) or PLAIN


@functools.cache
def measured(outputs: Path) -> pd.DataFrame:
    """Return a row for each arm of each model that was measured in bf16 AMP.

    gib, reserved, card: highest peak of PyTorch, what it reserved, and what nvidia-smi showed
    peaks: how many different peaks its processes had
    fills, share: the largest part of the peak, and which share of it that is; None and NaN
        without a ledger
    less, more: GiB less and share of time more than bf16 AMP; low and high are the ends of the
        latter's interval, NaN with fewer than three processes
    asked: whether the study of the answer trains this model
    frontier: whether no other arm is at least as small and as fast
    """
    tables = read_tables(outputs / FOLDER)
    usual = fit_budget.plain_of(tables.axis)
    whole = tables.comparisons.settings.map(lambda one: not one["memory_limit_gib"])
    models = tables.comparisons[whole].groupby(["name", "task"])
    rows = []
    for (model, task), comparisons in models:
        runs = {
            arm: [run for number in comparisons.index for run in tables.runs(number, arm)]
            for arm in tables.arms
        }
        trained = [run for own in runs.values() for run in own]
        about = {"model": f"{model}, {task.rpartition(', ')[2]}"}
        about["asked"] = any((run["study"] or {}).get("name") == STUDY for run in trained)
        rows += [
            about | {"arm": arm} | memory_of(own) | time_of(tables, comparisons.index, arm)
            for arm, own in runs.items()
            if own and runs.get(usual)
        ]
    table = pd.DataFrame(rows)
    base = table[table.arm == usual].set_index("model")
    table["less"] = table.model.map(base.gib) - table.gib
    table["name"] = [name_of(tables.axis, arm) for arm in table.arm]
    table["other"] = table.name.str.contains(NAMES["adapters 16"])
    table["is_single"] = ~table.name.str.contains(" + ", regex=False) & (table.arm != usual)
    table["frontier"] = [is_on_frontier(table, row) for row in table.itertuples()]
    return table


def memory_of(runs: list[dict]) -> dict:
    """Return the figures of memory of an arm, in GiB."""
    peaks = {run["peak_allocated_mib"] for run in runs}
    found = {"fills": None, "share": math.nan}
    for run in runs:
        if run["ledger_activations_mib"] is not None:
            parts = {part: run[f"ledger_{part}_mib"] or 0 for part in PARTS}
            fills = max(PARTS, key=lambda part: parts[part])
            share = parts[fills] / 1024 / peak_gib(run)
            found = {"fills": CALLED.get(fills, fills), "share": share}
    return found | {
        "gib": max(map(peak_gib, runs)),
        "reserved": max(run["peak_reserved_mib"] for run in runs) / 1024,
        "card": max(run["device_used_mib"] or 0 for run in runs) / 1024,
        "peaks": len(peaks),
    }


def time_of(tables: Tables, comparisons: pd.Index, arm: str) -> dict:
    """Return how much longer a step takes than in bf16 AMP, from the comparison with the most
    processes, and of those with equally many from the one with the most steps.
    """
    usual = fit_budget.plain_of(tables.axis)
    settings = tables.comparisons.settings
    steps = {one: settings[one]["max_steps"] or math.inf for one in comparisons}  # 0: all
    longest = sorted(steps, key=steps.__getitem__, reverse=True)
    found = [tables.between(tables.runs(one, arm), tables.runs(one, usual)) for one in longest]
    best = max(filter(None, found), key=lambda one: one["processes"] or 0, default=None)
    if best is None:
        return {"more": math.nan, "low": math.nan, "high": math.nan, "processes": 0}
    ends = [math.nan if best[end] is None else 1 / best[end] - 1 for end in ("high", "low")]
    row = {"more": 1 / best["ratio"] - 1, "processes": best["processes"]}
    return row | dict(zip(("low", "high"), ends, strict=True))


def is_on_frontier(table: pd.DataFrame, row: object) -> bool:
    """Return whether no other arm of its model is at least as small and as fast; of two that are
    alike the one that changes less is on it.
    """
    if row.other or row.more != row.more:
        return False
    same = table[(table.model == row.model) & ~table.other & (table.arm != row.arm)]
    ahead = (same.gib <= row.gib) & (same.more <= row.more)
    alike = (same.gib == row.gib) & (same.more == row.more)
    return not (ahead & ~(alike & (same["name"].str.len() > len(row.name)))).any()


def percent(share: float) -> str:
    return f"{share:+.0%}".replace("-", "−").replace("−0%", "+0%")


def gib(number: float) -> str:
    return f"{number:+.1f}".replace("-", "−").replace("−0.0", "+0.0")


def time_in_words(row: object) -> str:
    """Return % of time more than bf16 AMP, with an interval where there is one."""
    time = "-" if row.more != row.more else percent(row.more)
    if row.low == row.low and row.name != PLAIN:
        low, high = (f"{100 * end:.0f}".replace("-", "−") for end in (row.low, row.high))
        between = "–" if row.low >= 0 else " to "
        time += f" ({low}{between}{high})"
    return time


def cell_of(row: object) -> str:
    """Return GiB and % of time more than bf16 AMP."""
    return f"{gib(-row.less)}, {time_in_words(row)}"


def short_model(model: str) -> str:
    """Return the name of a model of the answer, whose GPTs are alike in size."""
    return re.sub(r" \d+ × \d+,|, batch \d+", "", model)


def asked_of(outputs: Path) -> pd.DataFrame:
    """Return the rows of measured() that the answer shows."""
    table = measured(outputs)
    return table[table.asked]


def table_of(outputs: Path) -> str:
    """Return the table of the answer page: each remedy alone, that of the least memory times time
    first.
    """
    table = asked_of(outputs)
    single = table[table.is_single].assign(cell=lambda rows: [*map(cell_of, rows.itertuples())])
    models = list(table.model.unique())
    costs = single.assign(cost=(1 + single.more) * single.gib / (single.gib + single.less))
    order = costs.groupby("name").cost.mean().sort_values().index
    cells = single.pivot(index="name", columns="model", values="cell").reindex(order)[models]
    rows = [["GiB, time", *map(short_model, models)], ["---"] * (1 + len(models))]
    for name, row in zip(order, cells.fillna("-").to_numpy(), strict=True):
        rows.append([f"{LOSSES.get(name, '≠')} {name}", *row])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def frontier_of(outputs: Path) -> str:
    """Return the table of the frontier, below bf16 AMP of each model: what needs less and less
    memory, as PyTorch's peak, as what it reserves and as nvidia-smi shows it.
    """
    lines = ["|model|GiB: peak, reserved, nvidia-smi|time|what|", "|---|---|---|---|"]
    for model, rows in measured(outputs).groupby("model", sort=False):
        for row in pd.concat([rows[rows["name"] == PLAIN], best_of(rows)]).itertuples():
            sizes = f"{row.gib:.2f}, {row.reserved:.1f}, {row.card:.1f}"
            lines.append(f"|{model}|{sizes}|{time_in_words(row)}|{row.name}|")
    return "\n".join(lines)


def best_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the frontier of a model, the largest peak first."""
    return rows[rows.frontier].sort_values("gib", ascending=False)


def nothing_of(outputs: Path) -> str:
    """Return, for each model, the remedies that saved next to nothing, and what fills its peak."""
    table = asked_of(outputs)
    saved = table.less / (table.gib + table.less)
    idle = table[
        table.is_single & (table["name"] != NAMES["precision tf32"]) & (saved < SAVES_NOTHING)
    ]
    usual = table[table["name"] == PLAIN].set_index("model")
    lines = []
    for model, rows in idle.groupby("model", sort=False):
        plain = usual.loc[model]
        why = f" ({plain.share:.0%} {plain.fills})" if plain.fills else ""
        lines.append(f"- **{short_model(model)}**: {', '.join(rows['name'])}{why}.")
    return "\n".join(lines) or "- None."


def score_of(outputs: Path) -> str:
    """Return how often the predictions for the held-out GPT are right, in sentences."""
    records = read_records(outputs / FOLDER)[0]
    axis = read_tables(outputs / FOLDER).axis
    if not fit_budget.arms_of(records, axis):
        return "Its score is inconclusive: that takes the 22 trainings of `fit-held-out`."
    budgets, found = fit_budget.scores_of(records, axis)
    own, *rules = (words.count("right") for words in found.values())
    large = found["predicted"].count("too large")
    return (
        f"Of {len(budgets)} budgets of a held-out GPT's peak it is right in {own} and too large in "
        f"{large}. *Every block again* is right in {rules[0]}, *8-bit moments* in {rules[1]}."
    )


def quality_of(outputs: Path) -> str:
    """Return how compiled remedies end beside compiling alone, in a sentence."""
    tables = read_tables(outputs / FOLDER)
    base = fit_budget.plain_of(tables.axis).replace("eager", "compile", 1)
    found = {}
    for number in tables.comparisons.index:
        plain = tables.runs(number, base)
        if plain and fit_budget.study_name(plain[0]) == f"{STUDY}-quality":
            for arm in tables.arms:
                beside = tables.between(tables.runs(number, arm), plain) if arm != base else None
                if beside and beside["quality"]:
                    found[name_of(tables.axis, arm)] = beside["quality"]
    if not found:
        return "Compiled ones are inconclusive: that takes the six seeds of `fit-quality`."
    seeds = min(one["seeds"] for one in found.values())
    good = [name for name, one in found.items() if one["outcome"] in AS_GOOD]
    least, most = (pick(one[end] or 0 for one in found.values()) for pick, end in ENDS)
    tried = ", ".join(name.removeprefix("compiled + ") for name in found)
    return (
        f"A small compiled GPT ends at most 1% worse with {len(good)} of {len(found)} remedies "
        f"({seeds} seeds, 90%: {least:+.2%} to {most:+.2%}). Tried: {tried}."
    ).replace("-", "−")


def draw(rows: pd.DataFrame, limits: tuple[float, float], lines: int) -> object:
    """Draw memory against time of one model: a dot for each arm, the frontier as a line, and
    below them a list of what is on it, for which there is room of so many lines.
    """
    about = "time of a step over bf16 AMP in eager mode, and peak memory · log axis"
    foot = FOOT + lines * LINE_HIGH
    figure, axes = framed(rows.model.iloc[0], about, HIGH, foot=foot, ends=(0.13, 0.97))
    best = best_of(rows)
    colour, mark = LOOKS["amp_bf16"]
    axes.set(xlim=(0, 1.08 * rows.gib.max()), ylim=limits, yscale="log")
    axes.minorticks_off()
    ticks = [tick for tick in RATIO_TICKS if limits[0] <= tick <= limits[1]]
    axes.set_yticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.set_xlabel("GiB")
    axes.axhline(1, color=SOFT, linewidth=1)
    axes.step(best.gib, 1 + best.more, where="pre", color=colour, linewidth=1.4)
    for row in rows.itertuples():
        shade = colour if row.frontier else SOFT
        (dot,) = axes.plot(row.gib, 1 + row.more, mark, color=shade, markersize=6)
        dot.set_gid(f"dot {row.arm}")
        if row.low == row.low:
            axes.vlines(row.gib, 1 + row.low, 1 + row.high, color=shade, linewidth=1.6)
    sides = itertools.cycle(NUMBER_SIDES)
    for number, (row, side) in enumerate(zip(best.itertuples(), sides, strict=False), 1):
        place = (row.gib, 1 + row.more)
        axes.annotate(f"{number}", place, textcoords="offset points", color=INK, **side)
    high = figure.get_figheight()
    figure.text(0, (foot - FOOT) / high, listed(best), va="top", linespacing=1.25)
    return figure


def listed(best: pd.DataFrame) -> str:
    """Return the list of a frontier, with lines as long as a panel is wide."""
    return "\n".join(
        textwrap.fill(
            f"{number} {row.name}: {row.gib:.1f} GiB, {percent(row.more)}",
            LONG_LINE,
            subsequent_indent="   ",
        )
        for number, row in enumerate(best.itertuples(), 1)
    )


def figures(outputs: Path) -> list:
    """Return the picture of the answer page, a panel for each model; nothing where the study has
    not been run.
    """
    if not (outputs / FOLDER).exists():
        return []
    table = asked_of(outputs).dropna(subset="more")
    ends = 1 + table[["more", "low", "high"]]
    limits = (min(0.6, 0.9 * ends.min(axis=None)), max(1.6, 1.1 * ends.max(axis=None)))
    panels = [rows for _, rows in table.groupby("model", sort=False)]
    lines = max(listed(best_of(rows)).count("\n") + 1 for rows in panels)
    with chart_style():
        return [draw(rows, limits, lines) for rows in panels]
