"""What fills the memory of a training that ran out of it, and which remedy comes first for that."""

from traceback import walk_tb

import torch

from .memory_breakdown import bytes_of

FIRST = {  # by what fills most of the memory
    "weights": "Keep the weights in bf16 and round them stochastically, by torchao.optim.",
    "moments": "Keep weights and moments in bf16 and round stochastically, by torchao.optim.",
    "activations with logits": (
        "Compile the model, or compute the loss in 8 parts, each under torch.utils.checkpoint."
    ),
    "activations": (
        "Compile the model with torch._functorch.config.activation_memory_budget = 0.6, or "
        "compute each block again in the backward pass, under torch.utils.checkpoint."
    ),
}


def filled_by(error: BaseException, peak: int) -> dict[str, int]:
    """Return {part: bytes} of a peak, by the models and optimizers in the frames of an error.

    What is left are activations, and logits where the loss over many classes ran out of memory.
    """
    models, optimizers, names = set(), set(), set()
    for frame, _ in walk_tb(error.__traceback__):
        names.add(frame.f_code.co_name)
        for value in frame.f_locals.values():
            if isinstance(value, torch.nn.Module):
                models.add(value)
            elif hasattr(type(value), "zero_grad"):
                optimizers.add(value)
    tensors = {one for model in models for one in (*model.parameters(), *model.buffers())}
    states = [one for kept in optimizers for held in kept.state.values() for one in held.values()]
    parts = {
        "weights": bytes_of(tensors),
        "gradients": bytes_of(one.grad for one in tensors),
        "moments": bytes_of(filter(torch.is_tensor, states)),
    }
    rest = peak - sum(parts.values())
    return parts | {
        "activations with logits" if "cross_entropy" in names else "activations": max(0, rest)
    }


def first_remedy(error: BaseException) -> str:
    """Return what filled the memory and what to do first; "" where nothing is known of it."""
    peak = torch.cuda.max_memory_allocated()
    if not peak:
        return ""
    parts = filled_by(error, peak)
    part = max(FIRST, key=lambda name: parts.get(name, 0))
    filled = f"{part.capitalize()} fill {parts[part] / 2**30:.1f} of {peak / 2**30:.1f} GiB"
    return f"{filled}. {FIRST[part]}"
