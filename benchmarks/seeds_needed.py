"""How many seeds a study of quality needs, from the scatter that a pilot has shown.

    python benchmarks/seeds_needed.py outputs/quality

Prints, for each precision against fp32, the scatter of the last metric's differences over equal
seeds, and the fewest seeds with which two equal precisions are found equivalent in four of five
studies. The margins are fixed in equivalence.py and do not depend on the pilot.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import NormalDist, stdev
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scipy.special import stdtrit

from mixed_precision_study.judge.equivalence import FEWEST_SEEDS_FOR_OUTCOME
from mixed_precision_study.judge.trained import by_seed
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import comparison_key, last_metric

POWER = 0.8
FEWEST_IN_PILOT = 3
MOST_SEEDS = 200  # more are "over 200"


class Need(NamedTuple):
    """What one precision of a comparison needs."""

    model: str
    precision: str
    metric: str
    seeds: int  # of the pilot
    scatter: float  # standard deviation of the differences, in the unit of the margin
    margin: float
    needed: int | None  # None: over MOST_SEEDS


def power_of(seeds: int, scatter: float, margin: float) -> float:
    """Return how probable it is that two one-sided tests at 5% find equal precisions equivalent.

    `scatter` is taken as known; with few seeds the true power is a little lower.
    """
    if scatter == 0:
        return 1.0
    reach = margin * math.sqrt(seeds) / scatter - float(stdtrit(seeds - 1, 0.95))
    return max(0.0, 2 * NormalDist().cdf(reach) - 1)


def seeds_needed(scatter: float, margin: float, power: float = POWER) -> int | None:
    """Return the fewest seeds that give this power, or None where MOST_SEEDS do not."""
    numbers = range(FEWEST_SEEDS_FOR_OUTCOME, MOST_SEEDS + 1)
    return next((seeds for seeds in numbers if power_of(seeds, scatter, margin) >= power), None)


def differences_of(own: dict[int, float], base: dict[int, float], is_share: bool) -> list[float]:
    """Return the differences of {seed: metric} over equal seeds, as logarithms where the margin
    is a share.
    """
    pairs = [(own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())]
    if is_share:
        return [math.log(a) - math.log(b) for a, b in pairs if a > 0 and b > 0]
    return [a - b for a, b in pairs]


def needs_of(records: Iterable[dict]) -> list[Need]:
    """Return what each precision needs, from the ok records of a pilot."""
    groups: dict[tuple, dict[str, list[dict]]] = {}
    firsts: dict[tuple, dict] = {}
    for record in records:
        if record["status"] == "ok" and record["metric_margin"] and last_metric(record) is not None:
            key = comparison_key(record)
            firsts.setdefault(key, record)
            groups.setdefault(key, {}).setdefault(record["precision"], []).append(record)
    found = []
    for key, runs in groups.items():
        first, settings = firsts[key], firsts[key]["settings"]
        model, metric = (
            f"{settings['model']}, {settings.get('execution', 'eager')}",
            first["metric_name"],
        )
        margin = first["metric_margin"]
        metrics = {precision: by_seed(own) for precision, own in runs.items()}
        for precision in (name for name in metrics if name != "fp32" and "fp32" in metrics):
            differences = differences_of(
                metrics[precision], metrics["fp32"], first["metric_margin_is_share"]
            )
            if len(differences) >= FEWEST_IN_PILOT:
                scatter = stdev(differences)
                needed = seeds_needed(scatter, margin)
                found.append(
                    Need(model, precision, metric, len(differences), scatter, margin, needed)
                )
    return sorted(found)


def table(needs: list[Need]) -> str:
    """Return the needs as a table in Markdown."""
    lines = [
        "| model | precision | metric | seeds so far | scatter | margin | seeds needed |",
        "|---" * 7 + "|",
    ]
    for need in needs:
        needed = f"over {MOST_SEEDS}" if need.needed is None else str(need.needed)
        cells = [
            need.model,
            need.precision,
            need.metric,
            need.seeds,
            f"{need.scatter:.4g}",
            f"{need.margin:g}",
            needed,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", help="with the records of a pilot of three seeds or more")
    records, _ = read_records(parser.parse_args().folder)
    needs = needs_of(records)
    if not needs:
        sys.exit(
            f"There are no {FEWEST_IN_PILOT} seeds of fp32 and another precision of one "
            "comparison in that folder."
        )
    print(table(needs))


if __name__ == "__main__":
    main()
