"""The sections of the report in the order in which they are read: modules with a function `section(report)`."""

from . import (
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
    time_to_target,
    training_curves,
    verdicts,
)
from .published import articles

SECTIONS = (
    load,
    environment,
    comparisons,
    verdicts,
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
    time_to_target,
    table,
    articles,
)
