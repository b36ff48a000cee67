"""Under which conditions two runs were measured, and in which of them they differ."""

import json
from collections.abc import Sequence

from ..store.record import DISTURBED, comparison_key, data_asked_for

CLOCKS_ALIKE = 0.02  # medians of the clock that differ by more are another condition
SHOWN = 24  # characters of a value in a sentence; a hash is longer
POWER_CAP = "power cap"  # reached by the work itself, so it is part of what a precision costs
SOFTWARE = {
    "torch_version": "PyTorch",
    "cuda_version": "CUDA",
    "cudnn_version": "cuDNN",
    "driver_version": "driver",
    "timm_version": "timm",
    "package_version": "version of this package",
    "code_hash": "measuring code",
}
HOST = {"host_id": "host", "host_cpu": "CPU model", "host_cores": "cores of the host"}
Pair = tuple[dict, dict]  # a run, and the run that it is compared with


def host_of(record: dict) -> tuple | None:
    """Return what tells hosts apart, or None: machines of one image share an identity, so
    processors tell, too.
    """
    return tuple(record[field] for field in HOST) if record["host_id"] else None


def name_beside(record: dict, other: dict) -> str:
    """Return the precision of a run; beside one of the same precision its execution, or else
    what differs.
    """
    if record["precision"] != other["precision"]:
        return record["precision"]
    key, others = dict(comparison_key(record)), dict(comparison_key(other))
    differing = [name for name in key if key[name] != others.get(name)]
    if "execution" in differing or not differing:
        return record["settings"]["execution"]
    return f"{differing[0]}={json.loads(key[differing[0]])}"


def slowdowns(record: dict) -> dict[str, float]:
    """Return {reason: share of the samples} of what slowed the GPU for a noticeable time."""
    if record["throttled"] is False:
        return {}
    return {name: share for name, share in record["throttle_fractions"] if share >= DISTURBED}


def held_back(record: dict) -> bool:
    """Return whether something other than the power cap slowed the GPU: heat or hardware."""
    return any(name != POWER_CAP for name in slowdowns(record))


def fairly_timed(runs: list[dict]) -> list[dict]:
    """Return the runs whose times count: those that heat or hardware did not slow, or all where
    it slowed all.
    """
    return [run for run in runs if not held_back(run)] or runs


def fairly_timed_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of which heat or hardware slowed neither run, or all where there is no
    such pair.
    """
    return [pair for pair in pairs if not any(map(held_back, pair))] or list(pairs)


def flags_of(record: dict) -> list[str]:
    """Return what disturbed the measurement of a run, as short phrases.

    The power limit is no disturbance.
    """
    flags = []
    if held_back(record):
        reasons = [
            f"{name} {share:.0%}" for name, share in slowdowns(record).items() if name != POWER_CAP
        ]
        flags.append(f"throttled ({', '.join(reasons)} of the time)")
    if record["gpu_shared"]:
        flags.append("GPU shared with another process")
    return flags


def why_made_up(record: dict) -> str:
    """Return why a run trained on made-up data, or nothing where its data are real or not known
    yet.
    """
    if not record["synthetic"]:
        return ""
    asked = data_asked_for(record) == "synthetic"
    return (
        "they were asked for"
        if asked
        else "the real data were neither found nor could be downloaded"
    )


def said_of_made_up(records: Sequence[dict]) -> str:
    """Return in one sentence how many of the runs that trained did so on made-up data, and why,
    or nothing.
    """
    trained = [record for record in records if record["epoch_seconds"]]
    reasons = [reason for record in trained if (reason := why_made_up(record))]
    if not reasons:
        return ""
    runs = (
        f"{len(reasons)} of {len(trained)} runs trained" if len(trained) > 1 else "The run trained"
    )
    why = " or ".join(dict.fromkeys(reasons))
    return f"{runs} on made-up data, because {why}, so their quality says nothing about real data."


def conditions_of(record: dict) -> list[str]:
    """Return what disturbed a run, and whether it ran at the power limit, as short phrases."""
    share = slowdowns(record).get(POWER_CAP)
    return flags_of(record) + ([f"at its power limit {share:.0%} of the time"] if share else [])


def clocks_apart(own: dict, base: dict) -> str | None:
    """Return by how much the median clocks of two runs differ, or None where they are alike or
    not known.
    """
    clocks = [record["sm_clock_mhz_median"] or 0 for record in (own, base)]
    if not all(clocks) or max(clocks) <= min(clocks) * (1 + CLOCKS_ALIKE):
        return None
    return f"clock {clocks[0]:.0f} MHz against {clocks[1]:.0f} MHz"


def one_sided(own: dict, base: dict) -> list[str]:
    """Return what slowed or disturbed one of the two runs and not the other, with its precision."""
    found = []
    for record, other in ((own, base), (base, own)):
        if set(slowdowns(record)) - set(slowdowns(other)) or (
            record["gpu_shared"] and not other["gpu_shared"]
        ):
            found += [f"{name_beside(record, other)} {text}" for text in conditions_of(record)]
    return found


def order_difference(own: dict, base: dict) -> str | None:
    """Return that one of the two was the first of its process and the other was not, or None."""
    before = own["runs_before_in_process"], base["runs_before_in_process"]
    same_process = own["process_id"] and own["process_id"] == base["process_id"]
    if before[0] == before[1] or same_process:
        return None
    places = ["unknown" if count is None else str(count + 1) for count in before]
    names = name_beside(own, base), name_beside(base, own)
    return f"{names[0]} was run {places[0]} of its process, {names[1]} run {places[1]}"


def differences(own: dict, base: dict) -> list[str]:
    """Return in which conditions two runs differ, as short phrases, from the software to what
    disturbed one of them.
    """
    found = []
    for field, name in (SOFTWARE | HOST).items():
        if own[field] != base[field]:
            values = [str(record[field] or "unknown")[:SHOWN] for record in (own, base)]
            found.append(f"{name} {values[0]} against {values[1]}")
    for field, text in (
        ("kernel_forked", "only the kernel of {} was forked"),
        ("sm_clock_mhz_median", "clock of {} only"),
    ):
        having = [name_beside(*pair) for pair in ((own, base), (base, own)) if pair[0][field]]
        found += [text.format(*having)] if len(having) == 1 else []
    return (
        found
        + list(filter(None, (order_difference(own, base), clocks_apart(own, base))))
        + one_sided(own, base)
    )


def no_outcome_in(pairs: Sequence[Pair]) -> str | None:
    """Return why no outcome may be given for pairs of runs: heat, hardware or clock on one side
    only; else None.
    """
    for own, base in pairs:
        for record, other in ((own, base), (base, own)):
            reasons = [
                name
                for name in slowdowns(record)
                if name not in slowdowns(other) and name != POWER_CAP
            ]
            if reasons:
                return f"only {name_beside(record, other)} was slowed down ({', '.join(reasons)})"
        slower = min((own, base), key=lambda record: record["sm_clock_mhz_median"] or 0)
        if (clock := clocks_apart(own, base)) and POWER_CAP not in slowdowns(slower):
            return f"{clock}, which the power cap does not explain"
    return None


def always_in_one_order(pairs: Sequence[Pair]) -> str | None:
    """Return that one precision began before the other in all of several pairs, each on one GPU,
    or None.
    """
    first = set()
    for pair in pairs:
        starts = [(one["started_at"] or "", one["runs_before_in_process"] or 0) for one in pair]
        known = len({one["gpu_uuid"] for one in pair}) == 1 and all(start for start, _ in starts)
        first.add(starts[0] < starts[1] if known and starts[0] != starts[1] else None)
    if len(pairs) < 2 or first not in ({True}, {False}):
        return None
    own, base = name_beside(*pairs[0]), name_beside(*pairs[0][::-1])
    return (
        f"{own} always ran before {base}" if first == {True} else f"{base} always ran before {own}"
    )


def differences_in(pairs: Sequence[Pair]) -> list[str]:
    """Return in which conditions any of several pairs of runs differ, each phrase once."""
    found = [text for pair in pairs for text in differences(*pair)]
    order = always_in_one_order(pairs)
    return list(dict.fromkeys([*found, *([order] if order else [])]))
