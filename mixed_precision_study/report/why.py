"""Section: why a precision is faster or not, as the milliseconds of a step and what limits them."""

import pandas as pd

from ..judge.bottleneck import ARITHMETIC, IDLE, advice_of, find_bottleneck, longest_others
from .names import AMP, ORDER, bare, precision_name, short_name
from .panels import add_panels, middle_runs, timed_trainings
from .section import Section
from .tables import Tables
from .words import listed, short, span

ABOUT = """One training step in milliseconds, on one scale per model. *Arithmetic* is convolution, matrix multiplication
and attention. *Other kernels* normalise, convert layouts, copy, or work element by element. While the GPU is *idle*, no
kernel runs."""
GRAPH = """AMP shortens the arithmetic, but every cast is one more kernel that the CPU has to launch. A CUDA graph
launches the whole step at once, so the GPU hardly waits and the shorter arithmetic shows."""
# legible on white and on black
STEP_PARTS = {"arithmetic": "#6a5acd", "other kernels": "#88ccee", "idle": "#8b939c60"}
BUSY = 0.1  # a GPU that idles less hardly waits
SHORTER = 0.8  # of the arithmetic of fp32


def steps_of(tables: Tables) -> pd.DataFrame:
    """Return the middle profiled training per comparison and precision, with `STEP_PARTS` and `ms` in milliseconds."""
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
        ms=ms, waits=1 - busy, limit=[find_bottleneck(record)[0] for record in steps.record]
    )
    other = {"other kernels": ms * busy * (1 - share)}
    return steps.assign(arithmetic=ms * busy * share, idle=ms * (1 - busy), **other)


def finding(steps: pd.DataFrame) -> tuple[str, str]:
    """Return the title of the section, and what explains it or "". Both hold for every step that they speak of."""
    half = next((name for name in AMP if name in set(steps.arm)), None)
    of_half = steps[steps.arm == half]
    eager, graphs = of_half[of_half.way == "eager"], of_half[of_half.way == "CUDA graph"]
    waiting = eager[(eager.limit == "kernel launches") & (eager.waits >= IDLE)]
    models = eager if len(waiting) else of_half
    step = f"{'an' if half == 'amp_fp16' else 'a'} {short_name(half or '')} step"
    names = list(models["name"].map(bare).unique())
    if 0 < len(names) < min(3, steps["name"].nunique()) and waiting.empty:
        step += f" of {listed(names, 'and')}"
    if len(waiting):
        without = len(graphs) > 0 and graphs.waits.max() < BUSY
        shares = f"up to {waiting.waits.max():.0%} of {step}"
        if len(waiting) <= 3 and not waiting["name"].duplicated().any():
            shares = listed(
                [f"{row.waits:.0%} ({bare(row.name)})" for row in waiting.itertuples()], "and"
            )
            shares = shares.replace(" (", f" of {step} (", 1)
        fp32 = steps[steps.arm == "fp32"].set_index("comparison").arithmetic
        shorter = (of_half.arithmetic / of_half.comparison.map(fp32)).max() <= SHORTER
        where = "without a graph" if without else "in eager mode"
        title = f"Why: {where}, the GPU waits for the CPU during {shares}"
        return title, GRAPH if without and shorter else ""
    share = of_half.arithmetic / of_half.ms
    if share.max() < 0.5 and of_half.waits.max() < BUSY:
        shares = span([100 * one for one in share], "{:.0f}")
        return (
            f"Why: arithmetic takes only {shares}% of {step}, and other kernels take the rest",
            "",
        )
    return "Why: where the time of a step goes", ""


def section(tables: Tables) -> Section:
    """Return the bars of a step, and the table of what limits it and what to try."""
    steps = steps_of(tables) if len(tables.comparisons) else pd.DataFrame()
    if steps.empty:
        return Section("Why")
    title, because = finding(steps)
    section = Section(title, f"{because}\n\n{ABOUT}" if because else ABOUT)
    bars = steps.assign(
        label=steps.ms.map(short) + " ms", note=steps.waits.map("{:.0%} idle".format)
    )
    bars = bars.assign(strong=steps.waits >= IDLE).dropna(subset="ms")
    add_panels(section, bars, "step_time", STEP_PARTS)
    rows = []
    for row in steps.itertuples():
        advice = advice_of(row.limit, row.record).removeprefix(": try ")
        for key in ORDER:
            advice = advice.replace(key, precision_name(key))
        cells = {
            "model": row.name,
            "way": row.block,
            ", ".join(tables.axis.settings): row.short,
            "limited by": row.limit,
            "largest other kernels": longest_others(row.record),
            "try": advice or "-",
        }
        rows.append(cells)
    section.table(rows, "What limits each step, and what to try")
    return section
