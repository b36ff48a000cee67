"""How much faster a run is than its baseline: a paired ratio with its interval."""

import numpy as np

from ..record import samples_in_epoch

RESAMPLES = 2000
FEWEST_PAIRS = 6  # the range of n pairs covers their median with 1 - 2^(1-n): 97% at 6
STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # two-sided 95%, by degrees of freedom from 1


def block_times(record: dict) -> np.ndarray:
    """Return the timed epochs as an array (epochs, blocks) of seconds; records without blocks have one per epoch."""
    epochs = record["epoch_seconds"]
    blocks = record.get("block_seconds") or []
    whole = blocks and len(blocks) % len(epochs) == 0
    return np.reshape(np.array(blocks if whole else epochs, float), (len(epochs), -1))


def ratios_of(own: dict, base: dict, whole_epochs: bool = False) -> np.ndarray:
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
    if type(epochs) is not int or not 0 < epochs <= count or count % epochs:
        epochs = count
    return (base_times[:count] / times[:count]).reshape(count // epochs, epochs, -1)


def paired_runs(runs: list[dict], base_runs: list[dict]) -> list[tuple[dict, dict]]:
    """Return [(run, its counterpart)] of ok records with equal seed, repetition and GPU."""

    def key_of(record):
        return record["seed"], record.get("repeat"), record["gpu_uuid"]

    counterparts = {key_of(record): record for record in base_runs if record["status"] == "ok"}
    ok_runs = [run for run in runs if run["status"] == "ok"]
    return [(run, counterparts[key_of(run)]) for run in ok_runs if key_of(run) in counterparts]


def interval_of(ratios: np.ndarray) -> tuple[float, float]:
    """Return (low, high): a 95% interval of the median of an array (repetitions, epochs, blocks).

    It is a hierarchical bootstrap over repetitions, epochs and blocks. That is too narrow for few repetitions, so it is
    widened to Student's interval of the repetitions' medians, or with one repetition of its epochs' medians. Those
    are logarithms: inverse ratios have the inverse interval, and no bound is negative.
    """
    repetitions, epochs, blocks = ratios.shape
    draw = np.random.default_rng(0).integers
    drawn_repetitions = draw(repetitions, size=(RESAMPLES, repetitions, 1, 1))
    drawn_epochs = draw(epochs, size=(RESAMPLES, repetitions, epochs, 1))
    drawn_blocks = draw(blocks, size=(RESAMPLES, *ratios.shape))
    drawn = ratios[drawn_repetitions, drawn_epochs, drawn_blocks].reshape(RESAMPLES, -1)
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5]).tolist()
    groups = np.log(np.median(ratios.reshape(repetitions if repetitions > 1 else epochs, -1), axis=1))
    if len(groups) > 1:
        degrees = min(len(groups) - 1, len(STUDENT_T))
        half = STUDENT_T[degrees - 1] * groups.std(ddof=1) / len(groups) ** 0.5
        low, high = min(low, np.exp(groups.mean() - half)), max(high, np.exp(groups.mean() + half))
    return float(low), float(high)


def paired_ratio(pairs: list[tuple[dict, dict]]) -> dict | None:
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
    return {
        "ratio": float(np.median(ratios)),
        "low": low,
        "high": high,
        "pairs": ratios.size,
        "repetitions": len(parts),
        "seeds": len({own["seed"] for own, _ in pairs}),
        "seconds": min(sum(sum(pair[side]["epoch_seconds"]) for pair in pairs) for side in (0, 1)),
    }
