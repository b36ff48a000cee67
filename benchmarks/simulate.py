"""How often the rules are right: made-up processes with the scatter that was found in real records.

    python benchmarks/simulate.py
    python benchmarks/simulate.py --draws 300

Each draw is one comparison of a precision with another. Its records go through the real
`paired_ratio` and `judge`. A second table has one process on each of several machines, where a
machine shifts the ratio, as eager mode does.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.judge.verdict import (
    DIFFERENT,
    FEW_HOSTS,
    SAME,
    SAME_TO,
    chance_of_one_side,
    judge,
    range_tells_side,
)
from mixed_precision_study.store.record import flat_record, new_record

BLOCKS = 10  # of an epoch
SECONDS = 6.0  # of an epoch
DRAWS = 3_000
NEEDED_COVERAGE = 0.93
# of two equal precisions called faster or slower, or of two 5% apart called the same
ALLOWED_FALSE = 0.065
# half the interval of three processes, where a CUDA graph leaves little scatter
ALLOWED_GRAPH_WIDTH = 0.03


class Scatter(NamedTuple):
    """Standard deviations of the logarithm of times, as found in records of H100s."""

    name: str
    processes: float  # between processes
    epochs: float  # between the epochs of a process
    blocks: float  # between the blocks of an epoch
    autocorrelation: float  # of one block with the next


SCATTERS = (
    # pooled over the forms of `reference` on four H100s
    Scatter("CUDA graphs", 0.0039, 0.0042, 0.0055, 0.06),
    Scatter("compiled CUDA graphs", 0.0045, 0.0074, 0.0029, 0.07),
    Scatter("ResNet-18, eager", 0.071, 0.060, 0.056, 0.24),  # 24 equal runs on an H100
    Scatter("LSTM, eager", 0.112, 0.047, 0.043, 0.29),
)
# standard deviation of the logarithm of an eager ratio from one machine to the next: nine ratios of
# `reference` on four machines with an H100 have 0.064 with the scatter of their processes
HOST_EFFECT = 0.064
MACHINES = (3, 4, 5, 6)
SHAPES = ((3, 6), (4, 4), (4, 6), (10, 1))  # processes a side, epochs of each


class Cell(NamedTuple):
    """What came of all draws with one scatter and one number of processes and epochs."""

    scatter: Scatter
    processes: int
    epochs: int
    coverage: float  # share of the intervals that hold the true ratio
    false: float  # share of equal precisions that were called faster or slower
    same: float  # share of equal precisions that were called the same
    wrongly_same: float  # share of precisions 5% apart that were called the same
    half_width: float  # median of half the interval, as a share of the ratio


def made_up_record(
    draw: np.random.Generator, scatter: Scatter, epochs: int, seconds: float, precision: str
) -> dict:
    """Return the record of a process whose epoch takes `seconds` in the middle."""
    noise = draw.normal(size=(epochs, BLOCKS))
    for block in range(1, BLOCKS):
        kept = scatter.autocorrelation
        noise[:, block] = kept * noise[:, block - 1] + math.sqrt(1 - kept**2) * noise[:, block]
    by_epoch = draw.normal(0, scatter.epochs, (epochs, 1))
    logarithms = draw.normal(0, scatter.processes) + by_epoch + scatter.blocks * noise
    blocks = seconds / BLOCKS * np.exp(logarithms)
    times = {"epoch_seconds": blocks.sum(1).tolist(), "block_seconds": blocks.ravel().tolist()}
    settings = {
        "dataset": "own",
        "model": "own",
        "batch_size": 1,
        "seed": 0,
        "execution": "eager",
        "epochs": epochs,
    }
    return flat_record(
        new_record("simulated", settings, precision, {"status": "ok", "throttled": False, **times})
    )


def made_up_pairs(
    draw: np.random.Generator, scatter: Scatter, processes: int, epochs: int
) -> list[tuple[dict, dict]]:
    """Return pairs of processes of two precisions that are equally fast."""
    names = ("amp_fp16", "fp32")
    records = [
        [made_up_record(draw, scatter, epochs, SECONDS, name) for name in names]
        for _ in range(processes)
    ]
    return [(own, base) for own, base in records]


def sped_up(record: dict, ratio: float) -> dict:
    """Return a record of a process that is `ratio` times as fast."""
    return {
        **record,
        **{
            name: [time / ratio for time in record[name]]
            for name in ("epoch_seconds", "block_seconds")
        },
    }


def simulate(scatter: Scatter, processes: int, epochs: int, draws: int, seed: int = 0) -> Cell:
    """Return the cell of one scatter and shape: of two equal precisions, and of the same ones 5%
    apart.
    """
    draw = np.random.default_rng([seed, processes, epochs, int(1e6 * scatter.processes)])
    drawn = [made_up_pairs(draw, scatter, processes, epochs) for _ in range(draws)]
    found = [paired_ratio(pairs) for pairs in drawn]
    apart = [
        paired_ratio([(sped_up(own, SAME_TO), base) for own, base in pairs]) for pairs in drawn
    ]
    words = [judge(speedup) for speedup in found]
    covered = [speedup["low"] <= 1 <= speedup["high"] for speedup in found]
    widths = [math.log(speedup["high"] / speedup["low"]) / 2 for speedup in found]
    different = sum(word in DIFFERENT for word in words)
    same = words.count(SAME)
    return Cell(
        scatter,
        processes,
        epochs,
        float(np.mean(covered)),
        different / draws,
        same / draws,
        sum(judge(speedup) == SAME for speedup in apart) / draws,
        math.expm1(float(np.median(widths))),
    )


class OverMachines(NamedTuple):
    """What came of all draws of equal precisions with one process on each of some machines."""

    one_side: float  # share where all machines lie on one side of 1
    told: float  # share where the report tells the side: by an outcome, or without a "~"


def over_machines(scatter: Scatter, machines: int, draws: int, seed: int = 0) -> OverMachines:
    """Return how often equal precisions seem to differ, where machines shift their ratio."""
    draw = np.random.default_rng([seed, machines, int(1e6 * scatter.processes)])
    one_side = told = 0
    for _ in range(draws):
        pairs = made_up_pairs(draw, scatter, machines, 2)
        factors = np.exp(draw.normal(0, HOST_EFFECT, machines))
        placed = []
        for number, ((own, base), factor) in enumerate(zip(pairs, factors, strict=True)):
            where = {"host_id": f"{number}", "gpu_uuid": f"GPU-{number}"}
            placed.append((sped_up(own, factor) | where, base | where))
        found = paired_ratio(placed)
        ends = found["lowest"], found["highest"]
        word = judge(found)
        one_side += not ends[0] <= 1 <= ends[1]
        told += range_tells_side(*ends, machines) if word == FEW_HOSTS else word in DIFFERENT
    return OverMachines(one_side / draws, told / draws)


def problems_of(cell: Cell) -> list[str]:
    """Return in what a cell is not as good as it must be."""
    found = []
    if cell.coverage < NEEDED_COVERAGE:
        found.append(f"coverage below {NEEDED_COVERAGE:.0%}")
    if cell.false > ALLOWED_FALSE:
        found.append(f"more than {ALLOWED_FALSE:.1%} false")
    if cell.wrongly_same > ALLOWED_FALSE:
        found.append(f"more than {ALLOWED_FALSE:.1%} wrongly the same")
    if cell.scatter.processes < 0.01 and cell.half_width > ALLOWED_GRAPH_WIDTH:
        found.append(f"half-width above {ALLOWED_GRAPH_WIDTH:.0%}")
    return found


def rows(draws: int) -> Iterator[str]:
    """Yield the table in Markdown, line by line."""
    yield (
        "| scatter | processes x epochs | covers | falsely different | the same | the same, "
        "5% apart | half-width | |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for scatter in SCATTERS:
        for processes, epochs in SHAPES:
            cell = simulate(scatter, processes, epochs, draws)
            shares = (cell.coverage, cell.false, cell.same, cell.wrongly_same, cell.half_width)
            figures = " | ".join(f"{share:.1%}" for share in shares)
            outcome = "; ".join(problems_of(cell)) or "ok"
            yield f"| {scatter.name} | {processes} x {epochs} | {figures} | {outcome} |"
    yield ""
    yield "| machines, eager | on one side of 1 | 2^(1-n) | told to differ |"
    yield "|---|---|---|---|"
    for scatter in (one for one in SCATTERS if "eager" in one.name):
        for machines in MACHINES:
            over = over_machines(scatter, machines, draws)
            shares = (over.one_side, chance_of_one_side(machines), over.told)
            figures = " | ".join(f"{share:.1%}" for share in shares)
            yield f"| {scatter.name}, {machines} | {figures} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--draws", type=int, default=DRAWS, help="comparisons in each cell")
    for line in rows(max(2, parser.parse_args().draws)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
