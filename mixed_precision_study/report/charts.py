"""The look of every chart, charts as pictures (PNG for notebooks, SVG for the page), and two kinds
of charts.

Ratios are dots: a panel for each model, a row for each way to run it, and one log axis with a line
at 1 for all. A bar would begin at zero, where no ratio can be, so that a gain of 2% would look
nearly as long as one of four times. Bars carry seconds and GiB, which do begin at zero.
"""

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from .words import short

# the page sets them anew for its dark mode
INK, SOFT, LINE, GROUND, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#e8ebef", "#ffffff"
THEME = {
    INK: "ink",
    "#000000": "ink",
    SOFT: "soft",
    LINE: "line",
    GROUND: "ground",
    PAPER: "paper",
}
# of a picture on a dark page
DARK = {INK: "#f0f6fc", SOFT: "#9198a1", LINE: "#3d444d", GROUND: "#262c36", PAPER: "#0d1117"}
PANEL = 3.3  # inches: three panels fill a page of 1,072 px, one fills a phone
GAP = 0.3  # inches between panels
ROW = 3 * PANEL + 2 * GAP
DOTS = 120  # per inch of a PNG
COLOURS_OF_A_PNG = 64  # its commonest ones; more make the file larger
PIXELS = 100  # per inch, at which a PNG is shown
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
        ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"),
        10.5,
    ),
}


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw charts in the style of the report; use it as a context or as a decorator.

    No text is below 10.5 points, which is 11 pixels where three panels share a page of 832.
    """
    with plt.rc_context(), warnings.catch_warnings():
        # scripts of names
        warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support")
        plt.rcParams.update(STYLE)
        yield


def picture_of(figures: list[Figure]) -> bytes:
    """Return figures as one PNG on white, in rows as wide as a page. Few colours keep it small."""
    images = []
    for figure in figures:
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
    columns = min(len(images), max(1, round((ROW + GAP) * DOTS) // wide))
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    tops = list(accumulate((max(image.height for image in row) for row in rows), initial=0))
    whole = PIL.Image.new("RGB", (columns * wide, tops[-1]), PAPER)
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
    """Return a figure as an SVG that stands in a page: with the page's colours and width, and
    ids of its own.
    """
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


def sheet_of(drawings: list[str], columns: int) -> str:
    """Return drawings of drawing_of() as one SVG file in rows of `columns`, which follows dark
    pages by itself.
    """
    boxes = re.compile(r'viewBox="0 0 (\S+) (\S+)"')
    sizes = [[float(side) for side in boxes.findall(one)[0]] for one in drawings]
    gap = 72 * GAP  # points, as the drawings have them
    wide = max(width for width, _ in sizes) + gap
    body, top = "", 0.0
    for start in range(0, len(drawings), columns):
        row = range(start, min(start + columns, len(drawings)))
        for place, number in enumerate(row):
            width, height = sizes[number]
            at = f'x="{place * wide:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
            body += drawings[number].replace("<svg ", f"<svg {at} ", 1)
        top += max(sizes[number][1] for number in row) + gap
    width, height = columns * wide - gap, top - gap
    colours, dark = (
        "".join(f"--{name}:{shades[shade]};" for shade, name in THEME.items() if shade in shades)
        for shades in ({shade: shade for shade in DARK}, DARK)
    )
    look = f"svg{{{colours}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    pixels = f'width="{width * PIXELS / 72:.0f}" height="{height * PIXELS / 72:.0f}"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" {pixels}'
        f' viewBox="{-gap / 2:g} {-gap / 2:g} {width + gap:g} {height + gap:g}" overflow="visible">'
        f'<style>{look}</style><rect x="{-gap / 2:g}" y="{-gap / 2:g}" width="100%" height="100%"'
        f' style="fill:var(--paper)"/>{body}</svg>\n'
    )


MARKERS = "osDvP^Xd"  # of the arms that are compared, in their order
TEXT_SIZE = 10.5  # points, which is 11 pixels where three panels share a page of 832
LINE_HIGH, HEAD, FOOT = 0.22, 0.62, 0.3  # inches of a line of text, above the rows, below them
ROW_LETTERS = 42  # of a row's name
RATIO_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
LEAST_RATIO, MOST_RATIO = 0.8, 1.6  # the axis reaches at least so far
LABEL_ROOM = 1.5  # factor of the axis that a label takes at the right of the largest ratio


def dots(rows: pd.DataFrame) -> list[Figure]:
    """Draw ratios, a figure for each `panel`. The axes of all are alike, so that panels can be
    compared by eye.

    rows has one row for each dot, with these columns:

    panel, about: name of the model, and what is trained
    row: the way it is run
    arm, colour, mark: what is compared, and its look
    ratio: how many times as fast it is as its base
    label: what stands beside the dot
    low, high: ends of its interval or of the range of its hosts, NaN where there is none
    ranged: whether these are such a range
    seconds, takes: seconds at the right, NaN where none are shown, and their heading
    """
    ends = rows[["ratio", "low", "high"]]
    least = min(LEAST_RATIO, 0.95 * ends.min(axis=None))
    most = max(MOST_RATIO, LABEL_ROOM * ends.max(axis=None))
    with chart_style():
        return [draw_dots(panel, (least, most)) for _, panel in rows.groupby("panel", sort=False)]


def ratio_rows(bars: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of dots(): every arm of some bars_of() beside the fair base of its
    comparison.

    Rows of a model stand in the order of their base's seconds, so that each usually adds a setting
    to the one above.
    """
    found = bars[bars.ratio.notna() & ~bars.is_base]
    base = bars.set_index(["comparison", "arm"]).seconds
    keys_of_base = zip(found.comparison, found.baseline, strict=True)
    ways = zip(found.way, found.more, strict=True)
    found = found.assign(
        panel=found.model,
        about=found.task,
        row=[", ".join(filter(None, texts)) for texts in ways],
        ranged=found.low.isna() & (found.hosts > 1),
        seconds=[base.get(key) for key in keys_of_base],
        takes=found.base_short + " takes",
    )
    panels = list(found.panel.unique())
    arms = found.sort_values("place").arm.unique()
    found = found.sort_values("place").sort_values("seconds", ascending=False, kind="stable")
    return drawn_as(found, arms, panels)


def drawn_as(rows: pd.DataFrame, arms: Iterable[str], panels: list[str]) -> pd.DataFrame:
    """Return rows of several arms with mark, label and ends, panel by panel in the given order.

    The ends are those of the interval, or where a ratio is `ranged` those of its hosts.
    """
    marks = {arm: MARKERS[place % len(MARKERS)] for place, arm in enumerate(arms)}
    rows = rows.assign(
        mark=rows.arm.map(marks),
        label=rows.short + rows.ratio.map(" {:.2f}×".format),
        low=rows.low.astype(float).where(~rows.ranged, rows.lowest),
        high=rows.high.astype(float).where(~rows.ranged, rows.highest),
    )
    return rows.sort_values("panel", key=lambda names: names.map(panels.index), kind="stable")


def dots_note(rows: pd.DataFrame) -> str:
    """Return what the marks of dots() mean, as Markdown; it names only what is there."""
    texts = []
    if (rows.low.notna() & ~rows.ranged).any():
        texts.append("Lines are 95% intervals over processes.")
    if rows.ranged.any():
        texts.append("Pale lines reach from the slowest to the fastest host.")
    if (rows.low.isna() | (rows.low <= 1) & (rows.high >= 1)).any():
        texts.append("A number in grey has no interval, or one that includes 1.")
    return " ".join(texts)


def draw_dots(panel: pd.DataFrame, limits: tuple[float, float]) -> Figure:
    """Draw one model: its name, what the dots are, and for each row its name, the base's
    seconds, and the dots.
    """
    lines = panel.row.nunique() + len(panel)
    gaps = 0.5 * panel.row.nunique()
    about = textwrap.fill(str(panel.about.iloc[0]), 44)
    high = HEAD + LINE_HIGH * about.count("\n") + LINE_HIGH * (lines + gaps + 1) + FOOT
    figure = plt.figure(figsize=(PANEL, high))
    figure.text(0, 1 - 0.02 / high, panel.panel.iloc[0], size=12, weight="bold", va="top")
    figure.text(0, 1 - 0.26 / high, about, size=TEXT_SIZE, color=SOFT, linespacing=1.25, va="top")
    inches = LINE_HIGH * (lines + gaps + 1)
    axes = figure.add_axes((0, FOOT / high, 1, inches / high))
    axes.set(xscale="log", xlim=limits, ylim=(lines + gaps, -1))
    prepare_ratio_axis(axes, limits)
    beside = {"transform": axes.get_yaxis_transform(), "va": "center", "size": TEXT_SIZE}
    axes.text(1, -0.4, panel.takes.iloc[0], ha="right", color=SOFT, **beside)
    at = 0.6
    for name_of_row, row in panel.groupby("row", sort=False):
        axes.text(0, at, textwrap.shorten(name_of_row, ROW_LETTERS, placeholder="…"), **beside)
        if pd.notna(seconds := row.seconds.iloc[0]):
            axes.text(1, at, f"{short(seconds)} s", ha="right", color=SOFT, **beside)
        axes.vlines(1, at + 0.4, at + len(row) + 0.6, color=SOFT, linewidth=1)
        for dot in row.itertuples():
            at += 1
            draw_dot(axes, dot, at)
        at += 1.5
    return figure


def prepare_ratio_axis(axes: Axes, limits: tuple[float, float]) -> None:
    """Give a panel its line at 1, the ground of what is slower, the words beside the line, and
    its ticks.
    """
    axes.axvspan(limits[0], 1, color=GROUND, linewidth=0)
    axes.text(0.97, -0.4, "slower", ha="right", va="center", size=TEXT_SIZE, color=SOFT)
    axes.text(1.03, -0.4, "faster", va="center", size=TEXT_SIZE, color=SOFT)
    ticks = [tick for tick in RATIO_TICKS if limits[0] <= tick <= limits[1]]
    far = math.log10(limits[1] / limits[0]) / 6
    shown = [tick for tick in ticks if tick == 1 or abs(math.log10(tick)) > far]
    axes.minorticks_off()
    axes.set_xticks(shown, [f"{tick:g}×" for tick in shown], size=TEXT_SIZE)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def draw_dot(axes: Axes, dot: Any, place: float) -> None:
    """Draw a ratio with its interval and its number; a range of hosts is paler than an interval."""
    colour = dot.colour
    if pd.notna(dot.low):
        axes.hlines(
            place, dot.low, dot.high, color=colour, linewidth=2.4, alpha=0.5 if dot.ranged else 1
        )
    (mark,) = axes.plot(dot.ratio, place, dot.mark, color=colour, markersize=7)
    mark.set_gid(f"dot {dot.arm} {dot.row}")
    right = max(dot.ratio, dot.high) if pd.notna(dot.high) else dot.ratio
    known = pd.notna(dot.low) and not dot.low <= 1 <= dot.high
    axes.annotate(
        dot.label,
        (right, place),
        (6, 0),
        textcoords="offset points",
        va="center",
        size=TEXT_SIZE,
        color=INK if known else SOFT,
        gid=f"label {dot.arm} {dot.row}",
    )


LONG_NAME = 10  # letters of an arm that fit below its bar
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
        return [draw_bars(panel, room, lines, bars.gib.notna().any()) for panel in panels]


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


def draw_bars(bars: pd.DataFrame, room: float, lines: int, gib: bool) -> Figure:
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
