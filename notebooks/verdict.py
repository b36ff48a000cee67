"""The judgement, shared by the experiment notebooks and the summary: a ratio with its interval, and why it is so.

Everything here is computed from records as they were written (flat dicts); nothing is measured. sync.py copies the
sections, each from its '# %%' line to the next, into the notebooks.
"""

from record import samples_in_epoch

# isort: split

# %% Paired ratio -- the same in every notebook; edit notebooks/verdict.py, then run sync.py
# @title How much faster, with a 95% interval
import numpy as np

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


# %% Limit of a run -- the same in every notebook; edit notebooks/verdict.py, then run sync.py
# @title What limits a run: plain rules
IDLE = 0.2  # from this share of idle time on, it is not the GPU that limits
ARITHMETIC = ("convolution", "matmul", "attention")  # the kernel families that Tensor Cores can run
MEMORY_BOUND = 0.6  # from this share of the card's copying speed on, kernels that move memory wait for it, too


def limit_of(record):
    """Return (what limits an ok run, the figures that say so): one of the cases below, told apart in this order.

    "data loading", "kernel launches", "sizes not multiples of 8", "kernels that move memory", "arithmetic on Tensor
    Cores", "arithmetic without Tensor Cores"; "not known" where the run was not profiled. Kernels that move memory
    are called memory-bound only where they come near to the speed at which the card copies.
    """
    families, waiting = dict(record["kernel_family_fractions"] or []), record["data_wait_fraction"] or 0
    if record["gpu_busy_fraction"] is None or not families:
        return "not known", f"what limits it is not known ({record['profile_reason'] or 'it was not profiled'})"
    idle = round(1 - record["gpu_busy_fraction"], 6)  # 1 - 0.8 is a little less than 0.2
    if idle >= IDLE and waiting >= idle / 2:
        return "data loading", f"the GPU is idle {idle:.0%} of the time and the loop waits {waiting:.0%} for its data"
    if idle >= IDLE:
        return "kernel launches", f"the GPU is idle {idle:.0%} of the time between kernel launches"
    arithmetic, misaligned = sum(families.get(name, 0) for name in ARITHMETIC), record["misaligned_flops_fraction"] or 0
    share = f"{arithmetic:.0%} of kernel time is convolution and matmul"
    if record["precision"] != "fp32" and misaligned >= 0.5 and arithmetic >= 0.3:
        return "sizes not multiples of 8", f"{share}, and {misaligned:.0%} of that work has sizes not multiples of 8"
    if arithmetic < 0.5:
        rest = sorted(((part, name) for name, part in families.items() if name not in ARITHMETIC), reverse=True)
        longest = ", ".join(f"{name} {part:.0%}" for part, name in rest[:3])
        speed = record["bandwidth_limit_fraction"]
        bound = " (memory-bound)" if round(speed or 0, 2) >= MEMORY_BOUND else ""
        speed = f", at {speed:.0%} of this card's copying speed{bound}" if speed else ""
        return "kernels that move memory", f"{1 - arithmetic:.0%} of kernel time moves memory ({longest}){speed}"
    on_tensor_cores = min(1, (record["tensor_core_fraction"] or 0) / arithmetic)  # told by other parts of the names
    reached = record["compute_limit_fraction"]
    reached = f" and reaches {reached:.0%} of what this card was measured to do" if reached else ""
    case = "arithmetic on Tensor Cores" if on_tensor_cores >= 0.5 else "arithmetic without Tensor Cores"
    return case, f"{share}, {on_tensor_cores:.0%} of it on Tensor Cores{reached}"


def advice_of(case, record):
    """Return what to try next against a limit, as a clause, or nothing."""
    fuse = ["torch.compile"] if record.get("execution") in ("eager", "cuda_graph") else []
    graph = ["a CUDA graph of the whole step"] if record.get("execution") in ("eager", "compile") else []
    layout = ["channels_last"] if record.get("channels_last") is False else []
    half = ["16-bit values, which are half the bytes"] if record["precision"] in ("fp32", "tf32") else []
    ways = {
        "data loading": ["more num_workers", 'data kept on the device (loader="gpu")'],
        "kernel launches": ["a larger batch", *graph],
        "sizes not multiples of 8": ["channels, units and vocabulary rounded up to multiples of 8"],
        "kernels that move memory": [*layout, *fuse, *half],
        "arithmetic without Tensor Cores": ["tf32, amp_fp16 or amp_bf16, where the card has Tensor Cores"] * bool(half),
    }
    return f": try {' or '.join(ways[case])}" if ways.get(case) else ""


# %% Verdict -- the same in every notebook; edit notebooks/verdict.py, then run sync.py
# @title One sentence for a comparison
DISTURBED = 0.05  # a throttle reason that held in this share of the samples
SHORTEST_SECONDS = 2.0  # of timed training, in each of the two precisions
RESOLUTION = 0.01  # a smaller difference is not claimed, however narrow the interval


def judge(gain):
    """Return what a paired ratio allows to say: faster, slower, no measurable difference, or too short to tell."""
    if gain is None:
        return "not paired: other card, seed or repetition"
    if gain["low"] is None or gain["seconds"] < SHORTEST_SECONDS:
        return "too short to tell"
    if gain["low"] <= 1 <= gain["high"] or abs(gain["ratio"] - 1) < RESOLUTION:
        return "no measurable difference"
    return "faster" if gain["ratio"] > 1 else "slower"


def flags_of(record):
    """Return what disturbed the measurement of a run, as short phrases."""
    reasons = [f"{name} {share:.0%}" for name, share in record["throttle_fractions"] or () if share >= DISTURBED]
    flags = [f"throttled ({', '.join(reasons)} of the time)"] if record["throttled"] else []
    return flags + ["GPU shared with another process"] * bool(record["gpu_shared"])


def verdict(record, base, gain):
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
        return f"{name} has no {against} to be compared with ({base['status']}); {limit_of(record)[1]}."
    disturbed = [f"{run['precision']} {flag}" for run in (record, base) for flag in flags_of(run)]
    warning = f"MIND: {'; '.join(disturbed)}. " if disturbed else ""
    word = judge(gain)
    if gain is None:
        return f"{warning}{name} cannot be set beside {against}: {word}."
    spread = f" ({gain['low']:.2f} to {gain['high']:.2f})" if gain["low"] is not None else ""
    (case, because), note = limit_of(record), ""
    if word == "no measurable difference" and case in ("data loading", "kernel launches"):
        because += ", so precision is not what limits you"
    if name == "amp_bf16" and (half := record["fp16_kernel_fraction"] or 0) >= DISTURBED:
        note = f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's RNNs in fp16)"
    amount = f"{gain['ratio']:.2f}x as fast as {against}{spread}"
    if record.get("batch_size") == "max":
        amount += (
            f" per sample, each at its largest batch ({record['batch_size_used']:,} and {base['batch_size_used']:,})"
        )
    return f"{warning}{name} is {amount}: {word}; {because}{advice_of(case, record)}{note}."
