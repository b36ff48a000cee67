"""How an experiment notebook shows its own result: the conclusion, a picture, one table, and a
sentence per precision.
"""

import re
import sys
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import pandas as pd

from ..judge.bottleneck import advice_of, find_bottleneck
from ..judge.verdict import NOT_TRAINED, verdict
from ..store.record import RunRecord, flat_record
from .bars import time_and_memory, time_and_memory_note
from .charts import STATUS, picture_of
from .names import METRICS, ORDER, in_way, model_name, precision_name, way_name
from .section import Sentence
from .tables import Tables, bars_of, comparisons_of, mark_diverged, ratios_of, training_row
from .words import listed, plain, short

LINE_LENGTH = 100  # characters of a sentence's line
CPU_WARNING = (
    "These runs were a smoke test on the CPU: they say nothing about what mixed precision buys."
)
PICTURE_WIDTH = 330  # pixels of the picture


def tables_of(records: list[RunRecord]) -> Tables:
    """Return the tables of one notebook's run: one comparison, in which no run is compared by
    its place.
    """
    flat = [flat_record(record) | {"runs_before_in_process": None} for record in records]
    # the first one names the model
    flat.sort(key=lambda one: (one["status"] != "ok", ORDER.index(one["precision"])))
    mark_diverged(flat)
    tables = Tables(on_cpu=any(one["device_type"] == "cpu" for one in flat))
    tables.trainings = pd.DataFrame([training_row(one, 0) for one in flat])
    tables.comparisons = comparisons_of(tables.trainings)
    tables.ratios = ratios_of(tables)
    return tables


def bars_in(tables: Tables) -> pd.DataFrame:
    """Return the rows of bars_of(), without a ratio on the CPU and for runs that did not train."""
    bars = bars_of(tables)
    bars.index = bars.precision.to_list()
    bars.loc[bars.outcome.eq(NOT_TRAINED) | tables.on_cpu, "ratio"] = float("nan")
    numbers = ["seconds", "seconds_low", "seconds_high", "gib", "metric", "ratio", "low", "high"]
    return bars.astype(dict.fromkeys(numbers, float))


def results_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return the result as texts, a row per precision: a gap is empty, and a column of gaps is
    left out.
    """
    tables = tables_of(records)
    bars, first = (
        bars_in(tables),
        {one["precision"]: one for one in reversed(tables.trainings.record)},
    )
    metric = next((record.metric_name for record in records if record.metric_name), "metric")
    columns = {
        "batch": pd.Series(
            {name: one["batch_size_used"] for name, one in first.items()}, dtype=float
        ).map("{:,.0f}".format),
        "seconds per epoch": bars.seconds.map(short),
        f"times as fast as {precision_name(bars.baseline.iloc[0])}": bars.ratio.map(
            "{:.2f}".format
        ),
        "memory, GiB": bars.gib.map("{:.2f}".format),
        METRICS.get(metric, metric.replace("_", " ")): bars.metric.map("{:.4g}".format),
    }
    if columns["batch"].nunique() == 1:
        del columns["batch"]
    table = pd.DataFrame(columns).loc[bars.index].replace("nan", "")
    limits = {
        name: STATUS.get(one["status"], one["status"])
        if one["status"] != "ok"
        else find_bottleneck(one)[0]
        for name, one in first.items()
    }
    table["what limits it"] = pd.Series(limits).mask(bars.outcome == NOT_TRAINED, NOT_TRAINED)
    return table.loc[:, (table != "").any()].rename(index=precision_name)


def conclusion(tables: Tables) -> str:
    """Return the answer in one or two sentences: what 16 bits gain over TF32 (or fp32) and what
    limits the first of them; nothing where no such ratio is known.
    """
    if tables.on_cpu:
        return CPU_WARNING
    bars = bars_in(tables)
    gains = bars[bars.ratio.notna()]
    if gains.empty:
        return ""
    base, name = gains.baseline.iloc[0], gains.index[0]
    run = next(one for one in tables.trainings.record if one["precision"] == name)
    way = in_way(way_name(run["settings"].get("execution")))
    amounts = [f"{precision_name(arm)} {ratio:.2f} times" for arm, ratio in gains.ratio.items()]
    answer = f"{model_name(run)} {way}: {listed(amounts, 'and')} as fast as {precision_name(base)}"
    shares = [f"{share:.2f}" for share in (gains.gib / bars.gib[base]).dropna()]
    if len(shares) == len(gains):
        answer += f", with {listed(shares, 'and')} of its memory"
    case, because = find_bottleneck(run)
    if case == "not known":
        return f"{answer}."
    return f"{answer}. With {precision_name(name)}, {because}{advice_of(case, run)}."


def sentences_of(tables: Tables) -> list[str]:
    """Return a sentence per precision: how much faster than fp32 and TF32 it is, and why."""
    if tables.on_cpu:
        return [CPU_WARNING]
    runs = {arm: list(part.record) for arm, part in tables.trainings.groupby("arm")}
    runs = {arm: runs[arm] for arm in tables.arms}
    said: dict[str, list[str]] = {}
    for arm, base in tables.axis.pairs([*runs]):
        own = runs[arm][0]
        if own["status"] == "ok" or arm not in said:
            ratio = tables.between(tables.runs(0, arm), tables.runs(0, base))
            text = verdict(own, runs[base][0], ratio, with_reason=arm not in said)
            said.setdefault(arm, []).append(text)
    items = [" ".join(texts) for texts in said.values()]
    ok = [own[0] for own in runs.values() if own[0]["status"] == "ok"]
    if not items:  # one precision in a kernel of its own, as under run_all.py: the report compares
        items = [f"{one['precision']}: {find_bottleneck(one)[1]}." for one in ok]
    if not items:
        return ["No run ended well, so there is nothing to compare."]
    return [re.sub(r"\w+", lambda found: precision_name(found[0]), text) for text in items]


def order_of(records: list[RunRecord]) -> str:
    """Return what is to be known of several runs of one process, or nothing of a single one."""
    order = {
        one.runs_before_in_process: precision_name(one.precision)
        for one in records
        if one.status == "ok" and one.runs_before_in_process is not None
    }
    if len(order) < 2:
        return ""
    return (
        f"One process ran {listed([order[place] for place in sorted(order)], 'and')}, in this "
        "order. One run of each gives no interval, so a small difference may be chance."
    )


def in_notebook() -> bool:
    """Return whether IPython runs this process, which compare() and diagnose() do not need."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show_text(text: str) -> None:
    """Show a paragraph as Markdown, or, outside IPython, as lines of text."""
    if in_notebook():
        from IPython.display import display

        display(Sentence(plain(text)))
    else:
        print(textwrap.fill(text, LINE_LENGTH))


def show(records: list[RunRecord]) -> None:
    """Show the result of a notebook, its conclusion first, outside IPython as text."""
    tables = tables_of(records)
    bars = bars_in(tables)
    show_table: Callable = print
    if answer := conclusion(tables):
        show_text(answer)
    if in_notebook():
        from IPython.display import Image, display

        show_table = display
    if in_notebook() and not tables.on_cpu and len(bars) > 1:
        figures = time_and_memory(bars)
        for figure in figures:
            plt.close(figure)  # else a notebook shows it again
        display(Image(picture_of(figures), width=PICTURE_WIDTH, alt=time_and_memory_note(bars)))
        show_text(time_and_memory_note(bars))
    with pd.option_context(
        "display.max_colwidth", None, "display.max_columns", None, "display.width", 1000
    ):
        show_table(results_table(records))
    for sentence in filter(None, (order_of(records), *sentences_of(tables))):
        if sentence != answer:
            show_text(sentence)
