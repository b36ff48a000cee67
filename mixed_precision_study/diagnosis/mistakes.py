"""What is seen of a training step, and its common mistakes. A rule that may be wrong stays silent."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MANY_FLOPS = 0.3  # from this share of the FLOPs on, a kind of arithmetic matters
MIB = 2**20
CAST = (
    "Autocast does not reach into this function. Decorate its forward with torch.amp.custom_fwd and its backward with"
)
ONCE = "with gradient accumulation call it after the last micro-batch alone."
REMEDIES = {  # what PyTorch's most common errors mean, by a part of their message
    "unscale_() has already been called": f"Call scaler.unscale_(optimizer) once between two calls of update(); {ONCE}",
    "step() has already been called": "Call scaler.update() once after scaler.step(optimizer).",
    "No inf checks were recorded": f"scaler.update() came without scaler.step(optimizer) before it; {ONCE}",
    "Attempting to unscale FP16 gradients": "GradScaler needs weights in fp32, so leave out model.half().",
    "without overflow": "A constant such as -1e9 does not fit into fp16. Use torch.finfo(x.dtype).min.",
    "to have the same dtype": f"{CAST} custom_bwd, or cast the inputs to one type.",
    "expected scalar type": f"{CAST} custom_bwd, or cast the inputs to one type.",
    "unsafe to autocast": "Use binary_cross_entropy_with_logits on the outputs before the sigmoid.",
    "legacy and new APIs": 'Set TF32 by torch.set_float32_matmul_precision("high") or ("highest") alone.',
    "out of memory": "Use a smaller batch, or checkpointing of activations.",
}
SENTENCES = {
    "loss not finite in fp32": "The loss is inf or NaN, and every product that was seen ran in fp32, so precision is"
    " not the cause. Look at the learning rate and at the data.",
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
    "backward in autocast": "backward() runs inside autocast. End the autocast block after the loss.",
    "scheduler first": "scheduler.step() comes before the first optimizer.step(), which skips the first learning rate.",
    "no 16 bits": "{what} is on, but every product ran in fp32. Put the model's forward pass inside torch.autocast.",
    "fp16 without scaler": "The backward pass runs in float16 without GradScaler, so small gradients become zero. Use"
    " torch.amp.GradScaler, or bfloat16.",
    "scaler with bf16": "GradScaler is on with bfloat16, which has the range of fp32 and does not need it.",
    "bf16 emulated": "{gpu} has no bfloat16 arithmetic, so PyTorch emulates it. Use float16 with GradScaler.",
    "anomaly detection": "Anomaly detection is on, which is slow. Switch it on for single steps only.",
    "TF32 off": "TF32 is off for matrix products, which are {share:.0%} of the arithmetic: PyTorch's default. If fp32"
    ' was not meant to be exact, call torch.set_float32_matmul_precision("high").',
    "waits": "The CPU waits for the GPU in every step at {places}. Read values once in a hundred steps.",
    "memory not pinned": "A step copies for {milliseconds:.1f} ms to the GPU from memory that is not pinned. Use"
    " DataLoader(pin_memory=True) and .to(device, non_blocking=True).",
    "memory grows": "Memory grows by {mib:.0f} MiB in every step, because something keeps results, such as a sum of"
    " losses. Keep what you need by .detach().cpu(), now and then.",
}


@dataclass
class Observations:
    """What many timed steps and a few profiled ones showed. Times are in milliseconds, sizes in bytes."""

    device: str = "cpu"  # "cuda" or "cpu"
    gpu: str = ""  # its name
    capability: tuple[int, int] = (9, 0)  # compute capability of the GPU
    matmul_switch: str = ""  # PyTorch's switch for fp32 products
    compiled: bool = False  # torch.compile was used in the profiled steps
    unseen: list[str] = field(default_factory=list)  # a sentence for each thing that could not be looked at
    steps: int = 0  # all that were taken
    events: list[list[tuple[str, int]]] = field(default_factory=list)  # of each step: (call, id of its optimizer or 0)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)  # {mistake that needs no judging: what it names}
    autocasts: set[str] = field(default_factory=set)  # types of the autocasts that were entered with gradients on
    backward_in_autocast: int = 0  # calls that no library makes
    scaler_on: bool = False
    scales: list[list[float]] = field(default_factory=list)  # of each GradScaler, after each profiled step
    loss_multiplied: bool = False  # by the loop itself, which may be a loss scale
    losses: list[float] = field(default_factory=list)  # what backward() was called on, without the loss scale
    evaluation_finite: bool | None = None  # of what the evaluation returned; None: not seen
    evaluation_in: str = ""  # the type of what it returned
    watched: int = 0  # steps that were profiled
    reads: Counter = field(default_factory=Counter)  # {line of the loop: profiled steps in which the CPU waited there}
    library_reads: Counter = field(default_factory=Counter)  # {line of a package: the same}
    scaler_reads: int = 0  # profiled steps in which GradScaler itself waits for the device
    pageable_ms: float = 0.0  # a step's copies to the GPU from memory that is not pinned
    flops: dict[tuple[str, str], float] = field(default_factory=dict)  # {(kind, type): FLOPs of the profiled steps}
    backward_types: set[str] = field(default_factory=set)  # of products in the backward pass
    kernels: dict[str, Any] = field(default_factory=dict)  # what read_kernels fills in
    in_use: list[int] = field(default_factory=list)  # bytes of live tensors after each profiled step
    timed: int = 0  # steps
    step_ms: float | None = None  # the median of the timed steps
    slowest_ms: float = 0.0  # of the timed steps
    data_wait_fraction: float | None = None  # waiting for a DataLoader; None where there is none

    @property
    def autocast(self) -> str | None:
        return " and ".join(sorted(self.autocasts)) or None

    def share_of_flops(self, dtype: str, kind: str = "") -> float:
        """Return the share that products of a type, whose names end in `kind`, have in all FLOPs."""
        found = [flops for (name, its), flops in self.flops.items() if name.endswith(kind) and its == dtype]
        return sum(found) / sum(self.flops.values()) if found else 0.0


def find_mistakes(seen: Observations) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (rule, what its sentence names) of each mistake; nothing for a sound step."""
    yield from seen.found.items()
    types = {dtype for _, dtype in seen.flops}
    only_fp32 = bool(types) and types <= {"float32", "float64"} and not seen.compiled  # which may hide products
    if not all(map(math.isfinite, seen.losses)):
        plain = only_fp32 and not seen.autocasts and not seen.scaler_on
        yield "loss not finite in fp32" if plain else "loss not finite", {}
    if seen.evaluation_finite is False:
        yield "evaluation not finite", {"dtype": seen.evaluation_in}
    which = " of one of the GradScalers" if len(seen.scales) > 1 else ""
    falling = [scales for scales in seen.scales if all(b < a for a, b in itertools.pairwise(scales))]
    fallen = [scales[-1] for scales in falling if len(scales) > 1 and 0 < scales[-1] < 1]  # a search ends above 1
    if fallen and "gradients not cleared" not in seen.found:
        yield "scale falls", {"which": which, "scale": min(fallen)}
    if any(scales[-1] == 0 for scales in seen.scales):
        yield "scale is 0", {"which": which}
    yield from ((rule, {}) for rule in wrong_order([[call for call, _ in step] for step in seen.events]))
    if seen.backward_in_autocast:
        yield "backward in autocast", {}
    if only_fp32 and (seen.autocasts or seen.scaler_on):
        yield "no 16 bits", {"what": f"Autocast to {seen.autocast}" if seen.autocasts else "GradScaler"}
    elif "float16" in seen.backward_types & seen.autocasts and not (seen.scaler_on or seen.loss_multiplied):
        yield "fp16 without scaler", {}
    elif seen.scaler_on and seen.autocasts == {"bfloat16"} and "float16" not in types:
        yield "scaler with bf16", {}
    if seen.device == "cuda":
        yield from wasted(seen)


def wrong_order(steps: list[list[str]]) -> Iterator[str]:
    """Return the rules on calls of scaler, clipping and scheduler in a wrong order. steps: the calls of each."""
    for step in steps:
        begin = step.index("scale") if "scale" in step else len(step)
        ends = [place for place, call in enumerate(step) if call in ("unscale", "scaler.step") and place > begin]
        if ends and "step" not in step and "clip" in step[begin : ends[0]]:
            yield "clipped while scaled"
            break
    calls = Counter(call for step in steps for call in step)
    if calls["scaled gradients"] and not calls["read"]:
        yield "penalty of scaled gradients"
    orders = [[call[:8] for call in step if call.startswith(("schedule", "step"))] for step in steps]
    first = any("schedule first" in step[:2] for step in steps[:1])
    if first and all(order[:2] == ["schedule", "step"] for order in orders[: len(steps) - 1]):
        yield "scheduler first"


def wasted(seen: Observations) -> Iterator[tuple[str, dict[str, Any]]]:
    """Say what makes a step on a GPU slower than it need be, or fills its memory."""
    if seen.capability < (8, 0) and seen.autocasts == {"bfloat16"}:
        yield "bf16 emulated", {"gpu": seen.gpu}
    matmuls = seen.share_of_flops("float32", "mm")
    if seen.capability >= (8, 0) and seen.matmul_switch == "none" and matmuls >= MANY_FLOPS:
        yield "TF32 off", {"share": matmuls}
    places = [place for place, steps in seen.reads.items() if steps >= seen.watched > 0]
    if places and "anomaly detection" not in seen.found:
        yield "waits", {"places": ", ".join(sorted(places)[:3])}
    if seen.pageable_ms >= max(0.1, 0.01 * (seen.step_ms or 0.0)):
        yield "memory not pinned", {"milliseconds": seen.pageable_ms}
    growth = (seen.in_use[-1] - seen.in_use[0]) / MIB / (len(seen.in_use) - 1) if len(seen.in_use) > 2 else 0.0
    if growth >= 1 and all(before < after for before, after in itertools.pairwise(seen.in_use)):
        yield "memory grows", {"mib": growth}  # batches of different sizes go up and down
