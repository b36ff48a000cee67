"""What one backward() does: by which numbers its losses multiply the gradients.

Nothing that a graph has saved is read. scale() marks the node that it makes, and hooks read what
reaches the loss.
"""

import contextlib
import math
import re
from functools import partial
from typing import Any

import torch

from ..explain.profile import tensors_in

LINEAR = re.compile(  # nodes that hand a factor on: sums, views, and products with a constant
    r"(Mul|Div|Add|Sub|Rsub|Neg|Mean|Sum|ToCopy|Reshape\w*|Squeeze|Unsqueeze|Select|Slice|Stack|Cat"
    r"|Expand|Unbind|Split\w*|Clone|Alias|Permute|T|Transpose|Unsafe\w*|View|Index"
    r"|Dot|Mv|Mm|Bmm|Addmm)Backward\d"
)
PRODUCTS, OF_MATRICES, SUMS = (
    ("MulB", "DivB"),
    ("Dot", "Mv", "Mm", "Bmm", "Addmm"),
    ("MeanB", "SumB"),
)
# losses that 16 bits round, and powers and norms of a difference, whose node comes after them
ROUNDED = re.compile(
    r"(LogSoftmax|NllLoss|MseLoss|SmoothL1|Huber|KlDiv)\w*"
    r"|(Pow|Abs|LinalgVectorNorm|Norm)\w* (Sub|Rsub|Add)B"
)
HALF = (torch.float16, torch.bfloat16)
MARK = "diagnose(): loss scale"  # in the metadata of a node that GradScaler.scale() made
UNKNOWN = "unknown"  # the place of a number that no hook can read
# a path has the loss scale (1 for none), and the product of all other numbers; NaN is not known
UNREAD = math.nan, math.nan


def mark(losses: Any, scale: float) -> None:
    """Mark what scale() returned, so that a backward() through it is known to be scaled."""
    for loss in tensors_in(losses):
        if loss.grad_fn is not None:
            loss.grad_fn.metadata[MARK] = scale


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


class Backward:
    """A backward() that is looked at. A loss begins at its ends: the first nodes that are not
    linear.

    The number that reaches an end is read there, or at the mean or sum above it, which would divide
    it.
    """

    def __init__(self, losses: Any) -> None:
        self.ends: set = set()  # (node, the loss scale above it, where its number is read)
        self.read: dict = {}  # (type, least, most) of the gradient that reaches a node
        todo = [(getattr(loss, "grad_fn", None), 1.0, None) for loss in losses]
        done = set()
        while todo:
            step = todo.pop()
            if step[0] is not None and step not in done:
                done.add(step)
                todo += self._below(*step)
        nodes = {node for end, _, place in self.ends for node in (end, place)} - {UNKNOWN}
        # hooks that return None change nothing
        self.hooks = [node.register_prehook(partial(self._note, node)) for node in nodes]

    def _below(self, node, scale, place):
        """Return the nodes below a linear one, with the loss scale above them; any other is an
        end."""
        name = node.name()
        sides = [child for child, _ in node.next_functions if child]
        is_product = name.startswith(PRODUCTS + OF_MATRICES)
        if not LINEAR.fullmatch(name) or (is_product and len(sides) > 1):
            self.ends.add((node, scale, place or node))
            return []
        if MARK in node.metadata:
            scale *= node.metadata[MARK]
        elif name.startswith(OF_MATRICES) or (is_product and place):
            place = UNKNOWN  # maybe a scale for each sample, or gradients that were kept
        elif name.startswith(SUMS):
            place = place or node
        return [(child, scale, place) for child in sides]

    def _note(self, node, gradients):
        with contextlib.suppress(Exception):  # this runs inside the user's backward()
            (gradient,) = [one.detach() for one in gradients if type(one) is torch.Tensor]
            self.read[node] = gradient.dtype, *torch.aminmax(gradient.float())

    def paths(self, known: list[float]) -> set[tuple]:
        """Return how the gradients were multiplied, by each loss, NaN where that is not known.

        known: the scales of all scalers, by which a loss may be multiplied by hand, too.
        """
        found = set()
        for hook in self.hooks:
            hook.remove()
        for end, scale, place in self.ends:
            _, least, most = self.read.get(place, (None, 0, 1))
            is_custom = isinstance(end, torch.autograd.function.BackwardCFunction)
            number = abs(float(most)) if least == most and not is_custom else math.nan
            by_hand = scale == 1 and any(same(one, number) for one in known)
            found.add((number, 1.0) if by_hand else (scale, number / scale))
        is_mixed = len({scale for scale, _ in found}) > 1  # which weight gets which, is not known
        return {UNREAD} if is_mixed else found

    def is_narrow(self) -> bool:
        """Return whether all of a loss is computed in 16 bits, where that changes its slope."""
        for end, _, _ in self.ends:
            dtype, *_ = self.read.get(end, (None,))
            below = [child.name() for child, _ in end.next_functions[:1] if child]
            if dtype not in HALF or not ROUNDED.match(" ".join([end.name(), *below])):
                return False
        return bool(self.ends)
