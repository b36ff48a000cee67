"""A model and its optimizer as they were before the warm-up, whatever of them it has changed."""

import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

# whose objects are not taken apart, but for
OF_OTHERS = sys.stdlib_module_names | {"torch", "numpy"}
KEEPERS = (torch.nn.Module, torch.optim.Optimizer, FunctionType)


class AsFound:
    """Notes the state of some objects, such as a model, and puts it back in place.

    It is in place because a graph keeps addresses. State is all that hangs on the objects: tensors,
    numbers, lists, dicts, sets, generators and objects of classes that are neither of Python nor of
    PyTorch. What a function has in its globals and closures is not.
    """

    def __init__(self, *roots: Any):
        self.undo: list[partial] = []
        self.seen: dict[int, Any] = {}
        todo = list(roots)
        while todo:
            one = todo.pop()
            if id(one) not in self.seen:
                self.seen[id(one)] = one
                todo += self.note(one)

    def note(self, one: Any) -> Iterable:
        """Note how an object is put back, and return what hangs on it."""
        if isinstance(one, torch.Tensor):
            with suppress(RuntimeError), torch.no_grad():  # of one whose elements share a place
                value = one.to("cpu", copy=True)
                self.undo.append(partial(one.copy_(value).copy_, value))
        elif isinstance(one, torch.Generator):
            self.undo.append(partial(one.set_state, one.get_state()))
        elif isinstance(one, dict | list | set | deque):
            kept = dict(one) if isinstance(one, dict) else list(one)
            self.undo.append(partial(put_members, one, kept))
            return kept.values() if isinstance(kept, dict) else kept
        elif isinstance(one, tuple):
            return one
        elif isinstance(one, MethodType):
            return [one.__self__]
        elif isinstance(one, KEEPERS) or (hasattr(one, "__dict__") and not is_of_others(type(one))):
            return [vars(one)]
        return ()

    def put_back(self) -> list:
        """Put everything back, and return what hung on it instead, as a graph may still read it."""
        with torch.no_grad():
            return [undo() for undo in self.undo]


def is_of_others(code: Any) -> bool:
    """Return whether a class or a function is one of Python, PyTorch or NumPy."""
    return str(code.__module__).partition(".")[0] in OF_OTHERS


def put_members(place: Any, kept: Any) -> Any:
    """Give a dict, a list, a deque or a set its members back, and return those it had."""
    now = type(kept)(place)
    if isinstance(place, dict):  # compiled code watches what is deleted and set anew
        for name in now.keys() - kept.keys():
            del place[name]
    else:
        place.clear()
    (place.update if isinstance(place, dict | set) else place.extend)(kept)
    return now
