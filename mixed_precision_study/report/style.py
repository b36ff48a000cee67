"""Colours, hatches, line styles and marks: the same in every chart."""

from matplotlib.patches import Patch

PRECISIONS = {  # order, colour, hatch, line style and marker: the same in every chart
    "fp32": ("#000000", "", "-", "o"),
    "tf32": ("#0072b2", "", "--", "s"),
    "amp_fp16": ("#e69f00", "", "-", "^"),
    "amp_bf16": ("#009e73", "//", "--", "v"),
    "o2_fp16": ("#cc79a7", "\\\\", "-.", "D"),
    "o3_fp16": ("#d55e00", "xx", ":", "X"),
}
LOUD, RED = "CPU plumbing check: not a measurement", "#b00020"
DAGGER, UNPAIRED_MARK = "†", "‡"
PARTS = (  # colour and hatch of what is stacked in a bar: no colour of a precision, told apart by the colour-blind
    *(("#332288", ""), ("#88ccee", ""), ("#117733", "xx"), ("#ddcc77", "//"), ("#44aa99", ""), ("#cc6677", "\\\\")),
    *(("#882255", ""), ("#bbbbbb", "..")),
)
BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # behind a label that may lie on a line

DIAMOND = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "linestyle": "none", "markersize": 5}
FOOT = {"facecolor": "#d5d5d5", "hatch": "....", "edgecolor": "#555555", "linewidth": 0}
IDLE_LOOK = ("#e8e8e8", "")
FAMILY_LOOKS = {  # the same in every report; kernels of the other families are grey
    **{"convolution": PARTS[0], "depthwise convolution": (PARTS[0][0], "//"), "matmul": PARTS[1]},
    **{"attention": (PARTS[1][0], "xx"), "normalisation": PARTS[2], "elementwise": PARTS[3]},
    **{"recurrent cell": PARTS[4], "softmax and loss": (PARTS[4][0], "//"), "layout change": PARTS[5]},
    **{"copy": (PARTS[5][0], ""), "optimizer": PARTS[6], "reduction": (PARTS[6][0], "xx")},
}
COMPONENTS = {  # part of the field's name: what it is called here
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "masters": "fp32 master copies",
    "data": "data set",
    "activations": "activations and workspace",
    "slack": "allocator slack",
    "context": "context and libraries",
}
BREAKDOWN_STYLES = dict(zip(COMPONENTS.values(), PARTS, strict=True))
GREYS = dict(zip(PRECISIONS, ("#7c7c7c", "#8e8e8e", "#a0a0a0", "#b0b0b0", "#bdbdbd", "#cacaca"), strict=True))


def line_style(precision):
    """Return how the curve of a precision looks, as arguments of Matplotlib."""
    colour, _, line, marker = PRECISIONS[precision]
    style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 6, "linewidth": 1.4}
    return style | {"markeredgecolor": "white", "markeredgewidth": 0.5, "label": precision}


def part_handles(styles):
    """Return the legend of stacked parts."""
    style = {"edgecolor": "white", "linewidth": 0.4}
    return [Patch(facecolor=colour, hatch=hatch, label=part, **style) for part, (colour, hatch) in styles.items()]
