"""The sections of the report in the order in which they are read: modules with a function `section(report)`."""

from . import (
    aa,
    batch_sizes,
    bottlenecks,
    comparisons,
    energy,
    environment,
    epoch_time,
    inference_cost,
    ladder,
    load,
    loss_scale,
    memory_breakdown,
    memory_use,
    scaling,
    table,
    training_curves,
    verdicts,
)
from .published import articles

SECTIONS = (
    load,
    environment,
    comparisons,
    verdicts,
    aa,
    epoch_time,
    memory_use,
    batch_sizes,
    scaling,
    ladder,
    memory_breakdown,
    bottlenecks,
    energy,
    inference_cost,
    training_curves,
    loss_scale,
    table,
    articles,
)
