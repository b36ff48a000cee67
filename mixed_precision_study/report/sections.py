"""The sections of the report in the order in which they are read: modules with a function `section(report)`."""

from collections.abc import Iterator

from . import (
    aa,
    advice,
    batch_sizes,
    bottlenecks,
    comparisons,
    energy,
    environment,
    inference_cost,
    ladder,
    load,
    loss_scale,
    memory_breakdown,
    scaling,
    speedup_figure,
    table,
    time_to_target,
    training_curves,
    verdicts,
)
from .published import articles
from .report import Report
from .section import Section

SECTIONS = (
    load,
    environment,
    comparisons,
    verdicts,
    aa,
    speedup_figure,
    batch_sizes,
    scaling,
    ladder,
    memory_breakdown,
    bottlenecks,
    energy,
    inference_cost,
    training_curves,
    loss_scale,
    time_to_target,
    table,
    articles,
    advice,
)


def sections_of(report: Report) -> Iterator[Section]:
    """Draw the sections of a report, one after the other. A section without parts has nothing to show."""
    for module in SECTIONS:
        yield module.section(report)
