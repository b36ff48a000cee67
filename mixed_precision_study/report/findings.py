"""Words for what judge/ found: a fixed template for each code."""

from collections.abc import Iterable, Sequence

from ..judge.conditions import why_made_up
from ..judge.finding import Finding
from .words import listed

OUTCOMES = {  # what a ratio, or a difference in quality, allows to say
    "little_faster": "faster, by less than 5%",
    "little_slower": "slower, by less than 5%",
    "same": "the same within 5%",
    "on_cpu": "not judged: CPU",
    "not_paired": "not paired: other GPU, seed or repetition",
    "not_trained": "did not train",
    "other_conditions": "other conditions",
    "too_short": "too short to tell",
    "few_hosts": "range over hosts",
    "one_process": "one process",
    "two_processes": "two processes",
    "not_worse": "not worse",
}
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
REMEDIES = {
    "more_workers": "more num_workers",
    "data_on_gpu": 'data kept on the device (loader="gpu")',
    "larger_batch": "a larger batch",
    "graph": "a CUDA graph of the whole step",
    "round_sizes": "channels, units and vocabulary rounded up to multiples of 8",
    "channels_last": "channels_last",
    "compile": "torch.compile",
    "16_bits": "16-bit values, which are half the bytes",
    "tensor_cores": "TF32, fp16 AMP or bf16 AMP, where the card has Tensor Cores",
}
MADE_UP = {
    "asked": "they were asked for",
    "missing": "the real data were neither found nor could be downloaded",
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
    "host_id": "host",
    "host_cpu": "CPU model",
    "host_cores": "cores of the host",
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
    "left_out": "{number} of {total} pairs were slowed by heat or hardware and are left out",
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


def shares(parts: dict[str, float]) -> str:
    """Return {name: share} as "copy 40%, pooling 20%"."""
    return ", ".join(f"{name} {share:.0%}" for name, share in parts.items())


def said_of_limit(found: Iterable[Finding]) -> str:
    """Return what find_bottleneck() found as a clause: the limit and what stands behind it."""
    return "".join(map(said, found))


def tried(remedies: list[str]) -> str:
    """Return what to try as words, or nothing."""
    return listed([REMEDIES[one] for one in remedies]) if remedies else ""


def outcome_words(outcome: str) -> str:
    """Return an outcome, or why there is none, in words."""
    return OUTCOMES.get(outcome, outcome)


def said_of_made_up(records: Sequence[dict]) -> str:
    """Return in one sentence how many of the runs that trained did so on made-up data, and why,
    or nothing.
    """
    trained = [record for record in records if record["epoch_seconds"]]
    reasons = [MADE_UP[reason] for record in trained if (reason := why_made_up(record))]
    if not reasons:
        return ""
    many = f"{len(reasons)} of {len(trained)} runs trained"
    runs = many if len(trained) > 1 else "The run trained"
    why = " or ".join(dict.fromkeys(reasons))
    return f"{runs} on made-up data, because {why}, so their quality says nothing about real data."
