"""Sections on what a training costs: the milliseconds of a step, memory, energy, and inference
afterwards. Each draws horizontal bars, a narrow panel per model, on one scale.
"""

from collections.abc import Callable
from textwrap import shorten

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..judge.arms import energy_share
from ..judge.bottleneck import ARITHMETIC, IDLE, advice_of, find_bottleneck, longest_others
from ..store.record import SHORTEST_FOR_ENERGY
from .section import Section
from .settings import texts
from .tables import Tables
from .words import ORDER, bare, listed, plain, precision_name, short, span

PANEL_WIDTH, LETTER = 3.3, 0.078  # of a panel and of a letter, in inches
PANELS, BLOCKS = 6, 6  # further models, and further comparisons of a model, are not drawn


def ok_trainings(tables: Tables) -> pd.DataFrame:
    """Return the trainings at a fixed batch size that ended well, with name, task and `block`, in
    the report's order.

    A block is a comparison, named by its way and by what is special. A study of executions has one
    precision, too.
    """
    chosen = tables.comparisons if tables.show.get("execution") else tables.charted
    chosen = chosen[chosen.batch.astype(str) != "max"]
    parts = chosen[["way", "more", "device"][: 3 if chosen.device.nunique() > 1 else 2]]
    blocks = [" · ".join(filter(None, texts)) for texts in parts.itertuples(index=False)]
    names = chosen[["name", "task", "way"]].assign(block=blocks)
    rows = tables.trainings.query("status == 'ok' and not explains").join(
        names, on="comparison", how="inner"
    )
    short, colours = (
        rows.arm.map(lambda arm, part=part: tables.arms[arm][part]) for part in (0, 1)
    )
    place = rows.arm.map([*tables.arms].index)
    order = rows.assign(place=place, short=short, colour=colours).sort_values(
        ["comparison", "place"], kind="stable"
    )
    return order.drop(columns="place").reset_index(drop=True)


def timed_trainings(tables: Tables) -> pd.DataFrame:
    """Return the rows of ok_trainings() whose times count: heat or hardware did not slow them."""
    rows = ok_trainings(tables)
    return rows[rows.record.map(id).isin(tables.fair)]


def middle_runs(rows: pd.DataFrame, size: Callable[[dict], float | None]) -> pd.DataFrame:
    """Return the training with the median of `size(record)` per comparison and arm, of those
    above 0.
    """
    known = rows.assign(size=[size(record) or 0 for record in rows.record]).query("size > 0")
    known = known.sort_values("size", kind="stable")
    groups = known.groupby(["comparison", "arm"])["size"]
    return known[groups.cumcount() == (groups.transform("size") - 1) // 2].sort_index()


def add_panels(
    section: Section, bars: pd.DataFrame, name: str, parts: dict[str, str] | None = None
) -> None:
    """Add a narrow figure per model with horizontal bars of all its comparisons on one scale.

    `bars` has the columns of `ok_trainings`, `label` and `note` (texts at the right), and a column
    for each of `parts` ({column: colour}), which are stacked. Without `parts` the column `value` is
    drawn in the colour of the arm.
    """
    models = bars.groupby(["name", "task"], sort=False)
    largest = models.size().nlargest(PANELS).index
    drawn: set[int] = set()
    figures, says = [], []
    for place, key in enumerate(one for one in models.groups if one in largest):
        sizes = models.get_group(key).groupby("comparison").size()
        rows = bars[bars.comparison.isin(sizes.nlargest(BLOCKS).index)]
        drawn |= set(rows.comparison)
        texts = (
            rows.block + ", " + rows.arm.map(precision_name) + ": " + rows.label + " " + rows.note
        )
        figures.append(draw_panel(rows, f"{key[0]}\n{key[1]}", parts, legend=place == 0))
        says.append(f"{', '.join(key)}. {'; '.join(texts.str.strip())}.")
    section.chart(figures, name, " ".join(says))
    every = bars.comparison.nunique()
    if len(drawn) < every:
        section.say(
            f"The charts show {len(drawn)} of {every} comparisons, because more would "
            "crowd the page."
        )


def draw_panel(
    rows: pd.DataFrame, title: str, parts: dict[str, str] | None, legend: bool
) -> Figure:
    """Draw the bars of one model, see `add_panels`."""
    heads = ~rows.comparison.duplicated()
    y = (1 + 1.3 * heads).cumsum()  # a heading stands above the bars of each comparison
    names = rows.short
    ncols = 3 if len(parts or ()) <= 3 else 2
    # also where the legend is not drawn, because panels align
    foot = 0.16 + 0.18 * -(-len(parts or ()) // ncols)
    left = 0.1 + LETTER * names.str.len().max()
    labels_end = PANEL_WIDTH - LETTER * (rows.note.str.len().max() + 1.4)
    bars_end = max(left + 0.2, labels_end - LETTER * rows.label.str.len().max() - 0.05)
    height = 0.5 + foot + 0.19 * y.max()
    with plt.rc_context({"font.size": 9}):
        figure = plt.figure(figsize=(PANEL_WIDTH, height))
        width = bars_end - left
        axes = figure.add_axes(
            (left / PANEL_WIDTH, foot / height, width / PANEL_WIDTH, 1 - (foot + 0.4) / height)
        )
        start = 0 * y
        for part in parts or ["value"]:
            lengths = rows[part].fillna(0)
            colours = [parts[part]] * len(rows) if parts else rows.colour
            for place, begin, length, colour in zip(y, start, lengths, colours, strict=True):
                bar = Rectangle((begin, place - 0.36), length, 0.72, color=colour, linewidth=0)
                axes.add_artist(bar)  # barh() would also look for the limits, which are set below
            start = start + lengths
        axes.set(xlim=(0, start.max() or 1), ylim=(y.max() + 0.6, 0.6))
        axes.set_axis_off()
        beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
        columns = [(inch - left) / width for inch in (0, labels_end, PANEL_WIDTH)]
        for row, place, text in zip(rows.itertuples(), y, names, strict=True):
            axes.text(columns[0], place, text, **beside)
            axes.text(columns[1], place, row.label, ha="right", **beside)
            weight = "bold" if getattr(row, "strong", False) else "normal"
            axes.text(columns[2], place, row.note, ha="right", weight=weight, **beside)
        for place, text in zip(y[heads] - 1, rows.block[heads], strict=True):
            axes.text(
                columns[0], place, shorten(text, 48, placeholder="…"), style="italic", **beside
            )
        figure.text(0, 1, title.split("\n")[0], weight="bold", size=10.5, va="top")
        figure.text(0, 1 - 0.2 / height, title.split("\n")[1], va="top")
        if legend and parts:
            handles = [Patch(color=colour, label=part) for part, colour in parts.items()]
            figure.legend(
                handles=handles, loc="lower left", ncols=ncols, borderpad=0, handlelength=1.2
            )
    return figure


ABOUT_WHY = """One training step in milliseconds, on one scale per model. *Arithmetic* is
convolution, matrix multiplication and attention. *Other kernels* normalise, convert layouts, copy,
or work element by element. While the GPU is *idle*, no kernel runs: it waits for the CPU, which
launches them one by one. AMP shortens the arithmetic, but every cast is one more kernel to launch.
A CUDA graph launches the whole step at once, so the shorter arithmetic shows."""
# legible on white and on black
STEP_PARTS = {"arithmetic": "#6a5acd", "other kernels": "#88ccee", "idle": "#8b939c60"}


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the middle profiled training per comparison and precision, with `STEP_PARTS` and
    `ms` in milliseconds.
    """
    steps = middle_runs(
        timed_trainings(tables),
        lambda one: one["kernel_family_fractions"] and one["gpu_busy_fraction"],
    )
    families = [dict(record["kernel_family_fractions"]) for record in steps.record]
    busy = steps["size"].clip(upper=1)
    share = pd.Series(
        [min(1, sum(found.get(name, 0) for name in ARITHMETIC)) for found in families], steps.index
    )
    ms = steps.step_ms.astype(float)
    steps = steps.assign(
        ms=ms, waits=1 - busy, limit=[find_bottleneck(record)[0] for record in steps.record]
    )
    other = {"other kernels": ms * busy * (1 - share)}
    return steps.assign(arithmetic=ms * busy * share, idle=ms * (1 - busy), **other)


def why_finding(tables: Tables, steps: pd.DataFrame) -> str:
    """Return how long the GPU is idle in a step of the compared arms, in each way of execution."""
    own = steps[steps.arm.isin(tables.compared_arms)]
    idle = [
        f"{way} {span(list(100 * waits), '{:.0f}')}%"
        for way, waits in own.groupby("way", sort=False).waits
    ]
    subject = tables.subject or "the compared arms"
    return (
        f"Share of a step of {subject} in which the GPU is idle: {', '.join(idle)}" if idle else ""
    )


def why_section(tables: Tables) -> Section:
    """Return the bars of a step, and the table of what limits it and what to try."""
    steps = steps_of(tables) if len(tables.comparisons) else pd.DataFrame()
    if steps.empty:
        return Section()
    section = Section("Why", why_finding(tables, steps), ABOUT_WHY)
    bars = steps.assign(
        label=steps.ms.map(short) + " ms", note=steps.waits.map("{:.0%} idle".format)
    )
    bars = bars.assign(strong=steps.waits >= IDLE).dropna(subset="ms")
    add_panels(section, bars, "step_time", STEP_PARTS)
    rows = []
    for row in steps.itertuples():
        advice = advice_of(row.limit, row.record).removeprefix(": try ")
        for key in ORDER:
            advice = advice.replace(key, precision_name(key))
        cells = {
            "model": row.name,
            "way": row.block,
            ", ".join(tables.axis.settings): row.short,
            "limited by": row.limit,
            "largest other kernels": longest_others(row.record),
            "try": advice or "-",
        }
        rows.append(cells)
    section.table(rows)
    return section


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
WARMS_UP_TO = 1.5  # times the peak of training: less is not worth a word


def memory_parts_of(record: dict) -> dict[str, float]:
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


def memory_finding(tables: Tables) -> str:
    """Return how far the compared arms change the peak of each model, against their base."""
    own = tables.ratios[tables.ratios.arm.isin(tables.compared_arms)].dropna(subset="saved")
    # the fair base comes last
    own = own.sort_values("base", key=lambda names: names.map(tables.axis.bases.index))
    own = own.drop_duplicates(["comparison", "arm"], keep="last")
    if own.empty or tables.on_cpu:
        return ""
    names = own.comparison.map(tables.comparisons["name"]).map(bare)
    changes = [
        f"{name} {span(list(-100 * saved), '{:+.0f}')}%"
        for name, saved in own.groupby(names, sort=False).saved
    ]
    bases = [tables.called(base) for base in tables.axis.bases if base in set(own.base)]
    return (
        f"Peak memory of {tables.subject or 'the compared arms'} against {listed(bases)}: "
        f"{', '.join(changes)}"
    )


def memory_section(tables: Tables) -> Section:
    """Return the bars of what fills the memory; the section is absent where no run has a
    breakdown.
    """
    rows = ok_trainings(tables) if len(tables.comparisons) else pd.DataFrame()
    middle = (
        middle_runs(rows, lambda record: sum(memory_parts_of(record).values()))
        if len(rows)
        else rows
    )
    if middle.empty:
        return Section()
    section = Section("Memory", memory_finding(tables), ABOUT_MEMORY)
    parts = pd.DataFrame(
        [memory_parts_of(record) for record in middle.record], middle.index, list(MEMORY_PARTS)
    )
    highest = rows.groupby(["comparison", "arm"])[["gib", "card_gib"]].max().add_prefix("most_")
    bars = middle.join(parts).join(highest, on=["comparison", "arm"])
    gib, card = (texts(bars[name], "{:,.2f}") for name in ("most_gib", "most_card_gib"))
    bars = bars.assign(label=[f"{one} GiB" for one in gib], note=[f"card {one}" for one in card])
    add_panels(
        section, bars, "memory_breakdown", dict(zip(MEMORY_PARTS, PART_COLOURS, strict=True))
    )
    warm = rows.assign(
        warm=[(record["peak_allocated_with_warmup_mib"] or 0) / 1024 for record in rows.record]
    )
    warm["growth"] = warm.warm / [
        (one["peak_allocated_mib"] or float("inf")) / 1024 for one in warm.record
    ]
    most = warm.loc[warm.growth.idxmax()]
    if most.growth >= WARMS_UP_TO:
        section.say(
            f"The warm-up takes up to {most.growth:.1f} times the peak of training, "
            "because cuDNN tries"
            f" its algorithms there: {most.warm:,.2f} GiB for {plain(most['name'])}."
        )
    return section


ABOUT_ENERGY = f"""Joules per 1,000 samples are the median over runs of what the whole GPU used in
timed epochs, without the host. Percentages compare pairs on one card with TF32, or with fp32 where
TF32 was not run. A run counts if it was timed for at least {SHORTEST_FOR_ENERGY:g} s, because NVML
counts in coarse steps."""


def energy_bars(tables: Tables) -> pd.DataFrame:
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


def energy_finding(tables: Tables, bars: pd.DataFrame) -> str:
    """Return the share of joules that the compared arms need in each way, against their base."""
    own = bars[bars.arm.isin(tables.compared_arms)].dropna(subset="share")
    shares = [
        f"{way} {span(list(100 * share), '{:.0f}')}%"
        for way, share in own.groupby("way", sort=False).share
    ]
    if not shares:
        return ""
    bases = [tables.called(base) for base in tables.axis.bases if base in set(own.baseline)]
    subject = tables.subject or "the compared arms"
    return f"Energy of {subject} as a share of {listed(bases)}: {', '.join(shares)}"


def energy_section(tables: Tables) -> Section:
    """Return the bars of energy; the section is absent where no run was long enough."""
    bars = energy_bars(tables) if len(tables.comparisons) else pd.DataFrame()
    if bars.empty:
        return Section()
    section = Section("Energy", energy_finding(tables, bars), ABOUT_ENERGY)
    notes = ["" if pd.isna(share) else f"{share:.0%}" for share in bars.share]
    add_panels(section, bars.assign(label=bars.value.map(short) + " J", note=notes), "energy")
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


def inference_finding(tables: Tables, bars: pd.DataFrame) -> str:
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


def inference_section(tables: Tables) -> Section:
    """Return bars of latency, and a table; the section is absent where the study is not about
    inference.
    """
    asked = tables.show.get("inference") and len(tables.comparisons)
    bars = inference_bars(tables) if asked else pd.DataFrame()
    if bars.empty:
        return Section()
    section = Section("Inference", inference_finding(tables, bars), ABOUT_INFERENCE)
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
