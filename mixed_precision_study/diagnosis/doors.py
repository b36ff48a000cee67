"""Hears what a training loop does, at PyTorch's own functions, without a hook in the interpreter or in any module.

While somebody listens, a few functions of PyTorch are replaced by ones that tell of each call and then do the same. The
first listener installs them and the last one takes them away, so nested and parallel diagnoses do not disturb each
other. What a listener raises never reaches the loop, and code under torch.compile is passed through untold.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import dataloader

LISTENERS: list[Any] = []  # each has begun(event, args), ended(event, args) and gave_up(error)
INSTALLED: list[tuple[Any, str, Any, Any]] = []  # (owner, name, the function before, ours)
LOCK = threading.RLock()
HOOKS: list[Any] = []


def family(kind: type) -> list[type]:
    """Return a class and all that inherit from it."""
    children: list[type] = kind.__subclasses__()
    return [kind, *(one for child in children for one in family(child))]


def doors() -> list[tuple[Any, str, str]]:
    """Return (owner, name, event) of each function that is listened at."""
    of_scaler = {"scale": "scale", "unscale_": "unscale", "step": "scaler.step", "update": "update"}
    places = [
        (torch.autograd, "backward", "backward"),
        (torch.amp.autocast_mode.autocast, "__enter__", "autocast"),
        (clip_grad, "_clip_grads_with_norm_", "clip"),  # clip_grad_norm_ calls it, by whatever name it was imported
        (torch.nn.utils, "clip_grads_with_norm_", "clip"),
        (torch.nn.utils, "clip_grad_value_", "clip"),
        (dataloader._BaseDataLoaderIter, "__next__", "next"),
        (torch.autograd.profiler.profile, "_prepare_trace", "profiler"),
        (lr_scheduler._enable_get_lr_call, "__enter__", "schedule"),  # inside step(), whose warnings name the caller
    ]
    scalers = family(torch.amp.GradScaler)  # FSDP's overrides most of its methods
    places += [(kind, name, event) for kind in scalers for name, event in of_scaler.items()]
    return [(owner, name, event) for owner, name, event in places if name in vars(owner)]


def tell(part: str, event: str, args: tuple) -> None:
    """Tell all listeners. Nothing is told while a CUDA graph is captured, because a listener may ask the device."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    for listener in tuple(LISTENERS):
        try:
            getattr(listener, part)(event, args)
        except Exception as error:
            listener.gave_up(error)


def told(function: Callable, event: str) -> Callable:
    """Return a function that tells of its calls, and otherwise does what the given one does."""

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        tell("begun", event, args)
        try:
            return function(*args, **kwargs)
        finally:
            tell("ended", event, args)

    return through


def optimizer_stepped(optimizer: Optimizer, *_: Any) -> None:
    """Tell that an optimizer has taken a step."""
    if not torch.compiler.is_compiling():
        tell("ended", "step", (optimizer,))


def listen(listener: Any) -> None:
    """Begin to tell a listener what the loop does."""
    with LOCK:
        if not LISTENERS:
            for owner, name, event in doors():
                before = vars(owner)[name]
                ours = told(before, event)
                setattr(owner, name, ours)
                INSTALLED.append((owner, name, before, ours))
            HOOKS.append(register_optimizer_step_post_hook(optimizer_stepped))
        LISTENERS.append(listener)


def leave(listener: Any) -> None:
    """End to tell a listener. A function that somebody else has replaced meanwhile stays theirs."""
    with LOCK:
        if listener not in LISTENERS:
            return
        LISTENERS.remove(listener)
        if LISTENERS:
            return
        while HOOKS:
            HOOKS.pop().remove()
        while INSTALLED:
            owner, name, before, ours = INSTALLED.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, before)
