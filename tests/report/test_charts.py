"""Charts as PNG and SVG."""

import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pytest

from docs.sheets import DARK, sheet_of
from mixed_precision_study.report.charts import (
    INK,
    PAPER,
    chart_style,
    drawing_of,
)
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.words import COLOURS

BARS = [COLOURS[name] for name in ("fp32", "tf32", "amp_fp16")]


@pytest.fixture(scope="module")
def figures():
    with chart_style():
        figure, axes = plt.subplots(figsize=(3, 2))
        axes.bar(range(3), 1, color=BARS)
    return [figure]


@pytest.fixture(scope="module")
def bundle():
    """What Jupyter gets of a chart with four drawings: its data and their metadata."""
    with chart_style():
        figures = [plt.figure(figsize=(2, 1)) for _ in range(4)]
        for figure in figures:
            figure.add_axes((0, 0, 1, 1)).set_title('a "$" <b> $ 0.0003 #ffffff')
            plt.close(figure)
    return Chart(figures, "speed_up", 'a < "b"')._repr_mimebundle_()


def test_drawings_have_their_own_ids_and_the_pages_colours(bundle):
    drawings = bundle[1]["chart"]["drawings"]
    ids = [one for drawing in drawings for one in re.findall(r'\bid="([^"]+)"', drawing)]
    assert len(drawings) == 4 and len(ids) == len(set(ids)) > 8
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)  # noqa: S314  # our own text
        assert root.get("aria-hidden") == "true"
        assert "width" not in root.attrib
        assert f"var(--ink, {INK})" in drawing and "<style" not in drawing
        assert set(re.findall(r"url\(#(.+?)\)", drawing)) <= set(ids)
        assert 'a "$" &lt;b&gt; $ 0.0003 #ffffff</text>' in drawing


def test_a_sheet_holds_every_drawing_and_follows_dark_pages(figures):
    drawings = [drawing_of(figure, f"d{place}") for place, figure in enumerate(figures * 2)]
    wide, narrow = (ElementTree.fromstring(sheet_of(drawings, n)) for n in (2, 1))  # noqa: S314
    for sheet in (wide, narrow):
        inner = [one for one in sheet if one.tag.endswith("svg")]
        assert len(inner) == len(drawings) == 2
        style = next(one.text for one in sheet if one.tag.endswith("style"))
        assert f"--ink:{INK};" in style.partition("@media")[0]
        assert f"--paper:{DARK[PAPER]};" in style.partition("prefers-color-scheme:dark")[2]
    sides = [[float(sheet.get(name)) for name in ("width", "height")] for sheet in (wide, narrow)]
    assert sides[0][0] > 2 * sides[1][0] and sides[1][1] > 2 * sides[0][1] > 0
