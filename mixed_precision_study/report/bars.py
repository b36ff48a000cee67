"""Section: bars of the seconds of an epoch and of peak memory.

They begin at zero and carry their own units.
"""

import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .charts import INK, PANEL, SOFT, STATUS, chart_style
from .section import Section
from .tables import Tables, bars_of

LONG_NAME = 10  # letters of an arm that fit below its bar
MOST_MODELS = 6  # with more of them the table of all numbers has to do
# comparisons that are drawn; further ones stand in the table of all numbers
MOST_BLOCKS = 60
BLOCK_GAP = 0.6  # of a bar
FEWEST_BARS, MOST_BARS = 5, 8  # of a panel; fewer leave room at its right
SECONDS_HIGH, GIB_HIGH = 1.7, 0.9  # inches of the tallest bar
# a bar's height, and the highest mark on it
BAR_PARTS = (("seconds", "seconds_high"), ("gib", "gib"))
BARS: dict = {
    "saturation": 1,
    "width": 0.88,
    "dodge": False,
    "native_scale": True,
    "errorbar": None,
    "legend": False,
    "linewidth": 0,
}


def time_and_memory(bars: pd.DataFrame) -> list[Figure]:
    """Draw the rows of bars_of() as bars, a panel of eight at most for each model and task, all
    equally wide.
    """
    bars = bars.astype(dict.fromkeys(("seconds", "seconds_low", "seconds_high", "gib"), float))
    panels = [
        panel
        for _, rows in bars.groupby(["model", "task"], sort=False)
        for panel in panels_of(rows)
    ]
    room = max(FEWEST_BARS, *(panel.x.max() + 1 for panel in panels))
    lines = max(name.count("\n") for panel in panels for name in panel.block)
    with chart_style():
        return [draw_panel(panel, room, lines, bars.gib.notna().any()) for panel in panels]


def time_and_memory_note(bars: pd.DataFrame) -> str:
    """Return what bars and marks of time and memory mean, as Markdown; it names only what is
    there.
    """
    texts = []
    if bars.runs.max() > 1:
        texts.append(
            "Bars are means over runs, and thin lines reach from the fastest to the slowest run."
        )
    if bars.gib.notna().any():
        texts.append("Memory is PyTorch's peak without the data set.")
    return " ".join(texts)


def panels_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split the bars of a model into panels of whole blocks, with `x`, their place, and `block`,
    the name below.
    """
    rows = rows.assign(
        **{f"most_{part}": rows[[part, high]].max(axis=None) for part, high in BAR_PARTS}
    )
    panels: list[list[pd.DataFrame]] = []
    for _, block in rows.groupby("comparison", sort=False):
        block = block.sort_values("place")
        if not panels or sum(map(len, panels[-1])) + len(block) > MOST_BARS:
            panels.append([])
        start = sum(map(len, panels[-1])) + BLOCK_GAP * len(panels[-1])
        name = " · ".join(filter(None, block[["way", "more"]].iloc[0]))
        x = [start + place for place in range(len(block))]
        panels[-1].append(
            block.assign(
                x=x, block=textwrap.fill(name, max(12, 6 * len(block) - 1)).replace(" ·\n", "\n")
            )
        )
    return [pd.concat(blocks, ignore_index=True) for blocks in panels]


def draw_panel(bars: pd.DataFrame, room: float, lines: int, gib: bool) -> Figure:
    """Draw one model: its name, bars of seconds with the blocks' names below, and bars of memory
    where it is known.
    """
    # here, because it takes a second to load and most charts are drawn without it
    import seaborn as sns

    task = textwrap.fill(bars.task.iloc[0], 46)
    longest = bars.short.str.len().max()
    upright = bool(longest > LONG_NAME)
    # points; "pure bf16" takes two lines, and what is longer stands upright
    names_below = 6 * longest if upright else 28 if bars.short.str.contains(" ").any() else 18
    head, foot = 1.04 + 0.17 * task.count("\n"), 0.74 + names_below / 72 + 0.17 * lines
    total = head + SECONDS_HIGH + foot + (GIB_HIGH + 0.04 if gib else -0.5)
    figure = plt.figure(figsize=(PANEL, total))
    figure.text(0, 1 - 0.02 / total, bars.model.iloc[0], size=12, weight="bold", va="top")
    figure.text(0, 1 - 0.26 / total, task, size=10.5, color=SOFT, linespacing=1.25, va="top")
    tops = {"seconds": (total - head, SECONDS_HIGH), "gib": (GIB_HIGH + 0.04, GIB_HIGH)}
    for place, (part, high) in enumerate(BAR_PARTS[: 1 + gib]):
        top, inches = tops[part]
        axes = figure.add_axes((0, (top - inches) / total, 1, inches / total))
        what = ("seconds per epoch", "peak memory, GiB")[place]
        figure.text(0, (top + 0.34) / total, what, size=10.5, color=SOFT)
        if len(known := bars.dropna(subset=part)):
            palette = dict(zip(bars.arm, bars.colour, strict=True))
            sns.barplot(known, x="x", y=part, hue="arm", palette=palette, ax=axes, **BARS)
        most = bars[f"most_{part}"].iloc[0]
        axes.set(
            xlim=(-0.5, room - 0.5),
            ylim=(0, most if most > 0 else 1),
            xticks=[],
            yticks=[],
            xlabel="",
            ylabel="",
        )
        axes.spines["left"].set_visible(False)
        label_bars(axes, bars, part, high, inches)
    axes = figure.axes[0]
    below = {"textcoords": "offset points", "ha": "center", "va": "top", "annotation_clip": False}
    for bar in bars.itertuples():
        text = bar.short if upright else bar.short.replace(" ", "\n")
        turned = 90 if upright else 0
        axes.annotate(text, (bar.x, 0), (0, -3), color=SOFT, rotation=turned, **below)
    for _, block in bars.groupby("comparison", sort=False):
        axes.annotate(
            block.block.iloc[0], (block.x.mean(), 0), (0, -names_below), size=10.5, **below
        )
    return figure


def label_bars(axes: Axes, bars: pd.DataFrame, part: str, high: str, inches: float) -> None:
    """Write what a bar says above it, name it for tests, and draw the line from the fastest to
    the slowest run.
    """
    line = 0.13 * axes.get_ylim()[1] / inches  # height of a line of text
    for patch in (one for container in axes.containers for one in container):
        bar = bars.iloc[(bars.x - patch.get_x() - patch.get_width() / 2).abs().argmin()]
        # seaborn's are wider beside a gap
        place = {"x": bar.x - BARS["width"] / 2, "width": BARS["width"]}
        patch.set(gid=f"bar {part} {bar.comparison} {bar.arm}", clip_on=False, **place)
    before, letters = -1.0, 0
    for bar in bars.itertuples():
        height, gid = getattr(bar, part), f"label {part} {bar.comparison} {bar.arm}"
        if pd.isna(height):
            if part == "seconds":
                why = STATUS.get(bar.status, bar.status)
                axes.text(
                    bar.x,
                    0.3 * line,
                    why,
                    rotation=90,
                    ha="center",
                    va="bottom",
                    color=SOFT,
                    gid=gid,
                )
            before = -1.0
            continue
        text = label_of(height, part)
        if part == "seconds" and bar.seconds_high - bar.seconds_low > 0.1 * line:
            axes.vlines(
                bar.x, bar.seconds_low, bar.seconds_high, color=INK, linewidth=1.1, clip_on=False
            )
        top = getattr(bar, high) + 0.25 * line
        if len(text) + letters > 10 and abs(top - before) < line:  # neighbours would touch
            top = before + line
        axes.text(bar.x, top, text, ha="center", va="bottom", color=INK, gid=gid)
        before, letters = top, len(text)


def label_of(value: float, part: str) -> str:
    """Return what stands above a bar: seconds with their unit, or GiB, with two or three
    significant digits.
    """
    if part == "seconds":
        digits = 0 if value >= 99.5 else 1 if value >= 0.95 else 2
        return f"{value:.{digits}f} s"
    return f"{value:.{1 if value >= 9.95 else 2}f}"


def section(tables: Tables) -> Section:
    """Return the bars of the seconds of an epoch and of peak memory.

    On a CPU they say nothing, so there are none.
    """
    section = Section("Time and memory", link="Time")
    bars = bars_of(tables)
    if tables.on_cpu or bars.empty or bars.model.nunique() > MOST_MODELS:
        return section
    shown = bars[bars.comparison.isin(bars.comparison.unique()[:MOST_BLOCKS])]
    said = [
        f"{bar.model}, {bar.way}, {bar.short} {label_of(bar.seconds, 'seconds')}"
        for bar in shown.itertuples()
        if pd.notna(bar.seconds)
    ]
    section.chart(
        time_and_memory(shown), "time_and_memory", f"Bars of time and memory. {'; '.join(said)}."
    )
    section.say(time_and_memory_note(shown))
    return section
