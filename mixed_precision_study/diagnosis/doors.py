"""Hears what a training loop does, at PyTorch's own functions, without a hook in the interpreter or in any module.

While somebody listens, a few functions of PyTorch report each call and then do the same. The last listener takes them
away. What a listener raises never reaches the loop, and code under torch.compile is passed through unheard.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

LISTENERS: list[Any] = []  # each has hear(event, ends, args, kwargs) and gave_up(error)
INSTALLED: list[tuple[Any, str, Any, Any]] = []  # (owner, name, the function before, ours)
HOOKS: list[Any] = []
LOCK, IN_HOOK = threading.RLock(), threading.local()
OF_SCALER = {"scale": "scale", "unscale_": "unscale", "step": "scaler.step", "update": "update", "get_scale": "read"}


def doors() -> list[tuple[Any, str, str]]:
    """Return (owner, name, event) of each function that is listened at. What a version lacks is left out."""
    scalers = [torch.amp.GradScaler]
    for scaler in scalers:
        scalers += scaler.__subclasses__()  # FSDP's overrides most of its methods
    places = [
        (torch.autograd, "_engine_run_backward", "backward"),  # of backward() and grad(), however they were imported
        (torch.amp.autocast_mode.autocast, "__enter__", "autocast"),
        (clip_grad, "_clip_grads_with_norm_", "clip"),  # clip_grad_norm_ calls it, by whatever name it was imported
        (torch.nn.utils, "clip_grads_with_norm_", "clip"),
        (torch.nn.utils, "clip_grad_value_", "clip"),
        (dataloader._BaseDataLoaderIter, "__next__", "next"),
        (torch.autograd.profiler.profile, "_prepare_trace", "profiler"),
        (getattr(lr_scheduler, "_enable_get_lr_call", torch), "__enter__", "schedule"),  # step() enters it
        *((kind, name, event) for kind in scalers for name, event in OF_SCALER.items()),
    ]
    return [place for place in places if place[1] in vars(place[0])]


def tell(event: str, ends: bool, args: tuple, kwargs: dict[str, Any]) -> None:
    """Tell all listeners. Nothing is told while a CUDA graph is captured, because a listener may ask the device."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    for listener in tuple(LISTENERS):
        try:
            listener.hear(event, ends, args, kwargs)
        except Exception as error:
            listener.gave_up(error)


def told(function: Callable, event: str) -> Callable:
    """Return a function that tells of its calls, and otherwise does what the given one does."""

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        tell(event, False, args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            tell(event, True, args, kwargs)

    return through


def optimizer_stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if LISTENERS and not torch.compiler.is_compiling():
        IN_HOOK.now = True
        tell("step", True, (optimizer,), {})
        IN_HOOK.now = False


def listen(listener: Any) -> None:
    with LOCK:
        for owner, name, event in [] if LISTENERS else doors():
            before = vars(owner)[name]
            ours = told(before, event)
            setattr(owner, name, ours)
            INSTALLED.append((owner, name, before, ours))
        if not HOOKS:
            HOOKS.append(register_optimizer_step_post_hook(optimizer_stepped))
        LISTENERS.append(listener)


def leave(listener: Any) -> None:
    """End to tell a listener. A function that somebody else has replaced meanwhile stays theirs.

    A hook that leaves itself would break PyTorch's loop over all hooks, so that one goes with the next call of this.
    """
    with LOCK:
        if listener in LISTENERS:
            LISTENERS.remove(listener)
        while HOOKS and not LISTENERS and not getattr(IN_HOOK, "now", False):
            HOOKS.pop().remove()
        while INSTALLED and not LISTENERS:
            owner, name, before, ours = INSTALLED.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, before)
