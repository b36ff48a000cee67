"""Sections on what a training costs: the milliseconds of a step, memory, energy, and inference
afterwards. Each draws horizontal bars, a narrow panel per model, on one scale.
"""

from collections.abc import Callable

import pandas as pd
from pandas import DataFrame

from ..judge.arms import energy_share
from ..judge.bottleneck import ARITHMETIC, find_bottleneck, longest_others, remedies_of
from ..store.record import SHORTEST_FOR_ENERGY
from .charts import draw_bars, memory_bars, second_bars
from .section import Section, spans, texts
from .tables import Tables, bars_of
from .words import LIMITS, bare, listed, precision_name, shares, short, span, tried

MODELS, BLOCKS = 12, 6  # further models, and further comparisons of a model, are not drawn
MOST_MODELS = 6  # with more of them the table of all numbers has to do


def ok_trainings(tables: Tables) -> DataFrame:
    """Return the trainings at a fixed batch size that ended well, with the names of their
    comparison and of their arm, in the report's order.

    A study of executions has one precision, too.
    """
    chosen = tables.comparisons if tables.show.get("execution") else tables.charted
    chosen = chosen[chosen.batch.astype(str) != "max"]
    rows = tables.trainings.query("status == 'ok' and not explains")
    rows = rows.join(chosen[["name", "task", "way", "run"]], on="comparison", how="inner")
    rows = rows.join(tables.looks, on="arm")
    return rows.sort_values(["comparison", "place"], kind="stable", ignore_index=True)


def timed_trainings(tables: Tables) -> DataFrame:
    """Return the rows of ok_trainings() whose times count: see fairly_timed()."""
    rows = ok_trainings(tables)
    return rows[rows.record.map(id).isin(tables.fair)]


def middle_runs(rows: DataFrame, size: Callable) -> DataFrame:
    """Return the training with the median of `size(record)` per comparison and arm, of those
    above 0.
    """
    known = rows.assign(size=[size(record) or 0 for record in rows.record]).query("size > 0")
    known = known.sort_values("size", kind="stable")
    groups = known.groupby(["comparison", "arm"])["size"]
    return known[groups.cumcount() == (groups.transform("size") - 1) // 2].sort_index()


def rows_of(make: Callable, tables: Tables) -> DataFrame:
    """Return make(tables), or no row where nothing is compared."""
    return make(tables) if len(tables.comparisons) else DataFrame()


def percents(
    tables: Tables,
    rows: DataFrame,
    column: str,
    by: str,
    what: str,
    form: str = "{:.0f}",
    factor: int = 100,
) -> str:
    """Return the spans of a column in percent over the compared arms, one for each value of `by`.

    The words `what` come first, and name the arms and their bases, or the only arm of which it is
    known. "" where it is not known.
    """
    own = rows[rows.arm.isin(tables.compared_arms)].dropna(subset=column)
    if own.empty:
        return ""
    bases = [tables.called(one) for one in tables.axis.bases if one in set(own.get("baseline", ()))]
    arms = tables.subject if own.arm.nunique() > 1 else tables.called(own.arm.iloc[0])
    told = spans(factor * own[column], own[by].map(bare), form, "%")
    return f"{what.format(arms, listed(bases or ['']))}: {told}"


def add_bars(section: Section, rows: DataFrame, name: str, parts: dict | None = None) -> None:
    """Add a narrow figure of draw_bars() for each model with the bars of all its comparisons.

    `rows` and `parts` are those of draw_bars(), and rows have the column `arm`, too.
    """
    models = rows.groupby(["name", "task"], sort=False)
    largest = models.size().nlargest(MODELS).index
    drawn = 0
    figures = []
    says = []
    for key, own in models:
        if key not in largest:
            continue
        sizes = own.groupby("comparison").size()
        shown = own[own.comparison.isin(sizes.nlargest(BLOCKS).index)]
        drawn += shown.comparison.nunique()
        figures.append(draw_bars(shown, parts))
        texts = (
            shown.run + ", " + shown.arm.map(precision_name) + ": " + shown.label + " " + shown.note
        )
        says.append(f"{', '.join(key)}. {'; '.join(texts.str.strip())}.")
    section.chart(figures, name, " ".join(says))
    every = rows.comparison.nunique()
    if drawn < every:
        section.say(
            f"The charts show {drawn} of {every} comparisons, because more would crowd the page."
        )


def time_section(tables: Tables) -> Section:
    """Return the bars of the seconds of an epoch and of peak memory.

    On a CPU they say nothing, so there are none.
    """
    section = Section("Time and memory", link="Time")
    rows = bars_of(tables)
    if tables.on_cpu or rows.empty or rows.model.nunique() > MOST_MODELS:
        return section
    section.about = "Seconds of an epoch, as the mean over runs."
    if rows.runs.max() > 1:
        section.about += " Thin lines reach from the fastest to the slowest run."
    add_bars(section, second_bars(rows), "time")
    if rows.gib.notna().any():
        section.about += " Below it stands the peak of PyTorch's memory, without the data set."
        add_bars(section, memory_bars(rows), "memory")
    return section


ABOUT_WHY = """One training step in milliseconds, on one scale per model. *Arithmetic* is
convolution, matrix multiplication and attention. *Other kernels* normalise, convert layouts, copy,
or work element by element. While the GPU is *idle*, no kernel runs: it waits for the CPU, which
launches them one by one. AMP shortens the arithmetic, which saves no time where the GPU waits
anyway, and its casts are kernels, too. A CUDA graph launches the whole step at once, so the shorter
arithmetic shows."""
IDLE_SHARE = "Share of a step of {} in which the GPU is idle"
# legible on white and on black
STEP_PARTS = {"arithmetic": "#6a5acd", "other kernels": "#88ccee", "idle": "#8b939c60"}


def steps_of(tables: Tables) -> DataFrame:
    """Return the middle profiled training per comparison and precision, with `STEP_PARTS` and
    `ms` in milliseconds.
    """
    steps = middle_runs(
        timed_trainings(tables),
        # what another process takes of the GPU looks idle
        lambda one: (
            not one["gpu_shared"] and one["kernel_family_fractions"] and one["gpu_busy_fraction"]
        ),
    )
    families = [dict(record["kernel_family_fractions"]) for record in steps.record]
    busy = steps["size"].clip(upper=1)
    share = pd.Series(
        [min(1, sum(found.get(name, 0) for name in ARITHMETIC)) for found in families], steps.index
    )
    ms = steps.step_ms.astype(float)
    steps = steps.assign(
        ms=ms, waits=1 - busy, limit=[find_bottleneck(record)[0].code for record in steps.record]
    )
    other = {"other kernels": ms * busy * (1 - share)}
    return steps.assign(arithmetic=ms * busy * share, idle=ms * (1 - busy), **other)


def why_section(tables: Tables) -> Section:
    """Return the bars of a step, and the table of what limits it and what to try."""
    steps = rows_of(steps_of, tables)
    if steps.empty:
        return Section()
    finding = percents(tables, steps, "waits", "way", IDLE_SHARE)
    section = Section("Why", finding, ABOUT_WHY)
    notes = steps.waits.map("{:.0%} idle".format)
    shown = steps.assign(label=steps.ms.map(short) + " ms", note=notes).dropna(subset="ms")
    add_bars(section, shown, "step_time", STEP_PARTS)
    section.table(limits_of(steps))
    cells = {
        "model": steps["name"],
        "way": steps.run,
        ", ".join(tables.axis.settings): steps.short,
        "kernels": [
            run["kernels_per_step"] and round(run["kernels_per_step"]) for run in steps.record
        ],
        "largest other kernels": [shares(longest_others(record)) for record in steps.record],
    }
    section.table(cells, "Kernels of each step")
    return section


def limits_of(steps: DataFrame) -> list[dict]:
    """Return a row for each model, limit and what to try, with the steps that it is for."""
    tries = [tried(remedies_of(row.limit, row.record)) for row in steps.itertuples()]
    steps = steps.assign(tries=tries, limited=steps.limit.map(LIMITS))
    rows = []
    for (model, limit, remedy), same in steps.groupby(["name", "limited", "tries"], sort=False):
        ways = [f"{run}: {', '.join(own.short)}" for run, own in same.groupby("run", sort=False)]
        where = "; ".join(ways)
        rows.append(
            {"model": model, "limited by": limit, "what to try": remedy or None, "where": where}
        )
    return rows


ABOUT_MEMORY = """A bar is the memory at the peak of training by what it holds. Beside it stand
PyTorch's peak without the data set, which the report compares, and the whole card, which nvidia-smi
shows. *Overhead* is what PyTorch's allocator had reserved above the peak, and what CUDA and its
libraries take."""
MEMORY_PARTS = {  # part of the memory: fields of the record, ledger_<name>_mib
    "weights, optimizer": ("parameters", "gradients", "optimizer", "masters"),
    "activations": ("activations",),
    "data set": ("data",),
    "overhead": ("slack", "context"),
}
# Neither of a precision nor of a step, and legible on light and dark pages.
PART_COLOURS = ("#8a7f1f", "#cfc66b", "#5f7f8f", "#8b939c60")


def memory_parts_of(record: dict) -> dict:
    """Return {part: GiB} of a run.

    It is empty where a part is negative, or none is known but the overhead.
    """
    parts = {}
    for part, names in MEMORY_PARTS.items():
        known = [mib for name in names if (mib := record[f"ledger_{name}_mib"]) is not None]
        if min(known, default=0) < 0:
            return {}
        if known:
            parts[part] = sum(known) / 1024
    return parts if parts.keys() - {"overhead"} else {}


def memory_section(tables: Tables) -> Section:
    """Return the bars of what fills the memory; the section is absent where no run has a
    breakdown.
    """
    rows = rows_of(ok_trainings, tables)
    middle = (
        middle_runs(rows, lambda record: sum(memory_parts_of(record).values()))
        if len(rows)
        else rows
    )
    if middle.empty:
        return Section()
    what = "Peak memory of {} against {}"
    finding = percents(tables, tables.bars, "saved", "model", what, "{:+.0f}", -100)
    section = Section("Memory", finding, ABOUT_MEMORY)
    parts = DataFrame(
        [memory_parts_of(record) for record in middle.record], middle.index, list(MEMORY_PARTS)
    )
    highest = rows.groupby(["comparison", "arm"])[["gib", "card_gib"]].max().add_prefix("most_")
    bars = middle.join(parts).join(highest, on=["comparison", "arm"])
    gib, card = (texts(bars[name], "{:,.2f}") for name in ("most_gib", "most_card_gib"))
    bars = bars.assign(label=[f"{one} GiB" for one in gib], note=[f"card {one}" for one in card])
    add_bars(section, bars, "memory_breakdown", dict(zip(MEMORY_PARTS, PART_COLOURS, strict=True)))
    return section


ABOUT_ENERGY = f"""Joules per 1,000 samples are the median over runs of what the whole GPU used in
timed epochs, without the machine around it. Percentages compare pairs on one card with TF32, or
with fp32 where TF32 was not run. A run counts if it was timed for at least
{SHORTEST_FOR_ENERGY:g} s, because NVML counts in coarse steps."""


def energy_bars(tables: Tables) -> DataFrame:
    """Return the median of joules per 1,000 samples (`value`), and the `share` of the
    `baseline`'s by pairs.
    """
    known = timed_trainings(tables).dropna(subset="joules")
    keys = ["comparison", "arm"]
    medians = tables.bars.set_index(keys).joules.rename("value")
    bars = known.drop_duplicates(keys).assign(baseline="").join(medians, on=keys)
    for base in tables.axis.bases:
        bars.loc[bars.comparison.isin(bars[bars.arm == base].comparison), "baseline"] = base
    sides = [
        [tables.runs(bar.comparison, name) for name in (bar.arm, bar.baseline)]
        for bar in bars.itertuples()
    ]
    return bars.assign(share=[energy_share(*runs) for runs in sides])


def energy_section(tables: Tables) -> Section:
    """Return the bars of energy; the section is absent where no run was long enough."""
    bars = rows_of(energy_bars, tables)
    if bars.empty:
        return Section()
    finding = percents(tables, bars, "share", "way", "Energy of {} as a share of {}")
    section = Section("Energy", finding, ABOUT_ENERGY)
    notes = ["" if pd.isna(share) else f"{share:.0%}" for share in bars.share]
    add_bars(section, bars.assign(label=bars.value.map(short) + " J", note=notes), "energy")
    return section


ABOUT_INFERENCE = """One forward pass of the trained model in its own precision. Latency is the
median for a single sample, with the range from p10 to p90 beside it. Throughput is samples per
second, or columns of text, in a batch as in training."""
INFERENCE_FIELDS = {
    "value": "inference_latency_ms",
    "low": "inference_latency_ms_p10",
    "high": "inference_latency_ms_p90",
    "rate": "inference_samples_per_second",
    "mib": "inference_memory_mib",
    "apart": "inference_difference_fraction",
}


def inference_bars(tables: Tables) -> DataFrame:
    """Return a row per comparison and precision with `INFERENCE_FIELDS`.

    They are medians over runs, but of p10 the least and of p90 the most.
    """
    rows = timed_trainings(tables)
    values = [[record[name] for name in INFERENCE_FIELDS.values()] for record in rows.record]
    values = DataFrame(values, rows.index, [*INFERENCE_FIELDS])
    rows = rows.join(values.astype(float)).dropna(subset="value")
    how = dict.fromkeys(INFERENCE_FIELDS, "median") | {"low": "min", "high": "max"}
    keys = ["comparison", "arm"]
    return (
        rows.drop_duplicates(keys)
        .drop(columns=[*INFERENCE_FIELDS])
        .join(rows.groupby(keys).agg(how), on=keys)
    )


def inference_finding(tables: Tables, bars: DataFrame) -> str:
    """Return how many times as fast each compared arm answers as its base, for one sample and
    for a batch.
    """
    values = bars.set_index(["comparison", "arm"])[["value", "rate"]].astype(float).unstack()
    base = next((one for one in reversed(tables.axis.bases) if one in set(bars.arm)), "")
    texts = []
    for arm in tables.compared_arms if base else ():
        latency = (values.value[base] / values.value[arm]).dropna()
        rate = (values.rate[arm] / values.rate[base]).dropna()
        if len(latency) and len(rate):
            texts.append(
                f"{tables.called(arm)} is {span(list(latency), '{:.2f}')} times as fast as"
                f" {tables.called(base)} for one sample and "
                f"{span(list(rate), '{:.2f}')} times for a batch"
            )
    return "; ".join(texts)


def inference_section(tables: Tables) -> Section:
    """Return bars of latency, and a table; the section is absent where the study is not about
    inference.
    """
    bars = rows_of(inference_bars, tables)
    if bars.empty or not tables.show.get("inference"):
        return Section()
    section = Section("Inference", inference_finding(tables, bars), ABOUT_INFERENCE)
    ranges = [
        f"{short(low)}\u2013{short(high)}" for low, high in zip(bars.low, bars.high, strict=True)
    ]
    latency = bars.assign(
        label=bars.value.map(short) + " ms", note=ranges, task="latency of one sample"
    )
    add_bars(section, latency, "inference_latency")
    rate = bars.assign(
        value=bars.rate,
        label=bars.rate.map(short).add("/s").where(bars.rate.notna(), "–"),
        note="",
    )
    rate["task"] = "throughput, " + bars.task.str.rpartition(", ")[2]
    add_bars(section, rate, "inference_throughput")
    cells = {
        "model": bars["name"],
        "data": bars.task,
        "way": bars.run,
        "precision": bars.arm.map(precision_name),
        "memory, GiB": texts(bars.mib / 1024),
        "apart from fp32": texts(bars.apart, "{:.2%}"),
    }
    section.table(cells, "Memory of inference, and how far its outputs are from those in fp32")
    return section
