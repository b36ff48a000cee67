"""Are bf16 weights enough to fine-tune: table, score and picture of the answer.

The cells are those of benchmarks/kept_share.py, which judges a recipe at a rate beside TF32.
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import kept_share  # noqa: E402

from mixed_precision_study.report.charts import FOOT, INK, LINE_HIGH, SOFT, framed  # noqa: E402
from mixed_precision_study.report.tables import read_tables  # noqa: E402
from mixed_precision_study.report.words import COLOURS  # noqa: E402

FOLDER = "main/weights-h200"
TIMED_STEPS = 100  # of an epoch, in weights-time alone
GPT, VIT = "transformer", "cifar_resnet"
TITLES = {GPT: "GPT", VIT: "ViT-S/4"}
RECIPES = {  # (precision, moments, rounding): its name, and bytes as weights_plan.md counts them
    kept_share.BASE: ("TF32", 16),
    ("amp_bf16", "as_weights", "nearest"): ("bf16 AMP", 16),
    ("amp_fp16", "as_weights", "nearest"): ("fp16 AMP", 16),
    ("amp_bf16", "8bit", "nearest"): ("bf16 AMP, 8-bit moments", 10),
    ("bf16_true", "as_weights", "nearest"): ("**bf16 weights**", 8),
    ("bf16_true", "fp32", "nearest"): ("fp32 moments", 12),
    ("bf16_true", "as_weights", "stochastic"): ("stochastic", 8),
    ("bf16_true", "fp32", "stochastic"): ("stochastic, fp32 moments", 12),
    ("bf16_true", "as_weights", "kahan"): ("Kahan's sums", 10),
    ("bf16_true", "fp32", "fp32_copy"): ("fp32 copy", 16),
}
MOMENTS = {"as_weights": ("bf16 moments", "o", 10), "fp32": ("fp32 moments", "s", 5)}
TALL = 9 * LINE_HIGH  # inches of the picture's axes
VERDICTS = {
    "holds": "So it holds.",
    "fails": "So it fails by the plan.",
    "inconclusive": "That is inconclusive, as eight with both outcomes were planned.",
}


def cells_in(outputs: Path) -> pd.DataFrame:
    """Return the cells of the counted trainings."""
    return pd.read_csv(outputs / FOLDER / "cells.csv", keep_default_na=False, na_values=[""])


def worse_of(cells: pd.DataFrame) -> str:
    """Return how many cells are worse, "2 of 4", or where some are undecided "2–3 of 4"."""
    least = int((cells.outcome == kept_share.WORSE).sum())
    most = least + int((cells.outcome == kept_share.OPEN).sum())
    return f"{least}{f'–{most}' if most > least else ''} of {len(cells)}" if len(cells) else "-"


def times(outputs: Path) -> dict[tuple, str]:
    """Return {recipe: how many times as fast it is as TF32}, with its 95% interval; eager ones have
    a mark. A step takes as long from every base, so comparisons that differ in it are pooled.
    """
    tables = read_tables(outputs / FOLDER)
    settings = tables.comparisons.settings
    settings = settings[settings.map(lambda one: one["max_steps"] == TIMED_STEPS)]
    found = {}
    for recipe in RECIPES:
        is_eager = recipe[1] == "8bit"
        timed = settings[settings.map(lambda one: one["execution"] == "eager") == is_eager].index
        own, base = (
            [run for number in timed for run in tables.runs(number, ", ".join(arm))]
            for arm in (recipe, kept_share.BASE)
        )
        ratio = tables.between(own, base) if recipe != kept_share.BASE else None
        if ratio and ratio["low"] is not None:
            text = "{ratio:.2f} ({low:.2f}–{high:.2f})".format_map(ratio)
            found[recipe] = text + " eager" * is_eager
    return found


def table_of(outputs: Path) -> str:
    """Return the table of the answer: bytes, at how many rates each recipe ends worse, time."""
    cells, fast = cells_in(outputs), times(outputs)
    rows = [["recipe", "bytes", "GPT", "ViT", "times as fast"], ["---"] * 5]
    for recipe, (name, size) in RECIPES.items():
        own = cells[(cells[kept_share.RECIPE] == list(recipe)).all(axis=1)]
        worse = [worse_of(own[own.notebook == notebook]) for notebook in TITLES]
        rows.append([name, str(size), *worse, fast.get(recipe, "-")])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def score_of(outputs: Path) -> str:
    """Return how often the predictor and the two rules beside it are right, in sentences."""
    _, score = kept_share.scored(cells_in(outputs).drop(columns="bound", errors="ignore"))
    if score is None:
        return "Nothing could be fitted, because all cells of three rates of the GPT end alike."
    first = f"A bound of {score.bound:.0%}, fitted on the GPT at three rates, is right in "
    first += f"{score.kept} of {score.decided} other cells. "
    others = f"*Always worse* is right in {score.always_worse}, a bound on the rate in "
    return f"{first}{others}{score.rate_alone}. {VERDICTS[score.verdict]}"


def figures(outputs: Path) -> list[Figure]:
    """Return a panel for each model, how much worse than TF32 bf16 weights rounded to the nearest
    end by the share of an update that they keep; nothing where that has not been measured.
    """
    if not (outputs / FOLDER / "cells.csv").exists():
        return []
    cells = cells_in(outputs)
    nearest = cells[(cells.precision == "bf16_true") & (cells.rounding == "nearest")]
    parts = {title: nearest[nearest.notebook == name] for name, title in TITLES.items()}
    return [drawn(own, title) for title, own in parts.items() if own.kept.notna().any()]


def drawn(cells: pd.DataFrame, title: str) -> Figure:
    """Return the panel of a model. Lines are 90% intervals; a share of 1 loses nothing."""
    about = "worse than TF32, in margins, by the kept share of an update"
    figure, axes = framed(title, about, TALL, FOOT + 2.5 * LINE_HIGH, (0.08, 0.94))
    for height, word in ((0, "as TF32"), (1, "margin")):
        axes.axhline(height, color=SOFT, linewidth=1)
        axes.annotate(word, (0, height), (4, 2), textcoords="offset points", color=SOFT)
    for moments, (name, mark, size) in MOMENTS.items():
        own = cells[cells.moments == moments]
        colour = COLOURS["bf16_true" if moments == "as_weights" else "tf32"]
        axes.vlines(own.kept, own.low90, own.high90, color=colour, linewidth=2.4)
        axes.plot(own.kept, own.difference, mark, color=colour, markersize=size, label=name)
    bounds = cells.bound.dropna() if "bound" in cells else cells.kept[:0]
    if len(bounds):
        axes.axvline(bounds.iloc[0], color=INK, linewidth=1, linestyle=":", label="bound")
    axes.set_xlim(0, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    figure.legend(*axes.get_legend_handles_labels(), loc="lower left", ncols=2, borderpad=0)
    return figure
