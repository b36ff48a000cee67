"""What each remedy for memory saves and costs: the tables and the picture of its answer."""

import functools
from pathlib import Path

import pandas as pd

from mixed_precision_study.judge.arms import peak_gib
from mixed_precision_study.judge.axis import Axis
from mixed_precision_study.report.charts import INK, SOFT, chart_style, framed
from mixed_precision_study.report.tables import Tables, read_tables
from mixed_precision_study.report.words import LOOKS, TRUTH, setting_name

FOLDER = "main/fit-h200"
SAVES_NOTHING = 0.03  # share of the peak, below which a remedy did nothing here
HIGH = 2.6  # inches of a panel of the picture
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
    "precision tf32": "TF32",
}
PARTS = ("parameters", "gradients", "optimizer", "activations")


def name_of(axis: Axis, arm: str) -> str:
    """Return what an arm changes of bf16 AMP in eager mode."""
    rows = zip(axis.settings, arm.split(", "), usual_of(axis).split(", "), strict=True)
    changed = [(name, value) for name, value, usual in rows if value != usual]
    names = (
        NAMES.get(f"{name} {value}", setting_name(name, TRUTH.get(value, value)))
        for name, value in changed
    )
    return " + ".join(filter(None, names)) or "bf16 AMP"


def usual_of(axis: Axis) -> str:
    """Return the arm that remedies are compared with: bf16 AMP, and all else as in the base."""
    return axis.bases[0].replace("tf32", "amp_bf16", 1)


@functools.cache
def measured(outputs: Path) -> pd.DataFrame:
    """Return a row for each arm of each model.

    gib, reserved, card: highest peak of PyTorch, what it reserved, and what nvidia-smi showed
    peaks: how many different peaks its processes had
    fills: the largest part of the peak
    less, more: GiB less and share of time more than bf16 AMP; low and high are the ends of the
        latter's interval, NaN with fewer than three processes
    changed: how many settings differ from bf16 AMP
    frontier: whether no other arm is at least as small and as fast
    """
    tables = read_tables(outputs / FOLDER)
    whole = tables.comparisons.settings.map(lambda one: not one["memory_limit_gib"])
    models = tables.comparisons[whole].groupby(["name", "task"], sort=False)
    rows = []
    for (model, task), comparisons in models:
        for arm in tables.arms:
            runs = [run for number in comparisons.index for run in tables.runs(number, arm)]
            if runs:
                row = {"model": f"{model}, {task.rpartition(', ')[2]}", "arm": arm}
                rows.append(row | memory_of(runs) | time_of(tables, comparisons.index, arm))
    table = pd.DataFrame(rows)
    usual = usual_of(tables.axis)
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
    explained = next((run for run in runs if run["ledger_activations_mib"] is not None), None)
    fills = explained and max(PARTS, key=lambda part: explained[f"ledger_{part}_mib"] or 0)
    return {
        "gib": max(map(peak_gib, runs)),
        "reserved": max(run["peak_reserved_mib"] for run in runs) / 1024,
        "card": max(run["device_used_mib"] or 0 for run in runs) / 1024,
        "peaks": len(peaks),
        "fills": fills,
    }


def time_of(tables: Tables, comparisons: pd.Index, arm: str) -> dict:
    """Return how much longer a step takes than in bf16 AMP, from the comparison with the most
    processes.
    """
    usual = usual_of(tables.axis)
    found = [tables.between(tables.runs(one, arm), tables.runs(one, usual)) for one in comparisons]
    best = max(filter(None, found), key=lambda one: one["processes"] or 0, default=None)
    if best is None:
        return {"more": float("nan"), "low": float("nan"), "high": float("nan"), "processes": 0}
    ends = [float("nan") if best[end] is None else 1 / best[end] - 1 for end in ("high", "low")]
    row = {"more": 1 / best["ratio"] - 1, "processes": best["processes"]}
    return row | dict(zip(("low", "high"), ends, strict=True))


def is_on_frontier(table: pd.DataFrame, row: object) -> bool:
    """Return whether no other arm of its model is at least as small and as fast."""
    same = table[(table.model == row.model) & ~table.other & (table.arm != row.arm)]
    better = (same.gib <= row.gib) & (same.more <= row.more)
    return not (row.other or better.any())


def cell_of(row: object) -> str:
    """Return GiB less and % more time, with an interval where there is one."""
    time = f"{row.more:+.0%}"
    if row.low == row.low:
        time += f" ({100 * row.low:.0f} to {100 * row.high:.0f})"
    else:
        time = f"~{time}"
    return f"{-row.less:+.1f} GiB, {time}".replace("-", "−")


def table_of(outputs: Path) -> str:
    """Return the table of the answer page: each remedy alone, the one that saves most first."""
    table = measured(outputs)
    single = table[table.is_single].assign(cell=lambda rows: [*map(cell_of, rows.itertuples())])
    models = list(table.model.unique())
    shares = single.assign(share=single.less / single.groupby("model").gib.transform("max"))
    order = shares.groupby("name").share.max().sort_values(ascending=False).index
    cells = single.pivot(index="name", columns="model", values="cell").reindex(order)[models]
    rows = [["over bf16 AMP, eager", *models], ["---"] * (1 + len(models))]
    rows += [[name, *row] for name, row in zip(order, cells.fillna("-").to_numpy(), strict=True)]
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def frontier_of(outputs: Path) -> str:
    """Return the table of the frontier: for each model what needs less and less memory."""
    table = measured(outputs)
    lines = ["|model|peak|time|what|", "|---|---|---|---|"]
    for model, rows in table.groupby("model", sort=False):
        for number, row in enumerate(best_of(rows).itertuples(), 1):
            time = f"{row.more:+.0%}".replace("-", "−")
            lines.append(f"|{model}|{row.gib:.1f} GiB|{time}|{number}: {row.name}|")
    return "\n".join(lines)


def best_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the frontier of a model, the largest peak first."""
    return rows[rows.frontier].sort_values("gib", ascending=False)


def nothing_of(outputs: Path) -> str:
    """Return the list of remedies that saved next to nothing, and what fills the peak there."""
    table = measured(outputs)
    saved = table.less / (table.gib + table.less)
    idle = table[table.is_single & (table["name"] != "TF32") & (saved < SAVES_NOTHING)]
    lines = [
        f"- **{row.name}**, {row.model}: {row.less:+.1f} GiB; {row.fills} fill most of the peak"
        for row in idle.itertuples()
    ]
    return "\n".join(lines) or "- None."


def draw(rows: pd.DataFrame) -> object:
    """Draw memory against time of one model: a dot for each arm, and the frontier as a line."""
    title, _, batch = rows.model.iloc[0].rpartition(", ")
    about = f"{batch}: time of a step over bf16 AMP in eager mode, and peak memory"
    figure, axes = framed(title, about, HIGH, foot=0.6, ends=(0.1, 0.97))
    best = best_of(rows)
    colour, mark = LOOKS["amp_bf16"]
    axes.step(best.gib, 1 + best.more, where="pre", color=colour, linewidth=1.4)
    for row in rows.itertuples():
        shade = colour if row.frontier else SOFT
        (dot,) = axes.plot(row.gib, 1 + row.more, mark, color=shade, markersize=6)
        dot.set_gid(f"dot {row.arm}")
        if row.low == row.low:
            axes.vlines(row.gib, 1 + row.low, 1 + row.high, color=shade, linewidth=1.6)
    for number, row in enumerate(best.itertuples(), 1):
        axes.annotate(
            f"{number}", (row.gib, 1 + row.more), (5, 4), textcoords="offset points", color=INK
        )
    axes.set(xlim=(0, 1.08 * rows.gib.max()), ylim=(0, 1.1 * (1 + rows.more.max())))
    axes.set_xlabel("GiB")
    axes.yaxis.set_major_formatter("{x:g}×")
    return figure


def figures(outputs: Path) -> list:
    """Return the picture of the answer page, a panel for each model; nothing where the study has
    not been run.
    """
    if not (outputs / FOLDER).exists():
        return []
    table = measured(outputs).dropna(subset="more")
    with chart_style():
        return [draw(rows) for _, rows in table.groupby("model", sort=False)]
