"""What tells two trainings of one name apart: model, functions, optimizer and batches."""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from ..store.record import OF_ONE_RUN
from ..tasks.batches import fingerprint_of
from .as_found import is_of_others

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def identity_of(
    model: Any, optimizer: Any, functions: Mapping[str, Callable | None], batches: Any
) -> dict[str, str]:
    """Return {part: 8 hex digits} of a new model, its optimizer, each function given, and batches.

    Of the model count structure, shapes, types and the code of its own modules' forward, of the
    optimizer class and groups, and of the batches what stands for them, such as their hashes.
    """
    weights = [(name, one.shape, one.dtype) for name, one in model.named_parameters()]
    seen: list[FunctionType] = []
    kinds = dict.fromkeys(type(part) for part in model.modules())
    forwards = [code_of(kind.forward, seen) for kind in kinds if not is_of_others(kind)]
    parts = {name: code_of(one, []) for name, one in functions.items() if one is not None}
    parts |= {"model": (model, weights, forwards), "optimizer": optimizer, "batches": batches}
    return {name: fingerprint_of(ADDRESS.sub("", repr(part)))[:8] for name, part in parts.items()}


def code_of(one: Any, seen: list[FunctionType]) -> Any:
    """Return what a function computes: its code, and that of the functions and values it names.

    Of a library's code, of classes and of what is neither code nor a plain value, the name does.
    `seen` holds what is told already.
    """
    if isinstance(one, str | int | float | tuple):
        return one
    if isinstance(one, Mapping):
        return {name: code_of(one[name], seen) for name in one if name not in OF_ONE_RUN}
    if isinstance(one, functools.partial):
        return [code_of(part, seen) for part in (one.func, one.args, one.keywords)]
    called = inspect.unwrap(getattr(one, "__func__", one))
    if not isinstance(called, FunctionType):
        called = getattr(type(called), "__call__", None)  # noqa: B004
    if not isinstance(called, FunctionType) or called in seen or is_of_others(called):
        return getattr(one, "__qualname__", type(one).__qualname__)
    seen.append(called)
    used = inspect.getclosurevars(called)
    return [
        source_of(called),
        called.__defaults__,
        code_of({**used.globals, **used.nonlocals}, seen),
    ]


def source_of(function: FunctionType) -> Any:
    """Return a function's source without comments and docstrings, or its instructions where Python has none."""
    with suppress(OSError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        if isinstance(tree.body[0], ast.FunctionDef):  # a lambda's lines hold what is around it
            return ast.unparse(tree)
    return machine_code(function.__code__, function.__doc__)


def machine_code(code: CodeType, docstring: str | None = None) -> list:
    """Return the instructions of a function, which hold neither its comments nor its docstring."""
    constants: list[Any] = [one for one in code.co_consts if one != docstring]
    for place, one in enumerate(constants):
        if isinstance(one, CodeType):
            constants[place] = machine_code(one)
        elif isinstance(one, frozenset):  # whose order differs from process to process
            constants[place] = sorted(map(repr, one))
    return [code.co_code, code.co_names, constants]
