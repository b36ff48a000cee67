"""What the graph of a loss tells before backward(): by which numbers each weight's gradient is multiplied."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

LINEAR = re.compile(  # nodes that hand a factor on: sums, views, and products with a constant
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat|Expand|Unbind|Split\w*"
    r"|Clone|Alias|Permute|T|Transpose|Unsafe\w*|View|Index)Backward\d"
)
ROUNDED = re.compile(r"(LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|KlDiv)\w*Backward\d")  # losses that 16 bits round
OF_DIFFERENCE = re.compile(r"(Pow|Abs|LinalgVectorNorm|Norm)\w*Backward\d")  # the same of a difference in 16 bits
LIMIT = 200_000  # nodes of a graph; a larger one is not looked at
HALF = (torch.float16, torch.bfloat16)
Path = tuple[tuple[float, ...], float]  # the loss scales, and the product of all other numbers
OPAQUE = torch.autograd.function.BackwardCFunction  # a custom function, which may multiply by anything


@dataclass
class Reading:
    """What one backward() will do."""

    paths: dict[int, set[Path]] = field(default_factory=dict)  # by weight
    casts: dict[int, Any] = field(default_factory=dict)  # the node that casts each weight to 16 bits
    narrow: str = ""  # the type in which the loss itself is rounded
    fills_others: bool = False  # it fills gradients of tensors that are no weights, as for a cache
    nodes: set[Any] = field(default_factory=set)
    whole: bool = True  # all nodes were seen


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def is_linear(node: Any) -> bool:
    """Return whether a node hands a factor on. A product does, where one side of it is a constant."""
    sides = [child for child, _ in node.next_functions]
    is_product = node.name().startswith(("MulB", "DivB")) and None not in sides and len(sides) > 1
    return LINEAR.fullmatch(node.name()) is not None and not is_product


def factor_of(node: Any) -> float:
    """Return by which number a linear node multiplies, NaN where it does not tell: to unpack it may compute."""
    if not node.name().startswith(("MulB", "DivB")):
        return 1.0
    side = "self" if node.next_functions[0][0] is None else "other"
    kept = getattr(node, f"_raw_saved_{side}", None)
    number = getattr(kept, "data", None)
    if getattr(kept, "unpack_hook", id) is not None or not isinstance(number, torch.Tensor):
        return math.nan
    size = float(number.detach().abs().max()) if number.numel() else math.nan
    return 1 / size if node.name().startswith("D") and size else size


def start_of(root: torch.Tensor, given: torch.Tensor | None) -> float:
    """Return the one number that a backward() starts from, NaN where there are several."""
    if given is None or root._backward_hooks:
        return math.nan if root._backward_hooks else 1.0
    least, most = torch.aminmax(given.detach().float())
    return float(most) if bool(least == most) else math.nan


def times(path: Path, factor: float, scales: list[float]) -> Path:
    if any(same(factor, scale) for scale in scales):
        return (*path[0], factor), path[1]
    rest = path[1] * factor
    return path[0], math.nan if math.isnan(rest) else rest  # this NaN equals itself in a set


def read_graph(roots: list[torch.Tensor], gradients: Any, scales: list[float]) -> Reading:
    """Read the graph of a backward(). gradients: what it starts from. scales: the loss scales of all scalers.

    A factor counts while all nodes above it are linear, because only then it multiplies the gradients.
    """
    found, ends = Reading(), set()
    done: set[tuple[Any, Path, bool]] = set()
    todo = []
    for root, given in zip(roots, gradients, strict=False):
        todo.append((root.grad_fn, times(((), 1.0), start_of(root, given), scales), True))
    while todo and len(done) < LIMIT:
        step = node, path, in_loss = todo.pop()
        if node is None or step in done:
            continue
        done.add(step)
        if in_loss and is_linear(node):
            path = times(path, factor_of(node), scales)
        elif in_loss:
            in_loss = False
            ends.add(node)
            path = (path[0], math.nan) if isinstance(node, OPAQUE) else path
        if hasattr(node, "variable"):
            note_weight(node.variable, path, found)
        for child, _ in node.next_functions:
            if node.name() == "ToCopyBackward0" and hasattr(child, "variable"):
                found.casts[id(child.variable)] = node
            todo.append((child, path, in_loss))
    found.whole, found.nodes = not todo, {node for node, _, _ in done}
    found.narrow = rounded_type(ends)
    return found


def rounded_type(ends: set[Any]) -> str:
    """Return the 16-bit type in which a loss is computed, where that changes its slope, and "" otherwise."""
    for node in ends:
        above = node.next_functions[0][0] if node.next_functions else None
        differs = above is not None and above.name().startswith(("SubB", "RsubB", "AddB"))
        if not (ROUNDED.fullmatch(node.name()) or (differs and OF_DIFFERENCE.fullmatch(node.name()))):
            return ""
    types = {node._input_metadata[0].dtype for node in ends}
    return str(types.pop()).removeprefix("torch.") if len(types) == 1 and types <= set(HALF) else ""


def note_weight(weight: torch.Tensor, path: Path, found: Reading) -> None:
    hooked = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    found.fills_others |= not isinstance(weight, torch.nn.Parameter)
    found.paths.setdefault(id(weight), set()).add((path[0], math.nan if hooked else path[1]))


def divides(nodes: set[Any], scales: list[float]) -> bool:
    """Return whether some node may divide by a loss scale: by its number, or in a way that is not known."""
    if any("Foreach" in node.name() or isinstance(node, OPAQUE) for node in nodes):
        return True
    factors = [factor_of(node) for node in nodes if node.name().startswith(("MulB", "DivB")) and is_linear(node)]
    return any(math.isnan(factor) or any(same(factor * one, 1) for one in scales) for factor in factors)
