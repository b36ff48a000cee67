"""The sections of the report in the order in which they are read: modules with a function `section(report)`."""

from collections.abc import Iterator
from types import ModuleType

import matplotlib.pyplot as plt

from ..errors import error_line
from . import (
    answer,
    batch_sizes,
    bottlenecks,
    comparisons,
    crossover,
    energy,
    environment,
    inference_cost,
    ladder,
    load,
    loss_scale,
    memory_breakdown,
    quality_figure,
    scaling,
    several_gpus,
    speedup_figure,
    table,
    time_to_target,
    training_curves,
    verdicts,
    ways,
)
from .report import Report
from .section import Chart, Section
from .style import chart_style
from .words import plain

SECTIONS = (
    answer,
    speedup_figure,
    several_gpus,
    bottlenecks,
    ladder,
    ways,
    crossover,
    batch_sizes,
    scaling,
    memory_breakdown,
    quality_figure,
    training_curves,
    time_to_target,
    loss_scale,
    energy,
    inference_cost,
    table,
    comparisons,
    verdicts,
    load,
    environment,
)
FOLDED = (comparisons, verdicts, load, environment)
SUBJECTS = {  # kind of a folder: the section on its subject, which follows the answer
    "ladder": ladder,
    "scaling": scaling,
    "crossover": crossover,
    "inference": inference_cost,
    "largest": batch_sizes,
    "ways": ways,
}
NAMES = {  # what a folder may lack
    ladder: "a ladder",
    ways: "ways of running",
    batch_sizes: "several batch sizes",
    scaling: "growth with the model",
    crossover: "growth with the width",
    quality_figure: "quality over seeds",
    training_curves: "training curves",
    loss_scale: "loss scales",
    energy: "energy",
    inference_cost: "inference",
}


def in_order(report: Report) -> list[ModuleType]:
    """Return the sections in the order for this report: the answer, its study's subject, then the others."""
    subject = SUBJECTS.get(answer.kind_of(report))
    first = [answer] if subject is None else [answer, subject]
    return [*first, *(module for module in SECTIONS if module not in first)]


def absent_line(absent: list[ModuleType]) -> Section:
    """Return one sentence on what a folder lacks."""
    section = Section()
    names = [NAMES[module] for module in absent if module in NAMES]
    if names:
        section.say(f"Not in this folder: {', '.join(names)}.")
    return section


def drawn(module: ModuleType, report: Report) -> Section:
    """Return a section with its charts drawn. One that fails says so, because the others must not be lost with it."""
    try:
        with chart_style():
            section = module.section(report)
        for part in section.parts:
            if isinstance(part, Chart):
                part.png  # noqa: B018  # drawn here, where an error costs this section alone
        return section
    except Exception as error:  # odd values in a record may raise anything
        plt.close("all")
        failed = Section(getattr(module, "TITLE", "The answer"))
        failed.say(f"**This section could not be drawn**, so it is missing: {plain(error_line(error))}")
        return failed


def sections_of(report: Report) -> Iterator[Section]:
    """Draw the sections of a report, one after the other. A section without parts has nothing to show."""
    subject = SUBJECTS.get(answer.kind_of(report))
    absent = []
    for module in in_order(report):
        section = drawn(module, report)
        section.folded = section.folded or (module in FOLDED and module is not subject)
        if not section.parts:
            absent.append(module)
        yield section
    if report.used:
        yield absent_line(absent)
