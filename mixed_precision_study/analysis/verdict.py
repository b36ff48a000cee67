"""One sentence for a comparison: how much, whether that can be measured, and why."""

from ..record import DISTURBED
from .bottleneck import advice_of, find_bottleneck

SHORTEST_SECONDS = 2.0  # of timed training, in each of the two precisions
RESOLUTION = 0.01  # a smaller difference is not claimed, however narrow the interval


def judge(speedup):
    """Return what a paired ratio allows to say: faster, slower, no measurable difference, or too short to tell."""
    if speedup is None:
        return "not paired: other card, seed or repetition"
    if speedup["low"] is None or speedup["seconds"] < SHORTEST_SECONDS:
        return "too short to tell"
    if speedup["low"] <= 1 <= speedup["high"] or abs(speedup["ratio"] - 1) < RESOLUTION:
        return "no measurable difference"
    return "faster" if speedup["ratio"] > 1 else "slower"


def flags_of(record):
    """Return what disturbed the measurement of a run, as short phrases."""
    reasons = [f"{name} {share:.0%}" for name, share in record["throttle_fractions"] or () if share >= DISTURBED]
    flags = [f"throttled ({', '.join(reasons)} of the time)"] if record["throttled"] else []
    return flags + ["GPU shared with another process"] * bool(record["gpu_shared"])


def verdict(record, base, speedup):
    """Return one sentence on a run against its baseline: how much, whether that can be measured, and why.

    `gain` is what paired_ratio returns for the two precisions. What disturbed either run comes first.
    """
    name, against = record["precision"], base["precision"]
    if record["status"] != "ok":
        words = {"oom": "ran out of memory", "unsupported": "cannot run here", "timeout": "took too long"}
        reason = (record["reason"] or "no reason was recorded").rstrip(".")  # a notebook's own sentence ends with one
        return f"{name} {words.get(record['status'], record['status'])}: {reason}."
    if record["device_type"] == "cpu":
        return f"{name} ran on the CPU, which proves that it works and measures nothing."
    if base["status"] != "ok":
        return f"{name} has no {against} to be compared with ({base['status']}); {find_bottleneck(record)[1]}."
    disturbed = [f"{run['precision']} {flag}" for run in (record, base) for flag in flags_of(run)]
    warning = f"MIND: {'; '.join(disturbed)}. " if disturbed else ""
    word = judge(speedup)
    if speedup is None:
        return f"{warning}{name} cannot be set beside {against}: {word}."
    spread = f" ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup["low"] is not None else ""
    (case, because), note = find_bottleneck(record), ""
    if word == "no measurable difference" and case in ("data loading", "kernel launches"):
        because += ", so precision is not what limits you"
    if name == "amp_bf16" and (half := record["fp16_kernel_fraction"] or 0) >= DISTURBED:
        note = f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's RNNs in fp16)"
    amount = f"{speedup['ratio']:.2f}x as fast as {against}{spread}"
    if record.get("batch_size") == "max":
        amount += (
            f" per sample, each at its largest batch ({record['batch_size_used']:,} and {base['batch_size_used']:,})"
        )
    return f"{warning}{name} is {amount}: {word}; {because}{advice_of(case, record)}{note}."
