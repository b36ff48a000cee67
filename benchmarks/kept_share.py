"""Does the share of an update that rounding to bf16 keeps say whether bf16 weights end worse?

    python benchmarks/kept_share.py PILOT [COUNTED ...] [--csv FILE]

Reads the trainings.csv of folders or zips. From the pilot's trainings it takes, for each
experiment, the margin, the four learning rates and the seeds that two equal recipes need, by the
rules of docs/contributors/weights_plan.md. With the counted folders it prints every cell, which is
a recipe at a rate, beside TF32, and the score of the predictor. --csv writes the cells into a file.
"""

import argparse
import math
import sys
import zipfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd
from seeds_needed import FEWEST_IN_PILOT, power_of, seeds_needed

from mixed_precision_study.judge.stats import ends_of

ITSELF = 1e-9  # a rate below moves nothing, so its trainings end where they began
RATES, SEEDS = 4, 8
HELD_OUT = 2  # place of the rate that is not fitted, inside the range
FITTED = "transformer"  # the experiment whose other rates the bound is fitted on
FEWEST_DECIDED, MOST_WRONG = 8, 1
RECIPE = ["precision", "moments", "rounding"]
NEAREST = ("bf16_true", "nearest")
BASE = ("tf32", "as_weights", "nearest")
WORSE, NOT_WORSE, OPEN = "worse", "not worse", "undecided"


class Pilot(NamedTuple):
    """What a pilot fixes for one experiment. Gains are in the unit of its metric, upwards."""

    start: float  # the metric before the fine-tuning
    gains: dict[float, float]  # of TF32 at each rate
    rates: list[float]
    margin: float
    needed: int | None  # seeds that two equal recipes need; None: more than 200
    power: float  # with SEEDS


class Score(NamedTuple):
    """How often each rule is right on the decided cells that were not fitted."""

    decided: int
    worse: int
    kept: int
    always_worse: int
    rate_alone: int
    bound: float
    verdict: str  # holds, fails or inconclusive


def table_in(place: Path) -> pd.DataFrame:
    """Return the trainings.csv of a folder or a zip."""
    if place.is_dir():
        return pd.read_csv(place / "trainings.csv")
    with zipfile.ZipFile(place) as archive, archive.open("trainings.csv") as opened:
        return pd.read_csv(opened)


def trainings_in(folders: Iterable[str | Path]) -> pd.DataFrame:
    """Return the trainings that have a metric, with `quality`, which is higher where they are better;
    one that diverged has none.
    """
    rows = pd.concat(map(table_in, map(Path, folders)), ignore_index=True)
    rows = rows[rows.status.isin(["ok", "diverged"])].copy()
    rows["quality"] = rows.metric.where(rows.metric_better == "higher", -rows.metric)
    rows["identity"] = rows.identity.fillna("")  # of the weights that all begin with: a block
    return rows


def four_of(rates: list[float]) -> list[float]:
    """Return the lowest, the highest and two rates evenly between, of sorted ones."""
    if len(rates) < RATES:
        sys.exit(f"Only {len(rates)} rates gain half of the best; try more of them between.")
    last = len(rates) - 1
    return [rates[round(place * last / (RATES - 1))] for place in range(RATES)]


def scatter_of(rows: pd.DataFrame) -> float:
    """Return the largest standard deviation of a rate's differences from TF32 over equal seeds."""
    wide = rows.pivot_table("quality", ["lr", "seed"], "precision")
    found = [0.0]
    for precision in wide.columns.difference(["tf32"]):
        for _, same in (wide[precision] - wide.tf32).dropna().groupby("lr"):
            if len(same) >= FEWEST_IN_PILOT:
                found.append(stdev(same))
    return max(found)


def pilot_of(rows: pd.DataFrame) -> Pilot:
    """Return what the pilot of one experiment fixes."""
    base = rows[rows.precision == "tf32"]
    ends = base.groupby("lr").quality.mean()
    start = ends[ends.index < ITSELF].mean()
    gains = (ends[ends.index >= ITSELF] - start).dropna()
    best = gains.max()
    if not best > 0:
        sys.exit("No rate of the pilot gains anything over the trainings at a rate of nearly 0.")
    rates = four_of(sorted(gains.index[gains >= best / 2]))
    margin = best / 3
    scatter = scatter_of(rows[rows.lr.isin(rates)])
    needed = seeds_needed(scatter, margin)
    return Pilot(start, dict(gains), rates, margin, needed, power_of(SEEDS, scatter, margin))


def cells_of(rows: pd.DataFrame, pilot: Pilot) -> pd.DataFrame:
    """Return a row for each recipe at each rate: how much worse than TF32 it ends over equal seeds
    of one block, as a share of the margin, with the 90% interval.
    """
    rows = rows[rows.lr.isin(pilot.rates)]  # others, as those of bases and of times, are none
    rows = rows.assign(quality=rows.quality.fillna(pilot.start))  # a diverged one gains nothing
    pairs = rows.pivot_table("quality", ["lr", "identity", "seed"], RECIPE)
    if BASE not in pairs:
        sys.exit("The counted trainings have none in TF32 to compare with.")
    kept = rows.groupby([*RECIPE, "lr"]).kept_update_fraction.mean()
    found = []
    for recipe in pairs.columns.drop(BASE):
        for rate, same in ((pairs[BASE] - pairs[recipe]) / pilot.margin).dropna().groupby("lr"):
            low, high = ends_of([*same])[2:] if len(same) > 1 else (float("nan"),) * 2
            outcome = WORSE if low > 1 else NOT_WORSE if high < 1 else OPEN
            share = kept[(*recipe, rate)]
            found.append((*recipe, rate, share, fmean(same), low, high, len(same), outcome))
    names = ["lr", "kept", "difference", "low90", "high90", "seeds", "outcome"]
    return pd.DataFrame(found, columns=[*RECIPE, *names])


def bound_of(cells: pd.DataFrame, by: str) -> float:
    """Return the bound below which cells are called worse that is most often right on them; of
    several the middle one.
    """
    values = sorted(cells[by].unique())
    bounds = [-math.inf, *map(fmean, pairwise(values)), math.inf]
    right = [((cells[by] < bound) == (cells.outcome == WORSE)).sum() for bound in bounds]
    best = [bound for bound, count in zip(bounds, right, strict=True) if count == max(right)]
    return best[len(best) // 2]


def scored(cells: pd.DataFrame) -> tuple[pd.DataFrame, Score | None]:
    """Return the cells with what the predictor says of those that round to the nearest, and its
    score; None where nothing could be fitted.
    """
    cells = cells.assign(log_lr=cells.lr.map(math.log))
    nearest = (cells.precision == NEAREST[0]) & (cells.rounding == NEAREST[1])
    rates = sorted(cells[cells.notebook == FITTED].lr.unique())
    is_fitted = (cells.notebook == FITTED) & (cells.lr != rates[HELD_OUT])
    decided = nearest & (cells.outcome != OPEN) & cells.kept.notna()
    fitted, tested = cells[decided & is_fitted], cells[decided & ~is_fitted]
    cells = cells.assign(fitted=is_fitted & nearest, predicted="")
    if fitted.outcome.nunique() < 2:
        return cells, None
    bound = bound_of(fitted, "kept")
    cells["bound"] = bound
    said = cells.kept.lt(bound).map({True: WORSE, False: NOT_WORSE})
    cells["predicted"] = said.where(nearest & cells.kept.notna(), "")
    is_worse = tested.outcome == WORSE
    kept, rate = (
        int(((tested[by] < bound_of(fitted, by)) == is_worse).sum()) for by in ("kept", "log_lr")
    )
    worse, count = int(is_worse.sum()), len(tested)
    verdict = "inconclusive"
    if count >= FEWEST_DECIDED and 0 < worse < count:
        holds = kept >= count - MOST_WRONG and kept > max(worse, rate)
        verdict = "holds" if holds else "fails"
    return cells, Score(count, worse, kept, worse, rate, bound, verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("pilot", help="folder or zip with the trainings.csv of the pilot")
    parser.add_argument("counted", nargs="*", help="folders with those of the counted trainings")
    parser.add_argument("--csv", default="", help="file for the cells")
    arguments = parser.parse_args()
    pilots = {}
    for notebook, rows in trainings_in([arguments.pilot]).groupby("notebook"):
        pilot = pilots[notebook] = pilot_of(rows)
        gains = ", ".join(f"{rate:g}: {gain:.4g}" for rate, gain in pilot.gains.items())
        print(f"{notebook}: from {pilot.start:.4g} (higher is better) TF32 gains {gains}.")
        print(f"  Rates {', '.join(f'{rate:g}' for rate in pilot.rates)}; margin", end=" ")
        print(
            f"{pilot.margin:.4g}; seeds needed {pilot.needed}; power {pilot.power:.2f} with {SEEDS}."
        )
    if not arguments.counted:
        return
    tables = []
    for notebook, rows in trainings_in(arguments.counted).groupby("notebook"):
        pilot = pilots[notebook]
        cells = cells_of(rows, pilot).assign(notebook=notebook, margin=pilot.margin)
        tables.append(cells)
    cells, score = scored(pd.concat(tables, ignore_index=True))
    print(cells.to_string(index=False, float_format="%.4g"))
    print(score or "Inconclusive: the fitted cells have one outcome alone.")
    if arguments.csv:
        cells.to_csv(arguments.csv, index=False)


if __name__ == "__main__":
    main()
