"""Colours, hatches, line styles, marks and settings of Matplotlib: the same in every chart."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.patches import Patch


class PrecisionStyle(NamedTuple):
    """How a precision is drawn; `grey` is for published figures."""

    colour: str
    hatch: str
    line: str
    marker: str
    grey: str


PRECISIONS = {  # in the order of every table and chart
    "fp32": PrecisionStyle("#000000", "", "-", "o", "#7c7c7c"),
    "tf32": PrecisionStyle("#0072b2", "", "--", "s", "#8e8e8e"),
    "amp_fp16": PrecisionStyle("#e69f00", "", "-", "^", "#a0a0a0"),
    "amp_bf16": PrecisionStyle("#009e73", "//", "--", "v", "#b0b0b0"),
    "o2_fp16": PrecisionStyle("#cc79a7", "\\\\", "-.", "D", "#bdbdbd"),
    "o3_fp16": PrecisionStyle("#d55e00", "xx", ":", "X", "#cacaca"),
    "bf16_true": PrecisionStyle("#56b4e9", "..", "-.", "h", "#d4d4d4"),
    "fp8": PrecisionStyle("#8c564b", "oo", "--", "*", "#dedede"),
}
GREYS = {name: style.grey for name, style in PRECISIONS.items()}
CPU_WARNING = "CPU smoke test: not a measurement"
RED = "#b00020"
DARK_GREY = "#444444"  # reference lines, and legend entries that stand for all precisions
GAP_GREY = "#555555"  # text in the place of a missing bar
INTERVAL_GREY = "#8b8b8b"
DISTURBED_MARK = "†"
UNPAIRED_MARK = "‡"
BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # behind a label that may lie on a line
STEP_STYLES = {  # part of a step: colour and hatch
    "arithmetic": ("#332288", ""),
    "other kernels": ("#88ccee", ""),
    "idle": ("#e8e8e8", ""),
}
MEMORY_STYLES = {  # part of the memory: colour and hatch; no colour of a precision; safe for the colour-blind
    "weights, gradients, optimizer": ("#332288", ""),
    "data set": ("#117733", "xx"),
    "activations and workspace": ("#88ccee", ""),
    "allocator slack": ("#ddcc77", "//"),
    "context and libraries": ("#bbbbbb", ".."),
}
FONTS = {"font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5}  # 8.1 is 9 pixels of 800
GRID = {"axes.grid.axis": "y", "grid.color": "#d5d5d5", "axes.spines.top": False}


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw charts in the style of the report; use it as a context or as a decorator."""
    with plt.rc_context({"figure.max_open_warning": 0}):
        sns.set_theme(style="whitegrid", rc={**FONTS, **GRID})
        plt.rcParams["axes.spines.right"] = False
        yield


def line_style(precision: str) -> dict[str, Any]:
    """Return how the curve of a precision looks, as arguments of Matplotlib."""
    colour, _, line, marker, _ = PRECISIONS[precision]
    style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 6, "linewidth": 1.4}
    return style | {"markeredgecolor": "white", "markeredgewidth": 0.5, "label": precision}


def bar_style(precision: str) -> dict[str, Any]:
    """Return how the bar of a precision looks, as arguments of Matplotlib."""
    return {
        "color": PRECISIONS[precision].colour,
        "hatch": PRECISIONS[precision].hatch,
        "edgecolor": "white",
        "linewidth": 0,
    }


def precision_patches(precisions: Iterable[str]) -> list[Patch]:
    """Return the legend of the bars of some precisions."""
    styles = [(name, PRECISIONS[name]) for name in precisions]
    return [Patch(facecolor=style.colour, hatch=style.hatch, edgecolor="white", label=name) for name, style in styles]


def part_patches(styles: dict[str, tuple[str, str]]) -> list[Patch]:
    """Return the legend of stacked parts."""
    return [
        Patch(facecolor=colour, hatch=hatch, label=part, edgecolor="white", linewidth=0.4)
        for part, (colour, hatch) in styles.items()
    ]
