"""What the graph of a loss tells before backward(): by which numbers each weight's gradient is multiplied."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

LINEAR = re.compile(
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|(Unsafe)?View|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat|Expand"
    r"|Unbind|Split\w*|Clone|Alias|Permute|T|Transpose|Unsafe\w*|Index)Backward\d"
)
ROUNDED = re.compile(r"(Pow|LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|Abs|KlDiv|\w*Norm|Mul)\w*Backward\d")
LIMIT = 200_000  # nodes of a graph; a larger one is not looked at


@dataclass
class Reading:
    """What one backward() will do. A path is (the loss scales on it, the product of all other numbers)."""

    paths: dict[int, set[tuple[tuple[float, ...], float]]] = field(default_factory=dict)  # by weight
    casts: dict[int, Any] = field(default_factory=dict)  # the node that casts each weight to 16 bits
    narrow: set[torch.dtype] = field(default_factory=set)  # types in which the loss itself is rounded
    plain_leaves: bool = False  # it fills gradients of tensors that are no weights, as for a cache
    nodes: set[Any] = field(default_factory=set)
    whole: bool = True  # all nodes were seen


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def number_in(node: Any) -> tuple[Any, float]:
    """Return (the tensor's own factor, its largest size), and NaN where a node does not tell it."""
    inputs = [child for child, _ in node.next_functions]
    side = "other" if len(inputs) < 2 or inputs[1] is None else "self"
    kept = getattr(node, f"_raw_saved_{side}", None)
    value = getattr(kept, "data", None)  # where a hook packs saved tensors, to ask would unpack
    if not isinstance(value, torch.Tensor) or getattr(kept, "unpack_hook", id) is not None:
        return None, math.nan
    return value, float(value.detach().abs().max()) if value.numel() else math.nan


def factor_of(node: Any) -> float:
    """Return by which number a node of a linear tail multiplies, 1 where it only moves numbers."""
    kind = node.name()
    if not kind.startswith(("MulB", "DivB")):
        return 1.0
    _, value = number_in(node)
    return value if kind.startswith("MulB") or not value else 1 / value


def is_linear(node: Any) -> bool:
    """Return whether a node hands a factor on: a sum, a view, or a product with a constant."""
    if not LINEAR.fullmatch(node.name()):
        return False
    given = [child for child, _ in node.next_functions]
    return not node.name().startswith(("MulB", "DivB")) or None in given or len(given) == 1


def read_graph(roots: list[Any], gradients: Any, scales: list[float]) -> Reading:
    """Read the graph from the roots of a backward(). gradients: what it starts from, None for ones."""
    found = Reading()
    ends: dict[tuple[tuple[float, ...], float], list[Any]] = {}
    types: list[tuple[str, Any]] = []
    todo = []
    for place, root in enumerate(roots):
        given = gradients[place] if isinstance(gradients, tuple) else None
        start = 1.0 if given is None else uniform(given)
        todo.append((root.grad_fn, (), math.nan if root._backward_hooks else start))
    seen = 0
    while todo and seen < LIMIT:
        seen += 1
        node, used, rest = todo.pop()
        if node is None:
            continue
        if is_linear(node):
            factor = factor_of(node)
            is_scale = any(same(factor, scale) for scale in scales)
            used, rest = ((*used, factor), rest) if is_scale else (used, rest * factor)
            todo += [(child, used, rest) for child, _ in node.next_functions]
            continue
        opaque = isinstance(node, torch.autograd.function.BackwardCFunction)
        ends.setdefault((used, math.nan if opaque else rest), []).append(node)
        types.append((node.name(), node))
    for path, nodes in ends.items():
        follow(nodes, path, found)
    widths = [node._input_metadata[0].dtype for _, node in types if hasattr(node, "_input_metadata")]
    rounded = bool(types) and all(ROUNDED.fullmatch(name) for name, _ in types)
    if rounded and len(widths) == len(types):
        found.narrow = set(widths) if set(widths) <= {torch.float16, torch.bfloat16} else set()
    found.whole &= seen < LIMIT
    return found


def uniform(gradient: torch.Tensor) -> float:
    """Return the one number that a given gradient consists of, NaN where there are several."""
    least, most = (float(one) for one in torch.aminmax(gradient.detach().float()))
    return most if least == most else math.nan


def follow(nodes: list[Any], path: tuple[tuple[float, ...], float], found: Reading) -> None:
    """Note the weights that lie below some nodes."""
    todo, seen = list(nodes), set(nodes)
    while todo and len(seen) < LIMIT:
        node = todo.pop()
        weight = getattr(node, "variable", None)
        if weight is not None:
            hooked = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
            found.plain_leaves |= not isinstance(weight, torch.nn.Parameter)
            found.paths.setdefault(id(weight), set()).add((path[0], math.nan if hooked else path[1]))
        for child, _ in node.next_functions:
            if child is not None and node.name() == "ToCopyBackward0" and hasattr(child, "variable"):
                found.casts[id(child.variable)] = node
            if child is not None and child not in seen:
                seen.add(child)
                todo.append(child)
    found.whole &= len(seen) < LIMIT
    found.nodes |= seen


def divides(nodes: set[Any], scales: list[float]) -> bool:
    """Return whether some node may divide by a loss scale: by its number, or in a way that is not known."""
    for node in nodes:
        kind = node.name()
        if "Foreach" in kind or isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        if kind.startswith(("MulB", "DivB")) and None in [child for child, _ in node.next_functions]:
            value = number_in(node)[1]
            if math.isnan(value) or any(same(value, one) or same(value * one, 1) for one in scales):
                return True
    return False
