"""Horizontal bars for the sections why, memory, energy and inference: a narrow panel per model,
on one scale.
"""

from collections.abc import Callable
from textwrap import shorten

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .names import precision_name
from .section import Section
from .tables import Tables

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
