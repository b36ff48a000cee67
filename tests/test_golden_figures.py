"""The report's figures are those that were recorded: tests/golden/figures, compared through
figures.py. Its tables are those beside the committed records.
"""

import copy
import io

import matplotlib
import pandas as pd
import pytest
from conftest import ROOT, read_json
from golden import figures

from mixed_precision_study.report.articles import articles_section
from mixed_precision_study.report.section import File
from mixed_precision_study.report.tables import read_tables

FOLDER = ROOT / "tests/golden/figures"
SMALL = ("quick-eager-h200", "neighbour-h200")
# Studies that another card has repeated, and superseded ones, have no kind of chart of their own.
AGAIN = "attention-begun-h200 batches-h200 crossover-h100 eager-h200 executed-h100 fastest-h200"
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


TABLES = sorted((ROOT / "outputs").rglob("trainings.csv"))


@pytest.mark.release
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_tables_of_committed_records_are_the_committed_ones(path):
    """Every cell of trainings.csv and ratios.csv, and of articles.csv where a study shows it."""
    tables = read_tables(str(path.parent))
    made = tables.csv()
    made |= {one.name: one.content for one in articles_section(tables).parts if type(one) is File}
    for name, content in made.items():
        committed = pd.read_csv(path.with_name(name))
        pd.testing.assert_frame_equal(pd.read_csv(io.BytesIO(content)), committed)


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
