"""How numbers and texts are written, names for people (of precisions, models, tasks, ways of
execution and settings), and a fixed template for each code of what judge/ found.

Keys stand in the CSV files alone.
"""

import html
import re
from collections.abc import Collection, Sequence

from ..judge.bottleneck import AMPERE, VOLTA
from ..judge.finding import Finding
from ..judge.verdict import FEWEST_HOSTS_FOR_SIDE, chance_of_one_side
from ..parameters import printable
from ..store.record import Runs, data_asked_for

NOT_TRIED = (  # of a card that is older than Ampere
    "This GPU has neither TF32 nor bf16, so fp16 is compared with fp32. The suite was not tried on"
    " a T4 or another card of its age."
)
MEMORY_ONLY = "It has no Tensor Cores either, so expect fp16 to save memory rather than time."


def plain(text: object) -> str:
    """Return `text` on one line, escaped so that neither Markdown nor HTML in it takes effect,
    nor becomes a link.
    """
    text = html.escape(" ".join(printable(str(text)).split()), quote=False)
    return re.sub(r"([\\`*_\[\]$|~@]|:(?=//)|(?<=www)\.)", r"\\\1", text)


def count(number: int, word: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def listed(values: list, word: str = "or") -> str:
    """Return "2, 15 or 32"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} {word} {last}" if first else last


def natural(text: object) -> list[int | str]:
    """Return a sort key that puts resnet18 before resnet101, and context 128 before 1,024."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", str(text))
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def short(number: float) -> str:
    """Return a number with three significant digits."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:#.3g}".rstrip(".")


def span(numbers: Collection[float], form: str = "{}") -> str:
    """Return "smallest to largest", or one number where both look alike."""
    return " to ".join(
        dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers)))
    )


# key of a precision: (short name, full name), in the order of every table and chart
NAMES = {
    "fp32": ("fp32", "fp32"),
    "tf32": ("TF32", "TF32"),
    "amp_fp16": ("fp16", "fp16 AMP"),
    "amp_bf16": ("bf16", "bf16 AMP"),
    "o2_fp16": ("O2", "fp16 weights (Apex O2)"),
    "o3_fp16": ("O3", "pure fp16 (Apex O3)"),
    "bf16_true": ("pure bf16", "pure bf16"),
    "fp8": ("fp8", "fp8"),
}
LOOKS = {  # (colour, marker), the same in every chart
    "fp32": ("#8b939c", "v"),
    "tf32": ("#0072b2", "D"),
    "amp_fp16": ("#e69f00", "o"),
    "amp_bf16": ("#009e73", "s"),
    "o2_fp16": ("#cc79a7", "P"),
    "o3_fp16": ("#d55e00", "X"),
    "bf16_true": ("#56b4e9", "^"),
    "fp8": ("#8c564b", "d"),
}
ORDER = list(NAMES)
# both are printed, because choosing one afterwards favours it
AMP = ("amp_fp16", "amp_bf16")
COLOURS = {key: colour for key, (colour, _) in LOOKS.items()}
WAYS = {
    "eager": "eager",
    "compile": "compiled",
    "cuda_graph": "CUDA graph",
    "compile_cuda_graph": "compiled CUDA graph",
}
TRUTH = {"true": True, "false": False}  # as YAML writes it


def short_name(precision: str) -> str:
    """Return the name of a precision for an axis."""
    return NAMES[precision][0] if precision in NAMES else precision


def precision_name(precision: str) -> str:
    """Return the name of a precision for a sentence."""
    return NAMES[precision][1] if precision in NAMES else precision


def model_name(record: dict) -> str:
    """Return the name of the model of a record as its experiment gives it, else its key."""
    return record["model_title"] or str(record["settings"]["model"])


def arm_name(settings: Sequence[str], arm: str) -> str:
    """Return the name of an arm for a sentence: its own, else what is set to what."""
    return ", ".join(
        setting_name(name, TRUTH.get(value, value))
        for name, value in zip(settings, arm.split(", "), strict=False)
    )


def bare(model: str) -> str:
    """Return the name of a model without its size, for a sentence."""
    return model.partition(",")[0]


def task_name(record: dict, sized: bool = True) -> str:
    """Return data and (`sized`) batch of a record, such as "CIFAR-10, batch 128"; made-up data
    are named.
    """
    key = str(record["dataset_used"] or data_asked_for(record) or "unknown data")
    data = record["data_title"] or ("made-up data" if key == "synthetic" else key)
    if record["synthetic"] and key != "synthetic":
        data += " (made up)"
    if not sized:
        return data
    size = record["settings"]["batch_size"]
    return f"{data}, " + ("largest batch" if size == "max" else f"batch {size}")


def way_name(execution: str | None) -> str:
    """Return how steps were executed, in words."""
    return WAYS.get(execution or "eager", str(execution))


def in_way(way: str) -> str:
    """Return a way of execution as a clause."""
    return "in eager mode" if way == "eager" else f"as a {way}" if "graph" in way else way


NAMED_SETTINGS = {  # a parameter with its value
    "max_steps 0": "whole epochs",
    "cudnn_benchmark True": "cuDNN search",
    "cudnn_benchmark False": "no search",
    "scaler device": "loss scaler on the GPU",
    "scaler pytorch": "usual loss scaler",
    "rounding nearest": "nearest rounding",
    "rounding stochastic": "stochastic rounding",
    "rounding kahan": "Kahan sums",
    "rounding fp32_copy": "fp32 copy",
    "moments as_weights": "moments as weights",
    "moments 8bit": "8-bit moments",
}


def setting_name(name: str, value: object) -> str:
    """Return a parameter with its value as a short label."""
    if name == "data_fingerprint":
        return "data not recorded" if value is None else f"data {str(value)[:6]}"
    if name.startswith("identity "):
        return f"{name} {value}"
    if value is None:
        return f"{name} unknown"
    if name == "precision":
        return precision_name(str(value))
    if name == "execution":
        return way_name(str(value))
    if name == "memory_limit_gib":
        return f"at most {value:g} GiB" if value else "whole card"
    if found := NAMED_SETTINGS.get(f"{name} {value}"):
        return found
    if isinstance(value, bool):
        name = {"keep_batchnorm_fp32": "fp32 BatchNorm", "fused": "fused optimizer"}.get(name, name)
        return name if value else f"without {name}"
    if name == "optimizer":
        return str(value)
    return f"{name.replace('_', ' ')} {f'{value:g}' if isinstance(value, int | float) else value}"


OUTCOMES = {  # what a ratio, or a difference in quality, allows to say, and how runs end
    "oom": "out of memory",
    "diverged": "did not learn",
    "unsupported": "not supported",
    "killed": "was killed",
    "timeout": "timed out",
    "little_faster": "faster, by less than 5%",
    "little_slower": "slower, by less than 5%",
    "same": "the same within 5%",
    "on_cpu": "not judged: CPU",
    "not_paired": "not paired: other GPU, seed or repetition",
    "not_trained": "did not train",
    "other_conditions": "other conditions",
    "too_short": "too short to tell",
    "few_hosts": "range over machines",
    "one_process": "one process",
    "two_processes": "two processes",
    "not_worse": "not worse",
}
WRITTEN = OUTCOMES | {"few_hosts": "range over hosts"}  # in ratios.csv, whose values stay
LIMITS = {  # what limits a run, in a table
    "loading": "data loading",
    "launches": "kernel launches",
    "graph_gain": "kernel launches",
    "sizes": "sizes not multiples of 8",
    "other_kernels": "kernels other than arithmetic",
    "on_tensor_cores": "arithmetic on Tensor Cores",
    "without_tensor_cores": "arithmetic without Tensor Cores",
    "not_profiled": "not known",
}
REMEDIES = {  # what to try, with the parameters that set it
    "more_workers": "more workers (num_workers)",
    "data_on_gpu": 'data kept on the device (loader="gpu")',
    "larger_batch": "a larger batch (batch_size)",
    "graph": 'a CUDA graph of the whole step (execution="cuda_graph", or "compile_cuda_graph")',
    "round_sizes": "channels, units and vocabulary rounded up to multiples of 8",
    "channels_last": "channels_last=True, if its convolutions are two-dimensional",
    "compile": 'torch.compile (execution="compile", or "compile_cuda_graph")',
    "16_bits": "16-bit values, which are half the bytes (precisions)",
    "tensor_cores": "TF32, fp16 AMP or bf16 AMP, where the card has Tensor Cores (precisions)",
    "fp16_cores": "fp16 AMP, where the card has Tensor Cores (precisions)",
}
MADE_UP = {  # {whether made-up data were asked for: why a run trained on them}
    True: "they were asked for",
    False: "the real data were neither found nor could be downloaded",
}
SHARE = "{arithmetic:.0%} of kernel time is convolution and matmul"
CLOCK = "clock {own:.0f} MHz against {base:.0f} MHz"
LOST = "its {metric} ends at {own:.3g}, not {base:.3g}"
SOFTWARE_AND_HOST = {  # of which two runs may have different ones
    "torch_version": "PyTorch",
    "cuda_version": "CUDA",
    "cudnn_version": "cuDNN",
    "driver_version": "driver",
    "timm_version": "timm",
    "package_version": "version of this package",
    "code_hash": "measuring code",
    "host_id": "machine",
    "host_cpu": "CPU model",
    "host_cores": "cores of the machine",
}
# a hash is longer
AGAINST = "{} {{own!s:.24}} against {{base!s:.24}}"
FOUND = {
    # in which conditions two runs differ, and why that allows no outcome
    **{code: AGAINST.format(name) for code, name in SOFTWARE_AND_HOST.items()},
    "forked": "only the kernel of {run} was forked",
    "one_clock": "clock of {run} only",
    "place": "{run} was run {place} of its process, {other} run {other_place}",
    "clock": CLOCK,
    "throttled": "throttled ({reasons} of the time)",
    "shared": "GPU shared with another process",
    "power_limit": "at its power limit {share:.0%} of the time",
    "order": "{run} always ran before {other}",
    "left_out": "{number} of {total} pairs are left out, since heat, hardware or another process"
    " disturbed them",
    "slowed": "only {run} was slowed down ({reasons})",
    "clock_unexplained": f"{CLOCK}, which the power cap does not explain",
    # that a run did not train, or lost quality
    "skipped": "{run} did not train: {share:.0%} of its steps were skipped",
    "no_metric": "{run} did not train: its last {metric} is missing or not finite",
    "too_little": "{run} did not train as {other} did: its {metric} ends at {own:.3g} against"
    " {base:.3g}",
    "lost": LOST,
    "lost_by_rounding": f'{LOST} (try rounding="stochastic")',
    "overflow": "{share:.0%} of the steps were skipped: gradients overflowed",
    "not_finite": "its last metric is not finite where {others} has one",
    "chance": "ended no better than chance ({gain:.0%} of the way from chance to perfect) where"
    " {others} ({run}) reached {expected:.0%}",
    # what limits a run, and what else takes its time
    "not_profiled": "what limits it is not known ({reason})",
    "loading": "the GPU is idle {idle:.0%} of the time and the loop waits {waiting:.0%} for its"
    " data",
    "also_launches": ", the rest between kernel launches ({launches:.0%})",
    "launches": "the GPU is idle {idle:.0%} of the time between kernel launches",
    "also_waits": ", and the loop waits {waiting:.0%} for its data",
    "graph_gain": "as a CUDA graph it is {gain} as fast, though the GPU is idle {idle:.0%} of the"
    " time",
    "gain": "{ratio:.2f}x ({low:.2f} to {high:.2f})",
    "also_idle": "; the GPU is also idle {idle:.0%} of the time, and the loop waits {waiting:.0%}"
    " for its data",
    "sizes": f"{SHARE}, and {{misaligned:.0%}} of that work has sizes not multiples of 8",
    "other_kernels": "{other:.0%} of kernel time is not arithmetic ({longest})",
    "on_tensor_cores": f"{SHARE}, {{on_cores:.0%}} of it on Tensor Cores",
    "without_tensor_cores": f"{SHARE}, {{on_cores:.0%}} of it on Tensor Cores",
    "reached": " and reaches {limit:.0%} of what this card was measured to do",
    # why memory did not go down
    "weights": "weights, gradients and optimizer are {share:.0%} of the peak, and 16 bits halve"
    " activations only",
    "data_set": "the data set on the GPU is {share:.0%} of the peak",
    "weights_and_data": "weights, gradients, optimizer and data set are {share:.0%} of the peak",
    "activations": "activations and workspace, {share:.0%} of the peak, did not shrink: some stay"
    " in fp32, some are kept in both types",
}
NOT_KNOWN = {"reason": "it was not profiled", "metric": "metric"}  # {value: where it is None}


def said(found: Finding, **more: str) -> str:
    """Return what was found as a short phrase, after the run where its template does not name it.

    `more` are names that the template also needs.
    """
    template = FOUND[found.code]
    values = {name: as_text(name, value) for name, value in found.values.items()}
    text = template.format(run=found.run, **values, **more)
    return f"{found.run} {text}" if found.run and "{run}" not in template else text


def said_of_age(records: Runs) -> str:
    """Return what a report says of cards that are all older than Ampere or Volta, else nothing."""
    known = (float(one["compute_capability"] or AMPERE) for one in records)
    newest = max(known, default=AMPERE)
    if newest < VOLTA:
        return f"{NOT_TRIED} {MEMORY_ONLY}"
    return NOT_TRIED if newest < AMPERE else ""


def as_text(name: str, value: object) -> object:
    """Return a value as a template takes it: shares and lists as text, what is None as unknown."""
    if value in (None, ""):
        return NOT_KNOWN.get(name, "unknown")
    if isinstance(value, Finding):
        return said(value)
    if isinstance(value, dict):
        return shares(value)
    if isinstance(value, list):
        return ", ".join(value)
    return str(value).replace("_", " ") if name == "metric" else value


def shares(parts: dict) -> str:
    """Return {name: share} as "copy 40%, pooling 20%"."""
    return ", ".join(f"{name} {share:.0%}" for name, share in parts.items())


def tried(remedies: list[str]) -> str:
    """Return what to try as words, or nothing."""
    return listed([REMEDIES[one] for one in remedies]) if remedies else ""


def outcome_words(outcome: str) -> str:
    """Return an outcome, or why there is none, or the status of a run in words."""
    return OUTCOMES.get(outcome, outcome)


def said_of_side(hosts: int) -> str:
    """Return how often a range of so many machines leaves out 1 by chance, and what follows."""
    share = f"{100 * chance_of_one_side(hosts):.3g}% of equal pairs"
    return (
        f"By chance {hosts} machines agree on a side of 1 in {share}, so ~ goes only from "
        f"{FEWEST_HOSTS_FOR_SIDE} on."
    )


def said_of_commits(records: Runs) -> str:
    """Return in one sentence how many runs are of no clean commit that is known, or nothing."""
    commits = [str(record["commit"]) for record in records]
    counts = {
        "from a commit with local changes": sum(commit.endswith("-dirty") for commit in commits),
        "from a commit that is not known": commits.count("None"),
    }
    told = [f"{number} came {words}" for words, number in counts.items() if number]
    return f"Of {len(commits)} runs, {' and '.join(told)}." if told else ""


def said_of_made_up(records: Runs) -> str:
    """Return in one sentence how many of the runs that trained did so on made-up data, and why,
    or nothing.
    """
    trained = [record for record in records if record["epoch_seconds"]]
    made_up = [record for record in trained if record["synthetic"]]
    reasons = [MADE_UP[data_asked_for(record) == "synthetic"] for record in made_up]
    if not reasons:
        return ""
    runs = (
        f"{len(reasons)} of {len(trained)} runs trained" if len(trained) > 1 else "The run trained"
    )
    why = " or ".join(dict.fromkeys(reasons))
    return f"{runs} on made-up data, because {why}, so their quality says nothing about real data."
