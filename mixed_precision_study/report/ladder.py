"""Section: one thing added at a time, step by step, and the same training executed in another way."""

import re
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ..analysis.student import MANY_RATIOS, stand_together
from ..analysis.verdict import DIFFERENT
from .charts import INK, PANEL, SOFT, STATUS
from .growth import ratio_texts, texts
from .names import COLOURS, ORDER, precision_name, way_name
from .section import Section
from .tables import Tables, alike, bars_of
from .words import listed

WAYS = {  # setting: (its usual value, what is added by another one)
    "execution": ("eager", "{}"),
    "channels_last": (False, "channels_last"),
    "scaler": ("pytorch", "loss scaler on the device"),
    "compile_mode": ("default", "compile mode {}"),
    "rounding": ("nearest", "{} rounding"),
    "allow_fp16_accumulation": (False, "fp16 accumulation"),
    "loader": ("gpu", "loader {}"),
}
ABOUT = """A bar is the speed beside the first step, and the number behind it is that step's own gain over the step
before, so the gains multiply to the total. A thin line is a 95% interval, and ~ means that a gain's interval includes 1."""
LIMITS = ("ratio", "low", "high", "outcome", "p")


def chosen(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def ladder_of(tables: Tables, family: pd.DataFrame) -> Iterator[tuple[str, int, str]]:
    """Yield (label, comparison, precision) of the steps that the study names and these comparisons have, in order.

    A step adds its settings to those of the step before. A larger batch is another training, so it is no step.
    """
    steps = [step for step in tables.show["steps"] if "batch_size" not in step]
    state = {name: WAYS[name][0] for step in steps for name in step if name in WAYS}
    family = family[family.batch == family.batch.min()]
    precisions, before = ORDER, None
    for step in steps:
        state |= {name: value for name, value in step.items() if name not in ("label", "precision")}
        fits = [all(one.get(name, value) in chosen(value) for name, value in state.items()) for one in family.settings]
        rows = tables.trainings[tables.trainings.comparison.isin(family.index[fits]) & ~tables.trainings.explains]
        rows = rows[rows.precision.isin(chosen(step.get("precision", precisions)))]
        if len(rows) and before != (before := (rows.comparison.iloc[0], rows.precision.iloc[0])):
            precisions = before[1]
            yield step["label"], *before


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the bars_of() all ladders, a row for each step, with its `ladder`, the name of the model, and its `label`.

    `ratio` and its limits are over the first step, `gain` and those that begin with gain_ over the step before.
    """
    settings = {name for step in tables.show.get("steps", ()) for name in step} - {"label", "precision"}
    rows = []
    for _, family in alike(tables.comparisons, *settings) if settings else ():
        first = before = None
        for label, number, precision in ladder_of(tables, family):
            bars = bars_of(tables, [number])
            row = bars[bars.precision == precision].iloc[0].to_dict() | {"ladder": family.name.iloc[0], "label": label}
            own = tables.runs(number, precision)
            first, over = first or own, (tables.between(own, first) if first else None) or {}
            gain = (tables.between(own, before) if before else None) or {}
            row |= {name: over.get(name) for name in LIMITS} | {f"gain_{name}": gain.get(name) for name in LIMITS}
            before = own or before
            rows.append(row)
    return pd.DataFrame(rows)
