"""The common mistakes of a training step, each by a rule on what was seen. A rule that may be wrong stays silent."""

import itertools
import math
from collections.abc import Iterator

from .observations import SWITCHES_MIXED, Observations

MANY_FLOPS = 0.3  # from this share of the FLOPs on, a kind of arithmetic matters
SMALL_FP8 = 1024  # rows, inner size or columns of a product below which fp8 gains nothing
LEAST_SCALE = 1.0  # a search for the loss scale, which begins at 65,536, ends above it
MIB = 2**20
SIXTEEN = {"float16", "bfloat16"}

REMEDIES = {  # what PyTorch's most common errors mean, by a part of their message
    "unscale_() has already been called": "Call scaler.unscale_(optimizer) once per optimizer step, which with gradient"
    " accumulation is after the last micro-batch, and scaler.update() after scaler.step(optimizer).",
    "No inf checks were recorded": "scaler.update() was called without scaler.step(optimizer) before it. Under gradient"
    " accumulation call both after the last micro-batch alone.",
    "Attempting to unscale FP16 gradients": "GradScaler needs weights in fp32, but this model's are in fp16. Leave out"
    " model.half(), because autocast casts what it needs.",
    "without overflow": "A constant such as -1e9 does not fit into fp16, whose largest number is 65,504. Use"
    " torch.finfo(x.dtype).min.",
    "to have the same dtype": "Autocast does not reach into a custom autograd function or what was cast by hand."
    " Decorate its forward with torch.amp.custom_fwd and its backward with custom_bwd, or cast the inputs to one type.",
    "unsafe to autocast": "Use binary_cross_entropy_with_logits on the outputs before the sigmoid, because it is safe"
    " under autocast.",
    "out of memory": "Use a smaller batch, or look below at what fills the memory.",
}


def comes_before(events: list[str], first: str, second: str) -> bool:
    """Return whether a call came in a step before the one that it must follow, or without it."""
    return first in events and (second not in events or events.index(first) < events.index(second))


def wrong_numbers(seen: Observations) -> Iterator[str]:
    """Say why numbers become inf or NaN, or are lost. Precision is ruled out only where every product had 32 bits."""
    falling = [scales for scales in seen.scales if all(b < a for a, b in itertools.pairwise(scales))]
    fallen = [scales[-1] for scales in falling if len(scales) > 1 and 0 < scales[-1] < LEAST_SCALE]
    which = " of one of the GradScalers" if len(seen.scales) > 1 else ""
    if not all(map(math.isfinite, seen.losses)):
        if seen.only_fp32 and not seen.autocasts and not seen.half_weights and not seen.scaler_on:
            yield (
                "The loss is inf or NaN, and every product that was seen ran in fp32, so precision is not the cause."
                " Look at the learning rate and at the data."
            )
        else:
            yield (
                f"The loss is inf or NaN{f' under {seen.autocast} autocast' if seen.autocast else ''}. Train the same"
                " first steps in fp32 from new weights: if the loss stays finite there, precision is the cause."
            )
    if seen.evaluation_finite is False:
        yield (
            f"The evaluation returns inf or NaN, in {seen.evaluation_in}. Loss scaling does not help there, so try it"
            " once in fp32 or bfloat16."
        )
    if seen.uncleared:
        yield (
            "Gradients are not cleared between the optimizer's steps, so each step adds to those of all steps before."
            " Call optimizer.zero_grad() once per step."
        )
    elif fallen:
        yield (
            f"The loss scale{which} still falls in every step, to {min(fallen):g}, because some gradient is inf or NaN"
            " at any scale. Find the first such value by one step in fp32."
        )
    if any(scales[-1] == 0 for scales in seen.scales):
        yield (
            f"The loss scale{which} is 0, so no gradient can be unscaled any more. Find out which step first gave inf"
            " or NaN."
        )
    if seen.half_weights:
        eps = f" Its eps of {seen.eps_lost:g} is 0 in float16, too, so set it to 1e-4." if seen.eps_lost else ""
        yield (
            f"{seen.half_weights[0]}: weights are kept in 16 bits alone, so small updates are rounded away.{eps} Keep"
            " the weights in fp32 and use autocast, or an optimizer with fp32 master copies."
        )


def wrong_order(seen: Observations) -> Iterator[str]:
    """Say which calls of scaler, clipping, optimizer and scheduler come in a wrong order, or not at all."""
    called = {call for events in seen.events for call in events}
    if seen.scaler_on and any(comes_before(events, "clip", "unscale") for events in seen.events):
        yield "Gradients are clipped while they are scaled. Call scaler.unscale_(optimizer) before clipping."
    elif seen.clipped_by_hand:
        yield (
            "Gradients are changed by hand while they are scaled, by more than a constant factor. Call"
            " scaler.unscale_(optimizer) before you clip them."
        )
    if any({"scale", "step"} <= set(e) and not {"scaler.step", "unscale"} & set(e) for e in seen.events):
        yield "The loss is scaled, but optimizer.step() takes scaled gradients. Call scaler.step(optimizer) instead."
    elif seen.doubled_steps:
        yield (
            "An optimizer takes two steps with the same gradients in every step. Call either scaler.step(optimizer) or"
            " optimizer.step(), not both."
        )
    if "scaler.step" in called and "update" not in called:
        yield "scaler.update() is missing after scaler.step(optimizer): the loss scale never adapts."
    calls = [call for events in seen.events for call in events if call in ("scaler.step", "update")]
    if "scaler.step" in called and ("update", "update") in itertools.pairwise(calls):
        yield (
            "scaler.update() is called without scaler.step(optimizer) before it, so gradients of one step are scaled"
            " differently. With gradient accumulation call both after the last micro-batch alone."
        )
    if seen.backward_in_autocast:
        yield "backward() runs inside autocast. End the autocast block after the loss."
    between = [
        e.count("schedule") == 1 and "schedule" in e[: e.index("step")][e.index("backward") :]
        for e in seen.events
        if {"backward", "step"} <= set(e)
    ]
    if seen.scheduled_first or (between and all(between)):
        yield (
            "scheduler.step() comes before the first optimizer.step(), so the first learning rate is skipped. Call it"
            " after optimizer.step()."
        )


def wrong_types(seen: Observations) -> Iterator[str]:
    """Say where a type of 16 or 8 bits does not fit the GPU, the scaler or the arithmetic."""
    trained = any("backward" in events for events in seen.events)
    used = {dtype for _, dtype in seen.flops} & SIXTEEN
    old = seen.capability if seen.capability and seen.capability < (8, 0) else None
    if seen.autocasts and seen.flops and not used:
        yield (
            f"Autocast to {' and '.join(sorted(seen.autocasts))} is on, but no product ran in 16 bits. Put the model's"
            " forward pass inside the autocast block."
        )
    elif seen.autocast == "float16" and trained and not seen.scaler_on and not seen.loss_multiplied:
        yield (
            "float16 autocast without GradScaler: small gradients become zero, unless you scale the loss yourself. Use"
            " torch.amp.GradScaler, or bfloat16."
        )
    elif seen.scaler_on and not seen.autocasts and seen.only_fp32:
        yield "GradScaler is on, but every product ran in fp32. Put the forward pass inside torch.autocast."
    if seen.scaler_on and seen.autocast == "bfloat16":
        yield "GradScaler is on with bfloat16, which has the range of fp32: it only costs time. Leave it out."
    if old and seen.autocast == "bfloat16":
        yield (
            f"{seen.gpu or 'This GPU'} has no bfloat16 arithmetic: PyTorch emulates it, which is slow. Use float16 with"
            " GradScaler."
        )
    if old and seen.autocast and old < (7, 0):
        yield f"{seen.gpu or 'This GPU'} has no Tensor Cores: 16 bits save memory there, and hardly any time."
    small = [sizes for sizes in seen.fp8_sizes if min(sizes) < SMALL_FP8]
    if small:
        sizes = " x ".join(f"{size:,}" for size in min(small))
        yield f"fp8 products are small ({sizes}): casting costs more than they gain. Keep such layers in bfloat16."


def wasted_time(seen: Observations) -> Iterator[str]:
    """Say what makes a step slower than it need be, or fills the memory."""
    if seen.device == "cuda" and seen.model_on == "cpu":
        yield f'The model is on the CPU, though there is a GPU ({seen.gpu}). Move both it and its data: .to("cuda").'
    if seen.anomaly_detection:
        yield "Anomaly detection is on, which checks every operation and is slow. Switch it on for single steps only."
    if seen.mixed_switches and seen.compiled:
        yield SWITCHES_MIXED
    matmuls = seen.share_of_flops("matmul", "float32")
    ampere = seen.capability is not None and seen.capability >= (8, 0)
    if ampere and seen.switches.get("matmul") == "none" and matmuls >= MANY_FLOPS:
        yield (
            f"TF32 is off for matrix products, which are {matmuls:.0%} of the arithmetic: PyTorch's default. If fp32"
            ' was not meant to be exact, call torch.set_float32_matmul_precision("high").'
        )
    places = [place for place, steps in seen.reads.items() if steps >= seen.watched > 0]
    if places and not seen.anomaly_detection:
        yield (
            f"Every step reads a value from the device ({', '.join(places[:3])}), and the CPU waits for it. If it is"
            " yours to read, read it once in a hundred steps, or add it up on the device."
        )
    one_shape = bool(seen.shapes) and len(seen.shapes) == len({weight for _, weight in seen.shapes})
    if seen.device == "cuda" and one_shape and not seen.benchmark:
        yield (
            "All batches have one shape, but cuDNN does not search for its fastest algorithms. Set"
            " torch.backends.cudnn.benchmark = True."
        )
    if seen.pageable_ms >= max(0.1, 0.01 * (seen.step_ms or 0.0)):
        yield (
            f"A step copies for {seen.pageable_ms:.1f} ms to the GPU from memory that is not pinned. Use"
            " DataLoader(pin_memory=True) and .to(device, non_blocking=True)."
        )
    always = all(before < after for before, after in itertools.pairwise(seen.in_use))
    if seen.growth >= MIB and always:  # batches of different sizes go up and down
        yield (
            f"Memory grows by {seen.growth / MIB:.0f} MiB in every step: something keeps results, such as a sum of"
            " losses or a list of outputs. Keep what you need by .detach().cpu(), now and then."
        )


def find_mistakes(seen: Observations) -> list[str]:
    """Return a sentence for each mistake; empty for a sound step."""
    return [said for rules in (wrong_numbers, wrong_order, wrong_types, wasted_time) for said in rules(seen)]
