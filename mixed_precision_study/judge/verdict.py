"""What a ratio with its interval allows to say, or why it allows nothing."""

from .ratios import FEWEST_PROCESSES, SMALLEST_CLAIMED

SHORTEST_SECONDS = 2.0  # of timed training, in each run of the two precisions
SAME_FROM, SAME_TO = 0.95, 1.05  # the 90% interval lies inside: two one-sided tests at 5%

FASTER, SLOWER = "faster", "slower"
LITTLE_FASTER, LITTLE_SLOWER = "little_faster", "little_slower"  # by less than 5%
SAME = "same"  # within 5%
CANNOT_BE_TOLD = "inconclusive"
DIFFERENT = (FASTER, SLOWER, LITTLE_FASTER, LITTLE_SLOWER)
OUTCOMES = (*DIFFERENT, SAME, CANNOT_BE_TOLD)

ON_CPU = "on_cpu"
NOT_PAIRED = "not_paired"  # other GPU, seed or repetition
NOT_TRAINED = "not_trained"
OTHER_CONDITIONS = "other_conditions"
TOO_SHORT = "too_short"
FEW_HOSTS = "few_hosts"  # too few for an interval of theirs
TOO_FEW_PROCESSES = {1: "one_process", 2: "two_processes"}
FEWEST_HOSTS_FOR_SIDE = 6  # from so many on chance_of_one_side() is below 5%


def chance_of_one_side(hosts: int) -> float:
    """Return in which share of equal pairs the ratios of so many machines lie on one side of 1.

    Each lies above or below with the same chance, so all lie where the first one does in 2^(1 - n).
    """
    return 2.0 ** (1 - hosts)


def range_tells_side(lowest: float, highest: float, hosts: int) -> bool:
    """Return whether a range of machines leaves 1 out, and chance alone seldom does that."""
    return hosts >= FEWEST_HOSTS_FOR_SIDE and not lowest <= 1 <= highest


def judge(speedup: dict | None) -> str:
    """Return what a paired ratio allows to say: one of OUTCOMES, or why there is no outcome."""
    if not speedup or not speedup["processes"]:
        return NOT_PAIRED
    if speedup["untrained"]:
        return NOT_TRAINED
    if speedup["unlike"]:
        return OTHER_CONDITIONS
    if speedup["processes"] < FEWEST_PROCESSES:
        return TOO_FEW_PROCESSES[speedup["processes"]]
    if speedup["seconds"] < SHORTEST_SECONDS:
        return TOO_SHORT
    if speedup["low"] is None:
        return FEW_HOSTS
    return outcome_of(speedup)


def outcome_of(speedup: dict) -> str:
    """Return the outcome of a ratio with its intervals.

    Where one side always ran first, a drift of the host looks like a difference or hides one. Equal
    eager runs drifted by 1.4% from one to the next, and four precisions are up to three places
    apart. So nothing within 5% has an outcome.
    """
    one_order = speedup.get("one_order")
    within = speedup["low90"] > SAME_FROM and speedup["high90"] < SAME_TO and not one_order
    low, high = (SAME_FROM, SAME_TO) if one_order else (1, 1)
    ratio = speedup["ratio"]
    if speedup["low"] > high and ratio >= SMALLEST_CLAIMED:
        return LITTLE_FASTER if within else FASTER
    if speedup["high"] < low and 1 / ratio >= SMALLEST_CLAIMED:
        return LITTLE_SLOWER if within else SLOWER
    return SAME if within else CANNOT_BE_TOLD
