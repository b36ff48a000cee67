"""What is seen of a training step, its common mistakes, and their report.

A rule that may be wrong stays silent.
"""

import itertools
import math
from collections import Counter, namedtuple
from collections.abc import Iterator

import torch
from pydantic import BaseModel

from .notes import or_bfloat16

SENTENCES = {
    "error": "{name}: {remedy}",
    "loss not finite": (
        "The loss is inf or NaN in {count} of {all} steps. "
        "Train the same steps in fp32 from new weights: if the loss stays finite there, "
        "precision is the cause.{hint}"
    ),
    "buffers not finite": (
        "A buffer of the model is inf or NaN: {name}. "
        "A step that the scaler skips does not undo its forward pass, "
        "so reset it or load a checkpoint, and find the batch that overflows."
    ),
    "evaluation not finite": (
        "The evaluation returns inf or NaN. Where the weights are finite, "
        "try it in fp32{or_bfloat16}."
    ),
    "evaluation failed": "The evaluation ended by {error}. {remedy}",
    "gradients not cleared": (
        "Gradients are not cleared between steps, so each adds to all before. "
        "Call optimizer.zero_grad() once per step."
    ),
    "scale falls": (
        "A loss scale still falls in every step, to {scale:g}, "
        "because some gradient is inf or NaN at any scale. "
        "Find the first such value by one step in fp32."
    ),
    "scale is 0": "A loss scale is 0, so no gradient can be unscaled. Find the first inf or NaN.",
    "steps skipped": (
        "The scaler skipped {count} of {due} steps. "
        "Find the batches whose loss or gradients are inf or NaN. "
        "A large init_scale or a small growth_interval skips steps, too."
    ),
    "scheduled though skipped": (
        "scheduler.step() ran in {count} steps that the scaler had skipped, "
        "so the schedule is ahead of the weights. "
        "Step it only where scaler.get_scale() has not fallen."
    ),
    "many scalers": (
        "{count} GradScalers served one optimizer, "
        "so the search for the scale begins anew each time. Make one before the loop."
    ),
    "lost updates": (
        "Weights are kept in 16 bits alone, and {share:.0%} of the numbers looked at never "
        "moved, because small updates are rounded away. "
        "Keep the weights in fp32 and use autocast, or keep an fp32 copy in the optimizer, "
        "or round stochastically, or keep what is rounded away, as Kahan does."
    ),
    "sums in 16 bits": (
        "The gradients of {count} micro-batches are added up in 16 bits, which rounds each sum. "
        "Add them up in fp32."
    ),
    "loss in 16 bits": (
        "backward() is called on a loss that is computed in 16 bits. Compute it in fp32, "
        "as from outputs.float()."
    ),
    "stale weights": (
        "Autocast stays open over optimizer.step(), "
        "so the forward pass uses old 16-bit copies of the weights. "
        "Enter autocast once per forward pass."
    ),
    "eps": (
        "The optimizer's eps of {eps:g} is 0 in float16. Keep the weights in fp32, "
        "or set it to 1e-4."
    ),
    "never scaled": (
        "Gradients come from a backward() on a loss that was not scaled, "
        "yet they are divided by the loss scale of {divisor:g}. "
        "Call scaler.scale(loss).backward() for this loss, too."
    ),
    "unscaled twice": (
        "Gradients are divided twice by the loss scale of {scale:g}. "
        "Give scaler.unscale_() and scaler.step() the same optimizer, and divide by hand no more."
    ),
    "another scale": (
        "A loss is multiplied by a loss scale of {scale:g}, "
        "and its gradients are divided by {divisor:g}. "
        "Use one GradScaler for a loss and its optimizer, and call update() after step()."
    ),
    "clipped while scaled": (
        "Gradients are clipped while they are multiplied by the loss scale of {scale:g}. "
        "Call scaler.unscale_(optimizer) before."
    ),
    "past the scaler": (
        "The loss is scaled, but optimizer.step() takes scaled gradients. "
        "Call scaler.step(optimizer)."
    ),
    "steps twice": (
        "An optimizer takes two steps with the same gradients in every step. Leave one of them out."
    ),
    "update without step": (
        "Gradients are divided by the loss scale before the last backward() adds to them, "
        "so they have several scales. Call unscale_(), "
        "step() and update() after the last micro-batch alone."
    ),
    "no 16 bits": (
        "Autocast or GradScaler is on, but every product ran in fp32. "
        "Put the model's forward pass inside torch.autocast."
    ),
    "fp16 without scaler": (
        "{share:.1%} of the gradients lie where float16 loses digits, and no scale lifts them. "
        "Use torch.amp.GradScaler{or_bfloat16}."
    ),
    "scaler with bf16": (
        "GradScaler is on with bfloat16, which has the range of fp32 and does not need it."
    ),
    "anomaly detection": (
        "Anomaly detection is on, which is slow. Switch it on for single steps only."
    ),
    "TF32 off": (
        "TF32 is off for {share:.0%} of the arithmetic. "
        'Try torch.set_float32_matmul_precision("high").'
    ),
    "waits": (
        "The CPU waits for the GPU in every step at {place}. Read values once in a hundred steps."
    ),
    "slow attention": (
        "Attention runs in PyTorch's {kernel} kernel, because of how it is called. "
        "Of FlashAttention PyTorch says: {flash} Of cuDNN's: {cudnn}"
    ),
    "memory not pinned": (
        "A step copies for {milliseconds:.1f} ms to the GPU. Pin the memory, and copy non_blocking."
    ),
    "memory grows": (
        "Each step keeps {mib:.0f} MiB, as a sum of losses does. "
        "Keep what you need by .detach().cpu()."
    ),
}
GUARD = " In float16 a constant below 6e-8 is 0, as a guard of 1e-8."

FACTS = {  # a sentence for each figure that is known
    "steps": "Of the loop, {first} steps were passed over and the next {steps} looked at.",
    "types": "Its products and convolutions ran {types}.",
    "narrow_state": "An optimizer keeps its state in 16 bits, as its weights.",
    "kept": (
        "Rounding to 16 bits keeps {kept_share:.0%} of an update. Weights in fp32 under autocast, "
        "an fp32 copy, stochastic rounding and Kahan's sums keep all of it."
    ),
    "step_ms": "A step takes {step_ms:,.4g} ms, which is the median of {timed}.",
    "kernels": "The GPU is busy {kernels[gpu_busy_fraction]:.0%} of it.",
    "data_wait_fraction": "The loop waits for its DataLoader {data_wait_fraction:.0%} of the time.",
}
NO_STEP = (
    "No optimizer of PyTorch took a step in this thread, so nothing is known of its gradients. "
    "Any other loop needs diagnose(step) with a step of yours."
)

Mistake = namedtuple("Mistake", "rule figures sentence")  # figures: {what it names: its value}


class Diagnosis(BaseModel):
    """The result of diagnose(), which `print` shows. Times are in milliseconds, sizes in bytes."""

    mistakes: list = []  # empty for a sound step
    device: str = "cpu"  # "cuda" or "cpu"
    matmul_switch: str = ""  # PyTorch's switch for fp32 products, where the GPU has TF32
    compiled: bool = False  # torch.compile was used in the profiled steps
    unseen: list = []  # a sentence for each thing not looked at
    steps: int = 0  # all that were taken
    first: int = 0  # steps that were passed over before
    ended_by: str = ""  # a sentence on the error that ended the loop
    events: list = []  # the last 64 calls that were heard
    # {mistake that needs no judging: what it names}
    found: dict = {}
    # types of the autocasts that were entered with gradients on
    autocasts: set = set()
    autocast_off: bool = False  # an autocast with enabled=False was entered
    # of each GradScaler, after each profiled step
    scales: list = []
    # what backward() was called on, without the loss scale
    losses: list = []
    # of an optimizer's updates of 16-bit weights: reached them; None where there are none
    kept_share: float | None = None
    narrow_state: bool = False  # an optimizer keeps numbers in 16 bits
    watched: int = 0  # steps that were profiled
    # where the CPU waits for the GPU in every step, see place_of()
    reads: list = []
    pageable_ms: float = 0.0  # a step's copies to the GPU from memory that is not pinned
    # {(kind, type): FLOPs of the profiled steps}
    flops: Counter = Counter()
    uncounted: set = set()  # products of unknown size
    kernels: dict = {}  # what kernels_of() returns
    in_use: list = []  # bytes of tensors after each profiled step
    timed: int = 0  # steps
    step_ms: float = 0.0  # the median of the timed steps
    data_wait_fraction: float = 0.0  # waiting for a DataLoader

    def share_of_flops(self, dtype: str, kind: str = "") -> float:
        """Return the share that products of a type, whose names end in `kind`, have in all
        FLOPs."""
        found = [key for key in self.flops if key[0].endswith(kind) and key[1] == dtype]
        return sum(self.flops[key] for key in found) / max(1.0, sum(self.flops.values()))

    def judge(self) -> None:
        """Name the mistakes, of which the error that ended the loop is one, where it has a
        remedy."""
        found = dict(find_mistakes(self)).items()
        more = {"or_bfloat16": or_bfloat16()}
        self.mistakes = [Mistake(one, it, SENTENCES[one].format(**it, **more)) for one, it in found]

    def __str__(self) -> str:
        said = [self.ended_by, *(f"Mistake: {mistake.sentence}" for mistake in self.mistakes)]
        steps_taken = {"step", "scaler_step"} & {*self.events}
        if not self.ended_by and not steps_taken:
            said.append(NO_STEP)
        elif said == [""] and not self.unseen:
            said.append("No mistake was found.")
        return "\n".join([*filter(None, said), *self.unseen, *facts(self)])

    __repr__ = __str__  # as the last line of a cell shows it


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find_mistakes(seen: Diagnosis) -> Iterator[tuple]:
    """Return (rule, what its sentence names) of each mistake; nothing for a sound step."""
    # each other mistake explains skipped steps; a compiled step casts its weights itself, or none
    # does
    is_cast = not (seen.compiled or seen.autocast_off)
    explained = {
        "steps skipped": len(seen.found) > 1,
        "stale weights": not is_cast,
        "evaluation not finite": "buffers not finite" in seen.found,
        # older GPUs, which have no TF32, have no fast kernel either
        "slow attention": not seen.matmul_switch,
    }
    yield from (one for one in seen.found.items() if not explained.get(one[0]))
    bad = [one for one in seen.losses if not math.isfinite(one)]
    if bad:
        hint = GUARD if seen.share_of_flops("float16") else ""
        yield "loss not finite", {"count": len(bad), "all": len(seen.losses), "hint": hint}
    yield from _mistakes_of_scales(seen)
    yield from _mistakes_of_types(seen)
    if seen.reads and "anomaly detection" not in seen.found:
        yield "waits", {"place": seen.reads[0]}
    if seen.pageable_ms >= max(0.1, 0.01 * seen.step_ms):
        yield "memory not pinned", {"milliseconds": seen.pageable_ms}
    growth = [(after - before) / 2**20 for before, after in itertools.pairwise(seen.in_use)]
    if len(growth) > 1 and min(growth) >= 1:  # batches of different sizes go up and down
        yield "memory grows", {"mib": min(growth)}


def _mistakes_of_scales(seen):
    for scales in seen.scales:
        falls = [after < before for before, after in itertools.pairwise(scales)]
        if scales[-1] == 0:
            yield "scale is 0", {}
        elif scales[-1] < 1 and falls and all(falls):  # a search ends above 1
            yield "scale falls", {"scale": scales[-1]}


def _mistakes_of_types(seen):
    is_scaled = "scale" in seen.events
    types = {dtype for _, dtype in seen.flops}
    is_on = seen.autocasts or (is_scaled and not seen.autocast_off)
    share = seen.share_of_flops("float32", "mm")
    # torch.compile may hide products
    if is_on and types and types <= {"float32", "float64"} and not seen.compiled:
        yield "no 16 bits", {}
    elif is_scaled and seen.autocasts == {"bfloat16"} and "float16" not in types:
        yield "scaler with bf16", {}
    if seen.matmul_switch == "none" and share >= 0.3 and not seen.uncounted:
        yield "TF32 off", {"share": share}


def facts(seen: Diagnosis) -> Iterator[str]:
    """Return a sentence each on types, time and waits, as far as they are known."""
    shares = sorted({(seen.share_of_flops(dtype), dtype) for _, dtype in seen.flops}, reverse=True)
    types = [] if seen.uncounted else shares
    figures = vars(seen) | {
        "types": ", ".join(f"{share:.0%} in {dtype}" for share, dtype in types),
        "kept": seen.kept_share is not None,
    }
    yield from (sentence.format(**figures) for name, sentence in FACTS.items() if figures[name])
