"""Colours, hatches, line styles and marks: the same in every chart."""

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch


class PrecisionStyle(NamedTuple):
    """How a precision is drawn."""

    colour: str
    hatch: str
    line: str
    marker: str


PRECISIONS = {  # in the order of every table and chart
    "fp32": PrecisionStyle("#000000", "", "-", "o"),
    "tf32": PrecisionStyle("#0072b2", "", "--", "s"),
    "amp_fp16": PrecisionStyle("#e69f00", "", "-", "^"),
    "amp_bf16": PrecisionStyle("#009e73", "//", "--", "v"),
    "o2_fp16": PrecisionStyle("#cc79a7", "\\\\", "-.", "D"),
    "o3_fp16": PrecisionStyle("#d55e00", "xx", ":", "X"),
}
GREYS = {  # of published figures
    "fp32": "#7c7c7c",
    "tf32": "#8e8e8e",
    "amp_fp16": "#a0a0a0",
    "amp_bf16": "#b0b0b0",
    "o2_fp16": "#bdbdbd",
    "o3_fp16": "#cacaca",
}
CPU_WARNING = "CPU plumbing check: not a measurement"
RED = "#b00020"
DARK_GREY = "#444444"  # reference lines, and legend entries that stand for all precisions
GAP_GREY = "#555555"  # text in the place of a missing bar
INTERVAL_GREY = "#8b8b8b"
DISTURBED_MARK = "†"
UNPAIRED_MARK = "‡"
BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # behind a label that may lie on a line
DIAMOND = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "linestyle": "none", "markersize": 5}
DATA_SET_STYLE = {"facecolor": "#d5d5d5", "hatch": "....", "edgecolor": "#555555", "linewidth": 0}

PARTS = (  # colour and hatch of stacked parts; no colour of a precision; safe for the colour-blind
    ("#332288", ""),
    ("#88ccee", ""),
    ("#117733", "xx"),
    ("#ddcc77", "//"),
    ("#44aa99", ""),
    ("#cc6677", "\\\\"),
    ("#882255", ""),
    ("#bbbbbb", ".."),
)
FAMILY_STYLES = {  # the same in every report; kernels of the other families are grey
    "convolution": ("#332288", ""),
    "depthwise convolution": ("#332288", "//"),
    "matmul": ("#88ccee", ""),
    "attention": ("#88ccee", "xx"),
    "normalisation": ("#117733", "xx"),
    "elementwise": ("#ddcc77", "//"),
    "recurrent cell": ("#44aa99", ""),
    "softmax and loss": ("#44aa99", "//"),
    "layout change": ("#cc6677", "\\\\"),
    "copy": ("#cc6677", ""),
    "optimizer": ("#882255", ""),
    "reduction": ("#882255", "xx"),
}
OTHER_KERNELS = PARTS[-1]
IDLE_STYLE = ("#e8e8e8", "")
MEMORY_PARTS = {  # part of the field's name: its name in the report
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "masters": "fp32 master copies",
    "data": "data set",
    "activations": "activations and workspace",
    "slack": "allocator slack",
    "context": "context and libraries",
}
MEMORY_STYLES = dict(zip(MEMORY_PARTS.values(), PARTS, strict=True))


def line_style(precision: str) -> dict:
    """Return how the curve of a precision looks, as arguments of Matplotlib."""
    colour, _, line, marker = PRECISIONS[precision]
    style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 6, "linewidth": 1.4}
    return style | {"markeredgecolor": "white", "markeredgewidth": 0.5, "label": precision}


def bar_style(precision: str) -> dict:
    """Return how the bar of a precision looks, as arguments of Matplotlib."""
    style = PRECISIONS[precision]
    return {"color": style.colour, "hatch": style.hatch, "edgecolor": "white", "linewidth": 0}


def precision_patches(precisions: Iterable[str]) -> list[Patch]:
    """Return the legend of the bars of some precisions."""
    styles = [(name, PRECISIONS[name]) for name in precisions]
    return [Patch(facecolor=style.colour, hatch=style.hatch, edgecolor="white", label=name) for name, style in styles]


def part_patches(styles: dict[str, tuple[str, str]]) -> list[Patch]:
    """Return the legend of stacked parts."""
    style = {"edgecolor": "white", "linewidth": 0.4}
    return [Patch(facecolor=colour, hatch=hatch, label=part, **style) for part, (colour, hatch) in styles.items()]


def write_gap(axes: Axes, x: float, y: float, text: str, size: float = 8, rotation: int = 90) -> None:
    """Write a text in the place of a missing bar."""
    axes.text(x, y, text, size=size, color=GAP_GREY, rotation=rotation, ha="center", va="bottom")
