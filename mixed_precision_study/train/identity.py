"""What tells two trainings of one name apart: model, functions, optimizer and batches."""

import ast
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from ..store.record import OF_ONE_RUN

OF_OTHERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def identity_of(model: Any, optimizer: Any, functions: Mapping[str, Callable | None], batches: Any) -> dict[str, str]:
    """Return {part: 8 hex digits} of a new model, its optimizer, each function given, and batches.

    Of the model count structure, shapes and types, of the optimizer class and groups, and of the
    batches what stands for them, such as their hashes.
    """
    weights = [(*one[:1], one[1].shape, one[1].dtype) for one in model.named_parameters()]
    groups = [group | {"params": len(group["params"])} for group in optimizer.param_groups]
    parts = {name: code_of(one, {}) for name, one in functions.items() if one is not None}
    parts |= {"model": (model, weights), "optimizer": (type(optimizer), groups), "batches": batches}
    texts = {name: ADDRESS.sub("", repr(part)) for name, part in parts.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in texts.items()}


def code_of(one: Any, seen: dict[int, Any]) -> Any:
    """Return what a function computes: its code, and that of the functions and values it names.

    A class is its methods. Of a library's code, and of what is neither code nor a plain value, the
    name does. `seen` holds what is told already.
    """
    if isinstance(one, str | int | float):
        return one
    if isinstance(one, tuple):
        return [code_of(part, seen) for part in one]
    if isinstance(one, Mapping):
        return {name: code_of(one[name], seen) for name in one if name not in OF_ONE_RUN}
    if isinstance(one, functools.partial):
        return code_of((one.func, one.args, one.keywords), seen)
    one = inspect.unwrap(getattr(one, "__func__", one))
    kind = one if isinstance(one, FunctionType | type) else type(one)
    home = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if id(one) in seen or home.startswith(OF_OTHERS) or kind.__module__ in sys.builtin_module_names:
        return kind.__qualname__
    seen[id(one)] = one  # which keeps its id
    if not isinstance(one, FunctionType):
        return code_of((*getattr(one, "__bases__", [type(one)]), vars(one)), seen)
    used = inspect.getclosurevars(one)
    return [source_of(one), code_of((one.__defaults__, used.nonlocals, used.globals), seen)]


def source_of(function: FunctionType) -> Any:
    """Return a function's code without comments and docstrings, or that of Python's machine."""
    with suppress(OSError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        if isinstance(tree.body[0], ast.FunctionDef):  # a lambda's lines hold what is around it
            return ast.unparse(tree)
    return machine_code(function.__code__)


def machine_code(code: CodeType) -> list:
    inner = [machine_code(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_code, code.co_names, inner]
