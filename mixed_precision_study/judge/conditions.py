"""Under which conditions two runs were measured, and in which of them they differ."""

import json
from collections.abc import Sequence
from itertools import filterfalse, permutations

from ..store.record import DISTURBED, Runs, comparison_key
from .finding import Finding

CLOCKS_ALIKE = 0.02  # medians of the clock that differ by more are another condition
POWER_CAP = "power cap"  # reached by the work itself, so it is part of what a precision costs
# fields of a record in which two runs may differ; each is the code of that difference
SOFTWARE = (
    "torch_version",
    "cuda_version",
    "cudnn_version",
    "driver_version",
    "timm_version",
    "package_version",
    "code_hash",
)
HOST = ("host_id", "host_cpu", "host_cores")
KNOWN_OF_ONE = {"forked": "kernel_forked", "one_clock": "sm_clock_mhz_median"}  # {code: field}
Pair = tuple[dict, dict]  # a run, and the run that it is compared with


def host_of(record: dict) -> tuple | None:
    """Return what tells machines apart, or None: those of one image share an identity, so
    processors tell, too.
    """
    return tuple(record[field] for field in HOST) if record["host_id"] else None


def name_beside(record: dict, other: dict) -> str:
    """Return the precision of a run; beside one of the same precision its execution, or else
    what differs.
    """
    if record["precision"] != other["precision"]:
        return record["precision"]
    others = comparison_key(other)
    differing = [item for item in comparison_key(record) if item not in others]
    if not differing or "execution" in dict(differing):
        return record["settings"]["execution"]
    name, value = differing[0]
    return f"{name}={json.loads(value)}"


def slowdowns(record: dict) -> dict[str, float]:
    """Return {reason: share of the samples} of what slowed the GPU for a noticeable time."""
    if record["throttled"] is False:
        return {}
    return {name: share for name, share in record["throttle_fractions"] if share >= DISTURBED}


def held_back(record: dict) -> dict[str, float]:
    """Return the slowdowns() by other than the power cap: by heat or hardware."""
    return {name: share for name, share in slowdowns(record).items() if name != POWER_CAP}


def fairly_timed(runs: Runs) -> Runs:
    """Return the runs whose times count: those that nothing disturbed, by flags_of(), or all
    where all were.
    """
    return [*filterfalse(flags_of, runs)] or runs


def fairly_timed_pairs(pairs: list[Pair]) -> list[Pair]:
    """Return the pairs of which nothing disturbed either run, by flags_of(), or all where there
    is no such pair.
    """
    return [pair for pair in pairs if not any(map(flags_of, pair))] or pairs


def conditions_of(record: dict, run: str = "") -> list[Finding]:
    """Return what slowed or disturbed a run: "throttled", "shared" or "power_limit"."""
    found = []
    if reasons := held_back(record):
        found.append(Finding("throttled", run, {"reasons": reasons}))
    if record["gpu_shared"]:
        found.append(Finding("shared", run))
    if share := slowdowns(record).get(POWER_CAP):
        found.append(Finding("power_limit", run, {"share": share}))
    return found


def flags_of(record: dict) -> list[Finding]:
    """Return what disturbed the measurement of a run, which the power limit does not."""
    return [found for found in conditions_of(record) if found.code != "power_limit"]


def clocks_apart(own: dict, base: dict) -> Finding | None:
    """Return "clock" with the median clocks of two runs in MHz, or None where they are alike or
    not known.
    """
    clocks = [record["sm_clock_mhz_median"] or 0 for record in (own, base)]
    if not all(clocks) or max(clocks) <= min(clocks) * (1 + CLOCKS_ALIKE):
        return None
    return Finding("clock", values={"own": clocks[0], "base": clocks[1]})


def one_sided(own: dict, base: dict) -> list[Finding]:
    """Return the conditions_of() that one of the two runs which was slowed or disturbed while the
    other was not.
    """
    found = []
    for record, other in permutations((own, base)):
        slowed = slowdowns(record).keys() - slowdowns(other).keys()
        if slowed or (record["gpu_shared"] and not other["gpu_shared"]):
            found += conditions_of(record, name_beside(record, other))
    return found


def order_difference(own: dict, base: dict) -> Finding | None:
    """Return "place" where one of the two was run after more others in its process, or None.

    A place of None is not known.
    """
    before = own["runs_before_in_process"], base["runs_before_in_process"]
    same_process = own["process_id"] and own["process_id"] == base["process_id"]
    if before[0] == before[1] or same_process:
        return None
    first, second = (None if count is None else count + 1 for count in before)
    return Finding(
        "place",
        name_beside(own, base),
        {"place": first, "other": name_beside(base, own), "other_place": second},
    )


def differences(own: dict, base: dict) -> list[Finding]:
    """Return in which conditions two runs differ, from the software to what disturbed one of
    them.

    The codes are the fields of SOFTWARE and HOST, the names of KNOWN_OF_ONE, and those of
    order_difference(), clocks_apart() and conditions_of().
    """
    found = [
        Finding(field, values={"own": own[field], "base": base[field]})
        for field in (*SOFTWARE, *HOST)
        if own[field] != base[field]
    ]
    for code, field in KNOWN_OF_ONE.items():
        having = [name_beside(*pair) for pair in permutations((own, base)) if pair[0][field]]
        if len(having) == 1:
            found.append(Finding(code, having[0]))
    found += filter(None, (order_difference(own, base), clocks_apart(own, base)))
    return found + one_sided(own, base)


def no_outcome_in(pairs: Sequence[Pair]) -> Finding | None:
    """Return why no outcome may be given for pairs of runs, or None.

    It is "slowed" where heat or hardware slowed one side only, or "clock_unexplained".
    """
    for own, base in pairs:
        for record, other in permutations((own, base)):
            if reasons := [name for name in held_back(record) if name not in slowdowns(other)]:
                return Finding("slowed", name_beside(record, other), {"reasons": reasons})
        slower = min((own, base), key=lambda record: record["sm_clock_mhz_median"] or 0)
        if (clock := clocks_apart(own, base)) and POWER_CAP not in slowdowns(slower):
            return Finding("clock_unexplained", values=clock.values)
    return None


def begun_first(pair: Pair) -> bool | None:
    """Return whether the first of a pair on one GPU began before the second; None if unknown."""
    own, base = ((run["started_at"] or "", run["runs_before_in_process"] or 0) for run in pair)
    known = pair[0]["gpu_uuid"] == pair[1]["gpu_uuid"] and own[0] and base[0]
    return own < base if known and own != base else None


def always_in_one_order(pairs: Sequence[Pair]) -> Finding | None:
    """Return "order" with the run that began before the other in all of several pairs, or None."""
    first = set(map(begun_first, pairs))
    if len(pairs) < 2 or first not in ({True}, {False}):
        return None
    pair = pairs[0] if first == {True} else pairs[0][::-1]
    return Finding("order", name_beside(*pair), {"other": name_beside(*pair[::-1])})


def differences_in(pairs: Sequence[Pair]) -> list[Finding]:
    """Return in which conditions any of several pairs of runs differ, each of them once."""
    found = [one for pair in pairs for one in differences(*pair)]
    return list(dict.fromkeys(filter(None, (*found, always_in_one_order(pairs)))))
