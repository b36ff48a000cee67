"""One sentence for a comparison: how much, whether that can be measured, and why."""

from ..record import DISTURBED
from .bottleneck import advice_of, find_bottleneck

SHORTEST_SECONDS = 2.0  # of timed training, in each of the two precisions
RESOLUTION = 0.01  # a smaller difference is not claimed, however narrow the interval
STATUS_WORDS = {"oom": "ran out of memory", "unsupported": "cannot run here", "timeout": "took too long"}


def judge(speedup: dict | None) -> str:
    """Return what a paired ratio allows to say: faster, slower, no measurable difference, or too short to tell."""
    if speedup is None:
        return "not paired: other card, seed or repetition"
    if speedup["low"] is None or speedup["seconds"] < SHORTEST_SECONDS:
        return "too short to tell"
    if speedup["low"] <= 1 <= speedup["high"] or abs(speedup["ratio"] - 1) < RESOLUTION:
        return "no measurable difference"
    return "faster" if speedup["ratio"] > 1 else "slower"


def flags_of(record: dict) -> list[str]:
    """Return what disturbed the measurement of a run, as short phrases."""
    flags = []
    if record["throttled"]:
        reasons = [f"{name} {share:.0%}" for name, share in record["throttle_fractions"] or () if share >= DISTURBED]
        flags.append(f"throttled ({', '.join(reasons)} of the time)")
    if record["gpu_shared"]:
        flags.append("GPU shared with another process")
    return flags


def verdict(record: dict, base: dict, speedup: dict | None) -> str:
    """Return one sentence on a run against its baseline: how much, whether that can be measured, and why.

    `speedup` is what paired_ratio returns for the two precisions. What disturbed either run comes first.
    """
    name, against = record["precision"], base["precision"]
    if record["status"] != "ok":
        status = STATUS_WORDS.get(record["status"], record["status"])
        reason = (record["reason"] or "no reason was recorded").rstrip(".")  # a reason may be a whole sentence
        return f"{name} {status}: {reason}."
    if record["device_type"] == "cpu":
        return f"{name} ran on the CPU: a smoke test, which measures nothing."
    case, because = find_bottleneck(record)
    if base["status"] != "ok":
        return f"{name} has no {against} to be compared with ({base['status']}); {because}."
    disturbed = [f"{run['precision']} {flag}" for run in (record, base) for flag in flags_of(run)]
    warning = f"MIND: {'; '.join(disturbed)}. " if disturbed else ""
    word = judge(speedup)
    if speedup is None:
        return f"{warning}{name} cannot be compared with {against}: {word}."
    amount = f"{speedup['ratio']:.2f}x as fast as {against}"
    if speedup["low"] is not None:
        amount += f" ({speedup['low']:.2f} to {speedup['high']:.2f})"
    if record.get("batch_size") == "max":
        sizes = f"{record['batch_size_used']:,} and {base['batch_size_used']:,}"
        amount += f" per sample, each at its largest batch ({sizes})"
    if word == "no measurable difference" and case in ("data loading", "kernel launches"):
        because += ", so precision is not what limits you"
    half = record["fp16_kernel_fraction"] or 0
    note = ""
    if name == "amp_bf16" and half >= DISTURBED:
        note = f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's RNNs in fp16)"
    return f"{warning}{name} is {amount}: {word}; {because}{advice_of(case, record)}{note}."
