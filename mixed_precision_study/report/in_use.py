"""Section: inference, only in the report of a study that is about it."""

import pandas as pd

from .growth import texts
from .names import precision_name
from .panels import add_panels, timed_trainings
from .section import Section
from .tables import Tables
from .words import short, span

ABOUT = """One forward pass of the trained model in its own precision. Latency is the median for a single sample, with
the range from p10 to p90 beside it. Throughput is samples per second, or columns of text, in a batch as in training."""
INFERENCE_FIELDS = {
    "value": "inference_latency_ms",
    "low": "inference_latency_ms_p10",
    "high": "inference_latency_ms_p90",
    "rate": "inference_samples_per_second",
    "mib": "inference_memory_mib",
    "apart": "inference_difference_fraction",
}


def inference_bars(tables: Tables) -> pd.DataFrame:
    """Return a row per comparison and precision with `INFERENCE_FIELDS`.

    They are medians over runs, but of p10 the least and of p90 the most.
    """
    rows = timed_trainings(tables)
    values = [[record[name] for name in INFERENCE_FIELDS.values()] for record in rows.record]
    values = pd.DataFrame(values, rows.index, [*INFERENCE_FIELDS])
    rows = rows.join(values.astype(float)).dropna(subset="value")
    how = dict.fromkeys(INFERENCE_FIELDS, "median") | {"low": "min", "high": "max"}
    keys = ["comparison", "arm"]
    return (
        rows.drop_duplicates(keys)
        .drop(columns=[*INFERENCE_FIELDS])
        .join(rows.groupby(keys).agg(how), on=keys)
    )


def finding(tables: Tables, bars: pd.DataFrame) -> str:
    """Return how many times as fast each compared arm answers as its base, for one sample and
    for a batch.
    """
    values = bars.set_index("arm")
    base = next((one for one in reversed(tables.axis.bases) if one in values.index), "")
    texts = []
    for arm in tables.compared_arms if base else ():
        own, beside = (
            values.loc[[name]].set_index("comparison")[["value", "rate"]].astype(float)
            for name in (arm, base)
        )
        times = (own / beside).dropna()
        if len(times):
            texts.append(
                f"{tables.called(arm)} is {span(list(1 / times.value), '{:.2f}')} times as fast as"
                f" {tables.called(base)} for one sample and "
                f"{span(list(times.rate), '{:.2f}')} times for a batch"
            )
    return "; ".join(texts)


def section(tables: Tables) -> Section:
    """Return bars of latency, and a table; the section is absent where the study is not about
    inference.
    """
    asked = tables.show.get("inference") and len(tables.comparisons)
    bars = inference_bars(tables) if asked else pd.DataFrame()
    if bars.empty:
        return Section()
    section = Section("Inference", finding(tables, bars), ABOUT)
    ranges = [
        f"{short(low)}\u2013{short(high)}" for low, high in zip(bars.low, bars.high, strict=True)
    ]
    latency = bars.assign(
        label=bars.value.map(short) + " ms", note=ranges, task="latency of one sample"
    )
    add_panels(section, latency, "inference_latency")
    rate = bars.assign(
        value=bars.rate,
        label=[short(one) + "/s" if one == one else "–" for one in bars.rate],
        note="",
    )
    rate["task"] = "throughput, " + bars.task.str.rpartition(", ")[2]
    add_panels(section, rate, "inference_throughput")
    table = pd.DataFrame({"model": bars["name"], "data": bars.task, "way": bars.block})
    table["precision"] = bars.arm.map(precision_name)
    table["memory, GiB"] = [short(one) if one == one else "–" for one in bars.mib / 1024]
    table["apart from fp32"] = texts(bars.apart, "{:.2%}")
    section.table(
        table.to_dict("records"),
        "Memory of inference, and how far its outputs are from those in fp32",
    )
    return section
