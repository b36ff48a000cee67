"""Section: why a precision is faster or not, as the milliseconds of a step and what limits them."""

import pandas as pd

from ..judge.bottleneck import ARITHMETIC, IDLE, find_bottleneck, longest_others, remedies_of
from .findings import LIMITS, shares, tried
from .panels import add_panels, middle_runs, timed_trainings
from .section import Section
from .tables import Tables
from .words import short, span

ABOUT = """One training step in milliseconds, on one scale per model. *Arithmetic* is convolution, matrix multiplication
and attention. *Other kernels* normalise, convert layouts, copy, or work element by element. While the GPU is *idle*, no
kernel runs: it waits for the CPU, which launches them one by one. AMP shortens the arithmetic, but every cast is one
more kernel to launch. A CUDA graph launches the whole step at once, so the shorter arithmetic shows."""
# legible on white and on black
STEP_PARTS = {"arithmetic": "#6a5acd", "other kernels": "#88ccee", "idle": "#8b939c60"}


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the middle profiled training per comparison and precision, with `STEP_PARTS` and
    `ms` in milliseconds.
    """
    steps = middle_runs(
        timed_trainings(tables),
        lambda one: one["kernel_family_fractions"] and one["gpu_busy_fraction"],
    )
    families = [dict(record["kernel_family_fractions"]) for record in steps.record]
    busy = steps["size"].clip(upper=1)
    share = pd.Series(
        [min(1, sum(found.get(name, 0) for name in ARITHMETIC)) for found in families], steps.index
    )
    ms = steps.step_ms.astype(float)
    steps = steps.assign(
        ms=ms, waits=1 - busy, limit=[find_bottleneck(record)[0].code for record in steps.record]
    )
    other = {"other kernels": ms * busy * (1 - share)}
    return steps.assign(arithmetic=ms * busy * share, idle=ms * (1 - busy), **other)


def finding(tables: Tables, steps: pd.DataFrame) -> str:
    """Return how long the GPU is idle in a step of the compared arms, in each way of execution."""
    own = steps[steps.arm.isin(tables.compared_arms)]
    idle = [
        f"{way} {span(list(100 * waits), '{:.0f}')}%"
        for way, waits in own.groupby("way", sort=False).waits
    ]
    subject = tables.subject or "the compared arms"
    return (
        f"Share of a step of {subject} in which the GPU is idle: {', '.join(idle)}" if idle else ""
    )


def section(tables: Tables) -> Section:
    """Return the bars of a step, and the table of what limits it and what to try."""
    steps = steps_of(tables) if len(tables.comparisons) else pd.DataFrame()
    if steps.empty:
        return Section()
    section = Section("Why", finding(tables, steps), ABOUT)
    bars = steps.assign(
        label=steps.ms.map(short) + " ms", note=steps.waits.map("{:.0%} idle".format)
    )
    bars = bars.assign(strong=steps.waits >= IDLE).dropna(subset="ms")
    add_panels(section, bars, "step_time", STEP_PARTS)
    rows = []
    for row in steps.itertuples():
        cells = {
            "model": row.name,
            "way": row.block,
            ", ".join(tables.axis.settings): row.short,
            "limited by": LIMITS[row.limit],
            "largest other kernels": shares(longest_others(row.record)),
            "try": tried(remedies_of(row.limit, row.record)) or "-",
        }
        rows.append(cells)
    section.table(rows)
    return section
