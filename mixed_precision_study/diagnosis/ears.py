"""The functions of PyTorch that a watch hears, as long as there is a watch.

No hook is set in the interpreter or in a module, and code under torch.compile is passed through
unheard.
"""

import contextlib
import functools
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import torch

LISTENERS: list = []  # each takes (event, ends, *arguments) and raises nothing
INSTALLED: list = []  # (owner, name, the function before, ours)
OF_SCALER = {"scale": "scale", "unscale_": "unscale", "step": "scaler_step", "update": "update"}


DOORS = {  # a function, and the event that a call of it is
    "torch.autograd._engine_run_backward": "backward",  # of backward() and grad(), however imported
    "torch.amp.autocast_mode.autocast.__enter__": "autocast",
    "torch.amp.autocast_mode.autocast.__exit__": "autocast_exit",
    "torch.clear_autocast_cache": "uncached",  # at the end of the outermost autocast
    # clip_grad_norm_ calls it, however imported
    "torch.nn.utils.clip_grad._clip_grads_with_norm_": "clip",
    "torch.nn.utils.clip_grads_with_norm_": "clip",
    "torch.nn.utils.clip_grad_value_": "clip",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__": "next",
    "torch.autograd.profiler.profile._prepare_trace": "profiler",
    "torch.optim.lr_scheduler._enable_get_lr_call.__enter__": "schedule",  # step() enters it
    "sys.excepthook": "error",  # of a script
    "IPython.InteractiveShell.showtraceback": "error",  # of a notebook's cell
}


def doors() -> list:
    """Return (owner, name, event) of each function that is listened at. What a version lacks is
    left out."""
    scalers = [torch.amp.GradScaler]
    for scaler in scalers:
        scalers += scaler.__subclasses__()  # FSDP's overrides most of its methods
    places = [(kind, name, event) for kind in scalers for name, event in OF_SCALER.items()]
    for path, event in DOORS.items():
        owner, _, name = path.rpartition(".")
        with contextlib.suppress(ImportError, AttributeError):
            if path.split(".")[0] in sys.modules:
                places.append((pkgutil.resolve_name(owner), name, event))
    return [place for place in places if place[1] in vars(place[0])]


def told(function: Callable, event: str) -> Callable:
    """Return a function that tells of its calls, and otherwise does what the given one does."""

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        said = [*args, *kwargs.values()]
        for listener in tuple(LISTENERS):
            listener(event, False, *said)
        try:
            result = function(*args, **kwargs)
            said.append(result)
            return result
        finally:
            for listener in tuple(LISTENERS):
                listener(event, True, *said)

    return through


def listen(listener: Callable) -> None:
    for owner, name, event in [] if LISTENERS else doors():
        before = vars(owner)[name]
        ours = told(before, event)
        setattr(owner, name, ours)
        INSTALLED.append((owner, name, before, ours))
    LISTENERS.append(listener)


def leave(listener: Callable) -> None:
    """End to tell a listener. A function that somebody else has replaced meanwhile stays theirs."""
    if listener in LISTENERS:
        LISTENERS.remove(listener)
    while INSTALLED and not LISTENERS:
        owner, name, before, ours = INSTALLED.pop()
        if vars(owner).get(name) is ours:
            setattr(owner, name, before)
