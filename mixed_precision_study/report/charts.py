"""The look of every chart, the opening figure, and charts as pictures: PNG for notebooks, SVG for the page."""

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from .words import listed, times

# the page sets them anew for its dark mode
INK, SOFT, LINE, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
THEME = {INK: "ink", "#000000": "ink", SOFT: "soft", LINE: "line", PAPER: "paper"}
# of a picture on a dark page
DARK = {INK: "#f0f6fc", SOFT: "#9198a1", LINE: "#3d444d", PAPER: "#0d1117"}
PANEL = 3.3  # inches: three panels fill a page of 1,072 px, one fills a phone
GAP = 0.3  # inches between panels
ROW = 3 * PANEL + 2 * GAP
DOTS = 120  # per inch of a PNG
COLOURS_OF_A_PNG = 64  # its commonest ones; more make the file larger
PIXELS = 100  # per inch, at which a PNG is shown
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
STATUS = {
    "oom": "out of memory",
    "diverged": "did not learn",
    "unsupported": "not supported",
    "killed": "was killed",
    "timeout": "timed out",
}
STYLE = {  # begins with what seaborn calls "whitegrid" and "deep"
    **dict.fromkeys(("axes.axisbelow", "axes.grid", "patch.force_edgecolor"), True),
    **dict.fromkeys(("xtick.bottom", "ytick.left"), False),
    **{"xtick.major.size": 6, "ytick.major.size": 6, "xtick.minor.size": 4, "ytick.minor.size": 4},
    **{"axes.linewidth": 1.25, "lines.solid_capstyle": "round", "patch.edgecolor": "w"},
    "axes.prop_cycle": cycler(color=["#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3"]),
    "font.family": "sans-serif",
    "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.edgecolor": LINE,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name begins no formula
    "svg.fonttype": "none",
    "svg.hashsalt": "chart",
    "figure.max_open_warning": 0,
    **dict.fromkeys(
        ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9
    ),
}


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw charts in the style of the report; use it as a context or as a decorator. No text is below 9 points."""
    with plt.rc_context(), warnings.catch_warnings():
        # scripts of names
        warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support")
        plt.rcParams.update(STYLE)
        yield


def opening(bars: pd.DataFrame) -> list[Figure]:
    """Draw the rows of bars_of() as bars, a panel of eight at most for each model and task, all equally wide."""
    bars = bars.astype(
        dict.fromkeys(
            ("seconds", "seconds_low", "seconds_high", "gib", "ratio", "low", "high"), float
        )
    )
    panels = [
        panel
        for _, rows in bars.groupby(["model", "task"], sort=False)
        for panel in panels_of(rows)
    ]
    room = max(FEWEST_BARS, *(panel.x.max() + 1 for panel in panels))
    lines = max(name.count("\n") for panel in panels for name in panel.block)
    with chart_style():
        return [draw_panel(panel, room, lines, bars.gib.notna().any()) for panel in panels]


def opening_note(bars: pd.DataFrame) -> str:
    """Return what the labels and marks of the opening figure mean, as Markdown; it names only what is there."""
    baselines = list(bars.sort_values("baseline").base_short.unique())
    others = bars[~bars.is_base | bars.ratio.notna() & (bars.arm != bars.baseline)]
    texts = []
    if others.ratio.notna().any():
        texts.append(
            f"The labels on the bars compare with {' or '.join(baselines)} of the same block."
        )
    lacking = list(bars[bars.baseline == "fp32"].model.unique())
    if len(baselines) == 2:
        texts.append(f"{listed(lacking)} had no run in TF32, so fp32 takes its place there.")
    if ((others.low <= 1) & (others.high >= 1)).any():
        texts.append("~ means that 1 lies in the 95% interval.")
    if (others.ratio.notna() & others.low.isna()).any():
        texts.append(
            "A ratio in grey has no interval, because it rests on too few processes or hosts."
        )
    if others.stands.fillna(False).astype(bool).any():
        texts.append("Bold marks the fastest of a block if its whole interval is above 1.")
    if bars.runs.max() > 1:
        texts.append(
            "Bars are means over runs, thin lines reach from the fastest to the slowest run, and ratios are of pairs."
        )
    if bars.gib.notna().any():
        texts.append("Memory is PyTorch's peak without the data set.")
    return " ".join(texts)


def panels_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split the bars of a model into panels of whole blocks, with `x`, their place, and `block`, the name below."""
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
    """Draw one model: its name, bars of seconds with the blocks' names below, and bars of memory where it is known."""
    # here, because it takes a second to load and most charts are drawn without it
    import seaborn as sns

    task = textwrap.fill(bars.task.iloc[0], 46)
    # points; "pure bf16" takes two lines
    names_below = 28 if bars.short.str.contains(" ").any() else 18
    head, foot = 1.04 + 0.17 * task.count("\n"), 0.74 + names_below / 72 + 0.17 * lines
    total = head + SECONDS_HIGH + foot + (GIB_HIGH + 0.04 if gib else -0.5)
    figure = plt.figure(figsize=(PANEL, total))
    name = {"va": "top", "gid": "model"}  # the page hides it below cards that say the same
    figure.text(0, 1 - 0.02 / total, bars.model.iloc[0], size=12, weight="bold", **name)
    figure.text(0, 1 - 0.26 / total, task, size=9.5, color=SOFT, linespacing=1.25, **name)
    tops = {"seconds": (total - head, SECONDS_HIGH), "gib": (GIB_HIGH + 0.04, GIB_HIGH)}
    over = bars[bars.ratio.notna() & (bars.arm != bars.baseline)].base_short
    marks = (
        (f"; ×: speed over {over.iloc[0]}", f"; %: against {over.iloc[0]}")
        if len(over)
        else ("", "")
    )
    for place, (part, high) in enumerate(BAR_PARTS[: 1 + gib]):
        top, inches = tops[part]
        axes = figure.add_axes((0, (top - inches) / total, 1, inches / total))
        what = ("seconds per epoch", "peak memory, GiB")[place] + marks[place]
        figure.text(0, (top + 0.34) / total, what, size=9, color=SOFT)
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
        axes.annotate(bar.short.replace(" ", "\n"), (bar.x, 0), (0, -3), color=SOFT, **below)
    for _, block in bars.groupby("comparison", sort=False):
        axes.annotate(
            block.block.iloc[0], (block.x.mean(), 0), (0, -names_below), size=9.5, **below
        )
    return figure


def label_bars(axes: Axes, bars: pd.DataFrame, part: str, high: str, inches: float) -> None:
    """Write what a bar says above it, name it for tests, and draw the line from the fastest to the slowest run."""
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
        text, sure, bold = label_of(bar, bars[bars.comparison == bar.comparison], part)
        if part == "seconds" and bar.seconds_high - bar.seconds_low > 0.1 * line:
            axes.vlines(
                bar.x, bar.seconds_low, bar.seconds_high, color=INK, linewidth=1.1, clip_on=False
            )
        top = getattr(bar, high) + 0.25 * line
        if len(text) + letters > 10 and abs(top - before) < line:  # neighbours would touch
            top = before + line
        colour, weight = INK if sure else SOFT, "bold" if bold else "normal"
        size = 8.5 if "%" in text else None  # two of them stand side by side
        axes.text(
            bar.x,
            top,
            text,
            ha="center",
            va="bottom",
            color=colour,
            weight=weight,
            gid=gid,
            size=size,
        )
        before, letters = top, len(text)


def label_of(bar: Any, block: pd.DataFrame, part: str) -> tuple[str, bool, bool]:
    """Return a bar's label (a value, or a ratio or change), whether it is sure, and whether it is the fastest."""
    if part == "seconds":
        if bar.is_base or pd.isna(bar.ratio):
            return (
                f"{bar.seconds:.{0 if bar.seconds >= 99.5 else 1 if bar.seconds >= 0.95 else 2}f} s",
                False,
                False,
            )
        text = f"{'~' if bar.low <= 1 <= bar.high else ''}{times(bar.ratio)}"
        return (
            text,
            bar.low > 1 or bar.high < 1,
            bool(bar.stands) and bar.ratio > 1 and bar.ratio == block.ratio.max(),
        )
    base = block.gib[block.arm == bar.baseline].max()
    if bar.is_base or pd.isna(base):
        return f"{bar.gib:.{1 if bar.gib >= 9.95 else 2}f}", False, False
    change = round(100 * (bar.gib / base - 1))
    return f"{change:+d}%".replace("-", "−") if change else "same", True, False


def darken(figure: Figure) -> None:
    """Give text, lines and grounds the colours of a dark page; bars keep theirs."""
    for one in figure.findobj(lambda one: isinstance(one, Text | Line2D | LineCollection | Patch)):
        for part in ("facecolor", "edgecolor") if isinstance(one, Patch) else ("color",):
            colours = to_rgba_array(getattr(one, f"get_{part}")())
            shade = to_hex(colours[0]) if len(colours) and colours[0][3] else ""
            if shade in (*DARK, "#000000"):
                getattr(one, f"set_{part}")(DARK.get(shade, DARK[INK]))


def picture_of(figures: list[Figure], dark: bool = False, columns: int | None = None) -> bytes:
    """Return figures as one PNG on white or on dark, in rows as wide as a page. Few colours keep it small."""
    images = []
    for figure in figures:
        if dark:
            darken(figure)
        opened = io.BytesIO()
        size = [int(side * DOTS + 0.01) for side in figure.get_size_inches() + GAP]
        # some labels reach out
        around = Bbox.from_bounds(-GAP / 2, -GAP / 2, *((side + 0.1) / DOTS for side in size))
        with chart_style():
            figure.savefig(opened, format="rgba", dpi=DOTS, bbox_inches=around)
        # what is laid out stays, because a layout takes as long as a drawing
        figure.set_layout_engine("none")
        images.append(PIL.Image.frombytes("RGBA", tuple(size), opened.getvalue()).convert("RGB"))
    wide = max(image.width for image in images)
    columns = columns or min(len(images), max(1, round((ROW + GAP) * DOTS) // wide))
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    tops = list(accumulate((max(image.height for image in row) for row in rows), initial=0))
    whole = PIL.Image.new("RGB", (columns * wide, tops[-1]), DARK[PAPER] if dark else PAPER)
    for row, top in zip(rows, tops, strict=False):
        for place, image in enumerate(row):
            whole.paste(image, (place * wide, top))
    # apart from each other, else white would become a tint of it
    colours: list[tuple[int, ...]] = []
    for _, one in sorted(whole.getcolors(1 << 18), reverse=True)[:2000]:
        if len(colours) < COLOURS_OF_A_PNG and all(math.dist(one, other) > 24 for other in colours):
            colours.append(one)
    palette = PIL.Image.new("P", (1, 1))
    palette.putpalette([part for one in colours for part in one])
    small = io.BytesIO()
    whole.quantize(palette=palette, dither=PIL.Image.Dither.NONE).save(small, format="png")
    return small.getvalue()


def drawing_of(figure: Figure, name: str, says: str) -> str:
    """Return a figure as an SVG that stands in a page: with the page's colours and width, and ids of its own."""
    opened = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with chart_style():
        figure.savefig(opened, format="svg", transparent=True, metadata=nothing)

    def of_the_page(tag: re.Match) -> str:
        text = re.sub(r"'Arial'[^;\"]*", "var(--font, sans-serif)", tag[0])
        text = re.sub(r"(\.\d\d)\d+", r"\1", text)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
        return re.sub("|".join(THEME), lambda found: f"var(--{THEME[found[0]]}, {found[0]})", text)

    text = opened.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|\n\s*", "", text, flags=re.DOTALL
    )
    # the tags alone: names and numbers of labels stay what they are
    text = re.sub(r"<[^>]+>", of_the_page, text)
    text = re.sub(r' (width|height)="[^"]*pt"', "", text, count=2)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(says)}" ', 1)
