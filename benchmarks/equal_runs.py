"""Equal runs against each other: how often a verdict calls a run faster or slower than itself.

    python run_all.py quick -p precisions fp32 -p repeats 24 --output-dir outputs/equal
    python benchmarks/equal_runs.py outputs/equal

The first command makes 24 processes of each of three runs. The second judges four of them against
four others, as two precisions are judged. A rate above 5% by more than its error means that the
intervals on this host are too narrow.
"""

import argparse
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mixed_precision_study.judge.conditions import host_of
from mixed_precision_study.judge.ratios import SMALLEST_CLAIMED, paired_ratio
from mixed_precision_study.judge.verdict import DIFFERENT, OUTCOMES, judge
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import comparison_key, is_explanation

A_SIDE = 4  # processes of each side, as in the study `reference`
LARGEST_BLOCK = 4  # precisions that the study `reference` compares
MOST_SPLITS = 2000

Pairs = list[tuple[dict, dict]]
# of each block: its number and the places of the two runs in it
Split = tuple[tuple[int, int, int], ...]


def called_different(pairs: Pairs) -> bool | None:
    """Return whether the verdict on these pairs is faster or slower, or None where there is no
    verdict.
    """
    word = judge(paired_ratio(pairs))
    return word in DIFFERENT if word in OUTCOMES else None


def equal_runs(records: Iterable[dict]) -> list[list[dict]]:
    """Return the equal runs that ended well as groups of one and the same run on one GPU and
    host, in their order.
    """
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        if record["status"] == "ok" and not is_explanation(record):
            place = (host_of(record), record.get("gpu_uuid"), record.get("code_hash"))
            key = (comparison_key(record), record["precision"], record["settings"]["seed"], place)
            groups.setdefault(key, []).append(record)
    return [sorted(group, key=place_in_time) for group in groups.values()]


def place_in_time(record: dict) -> tuple:
    """Return a key that sorts equal runs by the order in which they were made."""
    order = record.get("order_in_comparison")
    return (record.get("started_at") or "", -1 if order is None else order)


def blocks_of(runs: list[dict]) -> list[list[dict]]:
    """Return runs cut into blocks of neighbours in time; what does not fill a block is left out."""
    size = min(LARGEST_BLOCK, len(runs) // A_SIDE)
    if size < 2:
        return []
    return [runs[start : start + size] for start in range(0, len(runs) - size + 1, size)]


def splits_of(blocks: list[list[dict]]) -> list[Split]:
    """Return every way to take A_SIDE blocks, and from each of them two different runs in either
    order.

    Where there are more than MOST_SPLITS, so many are drawn at random, but they are the same ones
    each time.
    """
    size = len(blocks[0])
    if math.comb(len(blocks), A_SIDE) * (size * (size - 1)) ** A_SIDE <= MOST_SPLITS:
        ways = itertools.product(itertools.permutations(range(size), 2), repeat=A_SIDE)
        drawn = list(itertools.product(itertools.combinations(range(len(blocks)), A_SIDE), ways))
    else:
        draw = random.Random(0)  # noqa: S311 - no secret
        numbers = range(len(blocks))
        drawn = [
            (
                tuple(draw.sample(numbers, A_SIDE)),
                tuple(tuple(draw.sample(range(size), 2)) for _ in range(A_SIDE)),
            )
            for _ in range(MOST_SPLITS)
        ]
    return [
        tuple((number, *sides) for number, sides in zip(*split, strict=True)) for split in drawn
    ]


def false_positive_rate(
    runs: list[dict], different: Callable[[Pairs], bool | None] = called_different
) -> dict | None:
    """Return how often equal runs are called faster or slower than each other, or None with fewer
    than eight.

    `runs` are equal runs in the order in which they were made, and `different` judges four pairs of
    them. The runs are split as a real comparison would meet them. There each block holds one
    process of every precision, in random order. Two precisions are compared by the ratios within
    the blocks, so a drift of the machine from block to block cancels, and one within a block does
    not. Here blocks of four neighbours stand for four precisions. A split takes four blocks, and
    from each two processes in random order: one for either side. With fewer than sixteen processes
    a block is a quarter of them. All splits are judged, or 2,000 drawn at random.

    The keys: `processes` that the blocks hold; `splits` that had an outcome; `rate` of those called
    faster or slower, None where none had an outcome; `error`, the standard error of the rate;
    `scatter`, the standard deviation between processes as a share of their time. The splits share
    processes, so the error
    is not binomial: each block is left out in turn (jackknife). It is None below four blocks.
    """
    blocks = blocks_of(runs)
    if not blocks:
        return None
    outcomes = []
    for split in splits_of(blocks):
        word = different(
            [(blocks[number][own], blocks[number][base]) for number, own, base in split]
        )
        if word is not None:
            outcomes.append(({number for number, *_ in split}, word))
    seconds = [math.log(sum(run["epoch_seconds"])) for block in blocks for run in block]
    return {
        "processes": len(seconds),
        "splits": len(outcomes),
        "rate": share_of(word for _, word in outcomes),
        "error": jackknife_error(outcomes, len(blocks)),
        "scatter": stdev(seconds),
    }


def share_of(words: Iterable[bool]) -> float | None:
    """Return the share of true values, or None where there are no values."""
    found = list(words)
    return sum(found) / len(found) if found else None


def jackknife_error(outcomes: list[tuple[set[int], bool]], blocks: int) -> float | None:
    """Return the standard error of the share of true outcomes, each of them with the blocks that
    it rests on.
    """
    without = [
        share_of(word for used, word in outcomes if number not in used) for number in range(blocks)
    ]
    rates = [rate for rate in without if rate is not None]
    if len(rates) < blocks or blocks <= A_SIDE:
        return None
    return stdev(rates) * (blocks - 1) / math.sqrt(blocks)


def table(records: Iterable[dict]) -> str:
    """Return a line for each equal run with its processes, times, scatter and rate; without such
    runs only the head.

    The upper limit of a rate is 1.64 errors above it, so a true rate would exceed it in one of
    twenty cases. Rates are not pooled, because a form whose runs differ by less than the smallest
    difference that is claimed cannot err, and would dilute those that can.
    """
    lines = [
        "| equal runs | processes | s an epoch | scatter | called faster or slower |",
        "|---|---|---|---|---|",
    ]
    for runs in equal_runs(records):
        found, means = false_positive_rate(runs), [fmean(run["epoch_seconds"]) for run in runs]
        if found:
            rate = "no verdict" if found["rate"] is None else f"{found['rate']:.1%}"
            if max(means) / min(means) < SMALLEST_CLAIMED:
                rate += ", which cannot err,"
            elif found["error"] is not None:
                limit = found["rate"] + 1.64 * found["error"]
                rate += f" ± {found['error']:.1%}, at most {limit:.1%},"
            first, settings = runs[0], runs[0]["settings"]
            name = f"{settings['model']} on {first['dataset_used']}, batch {settings['batch_size']}"
            name += f", {settings['execution']}"
            times = (
                f"{fmean(means):.2f} ({min(means):.2f} to {max(means):.2f}) | "
                f"{found['scatter']:.1%}"
            )
            rate += f" of {found['splits']:,}"
            lines.append(
                f"| {name}, {first['precision']} | {found['processes']} | {times} | {rate} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table of one folder, or say why there is none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", help="with records of at least six equal runs")
    text = table(read_records(parser.parse_args().folder)[0])
    if text.count("\n") < 2:
        sys.exit(
            f"There are no {2 * A_SIDE} equal runs in that folder; run_all.py makes them "
            "with -p repeats 24."
        )
    print(text)


if __name__ == "__main__":
    main()
