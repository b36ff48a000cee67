"""The common mistakes of a training step, each by a rule on what was seen."""

import itertools

from .observations import SWITCHES_MIXED, Observations
from .watch import is_finite

MANY_FLOPS = 0.3  # from this share of the FLOPs on, a kind of arithmetic matters
SMALL_FP8 = 1024  # rows, inner size or columns of a product below which fp8 gains nothing
MIB = 2**20


def order_is_wrong(events: list[str], first: str, second: str) -> bool:
    """Return whether a call came in a step before the one that it must follow, or without it."""
    return first in events and (second not in events or events.index(first) < events.index(second))


def is_scheduled_too_early(events: list[str]) -> bool:
    """Return whether a scheduler steps between backward and the optimizer's step."""
    if not {"backward", "schedule", "step"} <= set(events):
        return False
    backward, step = events.index("backward"), events.index("step")
    return "schedule" in events[backward:step]


def model_on_cpu(seen: Observations) -> str | None:
    """A GPU is there and has nothing to do."""
    if seen.device != "cuda" or seen.model_on != "cpu":
        return None
    return f'The model is on the CPU, though there is a GPU ({seen.gpu}). Move it and its batches there: .to("cuda").'


def reads_of_the_device(seen: Observations) -> str | None:
    """The CPU waits for the device where a step reads a value from it."""
    places = [place for place, times in seen.reads.items() if times >= seen.watched]
    if not places or not seen.watched:
        return None
    return (
        f"Every step reads a value from the device ({', '.join(places[:3])}), and the CPU waits for it. Read it once in"
        " a hundred steps, or add it up on the device."
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
    """Small gradients become zero in fp16."""
    trained = any("backward" in events for events in seen.events)
    if seen.autocast != "float16" or seen.scaler_on or not trained:
        return None
    return "float16 autocast without GradScaler: small gradients become zero. Use torch.amp.GradScaler, or bfloat16."


def clipping_before_unscale(seen: Observations) -> str | None:
    """Gradients are scaled until unscale_ is called."""
    if not seen.scaler_on or not any(order_is_wrong(events, "clip", "unscale") for events in seen.events):
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
    if not any("scaler.step" in events and "update" not in events for events in seen.events):
        return None
    return "scaler.update() is missing after scaler.step(optimizer): the loss scale never adapts."


def scheduler_first(seen: Observations) -> str | None:
    """A scheduler counts optimizer steps."""
    if not any(is_scheduled_too_early(events) for events in seen.events):
        return None
    return "scheduler.step() comes before optimizer.step(): the first learning rate is skipped. Swap them."


def scale_falls(seen: Observations) -> str | None:
    """A scale that falls in every step means gradients that overflow at any scale."""
    pairs = list(zip(seen.scales, seen.scales[1:], strict=False))
    if not pairs or not all(later < earlier for earlier, later in pairs) or not is_finite(seen.losses):
        return None
    return (
        f"The loss scale falls in every step, to {seen.scales[-1]:g}: some gradient is inf or NaN at any scale. Look"
        " for values above 65,504 in the forward pass, or use bfloat16."
    )


def loss_not_finite(seen: Observations) -> str | None:
    """A loss that is inf or NaN trains nothing."""
    if is_finite(seen.losses):
        return None
    if not seen.autocast and not seen.half_weights:
        return "The loss is inf or NaN in fp32, so precision is not the cause. Lower the learning rate."
    where = f" under {seen.autocast} autocast" if seen.autocast else ""
    return (
        f"The loss is inf or NaN{where}. Try one step in fp32. If its loss is finite, compute the loss in fp32, or use"
        " bfloat16."
    )


def evaluation_not_finite(seen: Observations) -> str | None:
    """No loss scaling helps a forward pass."""
    if seen.evaluation_finite is not False:
        return None
    return (
        f"The evaluation gives inf or NaN in {seen.evaluation_in}. Loss scaling does not help there: evaluate in fp32"
        " or bfloat16."
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
    if not seen.watched or seen.unpinned / seen.watched < MIB:
        return None
    size = seen.unpinned / seen.watched / MIB
    return (
        f"A step copies {size:.0f} MiB to the GPU from memory that is not pinned. Use DataLoader(pin_memory=True) and"
        " .to(device, non_blocking=True)."
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
