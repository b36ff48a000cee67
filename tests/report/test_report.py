"""The report as a whole: what it leaves alone, and what fails in it."""

import itertools
import warnings
from typing import get_args

import matplotlib.pyplot as plt
import pytest
from drawn_reports import all_parts, read_all, said_in
from made_up_records import make, pair_of

from mixed_precision_study.parameters import Precision
from mixed_precision_study.report import results, sections
from mixed_precision_study.report.section import Cards, Chart, Section, Table
from mixed_precision_study.report.words import ORDER


@pytest.fixture
def tables(tmp_path):
    return read_all(tmp_path, *pair_of())


def test_precisions_have_one_order_everywhere():
    assert list(ORDER) == list(get_args(Precision))


def raising(report):
    raise ZeroDivisionError("made up <b>")


def with_bad_chart(report):
    """A section whose chart fails only when it is saved."""
    section = Section("Energy")
    figure, axes = plt.subplots()
    axes.set_title(r"$\frac{$", parse_math=True)
    section.chart([figure], "bad", "a chart that cannot be drawn")
    return section


@pytest.mark.parametrize("failing", [raising, with_bad_chart])
def test_a_section_that_fails_says_so_and_costs_itself_alone(tables, monkeypatch, failing):
    monkeypatch.setattr(sections, "SECTIONS", (failing, results.method_section))
    _, first, failed, last = sections.sections_of(tables)
    assert (
        failed.title == failing.__name__.replace("_", " ").capitalize() and len(failed.parts) == 1
    )
    assert ("ZeroDivisionError" if failing is raising else "ValueError") in said_in(failed)
    assert "<b>" not in said_in(failed) and first.parts and last.parts
    assert plt.get_fignums() == []


HOT = {"throttled": True, "throttle_fractions": [["heat", 0.9]]}


def told(part):
    """Return what a part of a section says, or None of a file, which lists each training by
    itself.
    """
    if isinstance(part, Chart):
        return part.finding, part.png
    if isinstance(part, Table | Cards):
        return getattr(part, "rows", None) or part.cards
    return getattr(part, "text", None)


def report_with(tmp_path, hot_seconds, precisions=("fp32", "tf32", "amp_fp16")):
    """Return all that a report says of five seeds of each precision, of which two were slowed by
    heat.
    """
    runs = []
    for name, seed in itertools.product(precisions, range(5)):
        hot = seed in (1, 3)
        times = [hot_seconds if hot else 3.0 + 0.1 * seed] * 3
        slow = {**HOT, "inference_latency_ms": hot_seconds, "gpu_busy_fraction": 1 / hot_seconds}
        more = {
            "energy_joules": 900.0 * times[0],
            "metric": [0.5, 0.6, 0.93],
            **(slow if hot else {}),
        }
        runs.append(make("cifar_resnet", name, seconds=times, parameters={"seed": seed}, **more))
    show = {"inference": True, "quality": True, "execution": True}
    found = read_all(tmp_path / f"{hot_seconds}", *runs, **show)
    found.source = "here"
    return [told(part) for part in all_parts(found) if told(part)]


def test_no_section_reads_a_time_of_a_run_that_heat_slowed(tmp_path):
    """Latency, busy share, energy and seconds of two of five runs change by a factor of ten."""
    first, second = (report_with(tmp_path, seconds) for seconds in (7.0, 70.0))
    assert len(first) == len(second) > 20
    assert [one for one, other in zip(first, second, strict=True) if one != other] == []


@pytest.mark.parametrize("name", ["花卉🌸", "مرحبا"])
def test_names_in_any_script_draw_without_a_warning(tmp_path, name):
    """A warning would name a folder of this machine on a page that is shared."""
    given = {
        "parameters": {"dataset": "folder", "data_dir": f"/home/x/{name}"},
        "dataset_used": name,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = all_parts(read_all(tmp_path, *pair_of(**given)))
        shown = [part._repr_mimebundle_() for part in parts if isinstance(part, Chart)]
    assert len(shown) > 2 and [str(one.message) for one in caught] == []
