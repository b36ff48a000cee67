"""One sentence for a comparison: how much, what that allows to say, and why."""

from ..store.record import DISTURBED
from .bottleneck import advice_of, find_bottleneck
from .conditions import conditions_of
from .memory_reason import memory_reason
from .ratios import FEWEST_PROCESSES, SMALLEST_CLAIMED

SHORTEST_SECONDS = 2.0  # of timed training, in each run of the two precisions
SAME_FROM, SAME_TO = 0.95, 1.05  # the 90% interval lies inside: two one-sided tests at 5%
STATUS_WORDS = {
    "oom": "ran out of memory",
    "unsupported": "cannot run here",
    "timeout": "took too long",
}

FASTER, SLOWER = "faster", "slower"
LITTLE_FASTER, LITTLE_SLOWER = "faster, by less than 5%", "slower, by less than 5%"
SAME = "the same within 5%"
CANNOT_BE_TOLD = "inconclusive"
OUTCOMES = (FASTER, SLOWER, LITTLE_FASTER, LITTLE_SLOWER, SAME, CANNOT_BE_TOLD)
DIFFERENT = (FASTER, SLOWER, LITTLE_FASTER, LITTLE_SLOWER)

ON_CPU = "not judged: CPU"
NOT_PAIRED = "not paired: other GPU, seed or repetition"
NOT_TRAINED = "did not train"
OTHER_CONDITIONS = "other conditions"
TOO_SHORT = "too short to tell"
FEW_HOSTS = "range over hosts"
TOO_FEW_PROCESSES = {1: "one process", 2: "two processes"}


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
    one_order = bool(speedup.get("one_order"))
    within = speedup["low90"] > SAME_FROM and speedup["high90"] < SAME_TO and not one_order
    ratio = speedup["ratio"]
    low, high = (SAME_FROM, SAME_TO) if one_order else (1, 1)
    tells = (speedup["low"] > high or speedup["high"] < low) and max(
        ratio, 1 / ratio
    ) >= SMALLEST_CLAIMED
    if tells and within:
        return LITTLE_FASTER if ratio > 1 else LITTLE_SLOWER
    if tells:
        return FASTER if ratio > 1 else SLOWER
    return SAME if within else CANNOT_BE_TOLD


def amount_of(record: dict, base: dict, speedup: dict, word: str) -> str:
    """Return a ratio as text, with its interval, or with how few processes it rests on, and what
    it allows to say.
    """
    interval = TOO_FEW_PROCESSES.get(speedup["processes"], "not paired")
    if speedup["low"] is not None:
        interval = f"{speedup['low']:.2f} to {speedup['high']:.2f}"
    amount = f"{speedup['ratio']:.2f}x as fast as {base['precision']} ({interval})"
    if record["settings"]["batch_size"] == "max":
        sizes = f"{record['batch_size_used']:,} and {base['batch_size_used']:,}"
        amount += f" per sample, each at its largest batch ({sizes})"
    if word == OTHER_CONDITIONS:
        return f"{amount}: no outcome, because {speedup['unlike']}"
    return amount if word in TOO_FEW_PROCESSES.values() else f"{amount}: {word}"


def verdict(record: dict, base: dict, speedup: dict | None, with_reason: bool = True) -> str:
    """Return one sentence on a run against its baseline: how much, what that allows to say, and
    (`with_reason`) why.

    What disturbed either run comes first, unless the run did not train, because then nothing is
    called faster.
    """
    name, against = record["precision"], base["precision"]
    if record["status"] != "ok":
        status = STATUS_WORDS.get(record["status"], record["status"])
        # a reason may be a whole sentence
        reason = (record["reason"] or "no reason was recorded").rstrip(".")
        return f"{name} {status}: {reason}."
    if record["device_type"] == "cpu":
        return f"{name} ran on the CPU: a smoke test, which measures nothing."
    case, because = find_bottleneck(record)
    if base["status"] != "ok":
        reason = f"; {because}" if with_reason else ""
        return f"{name} has no {against} to be compared with ({base['status']}){reason}."
    disturbed = [
        f"{run['precision']} {text}" for run in (record, base) for text in conditions_of(run)
    ]
    disturbed += speedup["differences"] if speedup else []
    warning = f"Caution: {'; '.join(dict.fromkeys(disturbed))}. " if disturbed else ""
    word = judge(speedup)
    if speedup is None:
        return f"{warning}{name} cannot be compared with {against}: {word}."
    if word == NOT_TRAINED:
        ratio = f"{speedup['ratio']:.2f}x over {against}"
        return f"{speedup['untrained']}, so its {ratio} is no speed-up. {warning}".rstrip()
    amount = amount_of(record, base, speedup, word)
    if speedup["lost"]:
        amount += f", but {speedup['lost']}"
    if speedup["apart"]:
        amount += (
            f"; its median block is {speedup['median_ratio']:.2f}x, so some blocks took far longer"
        )
    if not with_reason:
        return f"{warning}{name} is {amount}."
    half = record["fp16_kernel_fraction"] or 0
    note = ""
    if name == "amp_bf16" and half >= DISTURBED:
        note = (
            f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's "
            "RNNs in fp16)"
        )
    if reason := memory_reason(record, base):
        note += f"; {reason}"
    return f"{warning}{name} is {amount}; {because}{advice_of(case, record)}{note}."
