"""What one backward() does: by which numbers the gradient of each weight is multiplied.

Nothing that a graph has saved is read. scale() marks the node that it makes, and hooks read what reaches the loss.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from ..explain.profile import tensors_in

LINEAR = re.compile(  # nodes that hand a factor on: sums, views, and products with a constant
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat"
    r"|Expand|Unbind|Split\w*|Clone|Alias|Permute|T|Transpose|Unsafe\w*|View|Index)Backward\d"
)
# losses that 16 bits round, and powers and norms of a difference, whose node comes after them
ROUNDED = re.compile(
    r"(LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|KlDiv)\w*"
    r"|(Pow|Abs|LinalgVectorNorm|Norm)\w* (Sub|Rsub|Add)B"
)
LIMIT = 200_000  # nodes of a graph; a larger one is not looked at
HALF = (torch.float16, torch.bfloat16)
MARK = "diagnose(): loss scale"  # in the metadata of the node that GradScaler.scale() has made
Path = tuple[tuple[float, ...], float]  # the loss scales, and the product of all other numbers


def mark(losses: Any, scale: float) -> None:
    """Mark what scale() returned, so that a backward() through it is known to be scaled."""
    for loss in tensors_in(losses):
        if loss.grad_fn is not None:
            loss.grad_fn.metadata[MARK] = scale


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def is_product(node: Any) -> bool:
    return node.name().startswith(("MulB", "DivB"))


def is_linear(node: Any) -> bool:
    """Return whether a node hands gradients on, multiplied by a constant at most."""
    sides = [child for child, _ in node.next_functions]
    of_two = is_product(node) and all(sides[:2]) and len(sides) > 1
    return LINEAR.fullmatch(node.name()) is not None and not of_two


class Backward:
    """A backward() that is looked at. A loss begins at its ends: the first nodes that are not linear.

    The number that reaches an end is read at the end, or at the mean or sum above it, which would divide it.
    """

    def __init__(self, losses: Any) -> None:
        # (end, the loss scales above it, the node where its number is read)
        self.ends: set[tuple[Any, tuple[float, ...], Any]] = set()
        self.casts: list[
            tuple[dict, int]
        ] = []  # what casts a weight to 16 bits: (metadata, weight)
        self.fills_others = (
            False  # it fills gradients of tensors that are no weights, as for a cache
        )
        self.read: dict[Any, tuple] = {}  # (type, least, most) of the gradient that reaches a node
        self.hooks: list[Any] = []
        roots = [loss.grad_fn for loss in losses if isinstance(loss, torch.Tensor)]
        self.is_whole = len(roots) == len(losses)  # others are edges of a graph
        self.find_ends(roots)

    def find_ends(self, roots: Iterable[Any]) -> None:
        todo: list[tuple[Any, tuple[float, ...], Any]] = [(root, (), None) for root in roots]
        done: set[tuple] = set()
        while todo and len(done) < LIMIT:
            step = node, scales, place = todo.pop()
            if node is None or step in done:
                continue
            done.add(step)
            if not is_linear(node):
                self.ends.add((node, scales, place or node))
                continue
            if MARK in node.metadata:
                scales = (*scales, node.metadata[MARK])
            elif place is None and node.name().startswith(("MeanB", "SumB")):
                place = node
            elif place is not None and is_product(node):
                place = "unknown"  # it may be a scale for each sample
            todo += [(child, scales, place) for child, _ in node.next_functions]

    def is_scaled(self) -> bool:
        return any(scales for _, scales, _ in self.ends)

    def listen(self) -> None:
        """Read the numbers while backward() runs, which a hook that returns None does not change."""
        nodes = {node for end, _, place in self.ends for node in (end, place)} - {"unknown"}
        self.hooks = [node.register_prehook(partial(self.note, node)) for node in nodes]

    def note(self, node: Any, gradients: tuple) -> None:
        known = [one for one in gradients if one is not None]
        with contextlib.suppress(Exception):  # this runs inside the user's backward()
            if len(known) == 1 and type(known[0]) is torch.Tensor:
                gradient = known[0].detach()
                self.read[node] = (gradient.dtype, *torch.aminmax(gradient.float()))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def number_at(self, place: Any, end: Any) -> float:
        """Return the one number of the gradient there, NaN where there are several or none is known."""
        _, least, most = self.read.get(place, (None, 0.0, 1.0))
        is_opaque = isinstance(
            end, torch.autograd.function.BackwardCFunction
        )  # of a custom function
        return abs(float(most)) if bool(least == most) and not is_opaque else math.nan

    def paths(self, known: list[float]) -> dict[int, set[Path]]:
        """Return {id of a weight: how its gradient is multiplied}. known: the scales of all scalers."""
        above = Counter(place for place, _ in {(place, scales) for _, scales, place in self.ends})
        todo = []
        for end, scales, place in self.ends:
            number = self.number_at(place, end) if above[place] == 1 else math.nan
            if not scales:
                scales = tuple(one for one in known if same(one, number))[:1]  # by hand
            rest = number / math.prod(scales)
            todo.append((end, (scales, math.nan if math.isnan(rest) else rest)))  # one NaN for all
        found: dict[int, set[Path]] = {}
        done: set[tuple] = set()
        while todo and len(done) < LIMIT:
            step = node, path = todo.pop()
            if node is None or step in done:
                continue
            done.add(step)
            if (weight := getattr(node, "variable", None)) is not None:
                self.fills_others |= not isinstance(weight, torch.nn.Parameter)
                hooked = weight._backward_hooks or getattr(
                    weight, "_post_accumulate_grad_hooks", None
                )
                found.setdefault(id(weight), set()).add((path[0], math.nan if hooked else path[1]))
            for child, _ in node.next_functions:
                if node.name() == "ToCopyBackward0" and hasattr(child, "variable"):
                    self.casts.append((node.metadata, id(child.variable)))
                todo.append((child, path))
        self.is_whole &= not todo
        return found

    def narrow(self) -> str:
        """Return the 16-bit type in which a loss is computed, where that changes its slope, else ""."""
        types = {self.read.get(end, (None,))[0] for end, _, _ in self.ends}
        for end, _, _ in self.ends:
            below = [child.name() for child, _ in end.next_functions[:1] if child]
            if not ROUNDED.match(" ".join([end.name(), *below])):
                return ""
        return (
            str(types.pop()).removeprefix("torch.") if len(types) == 1 and types <= {*HALF} else ""
        )
