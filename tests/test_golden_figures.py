"""The report's figures are those that were recorded: tests/golden/figures, compared through figures.py."""

import copy
import json

import matplotlib
import pytest
import yaml
from conftest import ROOT
from golden import figures

FOLDER = ROOT / "tests" / "golden" / "figures"
SMALL = ("quick-h200", "neighbour-h200")
RECORDED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
ENTRIES = yaml.safe_load((FOLDER / "differences.yaml").read_text(encoding="utf-8"))
VERSION = (FOLDER / "matplotlib.txt").read_text(encoding="utf-8").strip()
DRAWN_ALIKE = matplotlib.__version__.startswith(f"{VERSION}.")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SMALL)) for name in RECORDED]
)
def test_ratios_quality_and_charts_are_the_recorded_ones(name):
    new, old = figures.recorded_figures(name), RECORDED[name]
    if not DRAWN_ALIKE:  # another version places other ticks
        new, old = ({**one, "charts": {}} for one in (new, old))
    assert figures.compared({name: (old, new)}, ENTRIES) == []
    if not DRAWN_ALIKE:
        pytest.skip(f"ratios and quality are the recorded ones, but charts were recorded under Matplotlib {VERSION}")


def test_all_results_have_been_recorded():
    zips = (ROOT / "outputs").rglob("*.zip")
    assert set(RECORDED) == {path.parent.name if path.name == "records.zip" else path.stem for path in zips}


def test_a_chart_or_a_ratio_that_differs_is_found_until_an_entry_allows_it():
    old = RECORDED["quick-h200"]
    new = copy.deepcopy(old)
    panel = new["charts"]["first_screen: time_and_memory"][0]["panels"][0]
    panel["texts"][0] += "0"
    panel["bars"][0][3] *= -1
    (lost, _), (_, ratio), *_ = new["ratios"].items()
    del new["ratios"][lost]
    ratio["ratio"] = 1.1 / ratio["ratio"]
    found, pairs = list(figures.differences(old, new, "quick-h200")), {"quick-h200": (old, new)}
    assert len(figures.compared(pairs, [])) == len(found) == 4
    entries = [{"path": path, "old": str(a), "new": str(b), "clause": "of this test"} for path, a, b in found]
    assert figures.compared(pairs, entries) == []
    assert len(figures.compared({"quick-h200": (new, new)}, entries)) == 4  # what allows nothing is named
