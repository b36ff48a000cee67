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
            one = todo.pop()
            if id(one) not in seen:
                seen[id(one)] = one
                todo += self.note(one)

    @torch.no_grad()
    def note(self, one: Any) -> Iterable:
        """Note how an object is put back, and return what hangs on it."""
        match one:
            case torch.Tensor():
                with suppress(RuntimeError):  # of one whose elements share a place
                    value = one.to("cpu", copy=True)
                    self.undo.append(partial(one.copy_(value).copy_, value))
            case torch.Generator():
                self.undo.append(partial(one.set_state, one.get_state()))
            case dict():
                self.undo.append(partial(put_names, one, dict(one)))
                return one.values()
            case list() | set() | deque():
                self.undo.append(partial(put_members, one, list(one)))
                return one
            case tuple():
                return one
            case MethodType():
                return [one.__self__]
            case _ if isinstance(one, KEEPERS) or not is_of_others(type(one)):
                return [getattr(one, "__dict__", None)]
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
    add = place.add if isinstance(place, set) else place.append
    for one in held:
        add(one)
    return now


def is_of_others(code: Any) -> bool:
    """Return whether a class or a function is one of Python, PyTorch or NumPy."""
    return str(code.__module__).partition(".")[0] in OF_OTHERS
