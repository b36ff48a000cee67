"""What the graph of a loss tells before backward(): by which numbers each weight's gradient is multiplied."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

LINEAR = re.compile(  # nodes that hand a factor on: sums, views, and products with a constant
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat"
    r"|Expand|Unbind|Split\w*|Clone|Alias|Permute|T|Transpose|Unsafe\w*|View|Index)Backward\d"
)
# losses that 16 bits round, and powers and norms of a difference, whose node comes after them
ROUNDED = re.compile(
    r"(LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|KlDiv)\w*|(Pow|Abs|LinalgVectorNorm|Norm)\w* (Sub|Rsub|Add)B"
)
LIMIT = 200_000  # nodes of a graph; a larger one is not looked at
HALF = (torch.float16, torch.bfloat16)
Path = tuple[tuple[float, ...], float]  # the loss scales, and the product of all other numbers
# a custom function, which may multiply by anything
OPAQUE = torch.autograd.function.BackwardCFunction


@dataclass
class Reading:
    """What one backward() will do."""

    paths: dict[int, set[Path]] = field(default_factory=dict)  # by weight
    # the weight of each node that casts one to 16 bits
    casts: dict[Any, int] = field(default_factory=dict)
    narrow: str = ""  # the type in which the loss itself is rounded
    fills_others: bool = False  # it fills gradients of tensors that are no weights, as for a cache
    whole: bool = True  # all nodes were seen

    def is_scaled(self) -> bool:
        return any(scales for paths in self.paths.values() for scales, _ in paths)


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def factor_of(node: Any) -> float | None:
    """Return by which number a node multiplies, None where it is not linear, NaN where it does not tell it."""
    name, sides = node.name(), [child for child, _ in node.next_functions]
    is_product = name.startswith(("MulB", "DivB"))
    if not LINEAR.fullmatch(name) or (is_product and all(sides[:2]) and len(sides) > 1):
        return None
    if not is_product:
        return 1.0
    kept = getattr(node, "_raw_saved_other" if sides[0] else "_raw_saved_self", None)
    number = getattr(kept, "data", None)
    if (
        getattr(kept, "unpack_hook", id) is not None
        or not isinstance(number, torch.Tensor)
        or not number.numel()
    ):
        return math.nan  # to unpack it may compute
    size = float(number.detach().abs().max())
    return 1 / size if name.startswith("D") and size else size


def start_of(root: torch.Tensor, given: torch.Tensor | None) -> float:
    """Return the one number that a backward() starts from, NaN where there are several."""
    least, most = torch.ones(2) if given is None else torch.aminmax(given.detach().float())
    return float(most) if bool(least == most) and not root._backward_hooks else math.nan


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
    done: set[tuple] = set()
    starts = [
        times(((), 1.0), start_of(*pair), scales) for pair in zip(roots, gradients, strict=False)
    ]
    todo = [(root.grad_fn, path, True) for root, path in zip(roots, starts, strict=False)]
    while todo and len(done) < LIMIT:
        step = node, path, in_loss = todo.pop()
        if node is None or step in done:
            continue
        done.add(step)
        factor = factor_of(node) if in_loss else None
        if factor is not None:
            path = times(path, factor, scales)
        elif in_loss:
            ends.add(node)
            path = (path[0], math.nan) if isinstance(node, OPAQUE) else path
        if (weight := getattr(node, "variable", None)) is not None:
            found.fills_others |= not isinstance(weight, torch.nn.Parameter)
            hooked = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
            found.paths.setdefault(id(weight), set()).add(
                (path[0], math.nan if hooked else path[1])
            )
        for child, _ in node.next_functions:
            if node.name() == "ToCopyBackward0" and hasattr(child, "variable"):
                found.casts[node] = id(child.variable)
            todo.append((child, path, factor is not None))
    found.whole, found.narrow = not todo, rounded_type(ends)
    return found


def rounded_type(ends: set[Any]) -> str:
    """Return the 16-bit type in which a loss is computed, where that changes its slope, and "" otherwise."""
    above = {node: [child.name() for child, _ in node.next_functions[:1] if child] for node in ends}
    if not all(ROUNDED.match(" ".join([node.name(), *names])) for node, names in above.items()):
        return ""
    types = {node._input_metadata[0].dtype for node in ends}
    return str(types.pop()).removeprefix("torch.") if len(types) == 1 and types <= set(HALF) else ""
