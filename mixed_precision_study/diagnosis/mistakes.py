"""What is seen of a training step, its common mistakes, and their report. A rule that may be wrong stays silent."""

import itertools
import math
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

SCALER, PACKAGE = "GradScaler", " of the package "  # of a place where the CPU waits
CAST = (
    "Autocast does not reach into this function. "
    "Decorate its forward with torch.amp.custom_fwd and its backward with"
)
ONCE = "with gradient accumulation call it after the last micro-batch alone."
REMEDIES = {  # what PyTorch's most common errors mean, by a part of their message
    "unscale_() has already been called": f"Call scaler.unscale_(optimizer) once between two calls of update(); {ONCE}",
    "No inf checks were recorded": f"scaler.update() came without scaler.step(optimizer) before it; {ONCE}",
    "Attempting to unscale FP16 gradients": "GradScaler needs weights in fp32, so leave out model.half().",
    "without overflow": "A constant such as -1e9 does not fit into fp16. Use torch.finfo(x.dtype).min.",
    "to have the same dtype": f"{CAST} custom_bwd, or cast the inputs to one type.",
    "expected scalar type": f"{CAST} custom_bwd, or cast the inputs to one type.",
    "unsafe to autocast": "Use binary_cross_entropy_with_logits on the outputs before the sigmoid.",
    "no kernel image is available": "This PyTorch has no code for the GPU. Install a wheel that has, as for its CUDA.",
}
SENTENCES = {
    "loss not finite": "The loss is inf or NaN. Train the same first steps in fp32 from new weights: if the loss stays"
    " finite there, precision is the cause.",
    "evaluation not finite": "The evaluation returns inf or NaN, in {dtype}. Try it in fp32 or bfloat16.",
    "evaluation with gradients": "The evaluation keeps tensors for a backward(). Put it under torch.no_grad().",
    "gradients not cleared": "Gradients are not cleared between steps, so each adds to all before. Call"
    " optimizer.zero_grad() once per step.",
    "scale falls": "The loss scale{which} still falls in every step, to {scale:g}, because some gradient is inf or NaN"
    " at any scale. Find the first such value by one step in fp32.",
    "scale is 0": "The loss scale{which} is 0, so no gradient can be unscaled. Find the first inf or NaN.",
    "lost updates": "{optimizer}: weights are kept in {dtype} alone, and {share:.0%} of the numbers looked at never"
    " moved, because small updates are rounded away. Keep the weights in fp32 and use autocast.",
    "eps": "The optimizer's eps of {eps:g} is 0 in float16. Keep the weights in fp32, or set it to 1e-4.",
    "clipped while scaled": "Gradients are clipped while they are scaled. Call scaler.unscale_(optimizer) before.",
    "past the scaler": "The loss is scaled, but optimizer.step() takes scaled gradients. Call scaler.step(optimizer).",
    "steps twice": "An optimizer takes two steps with the same gradients in every step. Leave one of them out.",
    "update without step": "scaler.update() comes without scaler.step(optimizer), so gradients that are added up have"
    f" several scales; {ONCE}",
    "penalty of scaled gradients": "torch.autograd.grad() returns scaled gradients, and nothing divides them by the"
    " scale before they enter the loss. Multiply them by 1 / scaler.get_scale().",
    "scheduler first": "scheduler.step() comes before the first optimizer.step(), which skips the first learning rate.",
    "no 16 bits": "{what} is on, but every product ran in fp32. Put the model's forward pass inside torch.autocast.",
    "fp16 without scaler": "Small gradients become zero in float16. Use torch.amp.GradScaler, or bfloat16.",
    "scaler with bf16": "GradScaler is on with bfloat16, which has the range of fp32 and does not need it.",
    "anomaly detection": "Anomaly detection is on, which is slow. Switch it on for single steps only.",
    "TF32 off": 'TF32 is off for {share:.0%} of the arithmetic. Try torch.set_float32_matmul_precision("high").',
    "waits": "The CPU waits for the GPU in every step at {places}. Read values once in a hundred steps.",
    "memory not pinned": "A step copies for {milliseconds:.1f} ms to the GPU. Pin the memory, and copy non_blocking.",
    "memory grows": "Each step keeps {mib:.0f} MiB, as a sum of losses does. Keep what you need by .detach().cpu().",
}


# figures: {what the sentence names: its value}
Mistake = namedtuple("Mistake", "rule figures sentence")


@dataclass
class Diagnosis:
    """The result of diagnose(), which `print` shows. Times are in milliseconds, sizes in bytes."""

    mistakes: list[Mistake] = field(default_factory=list)  # empty for a sound step
    device: str = "cpu"  # "cuda" or "cpu"
    matmul_switch: str = ""  # PyTorch's switch for fp32 products, where the GPU has TF32
    compiled: bool = False  # torch.compile was used in the profiled steps
    # a sentence for each thing that could not be looked at
    unseen: list[str] = field(default_factory=list)
    steps: int = 0  # all that were taken
    events: list[list[str]] = field(default_factory=list)  # the calls of each step
    # {mistake that needs no judging: what it names}
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    # types of the autocasts that were entered with gradients on
    autocasts: set[str] = field(default_factory=set)
    # of each GradScaler, after each profiled step
    scales: list[list[float]] = field(default_factory=list)
    loss_multiplied: bool = False  # by the loop itself, which may be a loss scale
    # what backward() was called on, without the loss scale
    losses: list[float] = field(default_factory=list)
    evaluation_finite: bool | None = None  # of what the evaluation returned; None: not seen
    evaluation_in: str = ""  # the type of what it returned
    watched: int = 0  # steps that were profiled
    # where the CPU waits for the GPU in every step, see place_of()
    reads: list[str] = field(default_factory=list)
    pageable_ms: float = 0.0  # a step's copies to the GPU from memory that is not pinned
    # {(kind, type): FLOPs of the profiled steps}
    flops: dict[tuple[str, str], float] = field(default_factory=dict)
    backward_types: set[str] = field(default_factory=set)  # of products in the backward pass
    kernels: dict[str, Any] = field(default_factory=dict)  # what read_kernels fills in
    # bytes of live tensors after each profiled step
    in_use: list[int] = field(default_factory=list)
    timed: int = 0  # steps
    step_ms: float | None = None  # the median of the timed steps
    slowest_ms: float = 0.0  # of the timed steps
    data_wait_fraction: float | None = None  # waiting for a DataLoader; None where there is none
    autocast = property(lambda self: " and ".join(sorted(self.autocasts)) or None)

    def share_of_flops(self, dtype: str, kind: str = "") -> float:
        """Return the share that products of a type, whose names end in `kind`, have in all FLOPs."""
        found = [
            flops
            for (name, its), flops in self.flops.items()
            if name.endswith(kind) and its == dtype
        ]
        return sum(found) / sum(self.flops.values()) if found else 0.0

    def judge(self, error: BaseException | None) -> None:
        """Name the mistakes, and take in the error that ended the loop, if one did, which gets the remedy as a note."""
        found = dict(find_mistakes(self))
        self.mistakes = [
            Mistake(rule, it, SENTENCES[rule].format(**it)) for rule, it in found.items()
        ]
        for part, remedy in REMEDIES.items():
            if error is not None and part in str(error):
                self.mistakes.insert(
                    0, Mistake("error", {"message": part}, f"{type(error).__name__}: {remedy}")
                )
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(f"diagnose(): {remedy}")

    def __str__(self) -> str:
        if not self.events and not self.mistakes:
            return "Nothing was looked at, because no optimizer took a step. Try diagnose(step) with a step of yours."
        said = [f"Mistake: {mistake.sentence}" for mistake in self.mistakes] or [
            "No mistake was found."
        ]
        return "\n".join([*said, *facts(self), *self.unseen])

    __repr__ = __str__  # as the last line of a cell shows it


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find_mistakes(seen: Diagnosis) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (rule, what its sentence names) of each mistake; nothing for a sound step."""
    yield from seen.found.items()
    calls = set(itertools.chain(*seen.events))
    types = {dtype for _, dtype in seen.flops}
    # which may hide products
    only_fp32 = bool(types) and types <= {"float32", "float64"} and not seen.compiled
    if not all(map(math.isfinite, seen.losses)):
        yield "loss not finite", {}
    if seen.evaluation_finite is False:
        yield "evaluation not finite", {"dtype": seen.evaluation_in}
    which = " of one of the GradScalers" if len(seen.scales) > 1 else ""
    for scales in seen.scales:
        falls = len(scales) > 1 and all(
            after < before for before, after in itertools.pairwise(scales)
        )
        if scales[-1] == 0:
            yield "scale is 0", {"which": which}
        elif falls and scales[-1] < 1 and "gradients not cleared" not in seen.found:
            # a search ends above 1
            yield "scale falls", {"which": which, "scale": scales[-1]}
    for step in seen.events:
        scaled = step[step.index("scale") :] if "scale" in step and "step" not in step else []
        ends = [place for place, call in enumerate(scaled) if call in ("unscale", "scaler.step")]
        if ends and "clip" in scaled[: ends[0]]:
            yield "clipped while scaled", {}
    if "scaled gradients" in calls and "read" not in calls:
        yield "penalty of scaled gradients", {}
    orders = [
        [call[:8] for call in step if call.startswith(("schedule", "step"))] for step in seen.events
    ]
    first = any("schedule first" in step[:2] for step in seen.events[:1])
    if first and all(order[:2] == ["schedule", "step"] for order in orders[: len(orders) - 1]):
        yield "scheduler first", {}
    if only_fp32 and (seen.autocasts or "scale" in calls):
        yield (
            "no 16 bits",
            {"what": f"Autocast to {seen.autocast}" if seen.autocasts else "GradScaler"},
        )
    elif "float16" in seen.backward_types & seen.autocasts and not (
        "scale" in calls or seen.loss_multiplied
    ):
        yield "fp16 without scaler", {}
    elif "scale" in calls and seen.autocasts == {"bfloat16"} and "float16" not in types:
        yield "scaler with bf16", {}
    if seen.matmul_switch == "none" and (share := seen.share_of_flops("float32", "mm")) >= 0.3:
        yield "TF32 off", {"share": share}
    places = [place for place in seen.reads if place != SCALER and PACKAGE not in place]
    if places and "anomaly detection" not in seen.found:
        yield "waits", {"places": ", ".join(places[:3])}
    if seen.pageable_ms >= max(0.1, 0.01 * (seen.step_ms or 0.0)):
        yield "memory not pinned", {"milliseconds": seen.pageable_ms}
    growth = [(after - before) / 2**20 for before, after in itertools.pairwise(seen.in_use)]
    if len(growth) > 1 and min(growth) > 0 and sum(growth) >= len(growth):
        # batches of different sizes go up and down
        yield "memory grows", {"mib": sum(growth) / len(growth)}


def facts(seen: Diagnosis) -> Iterator[str]:
    """Return a sentence each on types, time and waits, as far as they are known."""
    if seen.flops:
        shares = sorted(
            {(seen.share_of_flops(dtype), dtype) for _, dtype in seen.flops}, reverse=True
        )
        yield f"Its products and convolutions ran {', '.join(f'{share:.0%} in {dtype}' for share, dtype in shares)}."
    if any(scales[-1] < scales[0] for scales in seen.scales):
        yield "The loss scale is still searching, which is normal in the first steps."
    if seen.step_ms:
        more = (
            f", and the slowest {seen.slowest_ms:,.4g} ms"
            if seen.slowest_ms > 5 * seen.step_ms
            else ""
        )
        yield f"A step takes {seen.step_ms:,.4g} ms, which is the median of {seen.timed}{more}."
    if seen.kernels:
        families = ", ".join(
            f"{share:.0%} {name}" for name, share in seen.kernels["kernel_family_fractions"][:3]
        )
        yield f"The GPU is busy {seen.kernels['gpu_busy_fraction']:.0%} of it; of this, {families}."
    if seen.data_wait_fraction:
        yield f"The loop waits for its DataLoader {seen.data_wait_fraction:.0%} of the time."
    if SCALER in seen.reads:
        yield "GradScaler waits for the GPU in every step, which an optimizer with fused=True does not need."
    if places := [place for place in seen.reads if PACKAGE in place]:
        yield f"A package waits for the GPU in every step: {'; '.join(places[:3])}."
