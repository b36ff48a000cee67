"""Section: why a precision is faster or not, as the milliseconds of a step and what limits them."""

from collections import Counter
from collections.abc import Callable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..analysis.bottleneck import ARITHMETIC, IDLE, advice_of, find_bottleneck, longest_others
from ..analysis.explained import NOT_YET, TIME_ALONE
from .names import COLOURS, ORDER, precision_name, short_name
from .section import Section
from .tables import Tables
from .words import count, listed, plain, short, span

ABOUT = """One training step in milliseconds, on one scale per model. *Arithmetic* is convolution, matrix multiplication
and attention. *Other kernels* normalise, convert layouts, copy, or work element by element. While the GPU is *idle*, no
kernel runs."""
GRAPH = """AMP shortens the arithmetic, but every cast is one more kernel that the CPU has to launch. A CUDA graph
launches the whole step at once, so the GPU hardly waits and the shorter arithmetic shows."""
PARTS = {"arithmetic": "#6a5acd", "other kernels": "#88ccee", "idle": "#8b939c60"}  # legible on white and on black
WIDTH, LETTER = 3.3, 0.078  # of a panel and of a letter, in inches
PANELS, BLOCKS = 6, 6  # further models, and further comparisons of a model, stand in the table alone
BUSY = 0.1  # a GPU that idles less hardly waits
SHORTER = 0.8  # of the arithmetic of fp32
MEASURED = {  # what a footnote calls missing: (the field that knows it, the field with the reason)
    "the profile of a step": ("gpu_busy_fraction", "profile_reason"),
    "what fills the memory": ("ledger_activations_mib", "ledger_reason"),
    "energy": ("joules_per_1000_samples", "energy_reason"),
}


def ok_trainings(tables: Tables) -> pd.DataFrame:
    """Return the trainings at a fixed batch size that ended well, with name, task and `block`, in the report's order.

    A block of a chart is a comparison, named by its way of execution and by what tells it from the others.
    """
    chosen = tables.charted[tables.charted.batch.astype(str) != "max"]
    parts = chosen[["way", "more", "device"][: 3 if chosen.device.nunique() > 1 else 2]]
    blocks = [" · ".join(filter(None, texts)) for texts in parts.itertuples(index=False)]
    names = chosen[["name", "task", "way"]].assign(block=blocks)
    rows = tables.trainings.query("status == 'ok' and not explains").join(names, on="comparison", how="inner")
    order = rows.assign(place=rows.precision.map(ORDER.index)).sort_values(["comparison", "place"], kind="stable")
    return order.drop(columns="place").reset_index(drop=True)


def middle_runs(rows: pd.DataFrame, size: Callable[[dict], float | None]) -> pd.DataFrame:
    """Return the training with the median of `size(record)` per comparison and precision, of those above 0."""
    known = rows.assign(size=[size(record) or 0 for record in rows.record]).query("size > 0")
    known = known.sort_values("size", kind="stable")
    groups = known.groupby(["comparison", "precision"])["size"]
    return known[groups.cumcount() == (groups.transform("size") - 1) // 2].sort_index()


def add_panels(section: Section, bars: pd.DataFrame, name: str, parts: dict[str, str] | None = None) -> None:
    """Add a narrow figure per model with horizontal bars of all its comparisons on one scale.

    `bars` has the columns of `ok_trainings`, `label` and `note` (texts at the right), and a column for each of `parts`
    ({column: colour}), which are stacked. Without `parts` the column `value` is drawn in the colour of the precision.
    """
    models = bars.groupby(["name", "task"], sort=False)
    largest = models.size().nlargest(PANELS).index
    drawn = set()
    for place, key in enumerate(one for one in models.groups if one in largest):
        sizes = models.get_group(key).groupby("comparison").size()
        rows = bars[bars.comparison.isin(sizes.nlargest(BLOCKS).index)]
        drawn |= set(rows.comparison)
        texts = rows.block + ", " + rows.precision.map(precision_name) + ": " + rows.label + " " + rows.note
        figure = draw_panel(rows, f"{key[0]}\n{key[1]}", parts, legend=place == 0)
        section.chart(figure, f"{name}_{place + 1}", f"{', '.join(key)}. {'; '.join(texts.str.strip())}.")
    every = bars.comparison.nunique()
    if len(drawn) < every:
        section.say(f"The charts show {len(drawn)} of {every} comparisons, because more would hide each other.")


def draw_panel(rows: pd.DataFrame, title: str, parts: dict[str, str] | None, legend: bool) -> Figure:
    """Draw the bars of one model, see `add_panels`."""
    heads = ~rows.comparison.duplicated()
    y = (1 + 1.3 * heads).cumsum()  # a heading stands above the bars of each comparison
    names = rows.precision.map(short_name)
    ncols = 3 if len(parts or ()) <= 3 else 2
    foot = 0.1 + 0.18 * -(-len(parts or ()) // ncols)  # also where the legend is not drawn, because panels align
    left = 0.1 + LETTER * names.str.len().max()
    labels_end = WIDTH - LETTER * rows.note.str.len().max()
    bars_end = labels_end - LETTER * rows.label.str.len().max() - 0.05
    height = 0.5 + foot + 0.19 * y.max()
    with plt.rc_context({"font.size": 9}):
        figure = plt.figure(figsize=(WIDTH, height))
        width = bars_end - left
        axes = figure.add_axes((left / WIDTH, foot / height, width / WIDTH, 1 - (foot + 0.4) / height))
        start = 0 * y
        for part, colour in (parts or {"value": list(rows.precision.map(COLOURS))}).items():
            axes.barh(y, rows[part].fillna(0), 0.72, start, color=colour, linewidth=0)
            start = start + rows[part].fillna(0)
        axes.set(xlim=(0, start.max()), ylim=(y.max() + 0.6, 0.6))
        axes.set_axis_off()
        beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
        columns = [(inch - left) / width for inch in (0, labels_end, WIDTH)]
        for row, place, text in zip(rows.itertuples(), y, names, strict=True):
            axes.text(columns[0], place, text, **beside)
            axes.text(columns[1], place, row.label, ha="right", **beside)
            weight = "bold" if getattr(row, "strong", False) else "normal"
            axes.text(columns[2], place, row.note, ha="right", weight=weight, **beside)
        for place, text in zip(y[heads] - 1, rows.block[heads], strict=True):
            axes.text(columns[0], place, text[:52], style="italic", **beside)
        figure.text(0, 1, title.split("\n")[0], weight="bold", size=10.5, va="top")
        figure.text(0, 1 - 0.2 / height, title.split("\n")[1][:52], va="top")
        if legend and parts:
            handles = [Patch(color=colour, label=part) for part, colour in parts.items()]
            figure.legend(handles=handles, loc="lower left", ncols=ncols, borderpad=0, handlelength=1.2)
    return figure


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the middle profiled training per comparison and precision, with `PARTS` and `ms` in milliseconds."""
    steps = middle_runs(
        ok_trainings(tables), lambda record: record["kernel_family_fractions"] and record["gpu_busy_fraction"]
    )
    families = [dict(record["kernel_family_fractions"]) for record in steps.record]
    busy = steps["size"].clip(upper=1)
    share = pd.Series([min(1, sum(found.get(name, 0) for name in ARITHMETIC)) for found in families], steps.index)
    ms = steps.step_ms.astype(float)
    steps = steps.assign(ms=ms, waits=1 - busy, limit=[find_bottleneck(record)[0] for record in steps.record])
    return steps.assign(
        **{"arithmetic": ms * busy * share, "other kernels": ms * busy * (1 - share), "idle": ms * (1 - busy)}
    )


def finding(steps: pd.DataFrame) -> tuple[str, str]:
    """Return the title of the section, and a sentence that explains it or "". They hold for every step they speak of."""
    half = next((name for name in ("amp_fp16", "amp_bf16") if name in set(steps.precision)), None)
    of_half = steps[steps.precision == half]
    eager, graphs = of_half[of_half.way == "eager"], of_half[of_half.way == "CUDA graph"]
    waiting = eager[(eager.limit == "kernel launches") & (eager.waits >= IDLE)]
    models = eager if len(waiting) else of_half
    step = f"{'an' if half == 'amp_fp16' else 'a'} {short_name(half or '')} step"
    names, every = list(models["name"].unique()), steps["name"].nunique()
    if len(names) < every:
        step += f" of {listed(names, 'and')}" if len(names) <= 2 else f" in {len(names)} of {every} models"
    if len(waiting):
        without = len(graphs) > 0 and graphs.waits.max() < BUSY
        shares = span([100 * share for share in waiting.waits], "{:.0f}")
        if len(waiting) < len(eager):
            shares = f"up to {100 * waiting.waits.max():.0f}"
        fp32 = steps[steps.precision == "fp32"].set_index("comparison").arithmetic
        shorter = (of_half.arithmetic / of_half.comparison.map(fp32)).max() <= SHORTER
        title = (
            f"{'without a graph' if without else 'in eager mode'}, the GPU waits for the CPU during {shares}% of {step}"
        )
        return f"Why: {title}", GRAPH if without and shorter else ""
    share = of_half.arithmetic / of_half.ms
    if share.max() < 0.5 and of_half.waits.max() < BUSY:
        shares = span([100 * one for one in share], "{:.0f}")
        return f"Why: arithmetic takes only {shares}% of {step}, and other kernels take the rest", ""
    return "Why: where the time of a step goes", ""


def missing(tables: Tables) -> str:
    """Return one sentence on what some trainings did not measure, with the reasons, or "" where all is there."""
    rows, texts = ok_trainings(tables), []
    for what, (field, reason) in MEASURED.items():
        lacking = [record for record in rows.record if record[field] is None]
        why = Counter(one[reason] or "no reason given" for one in lacking if one[reason] not in (NOT_YET, TIME_ALONE))
        if why and len(lacking) < len(rows):
            reasons = [plain(text) + (f" in {number}" if len(why) > 1 else "") for text, number in why.most_common()]
            texts.append(f"{what} in {why.total()} ({', '.join(reasons)})")
    return f"Of {count(len(rows), 'training')} some did not measure everything: {', '.join(texts)}." if texts else ""


def section(tables: Tables) -> Section:
    """Return the bars of a step, and the table of what limits it and what to try."""
    steps = steps_of(tables) if len(tables.comparisons) else pd.DataFrame()
    if steps.empty:
        return Section("Why")
    title, because = finding(steps)
    section = Section(title, f"{because}\n\n{ABOUT}" if because else ABOUT)
    bars = steps.assign(label=steps.ms.map(short) + " ms", note=steps.waits.map("{:.0%} idle".format))
    bars = bars.assign(strong=steps.waits >= IDLE).dropna(subset="ms")
    add_panels(section, bars, "step_time", PARTS)
    rows = []
    for row in steps.itertuples():
        advice = advice_of(row.limit, row.record).removeprefix(": try ")
        for key in ORDER:
            advice = advice.replace(key, precision_name(key))
        rows.append({"model": row.name, "way": row.block, "precision": precision_name(row.precision)})
        rows[-1] |= {"limited by": row.limit, "largest other kernels": longest_others(row.record), "try": advice or "-"}
    section.table(rows, "What limits each step, and what to try")
    if footnote := missing(tables):
        section.say(footnote)
    return section
