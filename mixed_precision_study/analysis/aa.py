"""Equal runs against each other: how often a verdict calls a run faster or slower than itself."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from statistics import stdev

from ..record import comparison_key
from .conditions import host_of
from .speedup import paired_ratio
from .verdict import DIFFERENT, OUTCOMES, judge

A_SIDE = 3  # processes of each side, as in the study `reference`
LARGEST_BLOCK = 4  # precisions that the study `reference` compares
MOST_SPLITS = 2000

Pairs = list[tuple[dict, dict]]
Split = tuple[tuple[int, int, int], ...]  # of each block: its number and the places of the two runs in it


def called_different(pairs: Pairs) -> bool | None:
    """Return whether the verdict on these pairs is faster or slower, or None where there is no verdict."""
    word = judge(paired_ratio(pairs))
    return word in DIFFERENT if word in OUTCOMES else None


def is_equal_run(record: dict) -> bool:
    """Return whether a record is one of many equal runs, which are compared with each other only."""
    return record.get("purpose") == "aa"


def equal_runs(records: Iterable[dict]) -> list[list[dict]]:
    """Return the equal runs that ended well as groups of one and the same run on one GPU and host, in their order."""
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        if is_equal_run(record) and record["status"] == "ok":
            place = (host_of(record), record.get("gpu_uuid"), record.get("code_hash"))
            key = (comparison_key(record), record["precision"], record["seed"], place)
            groups.setdefault(key, []).append(record)
    return [sorted(group, key=place_in_time) for group in groups.values()]


def same_host(own: dict, other: dict) -> bool:
    """Return whether two records are of one kind of GPU in one host; where a host is not named, its cores tell."""
    if own["gpu_name"] != other["gpu_name"]:
        return False
    if host_of(own) and host_of(other):
        return host_of(own) == host_of(other)
    return own["host_cores"] == other["host_cores"]


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


def possible_splits(blocks: list[list[dict]]) -> Iterator[Split]:
    """Yield every way to take A_SIDE blocks, and from each of them two different runs in either order."""
    places = list(itertools.permutations(range(len(blocks[0])), 2))  # of the two sides within a block
    for numbers in itertools.combinations(range(len(blocks)), A_SIDE):
        for chosen in itertools.product(places, repeat=A_SIDE):
            yield tuple((number, own, base) for number, (own, base) in zip(numbers, chosen, strict=True))


def drawn_splits(blocks: list[list[dict]]) -> Iterator[Split]:
    """Yield MOST_SPLITS of the possible splits, drawn at random, but the same ones each time."""
    draw = random.Random(0)  # noqa: S311 - no secret
    for _ in range(MOST_SPLITS):
        numbers = draw.sample(range(len(blocks)), A_SIDE)
        places = [draw.sample(range(len(blocks[0])), 2) for _ in numbers]
        yield tuple((number, own, base) for number, (own, base) in zip(numbers, places, strict=True))


def splits_of(blocks: list[list[dict]]) -> list[Split]:
    """Return every possible split, or MOST_SPLITS of them where there are more."""
    size = len(blocks[0])
    count = math.comb(len(blocks), A_SIDE) * (size * (size - 1)) ** A_SIDE
    return list(possible_splits(blocks) if count <= MOST_SPLITS else drawn_splits(blocks))


def false_positive_rate(runs: list[dict], different: Callable[[Pairs], bool | None] = called_different) -> dict | None:
    """Return how often equal runs are called faster or slower than each other, or None with fewer than six.

    `runs` are equal runs in the order in which they were made, and `different` judges three pairs of them. The runs
    are split as a real comparison would meet them. There each block holds one process of every precision, in random
    order. Two precisions are compared by the ratios within the blocks, so a drift of the machine from block to block
    cancels, and one within a block does not. Here blocks of four neighbours stand for four precisions. A split takes
    three blocks, and from each two processes in random order: one for either side. With fewer than twelve processes a
    block is a third of them. All splits are judged, or 2,000 drawn at random.

    The keys: `processes` that the blocks hold; `splits` that had an outcome; `rate` of those called faster or slower,
    None where none had an outcome; `error`, the standard error of the rate; `scatter`, the standard deviation between
    processes as a share of their time. The splits share processes, so the error is not binomial: each block is left
    out in turn (jackknife). It is None below four blocks.
    """
    blocks = blocks_of(runs)
    if not blocks:
        return None
    outcomes = []
    for split in splits_of(blocks):
        word = different([(blocks[number][own], blocks[number][base]) for number, own, base in split])
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
    """Return the standard error of the share of true outcomes, each of them with the blocks that it rests on."""
    without = [share_of(word for used, word in outcomes if number not in used) for number in range(blocks)]
    rates = [rate for rate in without if rate is not None]
    if len(rates) < blocks or blocks <= A_SIDE:
        return None
    return stdev(rates) * (blocks - 1) / math.sqrt(blocks)
