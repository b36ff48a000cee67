"""How ladders are found: runs of which each has one thing more than the one before."""

from collections.abc import Mapping

from .report import Key, Report
from .style import PRECISIONS

LAYERS = {  # execution: (compiled, one CUDA graph)
    "eager": (0, 0),
    "compile": (1, 0),
    "cuda_graph": (0, 1),
    "compile_cuda_graph": (1, 1),
}
KINDS = (0, 1, 2, 3, 3, 4)  # of the items of a rung: precision, scaler, layout, execution (twice), batch; in this order
Rung = tuple[int, int, int, int, int, int]  # precision (0 to 2), device scaler, channels_last, compiled, graph, batch
Climb = list[tuple[Key, list[int]]]  # (comparison number and precision, items of the rung that were added)


def rung_of(group: dict, precision: str) -> Rung | None:
    """Return what a run has, or None where its execution or batch size is no step of a ladder."""
    layers = LAYERS.get(group["runs"][precision][0].get("execution", "eager"))
    size = group["batch"][1:]
    if layers is None or not size.isdigit():
        return None
    level = min(list(PRECISIONS).index(precision), 2)
    on_device = int(group["settings"].get("scaler") == '"device"')
    channels_last = int(group["settings"].get("channels_last") == "true")
    return level, on_device, channels_last, *layers, int(size)


def climb(start: Key, rungs: Mapping[Key, Rung], known: dict[tuple[Key, int], Climb], last: int = 0) -> Climb:
    """Return the longest way up from `start`. Kinds before `last`, the kind that was added last, are not added again.

    Where a way adds two things at once, the step between was not run. `known` is a cache.
    """
    if (start, last) not in known:
        here = rungs[start]
        ways: list[Climb] = [[]]
        for other, rung in rungs.items():
            added = [axis for axis in range(len(KINDS)) if rung[axis] > here[axis]]
            fewer = any(rung[axis] < here[axis] for axis in range(len(KINDS)))
            other_mode = rung[0] == here[0] and other[1] != start[1]
            if added and not fewer and not other_mode and KINDS[added[0]] >= last:
                ways.append([(other, added), *climb(other, rungs, known, KINDS[added[-1]])])
        known[start, last] = max(ways, key=lambda way: (len(way), -sum(len(added) for _, added in way)))
    return known[start, last]


def name_of_step(rung: Rung, precision: str, axis: int) -> str:
    """Return what a step adds, as a label."""
    if axis == 0:
        return precision
    return "+ " + ("device scaler", "channels_last", "compile", "CUDA graph", f"batch {rung[5]:,}")[axis - 1]


def find_ladders(report: Report) -> list[list[tuple]]:
    """Return the ladders, each a list of steps (label, comparison number, precision, runs); no runs: it was not run."""
    families: dict[tuple, dict[Key, Rung]] = {}
    for number, group in enumerate(report.comparisons):
        steps = ("scaler", "channels_last", "execution", "batch_size")
        equal = tuple(item for item in group["settings"].items() if item[0] not in steps)
        for precision in (name for name, runs in group["runs"].items() if runs):
            if rung := rung_of(group, precision):
                families.setdefault(equal, {})[number, precision] = rung
    ladders = []
    for family in families.values():
        rungs = dict(sorted(family.items(), key=lambda item: item[1][::-1]))  # compiled before captured
        known: dict[tuple[Key, int], Climb] = {}
        ways = [[(start, [0]), *climb(start, rungs, known)] for start, rung in rungs.items() if rung[0] == 0]
        way = max(ways, key=len, default=[])
        if len({KINDS[axis] for _, added in way[1:] for axis in added}) < 3:
            continue
        ladder: list[tuple] = []
        for (number, precision), added in way:
            *missing, label = [name_of_step(rungs[number, precision], precision, axis) for axis in added]
            ladder += [(name, number, precision, []) for name in missing]
            ladder.append((label, number, precision, report.runs(number, precision)))
        ladders.append(ladder)
    return ladders
