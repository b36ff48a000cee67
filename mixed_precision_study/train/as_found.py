"""A model and its optimizer as they were before the warm-up, whatever of them it has changed."""

import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

# whose objects are not taken apart, but for modules, optimizers and functions
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
        seen = {}
        todo = list(roots)
        while todo:
            part = todo.pop()
            if id(part) not in seen:
                seen[id(part)] = part
                todo += self.note(part)

    @torch.no_grad()
    def note(self, part: Any) -> Iterable:
        """Note how an object is put back, and return what hangs on it."""
        match part:
            case torch.Tensor():
                with suppress(RuntimeError):  # of one whose elements share a place
                    value = part.to("cpu", copy=True)
                    self.undo.append(partial(part.copy_(value).copy_, value))
            case torch.Generator():
                self.undo.append(partial(part.set_state, part.get_state()))
            case dict():
                self.undo.append(partial(put_names, part, dict(part)))
                return part.values()
            case list() | set() | deque():
                self.undo.append(partial(put_members, part, list(part)))
                return part
            case tuple():
                return part
            case MethodType():
                return [part.__self__]
            case _ if isinstance(part, KEEPERS) or not is_of_others(type(part)):
                return [getattr(part, "__dict__", None)]
        return ()

    @torch.no_grad()
    def put_back(self) -> list:
        """Put everything back, and return what hung on it instead, as a graph may still read it."""
        return [undo() for undo in self.undo]


def put_names(place: dict, held: dict) -> dict:
    """Give a dict its entries back, and return those it had."""
    now = dict(place)
    for name in now.keys() - held.keys():  # compiled code watches what is deleted and set anew
        del place[name]
    place.update(held)
    return now


def put_members(place: Any, held: list) -> list:
    """Give a list, a deque or a set its members back, and return those it had."""
    now = list(place)
    place.clear()
    add = place.update if isinstance(place, set) else place.extend
    add(held)
    return now


def is_of_others(code: Any) -> bool:
    """Return whether a class or a function is one of Python, PyTorch or NumPy."""
    return str(code.__module__).partition(".")[0] in OF_OTHERS
