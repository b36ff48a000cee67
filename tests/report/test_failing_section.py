"""A section that fails costs itself alone, and the page says so."""

import matplotlib.pyplot as plt
import pytest
from drawn_reports import write_all
from made_up_records import make

from mixed_precision_study.report import energy, sections
from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import Section


def raising(report):
    raise ZeroDivisionError("made up <b>")


def with_bad_chart(report):
    """A section whose chart fails only when it is saved."""
    section = Section("Energy")
    figure, axes = plt.subplots()
    axes.set_title(r"$\frac{$")
    section.chart(figure, "bad", "a chart that cannot be drawn")
    return section


@pytest.mark.parametrize("failing", [raising, with_bad_chart])
def test_the_other_sections_are_drawn(tmp_path, monkeypatch, failing):
    write_all(tmp_path, *(make("cifar_resnet", name) for name in ("fp32", "amp_fp16")))
    report = load(str(tmp_path))
    monkeypatch.setattr(sections, "SECTIONS", (sections.answer, energy, sections.environment))
    monkeypatch.setattr(energy, "section", failing)
    answer, failed, environment, _ = sections.sections_of(report)
    assert failed.title == energy.TITLE and len(failed.parts) == 1
    assert ("ZeroDivisionError" if failing is raising else "ValueError") in failed.parts[0].text
    assert "<b>" not in failed.parts[0].text and answer.parts and environment.parts
    assert not plt.get_fignums()
