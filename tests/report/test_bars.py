"""The bars of time and memory compared with their frame."""

import pandas as pd
import pytest
from drawn_reports import opened_bars

from mixed_precision_study.report.charts import time_and_memory, time_and_memory_note
from mixed_precision_study.report.words import COLOURS, ORDER, short_name

NAMES = (
    "comparison",
    "way",
    "precision",
    "baseline",
    "seconds",
    "gib",
    "ratio",
    "low",
    "high",
    "stands",
    "status",
)
ROWS = (  # of one model; the bars are 8, 4, 5, 2 and 0 high
    (0, "eager", "fp32", "tf32", 8.0, 1.0, None, None, None, False, "ok"),
    (0, "eager", "tf32", "tf32", 4.0, 0.8, None, None, None, False, "ok"),
    (0, "eager", "amp_fp16", "tf32", 5.0, 0.6, 0.8, 0.6, 1.1, False, "ok"),
    (0, "eager", "amp_bf16", "tf32", 2.0, 0.88, 2.0, 1.9, 2.1, True, "ok"),
    (0, "eager", "fp8", "tf32", None, None, None, None, None, False, "oom"),
    (1, "CUDA graph", "fp32", "fp32", 6.0, 10.0, None, None, None, False, "ok"),
    (1, "CUDA graph", "amp_fp16", "fp32", 4.0, 10.01, 1.5, 1.4, 1.6, True, "ok"),
)
EAGER = {
    "fp32": "8.0 s",
    "tf32": "4.0 s",
    "amp_fp16": "5.0 s",
    "amp_bf16": "2.0 s",
    "fp8": "out of memory",
}
LABELS = {
    ("seconds", 0): EAGER,
    ("seconds", 1): {"fp32": "6.0 s", "amp_fp16": "4.0 s"},
    ("gib", 0): {"fp32": "1.00", "tf32": "0.80", "amp_fp16": "0.60", "amp_bf16": "0.88"},
    ("gib", 1): {"fp32": "10.0", "amp_fp16": "10.0"},
}


def frame(rows=ROWS, model="ResNet-18"):
    bars = pd.DataFrame(rows, columns=NAMES).assign(model=model, task="CIFAR-10", more="", runs=3)
    arms = bars.precision
    bars = bars.assign(arm=arms, short=arms.map(short_name), colour=arms.map(COLOURS))
    bars = bars.assign(place=arms.map(ORDER.index))
    return bars.assign(seconds_low=bars.seconds, seconds_high=bars.seconds * 1.1)


@pytest.fixture(scope="module")
def figures():
    return time_and_memory(frame(ROWS[::-1]))  # in whatever order the rows come


def test_labels_heights_colours_and_order_are_those_of_the_frame(figures):
    found = opened_bars(figures)
    for key, labels in LABELS.items():
        assert {name: label for name, (label, *_) in found[key].items()} == labels
        assert list(found[key]) == [name for name in COLOURS if name in labels]
        assert all(colour in (COLOURS[name], None) for name, (_, _, colour) in found[key].items())
    assert {key for key in found if found[key]} == set(LABELS)
    bars = frame().set_index(["comparison", "precision"]).fillna(0)
    for (part, number), of_it in found.items():
        assert all(
            (height or 0) == bars[part][number, name] for name, (_, height, *_) in of_it.items()
        )


def test_bars_keep_their_width_and_place_where_the_neighbours_have_none():
    (figure,) = time_and_memory(
        frame([ROWS[0], *((*row[:4], *ROWS[4][4:]) for row in ROWS[1:3]), ROWS[3]])
    )
    bars = [
        (bar.get_x() + bar.get_width() / 2, bar.get_width())
        for bar in figure.axes[0].patches
        if bar.get_gid()
    ]
    assert bars == [(pytest.approx(place), pytest.approx(0.88)) for place in (0, 3)]


def test_where_no_memory_is_known_as_on_a_cpu_no_room_is_left_for_it(figures):
    without = frame(ROWS[:4]).assign(gib=None)
    (figure,) = time_and_memory(without)
    assert (len(figure.axes), len(figures[0].axes)) == (1, 2) and figure.get_figheight() < figures[
        0
    ].get_figheight()
    assert ["Memory" in time_and_memory_note(bars) for bars in (without, frame())] == [False, True]
