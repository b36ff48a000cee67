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
TIMES = "first_screen: time_and_memory"


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


@pytest.mark.parametrize("change", ["label", "swapped bars", "sign", "missing precision"])
def test_a_chart_that_differs_is_found_until_an_entry_allows_it(change):
    new = copy.deepcopy(RECORDED["quick-h200"])
    panel = new["charts"][TIMES][0]["panels"][0]
    first, second, *others = panel["bars"]
    if change == "label":
        panel["texts"][0] += "0"
    elif change == "swapped bars":
        first[3], second[3] = second[3], first[3]
    elif change == "sign":
        first[3] *= -1
    else:
        panel["bars"] = [first, *others]
    pairs = {"quick-h200": (RECORDED["quick-h200"], new)}
    found = list(figures.differences(*pairs["quick-h200"], "quick-h200"))
    assert found and all(path.startswith(f"quick-h200/charts/{TIMES}/") for path, *_ in found)
    assert len(figures.compared(pairs, [])) == len(found)
    names = ("path", "old", "new", "clause")
    entries = [dict(zip(names, (*map(str, one), "of this test"), strict=True)) for one in found]
    assert figures.compared(pairs, entries) == []
    unused = {"quick-h200": (new, new)}
    assert len(figures.compared(unused, entries)) == len(entries)


def test_a_ratio_that_is_missing_or_turned_over_is_found():
    old = RECORDED["quick-h200"]
    key, ratio = next((key, one) for key, one in old["ratios"].items() if abs(one["ratio"] - 1) > 0.01)
    others = {name: one for name, one in old["ratios"].items() if name != key}
    for ratios in (others, others | {key: ratio | {"ratio": 1 / ratio["ratio"]}}):
        (line,) = figures.compared({"quick-h200": (old, old | {"ratios": ratios})}, [])
        assert key in line
