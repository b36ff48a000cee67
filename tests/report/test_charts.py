"""The opening figure compared with its frame, and charts as PNG and SVG."""

import io
import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
import pytest
from drawn_reports import opened_bars
from PIL.ImageColor import getrgb

from mixed_precision_study.report.charts import (
    DARK,
    INK,
    PAPER,
    chart_style,
    opening,
    opening_note,
    picture_of,
)
from mixed_precision_study.report.names import COLOURS, ORDER, short_name
from mixed_precision_study.report.section import Chart

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
    "amp_fp16": "~0.80×",
    "amp_bf16": "2.0×",
    "fp8": "out of memory",
}
LABELS = {
    ("seconds", 0): EAGER,
    ("seconds", 1): {"fp32": "6.0 s", "amp_fp16": "1.5×"},
    ("gib", 0): {"fp32": "1.00", "tf32": "0.80", "amp_fp16": "−25%", "amp_bf16": "+10%"},
    ("gib", 1): {"fp32": "10.0", "amp_fp16": "same"},
}


def frame(rows=ROWS, model="ResNet-18"):
    bars = pd.DataFrame(rows, columns=NAMES).assign(model=model, task="CIFAR-10", more="", runs=3)
    arms = bars.precision
    bars = bars.assign(arm=arms, short=arms.map(short_name), colour=arms.map(COLOURS))
    bars = bars.assign(place=arms.map(ORDER.index), base_short=bars.baseline.map(short_name))
    bars = bars.assign(is_base=arms.isin(["fp32", "tf32"]))
    return bars.assign(seconds_low=bars.seconds, seconds_high=bars.seconds * 1.1)


@pytest.fixture(scope="module")
def figures():
    return opening(frame(ROWS[::-1]))  # in whatever order the rows come


def test_labels_heights_colours_and_order_are_those_of_the_frame(figures):
    found = opened_bars(figures)
    for key, labels in LABELS.items():
        assert {name: label for name, (label, *_) in found[key].items()} == labels
        assert list(found[key]) == [name for name in COLOURS if name in labels]
        assert all(
            colour in (COLOURS[name], None) for name, (_, _, colour, _) in found[key].items()
        )
    assert {key for key in found if found[key]} == set(LABELS)
    bold = {
        (key, name)
        for key, bars in found.items()
        for name, (*_, is_bold) in bars.items()
        if is_bold
    }
    assert bold == {(("seconds", 0), "amp_bf16"), (("seconds", 1), "amp_fp16")}
    bars = frame().set_index(["comparison", "precision"]).fillna(0)
    for (part, number), of_it in found.items():
        assert all(
            (height or 0) == bars[part][number, name] for name, (_, height, *_) in of_it.items()
        )


def test_bars_keep_their_width_and_place_where_the_neighbours_have_none():
    (figure,) = opening(frame([ROWS[0], *((*row[:4], *ROWS[4][4:]) for row in ROWS[1:3]), ROWS[3]]))
    bars = [
        (bar.get_x() + bar.get_width() / 2, bar.get_width())
        for bar in figure.axes[0].patches
        if bar.get_gid()
    ]
    assert bars == [(pytest.approx(place), pytest.approx(0.88)) for place in (0, 3)]


def test_where_no_memory_is_known_as_on_a_cpu_no_room_is_left_for_it(figures):
    without = frame(ROWS[:4]).assign(gib=None)
    (figure,) = opening(without)
    assert (len(figure.axes), len(figures[0].axes)) == (1, 2) and figure.get_figheight() < figures[
        0
    ].get_figheight()
    assert ["Memory" in opening_note(bars) for bars in (without, frame())] == [False, True]


def test_a_chart_is_one_png_on_white_and_drawings_with_ids_of_their_own_in_the_colours_of_the_page():
    with chart_style():
        figures = [plt.figure(figsize=(2, 1)) for _ in range(4)]
        for figure in figures:
            figure.add_axes((0, 0, 1, 1)).set_title('a "$" <b> $ 0.0003 #ffffff')
            plt.close(figure)
    data, metadata = Chart(figures, "speed_up", 'a < "b"')._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"} and metadata["image/png"]["alt"] == 'a < "b"'
    image = PIL.Image.open(io.BytesIO(data["image/png"])).convert("RGBA")
    assert (
        image.width > 900
        and image.getpixel((0, 0)) == (255,) * 4
        and image.getextrema()[3] == (255, 255)
    )
    drawings = metadata["chart"]["drawings"]
    ids = [one for drawing in drawings for one in re.findall(r'\bid="([^"]+)"', drawing)]
    assert len(drawings) == 4 and len(ids) == len(set(ids)) > 8
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)  # noqa: S314  # our own text
        assert (
            root.get("role") == "img"
            and root.get("aria-label") == 'a < "b"'
            and "width" not in root.attrib
        )
        assert f"var(--ink, {INK})" in drawing and "<style" not in drawing
        assert set(re.findall(r"url\(#(.+?)\)", drawing)) <= set(ids)
        assert 'a "$" &lt;b&gt; $ 0.0003 #ffffff</text>' in drawing


def test_a_dark_picture_has_another_ground_and_the_same_bars(figures):
    light, dark, narrow = (
        PIL.Image.open(io.BytesIO(picture_of(figures * 2, **asked))).convert("RGB")
        for asked in ({}, {"dark": True}, {"columns": 1})
    )
    assert light.size == dark.size and narrow.size == (light.width // 2, 2 * light.height)
    assert light.getpixel((0, 0)) == (255, 255, 255) and dark.getpixel((0, 0)) == getrgb(
        DARK[PAPER]
    )
    for name in ("fp32", "tf32", "amp_fp16", "amp_bf16"):
        assert all(
            getrgb(COLOURS[name]) in dict(map(reversed, one.getcolors())) for one in (light, dark)
        )
    assert getrgb(INK) not in dict(map(reversed, dark.getcolors()))
    higher = [plt.figure(figsize=figures[0].get_size_inches() * (1, 2))]
    columns = (picture_of(one, columns=1) for one in (higher, figures, higher + figures))
    tall, short, both = (PIL.Image.open(io.BytesIO(one)).height for one in columns)
    assert both == tall + short  # each row is as high as its own highest figure
