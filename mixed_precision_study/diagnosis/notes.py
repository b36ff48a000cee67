"""What PyTorch's common errors mean in the loop that raised them: one remedy that is true of it, or
none."""

import re
from traceback import walk_tb

import torch

from ..explain.out_of_memory import first_remedy
from ..measure.memory import is_out_of_memory

ONCE = "with gradient accumulation call it after the last micro-batch alone."
UNSCALED, STEPPED = (
    r"unscale_\(\) has already been called",
    r"unscale_\(\) is being called after|step\(\) has already",
)
UNCHECKED = "No inf checks were recorded"
MIXED = r"(the|have) same dtype|should be the same|expected scalar type|but expected"
OTHERS = r"(?:(?!scaler_step)\w+ )*"  # any calls but these
# (what the message has, what remedy_for() finds in the loop, the remedy), of which the first that
# fits is said
REMEDIES = [
    (
        UNSCALED,
        r"unscale (?:(?!unscale|backward)\w+ )*unscale;",
        "It is called twice for the same gradients. Leave one of the calls out.",
    ),
    (
        UNSCALED,
        r"unscale (?:(?!unscale|\w*step)\w+ )*backward_\w*moved "
        r"(?:(?!unscale|\w*step)\w+ )*unscale;",
        "The weights change between two backward passes of one step, as in SAM. "
        "Call scaler.update() after the first pass, too.",
    ),
    (
        UNSCALED,
        r"unscale (?:(?!unscale)\w+ )*backward_cleared\w* (?:(?!unscale)\w+ )*unscale;",
        "scaler.update() was left out before. "
        "Call it at the end of every step, also of one that leaves out scaler.step(optimizer).",
    ),
    (UNSCALED, "", f"Call scaler.unscale_(optimizer) once between two calls of update(); {ONCE}"),
    (
        STEPPED,
        rf"scaler_step {OTHERS}backward\w* {OTHERS}(scaler_step|unscale);",
        "scaler.update() was left out. Call it once at the end of every step.",
    ),
    (
        STEPPED,
        "",
        "Call unscale_(), step() and update() of the scaler once in every step, in this order.",
    ),
    (
        "(_scale|_growth_tracker) is None",
        r"^(?!.*\bscale\b).*backward",
        "backward() was called on a loss that was not scaled. "
        "Call scaler.scale(loss).backward() before, "
        "and load the scaler's state_dict() where a training is resumed.",
    ),
    (
        UNCHECKED,
        "scaler_step;",
        "No weight of this optimizer has a gradient. Give it the weights that backward() reaches.",
    ),
    (UNCHECKED, "", f"scaler.update() came without scaler.step(optimizer) before it; {ONCE}"),
    (
        "Attempting to unscale FP16",
        "",
        "GradScaler needs weights in fp32, so leave out model.half().",
    ),
    (
        "_amp_foreach_non_finite_check",
        "",
        "The gradients are bfloat16, which has the range of fp32. Leave GradScaler out.",
    ),
    (
        "without overflow",
        "",
        "A constant such as -1e9 does not fit into fp16. Use torch.finfo(x.dtype).min.",
    ),
    (
        r"(?i)index.?put|scatter\(\): Expected|Expected self.dtype to be equal to src",
        "",
        (
            "Indexing does not convert. Cast the source to the type of what it is written to: "
            "x.to(hidden.dtype)."
        ),
    ),
    (
        r"implemented for '(Half|BFloat16)'|in half precision|Unsupported dtype"
        "|Low precision dtypes|either float or double dtype",
        "",
        "PyTorch has no 16-bit version of this function. "
        "Call it on x.float(), inside torch.autocast(device_type, enabled=False).",
    ),
    (
        "(?i)unsupported ScalarType BFloat16",
        "",
        "NumPy has no bfloat16. Call .float() before .numpy().",
    ),
    (
        "(?i)inference tensor",
        "",
        (
            "It was made under torch.inference_mode(). "
            "Use torch.no_grad() there, or clone it for the training."
        ),
    ),
    (
        "probability tensor contains",
        r"\bfloat16",
        "Where weights and buffers are finite, the logits leave the range of float16. "
        "Compute them in fp32{or_bfloat16}.",
    ),
    (
        "unsafe to autocast",
        "",
        "Use binary_cross_entropy_with_logits on the outputs before the sigmoid.",
    ),
    (
        "no kernel image is available",
        "",
        "This PyTorch has no code for the GPU. Install a wheel that has, as for its CUDA.",
    ),
    (
        "FlashAttention only support",
        "",
        (
            "Queries and keys are fp32. Run the model under autocast, "
            "or cast them just before the call."
        ),
    ),
    (
        MIXED,
        "inside.*custom",
        "Autocast does not reach into this function. "
        "Decorate its forward with torch.amp.custom_fwd and its backward with custom_bwd.",
    ),
    (
        MIXED,
        r"outside.*weights=float16",
        "The module's weights have 16 bits and its input has not. "
        "Leave out model.half(), and run the forward pass under torch.autocast, with GradScaler.",
    ),
    (
        MIXED,
        r"outside.*weights=bfloat16",
        "The module's weights have 16 bits and its input has not. "
        "Leave out model.bfloat16(), and run the forward pass under torch.autocast.",
    ),
    (
        MIXED,
        "inside",
        "Autocast does not choose the type of this function. Cast its inputs to one type.",
    ),
    (
        MIXED,
        "outside.*float16",
        (
            "This call is outside autocast. Run the whole forward pass under it, "
            "in the evaluation, too."
        ),
    ),
    (MIXED, "", "Cast its inputs to one type."),
]


def or_bfloat16() -> str:
    """Return the words that offer bfloat16, too, or none where the GPU in use only emulates it."""
    is_old = torch.cuda.is_initialized() and torch.cuda.get_device_capability() < (8, 0)
    return "" if is_old else " or bfloat16"


def remedy_for(error: BaseException, facts: list) -> tuple:
    """Return (the part of the message that is known, the remedy), both empty where none is known to
    be true.

    facts: the last calls and a ";", whether the error came out of an autocast, and what else is
    known of the loop.
    """
    if is_out_of_memory(error):
        return "out of memory", first_remedy(error)
    for frame, _ in walk_tb(error.__traceback__):
        found = frame.f_locals
        if isinstance(module := found.get("self"), torch.nn.Module):
            facts += [f"weights={one.dtype}" for one in module.parameters(recurse=False)]
        if isinstance(found.get("ctx"), torch.autograd.function.FunctionCtx):
            facts.append("custom")
    said = " ".join(facts).replace("torch.", "").replace(" ;", ";")
    for message, condition, remedy in REMEDIES:
        known = re.search(message, str(error))
        if known and re.search(condition, said):
            return known[0], remedy.format(or_bfloat16=or_bfloat16())
    return "", ""
