"""The sections of the report in the order in which they are read: modules with a function `section(report)`."""

from collections.abc import Iterator
from types import ModuleType

from . import (
    aa,
    advice,
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
    primer,
    quality_figure,
    scaling,
    several_gpus,
    speedup_figure,
    table,
    time_to_target,
    training_curves,
    verdicts,
    versions,
    ways,
)
from .published import articles
from .report import Report
from .section import Section

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
    versions,
    table,
    articles,
    primer,
    comparisons,
    verdicts,
    aa,
    advice,
    load,
    environment,
)
FOLDED = (articles, comparisons, verdicts, aa, advice, load, environment)
SUBJECTS = {  # kind of a folder: the section on its subject, which follows the answer
    "ladder": ladder,
    "scaling": scaling,
    "crossover": crossover,
    "inference": inference_cost,
    "published": articles,
    "largest": batch_sizes,
    "ways": ways,
    "aa": aa,
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
    articles: "published figures",
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


def sections_of(report: Report) -> Iterator[Section]:
    """Draw the sections of a report, one after the other. A section without parts has nothing to show."""
    subject = SUBJECTS.get(answer.kind_of(report))
    absent = []
    for module in in_order(report):
        section = module.section(report)
        section.folded = section.folded or (module in FOLDED and module is not subject)
        if not section.parts:
            absent.append(module)
        yield section
    if report.used:
        yield absent_line(absent)
