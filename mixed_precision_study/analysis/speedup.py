"""How much faster a run is than its baseline: a paired ratio with its interval."""

import numpy as np

from ..record import samples_in_epoch

RESAMPLES = 2000
FEWEST_PAIRS = 6  # the range of n pairs covers their median with 1 - 2^(1-n): 97% at 6
STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # two-sided 95%, by degrees of freedom from 1


def block_times(record):
    """Return the timed epochs as an array (epochs, blocks) of seconds; records without blocks have one per epoch."""
    epochs, blocks = record["epoch_seconds"], record.get("block_seconds") or []
    whole = blocks and len(blocks) % len(epochs) == 0
    return np.reshape(np.array(blocks if whole else epochs, float), (len(epochs), -1))


def ratios_of(own, base, whole_epochs=False):
    """Return an array (repetitions, epochs, blocks): how many times as fast `own` is, block by block of equal work.

    Where the batch sizes differ, or each took its largest, whole epochs are compared, in seconds per sample.
    """
    times, base_times = block_times(own), block_times(base)
    if per_sample := own.get("batch_size") == "max" or own.get("batch_size") != base.get("batch_size"):
        times, base_times = times / samples_in_epoch(own), base_times / samples_in_epoch(base)
    if per_sample or whole_epochs or times.shape[1] != base_times.shape[1]:
        times, base_times = times.sum(1, keepdims=True), base_times.sum(1, keepdims=True)
    count = min(len(times), len(base_times))
    epochs = own.get("epochs")
    epochs = epochs if type(epochs) is int and 0 < epochs <= count and count % epochs == 0 else count
    return (base_times[:count] / times[:count]).reshape(count // epochs, epochs, -1)


def paired_runs(runs, base_runs):
    """Return [(run, its counterpart)] of ok records with equal seed, repetition and card."""
    place = lambda record: (record["seed"], record.get("repeat"), record["gpu_uuid"])  # noqa: E731
    counterparts = {place(record): record for record in base_runs if record["status"] == "ok"}
    return [(run, counterparts[place(run)]) for run in runs if run["status"] == "ok" and place(run) in counterparts]


def interval_of(ratios):
    """Return (low, high) of an array (repetitions, epochs, blocks): a 95% interval of its median.

    A bootstrap draws repetitions, in them epochs, in them blocks. It is too narrow where few groups differ among
    themselves, so it is widened to Student's interval of the repetitions' medians (of one repetition: its epochs'),
    taken of their logarithms: that of the inverse ratios is then its inverse, and no bound is negative.
    """
    repetitions, epochs, blocks = ratios.shape
    draw = np.random.default_rng(0).integers
    places = (
        draw(repetitions, size=(RESAMPLES, repetitions, 1, 1)),
        draw(epochs, size=(RESAMPLES, *ratios.shape[:2], 1)),
    )
    drawn = ratios[(*places, draw(blocks, size=(RESAMPLES, *ratios.shape)))].reshape(RESAMPLES, -1)
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5]).tolist()
    groups = np.log(np.median(ratios.reshape(repetitions if repetitions > 1 else epochs, -1), axis=1))
    if len(groups) > 1:
        half = STUDENT_T[min(len(groups) - 1, len(STUDENT_T)) - 1] * groups.std(ddof=1) / len(groups) ** 0.5
        low, high = min(low, np.exp(groups.mean() - half)), max(high, np.exp(groups.mean() + half))
    return float(low), float(high)


def paired_ratio(pairs):
    """Return {"ratio", "low", "high", "pairs", "repetitions", "seeds", "seconds"} of [(run, base run)], or None.

    The ratio is the median over all pairs of blocks; above 1, the run is the faster one. The 95% interval is None
    with fewer than FEWEST_PAIRS. `seconds` is the shorter of the two times that were measured.
    """
    parts = [part for own, base in pairs for part in ratios_of(own, base)]
    if len({part.shape[1] for part in parts}) > 1:
        parts = [part for own, base in pairs for part in ratios_of(own, base, whole_epochs=True)]
    if not parts:
        return None
    epochs = min(map(len, parts))
    ratios = np.stack([part[:epochs] for part in parts])
    low, high = interval_of(ratios) if ratios.size >= FEWEST_PAIRS else (None, None)
    shorter = min(sum(sum(pair[side]["epoch_seconds"]) for pair in pairs) for side in (0, 1))
    counts = {"pairs": ratios.size, "repetitions": len(parts), "seeds": len({own["seed"] for own, _ in pairs})}
    return {"ratio": float(np.median(ratios)), "low": low, "high": high, **counts, "seconds": shorter}
