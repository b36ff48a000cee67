"""The common mistakes of a training step, each by a rule on what was seen. A rule that may be wrong stays silent."""

import itertools
import math

from .observations import SWITCHES_MIXED, Observations

MANY_FLOPS = 0.3  # from this share of the FLOPs on, a kind of arithmetic matters
SMALL_FP8 = 1024  # rows, inner size or columns of a product below which fp8 gains nothing
LEAST_SCALE = 1.0  # a search for the loss scale, which begins at 65,536, ends above it
MIB = 2**20


def comes_before(events: list[str], first: str, second: str) -> bool:
    """Return whether a call came in a step before the one that it must follow, or without it."""
    return first in events and (second not in events or events.index(first) < events.index(second))


def model_on_cpu(seen: Observations) -> str | None:
    """A GPU is there and has nothing to do."""
    if seen.device != "cuda" or seen.model_on != "cpu":
        return None
    return f'The model is on the CPU, though there is a GPU ({seen.gpu}). Move it and its batches there: .to("cuda").'


def reads_of_the_device(seen: Observations) -> str | None:
    """The CPU waits for the device where a step reads a value from it."""
    places = [place for place, steps in seen.reads.items() if steps >= seen.watched]
    if not places or not seen.watched:
        return None
    return (
        f"Every step reads a value from the device ({', '.join(places[:3])}), and the CPU waits for it. If the value"
        " is yours to read, read it once in a hundred steps, or add it up on the device."
    )


def matmul_without_tf32(seen: Observations) -> str | None:
    """By default, PyTorch uses no TF32 in matrix products."""
    share = seen.share_of_flops("matmul", "float32")
    ampere = seen.capability is not None and seen.capability >= (8, 0)
    if not ampere or seen.switches.get("matmul") != "none" or share < MANY_FLOPS:
        return None
    return (
        f"TF32 is off for matrix products, which are {share:.0%} of the arithmetic: PyTorch's default. If fp32 was not"
        ' meant to be exact, call torch.set_float32_matmul_precision("high").'
    )


def switches_mixed(seen: Observations) -> str | None:
    """torch.compile reads the old switch, and PyTorch refuses to read it where the new one does not agree."""
    return SWITCHES_MIXED if seen.mixed_switches and seen.compiled else None


def autocast_around_backward(seen: Observations) -> str | None:
    """Backward operations run in the types of the forward pass by themselves."""
    if not seen.backward_in_autocast:
        return None
    return "backward() runs inside autocast. End the autocast block after the loss."


def scaler_with_bf16(seen: Observations) -> str | None:
    """bf16 has the range of fp32."""
    if not (seen.scaler_on and seen.autocast == "bfloat16"):
        return None
    return "GradScaler is on with bfloat16, which has the range of fp32: it only costs time. Leave it out."


def fp16_without_scaler(seen: Observations) -> str | None:
    """Small gradients become zero in fp16, unless the loss is scaled, which may also be done by hand."""
    trained = any("backward" in events for events in seen.events)
    used = not seen.flops or seen.share_of_flops(None, "float16") > 0
    if seen.autocast != "float16" or seen.scaler_on or not trained or not used:
        return None
    return (
        "float16 autocast without GradScaler: small gradients become zero, unless you scale the loss yourself. Use"
        " torch.amp.GradScaler, or bfloat16."
    )


def clipping_before_unscale(seen: Observations) -> str | None:
    """Gradients are scaled until unscale_ is called."""
    if not seen.scaler_on or not any(comes_before(events, "clip", "unscale") for events in seen.events):
        return None
    return "Gradients are clipped while they are scaled. Call scaler.unscale_(optimizer) before clipping."


def step_past_the_scaler(seen: Observations) -> str | None:
    """scaler.step unscales the gradients, and skips the step where one overflowed."""
    past = [e for e in seen.events if "scale" in e and "step" in e and "scaler.step" not in e and "unscale" not in e]
    if not past:
        return None
    return "The loss is scaled, but optimizer.step() takes the scaled gradients. Call scaler.step(optimizer) instead."


def no_update(seen: Observations) -> str | None:
    """update() adapts the loss scale, and lets the next step unscale again."""
    called = {call for events in seen.events for call in events}
    if "scaler.step" not in called or "update" in called:
        return None
    return "scaler.update() is missing after scaler.step(optimizer): the loss scale never adapts."


def scheduler_first(seen: Observations) -> str | None:
    """A scheduler counts optimizer steps, so the first rate is skipped where it steps before the optimizer does."""
    between = [
        events.count("schedule") == 1 and "schedule" in events[: events.index("step")][events.index("backward") :]
        for events in seen.events
        if {"backward", "step"} <= set(events)
    ]
    if not seen.scheduled_first and not (between and all(between)):
        return None
    return (
        "scheduler.step() comes before the first optimizer.step(), so the first learning rate is skipped. Call it after"
        " optimizer.step()."
    )


def scale_falls(seen: Observations) -> str | None:
    """Far below where a search for the scale ends, a scale that still falls means overflow at any scale."""
    falls = [later < earlier for earlier, later in itertools.pairwise(seen.scales)]
    if not falls or not all(falls) or seen.scales[-1] >= LEAST_SCALE:
        return None
    return (
        f"The loss scale still falls in every step, to {seen.scales[-1]:g}, because some gradient is inf or NaN at any"
        " scale. Check that gradients are cleared, and find the first such value by one step in fp32."
    )


def scale_is_zero(seen: Observations) -> str | None:
    """Gradients are divided by the scale."""
    if not seen.scales or seen.scales[-1] != 0:
        return None
    return "The loss scale is 0, so no gradient can be unscaled any more. Find out which step first gave inf or NaN."


def loss_not_finite(seen: Observations) -> str | None:
    """A loss that is inf or NaN trains nothing. Precision is ruled out only where every product ran in 32 bits."""
    if all(map(math.isfinite, seen.losses)):
        return None
    if seen.only_fp32 and not seen.autocasts and not seen.half_weights and not seen.scaler_on:
        return (
            "The loss is inf or NaN, and every product that was seen ran in fp32, so precision is not the cause. Look"
            " at the learning rate and at the data."
        )
    where = f" under {seen.autocast} autocast" if seen.autocast else ""
    return (
        f"The loss is inf or NaN{where}. Train the same first steps in fp32 from new weights: if the loss stays finite"
        " there, precision is the cause."
    )


def evaluation_not_finite(seen: Observations) -> str | None:
    """No loss scaling helps a forward pass."""
    if seen.evaluation_finite is not False:
        return None
    return (
        f"The evaluation returns inf or NaN, in {seen.evaluation_in}. Loss scaling does not help there, so try it once"
        " in fp32 or bfloat16."
    )


def half_weights(seen: Observations) -> str | None:
    """Updates below half a unit in the last place of a 16-bit weight are lost."""
    if not seen.half_weights:
        return None
    return (
        f"{seen.half_weights[0]}: weights are kept in 16 bits alone, so small updates are rounded away. Keep them in"
        " fp32 and use autocast, or an optimizer with fp32 master copies."
    )


def emulated_bf16(seen: Observations) -> str | None:
    """GPUs before Ampere have no bf16 arithmetic."""
    if seen.autocast != "bfloat16" or seen.capability is None or seen.capability >= (8, 0):
        return None
    return (
        f"{seen.gpu or 'This GPU'} has no bfloat16 arithmetic: PyTorch emulates it, which is slow. Use float16 with"
        " GradScaler."
    )


def no_tensor_cores(seen: Observations) -> str | None:
    """Tensor Cores came with compute capability 7.0."""
    if seen.autocast is None or seen.capability is None or seen.capability >= (7, 0):
        return None
    return f"{seen.gpu or 'This GPU'} has no Tensor Cores: 16 bits save memory there, and hardly any time."


def benchmark_off(seen: Observations) -> str | None:
    """With one shape, cuDNN's search pays off."""
    kernels = {weight for _, weight in seen.shapes}
    one_shape = bool(seen.shapes) and len(seen.shapes) == len(kernels)
    if seen.device != "cuda" or seen.benchmark or not one_shape:
        return None
    return (
        "All batches have one shape, but cuDNN does not search for its fastest algorithms. Set"
        " torch.backends.cudnn.benchmark = True."
    )


def memory_not_pinned(seen: Observations) -> str | None:
    """Copies from memory that is not pinned wait."""
    if seen.pageable_ms < max(0.1, 0.01 * (seen.step_ms or 0.0)):
        return None
    return (
        f"A step copies for {seen.pageable_ms:.1f} ms to the GPU from memory that is not pinned. Use"
        " DataLoader(pin_memory=True) and .to(device, non_blocking=True)."
    )


def memory_grows(seen: Observations) -> str | None:
    """What a step leaves behind on the GPU is there for good. Batches of different sizes go up and down."""
    always = all(before < after for before, after in itertools.pairwise(seen.in_use))
    if seen.growth < MIB or not always:
        return None
    return (
        f"Memory grows by {seen.growth / MIB:.0f} MiB in every step: something keeps results, such as a sum of losses"
        " or a list of outputs. Keep what you need by .detach().cpu(), now and then."
    )


def small_fp8(seen: Observations) -> str | None:
    """Casting to fp8 costs more than a small product gains."""
    small = [sizes for sizes in seen.fp8_sizes if min(sizes) < SMALL_FP8]
    if not small:
        return None
    sizes = " x ".join(f"{size:,}" for size in min(small))
    return f"fp8 products are small ({sizes}): casting costs more than they gain. Keep such layers in bfloat16."


RULES = (
    model_on_cpu,
    loss_not_finite,
    evaluation_not_finite,
    scale_is_zero,
    scale_falls,
    clipping_before_unscale,
    step_past_the_scaler,
    no_update,
    fp16_without_scaler,
    scaler_with_bf16,
    half_weights,
    autocast_around_backward,
    scheduler_first,
    emulated_bf16,
    no_tensor_cores,
    switches_mixed,
    matmul_without_tf32,
    reads_of_the_device,
    benchmark_off,
    memory_not_pinned,
    memory_grows,
    small_fp8,
)


def find_mistakes(seen: Observations) -> list[str]:
    """Return a sentence for each mistake; empty for a sound step."""
    return [sentence for rule in RULES if (sentence := rule(seen))]
