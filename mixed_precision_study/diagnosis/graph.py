"""What one backward() does: by which numbers the gradient of each weight is multiplied.

Nothing that a graph has saved is read. scale() marks the node that it makes, and hooks read what reaches the loss.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..explain.profile import tensors_in
from .mistakes import name_of

LINEAR = re.compile(  # nodes that hand a factor on: sums, views, and products with a constant
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat"
    r"|Expand|Unbind|Split\w*|Clone|Alias|Permute|T|Transpose|Unsafe\w*|View|Index)Backward\d"
)
# losses that 16 bits round, and powers and norms of a difference, whose node comes after them
ROUNDED = re.compile(
    r"(LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|KlDiv)\w*"
    r"|(Pow|Abs|LinalgVectorNorm|Norm)\w* (Sub|Rsub|Add)B"
)
HALF = (torch.float16, torch.bfloat16)
MARK = "diagnose(): loss scale"  # in the metadata of a node that GradScaler.scale() made
UNKNOWN = "unknown"  # the place of a number that no hook can read
Path = tuple[float, float]  # the loss scale (1 for none), and the product of all other numbers


def mark(losses: Any, scale: float) -> None:
    """Mark what scale() returned, so that a backward() through it is known to be scaled."""
    for loss in tensors_in(losses):
        if loss.grad_fn is not None:
            loss.grad_fn.metadata[MARK] = scale


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def walk(todo: list[tuple[Any, Any]], visit: Callable[[Any, Any], Any]) -> None:
    """Call visit(node, tag) of each pair once. It returns the tag of the nodes below, None to leave them out."""
    done: set[tuple] = set()
    while todo:
        step = todo.pop()
        if step[0] is not None and step not in done:
            done.add(step)
            below = visit(*step)
            todo += [(child, below) for child, _ in step[0].next_functions if below is not None]


class Backward:
    """A backward() that is looked at. A loss begins at its ends: the first nodes that are not linear.

    The number that reaches an end is read there, or at the mean or sum above it, which would divide it.
    """

    def __init__(self, losses: Any) -> None:
        self.ends: set[tuple] = set()  # (node, the loss scale above it, where its number is read)
        self.read: dict[Any, tuple] = {}  # (type, least, most) of the gradient that reaches a node
        self.weights: dict[int, set[Path]] = {}  # what multiplies the gradient of each
        self.casts: list[tuple[dict, int]] = []  # (metadata of a weight's cast to 16 bits, weight)
        self.fills_others = False  # it fills gradients of tensors that are no weights, for a cache
        self.hooks: list[Any] = []
        walk([(getattr(loss, "grad_fn", None), (1.0, None)) for loss in losses], self.visit_loss)
        self.is_scaled = any(scale != 1 for _, scale, _ in self.ends)

    def visit_loss(self, node: Any, tag: tuple) -> tuple | None:
        (scale, place), name = tag, node.name()
        is_product = name.startswith(("MulB", "DivB"))
        sides = [child for child, _ in node.next_functions if child]
        if not LINEAR.fullmatch(name) or (is_product and len(sides) > 1):
            self.ends.add((node, scale, place or node))
            return None
        if MARK in node.metadata:
            return scale * node.metadata[MARK], place
        if is_product and place:
            return scale, UNKNOWN  # maybe a scale for each sample
        return scale, place or (node if name.startswith(("MeanB", "SumB")) else None)

    def listen(self) -> None:
        """Read numbers while backward() runs, which hooks that return None do not change."""
        for node in {node for end, _, place in self.ends for node in (end, place)} - {UNKNOWN}:
            self.hooks.append(node.register_prehook(partial(self.note, node)))

    def note(self, node: Any, gradients: tuple) -> None:
        with contextlib.suppress(Exception):  # this runs inside the user's backward()
            (gradient,) = [one.detach() for one in gradients if type(one) is torch.Tensor]
            self.read[node] = gradient.dtype, *torch.aminmax(gradient.float())

    def close(self, known: list[float], leaked: bool) -> None:
        """Say how each gradient was multiplied. known: the scales of all scalers.

        leaked: whether a loss without a scale may carry on scaled gradients, so that it is not known what it does.
        """
        for hook in self.hooks:
            hook.remove()
        above = Counter(place for place, _ in {(place, scale) for _, scale, place in self.ends})
        todo = []
        for end, scale, place in self.ends:
            _, least, most = self.read.get(place, (None, 0, 1))
            is_custom = isinstance(end, torch.autograd.function.BackwardCFunction)
            is_one = above[place] == 1 and not is_custom and bool(least == most)
            number = abs(float(most)) if is_one else math.nan
            by_hand = scale == 1 and any(same(one, number) for one in known)
            scale = number if by_hand else scale
            is_known = is_one and (scale != 1 or not leaked)
            todo.append((end, (scale, number / scale if is_known else math.nan)))
        walk(todo, self.visit_below)

    def visit_below(self, node: Any, path: Path) -> Path:
        if (weight := getattr(node, "variable", None)) is not None:
            self.fills_others |= not isinstance(weight, torch.nn.Parameter)
            hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
            rest = math.nan if hooks else path[1]  # which may multiply it, too
            self.weights.setdefault(id(weight), set()).add((path[0], rest))
        elif node.name() == "ToCopyBackward0":
            below = getattr(node.next_functions[0][0], "variable", None)
            self.casts += [(node.metadata, id(below))]
        return path

    def narrow(self) -> str:
        """Return the 16-bit type in which a loss is computed, where that changes its slope, else ""."""
        types = {self.read.get(end, (None,))[0] for end, _, _ in self.ends}
        for end, _, _ in self.ends:
            below = [child.name() for child, _ in end.next_functions[:1] if child]
            if not ROUNDED.match(" ".join([end.name(), *below])):
                return ""
        return name_of(types.pop()) if len(types) == 1 and types <= {*HALF} else ""
