"""The look of every chart, and charts as pictures: PNG for notebooks, SVG for the page."""

import html
import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import matplotlib.pyplot as plt
import PIL.Image
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

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
