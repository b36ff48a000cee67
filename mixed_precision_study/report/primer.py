"""Section: number formats in one picture, and five words that a reader needs."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from .layout import start_chart
from .report import Report
from .section import Section
from .theme import chart_style

TITLE = "Number formats and words"
WORDS = """- **Autocast** picks the format of each operation: 16 bits for convolution and matmul, fp32 for sums.
- **Master weights** are an fp32 copy of 16-bit weights, so that small updates are not rounded away.
- **Loss scaling** multiplies the loss, so that small fp16 gradients do not become zero. A step whose gradients
  overflow is skipped.
- **Kernel launch**: the CPU starts each operation of the GPU. Where kernels are short, the GPU waits for it.
- **CUDA graph**: all launches of a step are recorded once and replayed as one."""


@dataclass(frozen=True)
class Format:
    """A floating-point format by its bits, without the sign."""

    name: str
    exponent: int
    mantissa: int
    used: str

    @property
    def largest(self) -> float:
        """The largest number: all bits of the mantissa set, the exponent one below that of infinity.

        e4m3 has no infinity: its largest exponent holds numbers too, and only the last mantissa is NaN.
        """
        if self.name == "fp8 e4m3":
            return 448.0
        return (2 - 2.0**-self.mantissa) * 2.0 ** (2 ** (self.exponent - 1) - 1)

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (2 - 2 ** (self.exponent - 1))


FORMATS = (
    Format("fp32", 8, 23, "fp32"),
    Format("tf32", 8, 10, "inputs of convolution and matmul in tf32"),
    Format("bf16", 8, 7, "amp_bf16, bf16_true"),
    Format("fp16", 5, 10, "amp_fp16, o2_fp16, o3_fp16"),
    Format("fp8 e4m3", 4, 3, "activations and weights of Linear layers in fp8"),
    Format("fp8 e5m2", 5, 2, "their gradients"),
)
PARTS = (("sign", "#bbbbbb"), ("exponent", "#88ccee"), ("mantissa", "#ddcc77"))


def draw_format(axes: Axes, row: int, form: Format) -> None:
    """Draw a format as boxes, one for each bit, and its range."""
    start = 0
    for (name, colour), bits in zip(PARTS, (1, form.exponent, form.mantissa), strict=True):
        axes.barh(row, bits, left=start, height=0.62, color=colour, edgecolor="black", linewidth=0.6)
        for bit in range(start + 1, start + bits):
            axes.plot([bit, bit], [row - 0.31, row + 0.31], color="black", linewidth=0.25)
        if bits > 1:
            axes.text(start + bits / 2, row, f"{name} {bits}", ha="center", va="center", size=8.5)
        start += bits
    axes.text(-0.6, row, form.name, ha="right", va="center", size=9.5, weight="bold")
    largest = f"{form.largest:,.0f}" if form.largest < 1e6 else f"{form.largest:.1e}"
    axes.text(33, row, f"{form.smallest:.1e} to {largest}", va="center", size=8.5)


@chart_style()
def section(report: Report) -> Section:
    """Return the picture of the formats and the words; nothing where there are no runs."""
    section = Section(TITLE, folded=True)
    if not report.used:
        return section
    about = "bits of sign, exponent and mantissa; at the right the smallest normal and the largest number"
    title = "fp16 has the mantissa, bf16 the range of TF32"
    figure, (band,) = start_chart(Report(), title, [1.7], [], about)
    axes = band.subplots()
    for row, form in enumerate(reversed(FORMATS)):
        draw_format(axes, row, form)
    axes.set(xlim=(-4, 45), ylim=(-0.6, len(FORMATS) - 0.4))
    axes.set_axis_off()
    texts = [f"{form.name} has {form.exponent} bits of exponent and {form.mantissa} of mantissa" for form in FORMATS]
    section.chart(figure, "number_formats", f"{'; '.join(texts)}. The sign takes one more.")
    section.say(WORDS)
    return section
