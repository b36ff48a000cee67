"""The report's figures are those that were recorded: tests/golden/figures, compared through
figures.py. Its words and tables are those of the committed pages.
"""

import copy
import io

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from conftest import ROOT, read_json
from golden import figures
from notebook_outputs import outputs_of

from mixed_precision_study.report.section import Chart, File
from mixed_precision_study.report.sections import sections_of
from mixed_precision_study.report.tables import read_tables

FOLDER = ROOT / "tests/golden/figures"
SMALL = ("quick-eager-h200", "neighbour-h200")
# Studies that another card has repeated, and superseded ones, have no kind of chart of their own.
AGAIN = "batches-h200 crossover-h100 eager-h200 executed-h100 fastest-h200"
AGAIN += " first-h200 graph-quality-h200 order-h200 quick-eager-h100 quick-earlier-h100"
AGAIN += " reference-earlier-h100 reference-h200 modern-h100 repeatability"
RECORDED = {path.stem: read_json(path) for path in sorted(FOLDER.glob("*.json"))}
VERSION = (FOLDER / "matplotlib.txt").read_text().strip()
DRAWN_ALIKE = matplotlib.__version__.startswith(f"{VERSION}.")


def marks_of(name):
    if name in AGAIN.split():
        return [pytest.mark.exhaustive]
    return [] if name in SMALL else [pytest.mark.release]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in RECORDED])
def test_ratios_quality_and_charts_are_the_recorded_ones(name):
    new, old = figures.recorded_figures(name), RECORDED[name]
    if not DRAWN_ALIKE:  # another version places other ticks
        new, old = ({**one, "charts": {}} for one in (new, old))
    assert figures.compared(old, new, name) == []
    if not DRAWN_ALIKE:
        pytest.skip(
            "ratios and quality are the recorded ones, but charts were recorded under "
            f"Matplotlib {VERSION}"
        )


PAGES = sorted(path.with_name("summary.ipynb") for path in (ROOT / "outputs").rglob("summary.html"))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks_of(page.parent.name)) for page in PAGES],
    ids=lambda page: page.parent.name,
)
def test_a_report_says_what_the_committed_one_says(page, monkeypatch):
    """Every sentence, card and table of the page, and every cell of the CSV files beside it."""
    monkeypatch.chdir(ROOT)  # pages name their folder as seen from there
    committed = [output["data"] for output in outputs_of(read_json(page), "data")]
    texts = []
    for section in sections_of(read_tables(str(page.parent.relative_to(ROOT)))):
        for part in section:
            if isinstance(part, File):
                made, file = io.BytesIO(part.content), page.with_name(part.name)
                pd.testing.assert_frame_equal(pd.read_csv(made), pd.read_csv(file))
            elif not isinstance(part, Chart):
                texts.append(data_of(part)["text/plain"])
        plt.close("all")
    assert texts == ["".join(one["text/plain"]) for one in committed if "image/png" not in one]


def data_of(part):
    """Return what a notebook gets to show of a part."""
    shown = part._repr_mimebundle_()
    return shown[0] if isinstance(shown, tuple) else shown


@pytest.mark.release
def test_all_results_have_been_recorded():
    zips = (ROOT / "outputs").rglob("*.zip")
    assert set(RECORDED) == {
        path.parent.name if path.name == "records.zip" else path.stem for path in zips
    }


def test_a_chart_or_a_ratio_that_differs_is_found():
    old = RECORDED["quick-eager-h200"]
    new = copy.deepcopy(old)
    panel = new["charts"]["time"][0]["panels"][0]
    panel["texts"][0] += "0"
    panel["bars"][0][3] *= -1
    (lost, _), (_, ratio), *_ = new["ratios"].items()
    del new["ratios"][lost]
    ratio["ratio"] = 1.1 / ratio["ratio"]
    assert len(figures.compared(old, new, "quick-eager-h200")) == 4
