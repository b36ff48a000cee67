"""Charts as PNG and SVG."""

import io
import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import PIL.Image
import pytest
from PIL.ImageColor import getrgb
from test_bars import frame

from mixed_precision_study.report.bars import time_and_memory
from mixed_precision_study.report.charts import (
    DARK,
    INK,
    PAPER,
    chart_style,
    picture_of,
)
from mixed_precision_study.report.names import COLOURS
from mixed_precision_study.report.section import Chart


@pytest.fixture(scope="module")
def figures():
    return time_and_memory(frame())


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
