"""The bars of seconds and memory compared with their frame."""

import pandas as pd
from drawn_reports import drawn_bars
from pytest import approx, mark

from mixed_precision_study.report.charts import chart_style, draw_bars, memory_bars, second_bars
from mixed_precision_study.report.words import COLOURS, short_name

NAMES = ("comparison", "run", "precision", "seconds", "gib", "status")
ROWS = (  # of one model
    (0, "eager", "fp32", 8.0, 1.0, "ok"),
    (0, "eager", "tf32", 4.0, 0.8, "ok"),
    (0, "eager", "amp_fp16", 5.0, 0.6, "ok"),
    (0, "eager", "fp8", None, None, "oom"),
    (1, "CUDA graph", "fp32", 6.0, 10.0, "ok"),
    (1, "CUDA graph", "amp_fp16", 4.0, 10.01, "ok"),
)
SECONDS = ["8.00 s", "4.00 s", "5.00 s", "out of memory", "6.00 s", "4.00 s"]
MEMORY = ["1.00 GiB", "0.80 GiB", "0.60 GiB", "10.00 GiB", "10.01 GiB"]


def frame(rows=ROWS):
    bars = pd.DataFrame(rows, columns=NAMES).assign(model="ResNet-18", task="CIFAR-10", low=1.0)
    arms = bars.precision
    bars = bars.assign(arm=arms, short=arms.map(short_name), colour=arms.map(COLOURS), high=2.0)
    return bars.assign(seconds_low=bars.seconds, seconds_high=bars.seconds * 1.1)


def figure_of(rows):
    with chart_style():
        return draw_bars(rows)


@mark.parametrize(
    "made, values, labels",
    [
        (second_bars, [8, 4, 5, 0, 6, 4], SECONDS),
        (memory_bars, [1, 0.8, 0.6, 10, 10.01], MEMORY),
    ],
    ids=["seconds", "memory"],
)
def test_bars_are_those_of_the_frame_in_its_order(made, values, labels):
    rows = made(frame())
    found = drawn_bars(figure_of(rows))
    assert [length for length, *_ in found] == values
    assert [label for _, label, _ in found] == labels
    assert [colour for *_, colour in found] == list(rows.colour)


def test_bars_begin_at_zero_and_lines_span_all_runs():
    (axes,) = figure_of(second_bars(frame())).axes
    assert {bar.get_x() for bar in axes.patches} == {0} and axes.get_xlim()[0] == 0
    (lines,) = axes.collections
    ends = [tuple(one[:, 0]) for one in lines.get_segments() if len(one)]
    known = [end for end in ends if end[0] == end[0]]
    assert known == [approx((one, 1.1 * one)) for one in (8, 4, 5, 6, 4)]


def test_each_comparison_stands_below_its_heading():
    (axes,) = figure_of(second_bars(frame())).axes
    places = {text.get_text(): text.get_position()[1] for text in axes.texts}
    bars = [bar.get_y() for bar in axes.patches]
    assert places["eager"] < bars[0] < bars[3] < places["CUDA graph"] < bars[4]
