"""A section that fails costs itself alone, and the page says so."""

import matplotlib.pyplot as plt
import pytest
from drawn_reports import read_all, said_in
from made_up_records import make

from mixed_precision_study.report import energy, provenance, sections
from mixed_precision_study.report.section import Section


def raising(report):
    raise ZeroDivisionError("made up <b>")


def with_bad_chart(report):
    """A section whose chart fails only when it is saved."""
    section = Section("Energy")
    figure, axes = plt.subplots()
    axes.set_title(r"$\frac{$", parse_math=True)
    section.chart(figure, "bad", "a chart that cannot be drawn")
    return section


@pytest.mark.parametrize("failing", [raising, with_bad_chart])
def test_the_other_sections_are_drawn(tmp_path, monkeypatch, failing):
    tables = read_all(tmp_path, *(make("cifar_resnet", name) for name in ("fp32", "amp_fp16")))
    monkeypatch.setattr(sections, "SECTIONS", (energy, provenance))
    monkeypatch.setattr(energy, "section", failing)
    _, first, failed, last = sections.sections_of(tables)
    assert failed.title == "Energy" and len(failed.parts) == 1
    assert ("ZeroDivisionError" if failing is raising else "ValueError") in said_in(failed)
    assert "<b>" not in said_in(failed) and first.parts and last.parts
    assert plt.get_fignums() == []
