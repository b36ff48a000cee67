"""What tells two trainings of one name apart: model, functions, optimizer and batches."""

import ast
import dis
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
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
    weights = [(name, value.shape, value.dtype) for name, value in model.named_parameters()]
    seen: list = []
    forwards = [code_of(type(part).forward, seen) for part in model.modules()]
    parts = {name: code_of(value, []) for name, value in functions.items() if value is not None}
    parts |= {"model": (model, weights, forwards), "optimizer": optimizer, "batches": batches}
    return {name: fingerprint_of(ADDRESS.sub("", repr(part)))[:8] for name, part in parts.items()}


def code_of(value: Any, seen: list[FunctionType]) -> Any:
    """Return what a function computes: its code, and that of the functions and values it names.

    Of a library's code, of classes and of what is neither code nor a plain value, the name does.
    `seen` holds what is told already.
    """
    if isinstance(value, functools.partial):
        value = {"called": value.func, "with": value.args, **value.keywords}
    if isinstance(value, Mapping):
        return {name: code_of(value[name], seen) for name in value if name not in OF_ONE_RUN}
    if isinstance(value, str | int | float | tuple):
        return value
    called = inspect.unwrap(getattr(value, "__func__", value))
    if not isinstance(called, FunctionType):
        called = type(called).__call__
    if not isinstance(called, FunctionType) or called in seen or is_of_others(called):
        return getattr(value, "__qualname__", type(value).__qualname__)
    seen.append(called)
    return code_and_names(called, seen)


def code_and_names(function: FunctionType, seen: list[FunctionType]) -> list:
    """Return a function's code, the defaults of its arguments and code_of() what it names."""
    steps = list(instructions_of(function.__code__))
    known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    named = {name: known[name] for _, name in steps if name in known}
    return [source_of(function) or steps, function.__defaults__, code_of(named, seen)]


def source_of(function: FunctionType) -> str | None:
    """Return a function's source without comments and docstrings, or None where Python has none."""
    with suppress(OSError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if isinstance(tree, ast.FunctionDef):  # a lambda's lines hold what is around it
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    del node.body[0]
            return ast.unparse(tree)
    return None


def instructions_of(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield (name, argument) of each instruction of a code and of the code within it."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, CodeType):
            yield from instructions_of(step.argval)
        elif isinstance(step.argval, frozenset):  # whose order differs from process to process
            yield step.opname, tuple(sorted(map(repr, step.argval)))
        else:
            yield step.opname, step.argval
