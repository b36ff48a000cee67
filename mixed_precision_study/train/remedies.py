"""Remedies for a training that does not fit, each by the library that owns it: checkpointing, the
compiler's memory budget, offload, an optimizer within the backward pass, and LoRA.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..parameters import Unsupported, UserError
from ..store.record import ADDED

# parameters as they are where nothing is remedied
NONE = {**ADDED, "clip": 0.0, "accumulate": 1}
LACKS = {  # {execution: what a remedy may need and does not find there}
    "eager": {"no compiler"},
    "compile": {"no eager mode"},
    "cuda_graph": {"no compiler", "no eager mode", "a plain graph"},
    "compile_cuda_graph": {"no eager mode"},
}
NOTHING_TO_ADD_TO = (
    "optimizer_in_backward frees each gradient at once, so none is left to add those of the next "
    "part of the batch to; choose one of the two."
)
REFUSED = [
    (
        {"optimizer_in_backward", "clip"},
        "optimizer_in_backward updates a weight before the other gradients are known, so nothing "
        "can be clipped by their norm; set clip to 0, which is another training.",
    ),
    ({"optimizer_in_backward", "micro_batches"}, NOTHING_TO_ADD_TO),
    ({"optimizer_in_backward", "accumulate"}, NOTHING_TO_ADD_TO),
    (
        {"memory_budget", "no compiler"},
        "memory_budget is for torch.compile, which plans what to keep; "
        'set execution to "compile" or "compile_cuda_graph".',
    ),
    (
        {"memory_budget", "checkpointing"},
        "memory_budget and checkpointing both choose what is computed again; set one of them.",
    ),
    (
        {"offload", "no eager mode"},
        "offload waits for the host's memory in each step, which only eager mode can; "
        'set execution to "eager".',
    ),
    (
        {"checkpointing", "a plain graph"},
        "checkpointing restores random numbers by the host, which a CUDA graph cannot; "
        'set execution to "eager" or "compile_cuda_graph".',
    ),
]


def our_settings(settings: dict) -> dict:
    """Return the settings of all remedies. One that is missing is as where nothing is remedied, and
    so is one of another type, because it is a reader's own parameter of that name.
    """
    return {
        name: settings[name] if type(settings.get(name)) is type(usual) else usual
        for name, usual in NONE.items()
    }


def check_remedies(settings: dict) -> None:
    """Raise UserError where two of the settings of a training exclude each other."""
    ours = our_settings(settings)
    chosen = {name for name in ours if ours[name] != NONE[name]} | LACKS[settings["execution"]]
    for wrong, sentence in REFUSED:
        if wrong <= chosen:
            raise UserError(sentence)
    size, parts = settings["batch_size"], ours["micro_batches"]
    if parts > 1 and (size == "max" or size % parts):
        raise UserError(f"batch_size is {size}, and must be a number that {parts} divides.")


def remedied(model: nn.Module, settings: Any) -> nn.Module:
    """Return a model that computes blocks again, or trains adapters, as the settings say."""
    ours = our_settings(vars(settings))
    if every := ours["checkpointing"]:
        for block in blocks_of(model)[::every]:
            # the library's own defaults: dropout draws the same numbers again
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    if rank := ours["adapters"]:
        add_adapters(model, rank)
    return model


def blocks_of(model: nn.Module) -> list[Any]:
    """Return the blocks of which a model is made: its longest list of modules of one class.

    Raises Unsupported where there is none, or where one holds batch normalisation, whose running
    statistics a second forward pass would move once more.
    """
    lists = [one for one in model.modules() if isinstance(one, nn.ModuleList | nn.Sequential)]
    alike = [list(one) for one in lists if len({*map(type, one)}) == 1]
    if not alike:
        raise Unsupported("checkpointing needs a model that is made of a list of equal blocks")
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        raise Unsupported(
            "checkpointing would move the running statistics of batch normalisation twice a step"
        )
    return max(alike, key=len)


def add_adapters(model: nn.Module, rank: int) -> None:
    """Freeze a model, and give its Linear layers LoRA's adapters, by peft.

    Raises Unsupported without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise Unsupported(f"adapters need the package peft ({error})") from None
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    inject_adapter_in_model(LoraConfig(r=rank, target_modules=names), model)


def offloaded(loss_of: Callable, pinned: bool) -> Callable:
    """Return a loss whose saved activations wait in the host's memory for the backward pass."""

    def loss(*arguments):
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            return loss_of(*arguments)

    return loss


def one_a_weight(optimizer: Any) -> list:
    """Return an optimizer of the same kind and settings for each trained weight of one without
    steps.
    """
    return [
        type(optimizer)([{**group, "params": [weight]}])
        for group in optimizer.param_groups
        for weight in group["params"]
        if weight.requires_grad
    ]


class InBackward:
    """Optimizers, one a weight, that backward() calls as soon as a gradient is whole, and which
    then let go of it.

    It has what a Trainer asks an optimizer for. Raises Unsupported where the loss is scaled.
    """

    def __init__(self, optimizers: list, is_scaled: bool):
        if is_scaled:
            raise Unsupported(
                "optimizer_in_backward cannot skip a step whose loss scale is too large, because "
                "some weights are updated before the overflow is seen; use bf16"
            )
        self.optimizers = optimizers
        self.param_groups = [group for one in optimizers for group in one.param_groups]
        for one in optimizers:
            (weight,) = one.param_groups[0]["params"]
            weight.register_post_accumulate_grad_hook(functools.partial(self.update, one))

    def update(self, optimizer: Any, weight: Tensor) -> None:
        """Update a weight, and free its gradient. It is a hook."""
        optimizer.step()
        weight.grad = None

    @property
    def state(self) -> dict:
        """{weight: what its optimizer keeps}."""
        return {weight: kept for one in self.optimizers for weight, kept in one.state.items()}

    def zero_grad(self, **_: bool) -> None:
        """Do nothing, as no gradient is left."""

    def step(self, *_: Any) -> None:
        """Do nothing, as backward() has updated the weights."""

    def reset(self) -> None:
        for one in self.optimizers:
            one.reset()
