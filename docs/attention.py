"""How much of a Transformer's gain is attention: the table and the picture of its answer."""

import functools
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pandas as pd

from mixed_precision_study.judge.ratios import interaction
from mixed_precision_study.report.charts import draw_bars
from mixed_precision_study.report.results import cell_of
from mixed_precision_study.report.section import ratio_texts
from mixed_precision_study.report.tables import Tables, read_tables
from mixed_precision_study.report.words import COLOURS, span

FOLDER = "main/attention-h200"
# of the GPT whose times are told; single processes of others and a smaller one lie beside it
WIDTH, CONTEXTS, EXECUTION = 768, (128, 1024, 8192), "compile_cuda_graph"
BASE, ATTENTION, PRODUCTS, BOTH, EFFICIENT = (
    "tf32, fp32, auto",
    "tf32, bf16, auto",
    "amp_bf16, fp32, auto",
    "amp_bf16, bf16, auto",
    "amp_bf16, bf16, efficient",
)
ROWS = {  # of the table: an arm over another one
    "**bf16 AMP**": (BOTH, BASE),
    "attention, first": (ATTENTION, BASE),
    "attention, second": (BOTH, PRODUCTS),
    "products, first": (PRODUCTS, BASE),
    "products, second": (BOTH, ATTENTION),
    "bf16 AMP, efficient kernel": (EFFICIENT, BASE),
}
BARS = {  # of the picture: an arm, and what it is called
    BASE: "TF32",
    ATTENTION: "TF32, bf16 attention",
    PRODUCTS: "bf16, fp32 attention",
    BOTH: "bf16 AMP",
}
PARTS = {"attention": COLOURS["amp_fp16"], "all else": COLOURS["tf32"]}


@functools.cache
def tables_in(outputs: Path) -> Tables:
    return read_tables(outputs / FOLDER)


def by_context(tables: Tables) -> Iterator[tuple[int, int]]:
    """Yield (context, number of its comparison) of the timed GPT, the shortest context first."""
    settings = pd.DataFrame([*tables.comparisons.settings], tables.comparisons.index)
    timed = settings[(settings.width == WIDTH) & (settings.execution == EXECUTION)]
    for number, context in timed.context.sort_values().items():
        if context in CONTEXTS:
            yield context, number


def interactions(tables: Tables) -> dict[int, str]:
    """Return {context: how many times as much attention gains beside products in bf16}."""
    found = {}
    for context, number in by_context(tables):
        runs = (tables.runs(number, arm) for arm in (BASE, PRODUCTS, ATTENTION, BOTH))
        texts = ratio_texts(
            pd.DataFrame([interaction(*runs)]).reindex(columns=["ratio", "low", "high"])
        )
        found[context] = texts[0] or "-"
    return found


def table_of(outputs: Path) -> str:
    """Return the table of the answer page: gains at each context, one row for each order."""
    tables = tables_in(outputs)
    contexts = dict(by_context(tables))
    cells = {
        (one.comparison, one.arm, one.base): cell_of(one) for one in tables.ratios.itertuples()
    }
    rows = [["times as fast", *(f"{context:,}" for context in contexts)]]
    rows.append(["---"] * len(rows[0]))
    for name, pair in ROWS.items():
        rows.append([name, *(cells.get((number, *pair), "-") for number in contexts.values())])
    rows.append(["interaction", *interactions(tables).values()])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def bar_rows(outputs: Path) -> pd.DataFrame:
    """Return rows of draw_bars(): the milliseconds of a step, and of them those of attention, as
    a profile has them.
    """
    tables = tables_in(outputs)
    rows = []
    for context, number in by_context(tables):
        for arm, name in BARS.items():
            runs = tables.runs(number, arm)
            profiled = next((run for run in runs if run["gpu_busy_ms_per_step"]), None)
            if profiled is None:
                continue
            step = fmean(run["step_ms_median"] for run in runs)
            share = dict(profiled["kernel_family_fractions"]).get("attention", 0)
            spent = share * profiled["gpu_busy_ms_per_step"]
            # each arm is a heading of its own, so that its bar is as wide as the panel
            row = {"name": f"Context {context:,}", "comparison": name, "run": name, "short": ""}
            row |= {"attention": spent, "all else": step - spent, "label": f"{step:.1f} ms"}
            rows.append(row | {"note": ""})
    return pd.DataFrame(rows).assign(task="a step of 8,192 tokens")


def numbers(outputs: Path) -> dict[str, str]:
    """Return what bf16 AMP gains at the shortest and the longest context, and attention's part."""
    tables = tables_in(outputs)
    found = {(one.comparison, one.arm, one.base): one.ratio for one in tables.ratios.itertuples()}
    short, *_, long = (number for _, number in by_context(tables))
    orders = [found[long, *ROWS[f"attention, {order}"]] for order in ("first", "second")]
    return {
        "short_context": f"{found[short, BOTH, BASE]:.1f}",
        "long_context": f"{found[long, BOTH, BASE]:.1f}",
        "long_attention": span(orders, "{:.1f}"),
    }


def figures(outputs: Path) -> list:
    """Return the picture of the answer page, a figure a context, or nothing where the study has
    not been run. Each has a scale of its own, because the longest context would hide the others.
    """
    if not (outputs / FOLDER).exists():
        return []
    return [draw_bars(rows, PARTS) for _, rows in bar_rows(outputs).groupby("name", sort=False)]
