"""What PyTorch's common errors mean in the loop that raised them: one remedy that is true of it, or none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

ONCE = "with gradient accumulation call it after the last micro-batch alone."
HALF = (torch.float16, torch.bfloat16)


@dataclass
class Place:
    """What the watch and the error's traceback tell of the moment of an error."""

    recent: list[str]  # the last calls, oldest first
    changed: bool  # the weights changed after the last unscale_(), without a step
    inside: bool | None = None  # the error came out of an autocast; None: not known
    autocasts: set[str] = field(default_factory=set)  # types of the autocasts that were entered
    spoiled: bool = False  # weights or buffers are inf or NaN
    types: set[torch.dtype] = field(default_factory=set)  # of the weights of the module that raised it
    is_custom: bool = False  # a custom autograd function raised it

    def read(self, error: BaseException) -> "Place":
        trace = error.__traceback__
        while trace is not None:
            found = trace.tb_frame.f_locals
            module, context = found.get("self"), found.get("ctx")
            if isinstance(module, torch.nn.Module):
                self.types = {weight.dtype for weight in module.parameters(recurse=False)}
            self.is_custom |= isinstance(context, torch.autograd.function.FunctionCtx)
            trace = trace.tb_next
        return self


def since_last(place: Place, call: str) -> list[str]:
    """Return the calls between the last call of this name and the one before it."""
    calls = place.recent[:-1]
    return calls[len(calls) - calls[::-1].index(call) :] if call in calls else []


def unscaled_again(place: Place) -> str:
    since = since_last(place, "unscale")
    if place.recent and not any(call.startswith("backward") for call in since):
        return "It is called twice for the same gradients. Leave one of the calls out."
    if place.changed and not any(call.endswith("step") for call in since):
        return (
            "The weights change between two backward passes of one step, as in SAM. Call"
            " scaler.update() after the first pass, too."
        )
    if "backward, cleared" in since:
        return (
            "scaler.update() was left out before. Call it at the end of every step, also of one"
            " that leaves out scaler.step(optimizer)."
        )
    if "backward" in since:
        return f"Call scaler.unscale_(optimizer) once between two calls of update(); {ONCE}"
    return "Call scaler.update() after every step, and scaler.unscale_(optimizer) once before."


def stepped_again(place: Place) -> str:
    if any(call.startswith("backward") for call in since_last(place, "scaler_step")):
        return "scaler.update() was left out. Call it once at the end of every step."
    return "Call unscale_(), step() and update() of the scaler once in every step, in this order."


def without_scale(place: Place) -> str | None:
    if any(call.startswith("backward") for call in place.recent) and "scale" not in place.recent:
        return (
            "backward() was called on a loss that was not scaled. Call scaler.scale(loss).backward()"
            " before, and load the scaler's state_dict() where a training is resumed."
        )
    return None


def no_checks(place: Place) -> str:
    if "scaler_step" in place.recent[-1:]:
        return "No weight of this optimizer has a gradient. Give it the weights that backward() reaches."
    return f"scaler.update() came without scaler.step(optimizer) before it; {ONCE}"


def mixed_types(place: Place) -> str | None:
    if place.is_custom and place.inside:
        return (
            "Autocast does not reach into this function. Decorate its forward with torch.amp.custom_fwd"
            " and its backward with custom_bwd."
        )
    half = [one for one in HALF if one in place.types]
    if half and place.inside is False:
        name = "half()" if half[0] == torch.float16 else "bfloat16()"
        scaler = ", with GradScaler" if half[0] == torch.float16 else ""
        return (
            f"The module's weights have 16 bits and its input has not. Leave out model.{name}, and run the forward"
            f" pass under torch.autocast{scaler}."
        )
    if place.inside:
        return "Autocast does not choose the type of this function. Cast its inputs to one type."
    if place.autocasts and place.inside is False:
        return "This call is outside autocast. Run the whole forward pass under it, in the evaluation, too."
    return "Cast its inputs to one type."


def not_in_16_bits(place: Place) -> str:
    return (
        "PyTorch has no 16-bit version of this function. Call it on x.float(), inside"
        " torch.autocast(device_type, enabled=False)."
    )


def probabilities(place: Place) -> str | None:
    if place.spoiled:
        return "Weights or buffers are inf or NaN themselves. Go back to a checkpoint before they were."
    if "float16" in place.autocasts or torch.float16 in place.types:
        return "The logits leave the range of float16. Compute them in bfloat16 or fp32."
    return None


def always(sentence: str) -> Callable[[Place], str]:
    return lambda place: sentence


MIXED = ("the same dtype", "should be the same", "expected scalar type", "but expected", "have the same dtype")
NOT_IMPLEMENTED = (
    "implemented for 'Half'",
    "implemented for 'BFloat16'",
    "in half precision",
    "Unsupported dtype",
    "Low precision dtypes",
    "either float or double dtype",
)
REMEDIES: list[tuple[tuple[str, ...], Callable[[Place], str | None]]] = [  # the first that matches a message
    (("unscale_() has already been called",), unscaled_again),
    (("unscale_() is being called after step", "step() has already been called"), stepped_again),
    (("_scale is None", "_growth_tracker is None"), without_scale),
    (("No inf checks were recorded",), no_checks),
    (
        ("Attempting to unscale FP16 gradients",),
        always("GradScaler needs weights in fp32, so leave out model.half()."),
    ),
    (
        ("_amp_foreach_non_finite_check",),
        always("The gradients are bfloat16, which has the range of fp32. Leave GradScaler out."),
    ),
    (
        ("without overflow",),
        always("A constant such as -1e9 does not fit into fp16. Use torch.finfo(x.dtype).min."),
    ),
    (
        ("Index put requires", "index_put", "scatter(): Expected", "Expected self.dtype to be equal to src"),
        always("Indexing does not convert. Cast the source to the type of what it is written to: x.to(hidden.dtype)."),
    ),
    (NOT_IMPLEMENTED, not_in_16_bits),
    (
        ("unsupported ScalarType BFloat16", "unsupported ScalarType bfloat16"),
        always("NumPy has no bfloat16. Call .float() before .numpy()."),
    ),
    (
        ("Inference tensors", "inference tensor"),
        always("It was made under torch.inference_mode(). Use torch.no_grad() there, or clone it for the training."),
    ),
    (("probability tensor contains",), probabilities),
    (
        ("unsafe to autocast",),
        always("Use binary_cross_entropy_with_logits on the outputs before the sigmoid."),
    ),
    (
        ("no kernel image is available",),
        always("This PyTorch has no code for the GPU. Install a wheel that has, as for its CUDA."),
    ),
    (
        ("FlashAttention only support",),
        always("Queries and keys are fp32. Run the model under autocast, or cast them just before the call."),
    ),
    (MIXED, mixed_types),
]


def remedy_for(error: BaseException, place: Place) -> tuple[str, str] | None:
    """Return (the part of the message that is known, the remedy), None where none is known to be true."""
    try:
        message = str(error)
    except Exception:
        return None
    for parts, choose in REMEDIES:
        found = first_of(parts, message)
        remedy = choose(place.read(error)) if found else None
        if found:
            return (found, remedy) if remedy else None
    return None


def first_of(parts: Iterable[str], message: str) -> str | None:
    return next((part for part in parts if part in message), None)
