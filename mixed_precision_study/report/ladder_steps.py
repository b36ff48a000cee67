"""How ladders are found: runs of which each has one thing more than the one before."""

from .style import PRECISIONS

LAYERS = {"eager": (0, 0), "compile": (1, 0), "cuda_graph": (0, 1), "compile_cuda_graph": (1, 1)}
KINDS = (0, 1, 2, 2, 3)  # what a rung holds: precision, layout, execution (in two parts), batch; added in this order


def rung_of(group, precision):
    """Return what a run has: (precision 0 to 2, channels_last, compiled, one CUDA graph, batch size), or None."""
    layers, size = LAYERS.get(group["runs"][precision][0].get("execution", "eager")), group["batch"][1:]
    level = min(list(PRECISIONS).index(precision), 2)
    layout = int(group["settings"].get("channels_last") == "true")
    return (level, layout, *layers, int(size)) if layers and size.isdigit() else None


def climb(place, rungs, known, last=0):
    """Return the longest way up as [(place, what was added)]; what kind was added `last` is not added to again later.

    A place is (comparison number, precision). Where a way adds two things at once, the step between was not run.
    """
    if (place, last) not in known:
        ways = [[]]
        for other, rung in rungs.items():
            added = [axis for axis in range(5) if rung[axis] > rungs[place][axis]]
            fewer = any(rung[axis] < rungs[place][axis] for axis in range(5))
            other_mode = rung[0] == rungs[place][0] and other[1] != place[1]
            if added and not (fewer or other_mode) and KINDS[added[0]] >= last:
                ways.append([(other, added), *climb(other, rungs, known, KINDS[added[-1]])])
        known[place, last] = max(ways, key=lambda way: (len(way), -sum(len(added) for _, added in way)))
    return known[place, last]


def name_of_step(rung, precision, axis):
    """Return what a step adds, as a label."""
    return "+ " * (axis > 0) + (precision, "channels_last", "compile", "CUDA graph", f"batch {rung[4]:,}")[axis]


def find_ladders(report):
    """Return the ladders, each a list of steps (label, comparison number, precision, runs); no runs: it was not run."""
    families, ladders = {}, []
    for number, group in enumerate(report.comparisons):
        kept = [
            item for item in group["settings"].items() if item[0] not in ("channels_last", "execution", "batch_size")
        ]
        for precision in (name for name, runs in group["runs"].items() if runs):
            if rung := rung_of(group, precision):
                families.setdefault(tuple(kept), {})[number, precision] = rung
    for rungs in families.values():
        rungs, known = dict(sorted(rungs.items(), key=lambda item: item[1][::-1])), {}  # compiled before captured
        ways = [[(place, [0]), *climb(place, rungs, known)] for place, rung in rungs.items() if rung[0] == 0]
        way = max(ways, key=len, default=[])
        if len({KINDS[axis] for _, added in way[1:] for axis in added}) < 3:
            continue
        ladders.append([])
        for (number, precision), added in way:
            labels = [name_of_step(rungs[number, precision], precision, axis) for axis in added]
            ladders[-1] += [(label, number, precision, []) for label in labels[:-1]]
            ladders[-1].append((labels[-1], number, precision, report.comparisons[number]["runs"][precision]))
    return ladders
