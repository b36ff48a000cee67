"""Ratios as dots: the numbers of the frame, on one axis that all panels share."""

import numpy as np
import pandas as pd
import pytest

from mixed_precision_study.report.charts import dots
from mixed_precision_study.report.words import COLOURS

COLUMNS = ["panel", "about", "row", "arm", "ratio", "low", "high", "ranged", "seconds"]
ROWS = (
    ("ResNet-18", "CIFAR-10", "eager", "amp_fp16", 0.95, 0.86, 1.05, True, 4.3),
    ("ResNet-18", "CIFAR-10", "eager", "amp_bf16", 0.8, 0.75, 0.85, True, 4.3),
    ("ResNet-18", "CIFAR-10", "CUDA graph", "amp_fp16", 1.7, 1.6, 1.8, False, 1.8),
    ("LSTM", "WikiText-2", "eager", "amp_bf16", 4.0, np.nan, np.nan, False, 6.0),
)


@pytest.fixture
def frame():
    rows = pd.DataFrame(ROWS, columns=COLUMNS).assign(takes="TF32, an epoch", strong=False)
    rows["short"] = rows.arm.str.removeprefix("amp_")
    marks = {"amp_fp16": "o", "amp_bf16": "s"}
    labels = [f"{row.arm} {row.ratio:.2f}×" for row in rows.itertuples()]
    return rows.assign(mark=rows.arm.map(marks), colour=rows.arm.map(COLOURS), label=labels)


def drawn(figure):
    """Return {gid: artist} of the dots and labels of a panel."""
    (axes,) = figure.axes
    return {one.get_gid(): one for one in (*axes.lines, *axes.texts) if one.get_gid()}


def test_intervals_are_drawn_and_ranges_of_hosts_are_paler(frame):
    segments = {}
    for one in dots(frame)[0].axes[0].collections:
        (first, last), *_ = one.get_segments()
        if first[1] == last[1]:
            segments[first[0], last[0]] = one.get_alpha()
    assert segments == {(0.86, 1.05): 0.5, (0.75, 0.85): 0.5, (1.6, 1.8): 1}


def test_no_label_is_crossed_by_the_line_at_one(frame):
    """The label of 0.8 would reach over 1 beside its dot, so it begins at 1."""
    for figure in dots(frame):
        (axes,) = figure.axes
        figure.canvas.draw()
        line = axes.transData.transform((1, 0))[0]
        found = drawn(figure).items()
        boxes = [text.get_window_extent() for name, text in found if name.startswith("label ")]
        assert boxes and all(box.x0 >= line or box.x1 <= line for box in boxes)
