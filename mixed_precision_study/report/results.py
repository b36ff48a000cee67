"""How an experiment notebook shows its own result: a picture, one table, and a sentence per
precision.
"""

import re
import sys
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import pandas as pd

from ..judge.bottleneck import find_bottleneck, remedies_of
from ..judge.conditions import conditions_of
from ..judge.memory_reason import memory_reason
from ..judge.verdict import NOT_TRAINED, OTHER_CONDITIONS, TOO_FEW_PROCESSES, judge
from ..store.record import DISTURBED, RunRecord, flat_record
from .bars import time_and_memory, time_and_memory_note
from .charts import STATUS, picture_of
from .findings import LIMITS, outcome_words, said, said_of_limit, tried
from .names import METRICS, ORDER, precision_name
from .tables import Tables, bars_of, comparisons_of, mark_diverged, ratios_of, training_row
from .words import listed, short

LINE_LENGTH = 100  # characters of a sentence's line
STATUS_WORDS = {
    "oom": "ran out of memory",
    "unsupported": "cannot run here",
    "timeout": "took too long",
}
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
        else LIMITS[find_bottleneck(one)[0].code]
        for name, one in first.items()
    }
    table["what limits it"] = pd.Series(limits).mask(
        bars.outcome == NOT_TRAINED, outcome_words(NOT_TRAINED)
    )
    return table.loc[:, (table != "").any()].rename(index=precision_name)


def amount_of(record: dict, base: dict, speedup: dict, outcome: str) -> str:
    """Return a ratio as text, with its interval, or with how few processes it rests on, and what
    it allows to say.
    """
    words = outcome_words(outcome)
    interval = outcome_words(TOO_FEW_PROCESSES.get(speedup["processes"], "not paired"))
    if speedup["low"] is not None:
        interval = f"{speedup['low']:.2f} to {speedup['high']:.2f}"
    amount = f"{speedup['ratio']:.2f}x as fast as {base['precision']} ({interval})"
    if record["settings"]["batch_size"] == "max":
        sizes = f"{record['batch_size_used']:,} and {base['batch_size_used']:,}"
        amount += f" per sample, each at its largest batch ({sizes})"
    if outcome == OTHER_CONDITIONS:
        return f"{amount}: no outcome, because {said(speedup['unlike'])}"
    return amount if outcome in TOO_FEW_PROCESSES.values() else f"{amount}: {words}"


def without_a_ratio(record: dict, base: dict, with_reason: bool) -> str:
    """Return the sentence on a run that has no ratio over its baseline, or nothing."""
    name = record["precision"]
    if record["status"] != "ok":
        status = STATUS_WORDS.get(record["status"], record["status"])
        # a reason may be a whole sentence
        reason = (record["reason"] or "no reason was recorded").rstrip(".")
        return f"{name} {status}: {reason}."
    if record["device_type"] == "cpu":
        return f"{name} ran on the CPU: a smoke test, which measures nothing."
    if base["status"] == "ok":
        return ""
    reason = f"; {said_of_limit(find_bottleneck(record))}" if with_reason else ""
    return f"{name} has no {base['precision']} to be compared with ({base['status']}){reason}."


def verdict(record: dict, base: dict, speedup: dict | None, with_reason: bool = True) -> str:
    """Return one sentence on a run against its baseline: how much, what that allows to say, and
    (`with_reason`) why.

    What disturbed either run comes first, unless the run did not train, because then nothing is
    called faster.
    """
    if alone := without_a_ratio(record, base, with_reason):
        return alone
    name, against = record["precision"], base["precision"]
    disturbed = [one for run in (record, base) for one in conditions_of(run, run["precision"])]
    disturbed += speedup["differences"] if speedup else []
    cautions = "; ".join(dict.fromkeys(map(said, disturbed)))
    warning = f"Caution: {cautions}. " if cautions else ""
    outcome = judge(speedup)
    if speedup is None:
        return f"{warning}{name} cannot be compared with {against}: {outcome_words(outcome)}."
    if outcome == NOT_TRAINED:
        ratio = f"{speedup['ratio']:.2f}x over {against}"
        return f"{said(speedup['untrained'])}, so its {ratio} is no speed-up. {warning}".rstrip()
    amount = amount_of(record, base, speedup, outcome)
    if speedup["lost"]:
        amount += f", but {said(speedup['lost'])}"
    if speedup["apart"]:
        median = f"{speedup['median_ratio']:.2f}x"
        amount += f"; its median block is {median}, so some blocks took far longer"
    because = f"; {reasons_of(record, base)}" if with_reason else ""
    return f"{warning}{name} is {amount}{because}."


def reasons_of(record: dict, base: dict) -> str:
    """Return what limits a run and what to try, and why its memory or its format is not as
    expected.
    """
    limits = find_bottleneck(record)
    text = said_of_limit(limits)
    if remedies := remedies_of(limits[0].code, record):
        text += f": try {tried(remedies)}"
    half = record["fp16_kernel_fraction"] or 0
    if record["precision"] == "amp_bf16" and half >= DISTURBED:
        text += (
            f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's RNNs in"
            " fp16)"
        )
    if reason := memory_reason(record, base):
        text += f"; memory did not go down: {said(reason)}"
    return text


def read_results(records: list[RunRecord]) -> str:
    """Return an item per precision: how much faster than fp32 and TF32 it is, and why."""
    tables = tables_of(records)
    if tables.on_cpu:
        return CPU_WARNING
    runs = {arm: list(part.record) for arm, part in tables.trainings.groupby("arm")}
    runs = {arm: runs[arm] for arm in tables.arms}
    sentences: dict[str, list[str]] = {}
    for arm, base in tables.axis.pairs([*runs]):
        own = runs[arm][0]
        if own["status"] == "ok" or arm not in sentences:
            ratio = tables.between(tables.runs(0, arm), tables.runs(0, base))
            text = verdict(own, runs[base][0], ratio, with_reason=arm not in sentences)
            sentences.setdefault(arm, []).append(text)
    items = [" ".join(texts) for texts in sentences.values()]
    if not items:  # one precision in a kernel of its own, as under run_all.py: the report compares
        items = [
            f"{name}: {said_of_limit(find_bottleneck(own[0]))}."
            for name, own in runs.items()
            if own[0]["status"] == "ok"
        ]
    if not items:
        return "No run ended well, so there is nothing to compare."
    ok = [record for record in records if record.status == "ok"]
    order = {
        one.runs_before_in_process: one.precision
        for one in ok
        if one.runs_before_in_process is not None
    }
    if len(order) > 1:
        text = (
            f"One process ran {listed([order[place] for place in sorted(order)], 'and')}, in "
            "this order."
        )
        items.insert(
            0, f"{text} One run of each gives no interval, so a small difference may be chance."
        )
    items = [re.sub(r"\w+", lambda found: precision_name(found[0]), text) for text in items]
    return "\n".join(
        textwrap.fill(text, LINE_LENGTH, initial_indent="- ", subsequent_indent="  ")
        for text in items
    )


def in_notebook() -> bool:
    """Return whether IPython runs this process, which compare() and diagnose() do not need."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show(records: list[RunRecord]) -> None:
    """Show the result of a notebook, outside IPython as text."""
    tables = tables_of(records)
    bars = bars_in(tables)
    show_table: Callable = print
    if in_notebook():
        from IPython.display import Image, display

        show_table = display
    if in_notebook() and not tables.on_cpu and len(bars) > 1:
        figures = time_and_memory(bars)
        for figure in figures:
            plt.close(figure)  # else a notebook shows it again
        display(Image(picture_of(figures), width=PICTURE_WIDTH, alt=time_and_memory_note(bars)))
        print(textwrap.fill(time_and_memory_note(bars), LINE_LENGTH))
    with pd.option_context(
        "display.max_colwidth", None, "display.max_columns", None, "display.width", 1000
    ):
        show_table(results_table(records))
    print(read_results(records))
