"""What each of two settings gains of what both gain together, in either order (a 2 x 2)."""

from statistics import fmean

from .conditions import fairly_timed
from .ratios import interval_of, logarithm_of, newest_first, pairing_of, total_ratio
from .stats import exponential

BASE, FIRST, SECOND, BOTH = range(4)  # the corners
GAINS = {  # name of a part: the corners before and after it
    "first_alone": (BASE, FIRST),
    "first_after": (SECOND, BOTH),
    "second_alone": (BASE, SECOND),
    "second_after": (FIRST, BOTH),
    "both": (BASE, BOTH),
}


def split_of(*corners: list[dict]) -> dict[str, dict]:
    """Return {part: its ratio with intervals} of four lists of ok runs: the base, the first setting
    changed, the second, and both. It is empty where no repetition has all four.

    first_alone, second_alone: how many times as fast training is with this setting alone
    first_after, second_after: the same where the other setting is changed already
    both: with the two; it is first_alone times second_after, and second_alone times first_after
    interaction: second_after over second_alone, 1 where neither setting changes the other's gain

    A part is a mean over `processes` repetitions, see interval_of(), and `seconds` is the shortest
    run's.
    """
    sides = [newest_first(fairly_timed(runs))[::-1] for runs in corners]
    by_pairing = [{pairing_of(run): run for run in side} for side in sides]
    shared = [key for key in by_pairing[BASE] if all(key in side for side in by_pairing)]
    runs = [[side[key] for side in by_pairing] for key in shared]
    gains = [
        [total_ratio(four[after], four[before]) for before, after in GAINS.values()]
        for four in runs
    ]
    gains = [four for four in gains if None not in four]
    if not gains:
        return {}
    columns = [list(map(logarithm_of, part)) for part in zip(*gains, strict=True)]
    found = dict(zip(GAINS, columns, strict=True))
    later, alone = found["second_after"], found["second_alone"]
    found["interaction"] = [one - other for one, other in zip(later, alone, strict=True)]
    seconds = min(sum(run["epoch_seconds"]) for four in runs for run in four)
    return {
        part: {"ratio": exponential(fmean(logarithms)), **interval_of(logarithms)}
        | {"processes": len(logarithms), "seconds": seconds}
        for part, logarithms in found.items()
    }
