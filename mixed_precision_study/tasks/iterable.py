"""Batches of any iterable, as compare() takes them: each nest as it is, its samples counted, its
randomness fixed.
"""

import copy
import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy
import torch
from torch import Tensor

from ..parameters import Failed, UserError
from .batches import Parts, TrainingData, fingerprint_of, leaves_of, mapped

# what tells one batch from another
TOLD = Tensor | str | bytes | bool | tuple
# How likely a size is the number of samples: a first dimension of a tensor outside lists, the
# length of a list of tensors, a first dimension within lists, and any other size.
OUTSIDE_LISTS, OF_TENSORS, IN_LISTS, OTHERS = range(4)


def random_state() -> tuple:
    """Return the state of the generators that a reader's data and loss may use: torch on the
    CPU, random and numpy.
    """
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_random_state(state: tuple) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy.random.set_state(state[2])


def seed_all(*numbers: int, on_gpu: bool = False) -> None:
    """Seed the same generators, and with `on_gpu` that of the current GPU."""
    seed = hash(numbers) % 2**32
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    if on_gpu:
        torch.cuda.manual_seed(seed)


class IterableData(TrainingData):
    """Batches of any iterable, such as a DataLoader or a list, on the device.

    A batch is the reader's own nest, see mapped(). Its numbers, lists of numbers and NumPy arrays
    become tensors. An object with a method `to`, such as a graph of another library, is moved by
    it. The arguments are those of compare();
    one_shape: whether a CUDA graph takes the batches, so that a last step of another shape is left
        out.
    """

    # set it before a batch is asked for; None: batches stay where they are
    device: torch.device | None = None
    seed = 0
    # in each step; False: in the first alone, because it makes cuDNN prepare an RNN's dropout anew
    seeds_gpu = True

    def __init__(
        self,
        batches: Iterable,
        eval_batches: Iterable | None,
        max_steps: int = 0,
        batch_size: Any = None,
        one_shape: bool = False,
        accumulate: int = 1,
    ):
        check_readable("batches", batches)
        if eval_batches is not None:
            check_readable("eval_batches", eval_batches)
        self.batches = batches
        self.held_out: Any = eval_batches
        self.max_steps = max_steps
        self.accumulate = accumulate
        self.generator = getattr(batches, "generator", None)  # which a DataLoader shuffles by
        self.first_order = self.generator and self.generator.get_state()
        self.size = batch_size
        self.place: Any = None  # where samples are counted, see counted_place()
        # (hash of its shapes, samples) of an epoch's steps, when first read
        self.counted: dict = {}
        self.limit = max_steps
        self.steps_hashed: list = []
        first = self.first_epoch()
        seen: dict = {}  # the number of each shape, in the order in which they appear
        shapes = [seen.setdefault(shape, len(seen)) for shape in self.counted[0]]
        if one_shape and any(shapes):
            self.leave_last_out(shapes)
        self.shapes = shapes if any(shapes) else ()
        self.steps = len(shapes)
        self.sizes = [samples for _, samples in self.counted[0]]
        self.train_samples = sum(self.sizes)
        self.fingerprint = fingerprint_of(*first, torch.tensor(self.steps))

    def first_epoch(self) -> list[Tensor]:
        """Read an epoch, which counts and hashes its steps, and return the tensors of the first."""
        tensors: list = []
        try:
            for step in self.read(0):
                parts = parts_of(step, "batch", is_numbers)
                tensors = tensors or [leaf for _, leaf in parts if isinstance(leaf, Tensor)]
                told = [part for part in parts if isinstance(part[1], TOLD)]
                self.steps_hashed.append(fingerprint_of(*itertools.chain(*told)))
        except RecursionError:
            raise UserError("a batch holds itself; take that reference out of it.") from None
        if not self.steps_hashed:
            raise UserError("batches is empty; it must yield at least one batch.")
        return tensors

    def leave_last_out(self, shapes: list[int]) -> None:
        """Leave out the last step if it alone has another shape, for a CUDA graph; else raise
        UserError.
        """
        different = sum(shape != 0 for shape in shapes)
        if different > 1 or not shapes[-1]:
            raise UserError(
                f"{different} of {len(shapes)} steps have batches of another shape or "
                "type than the first, but a"
                " CUDA graph takes one; pad all to one length, or run them with "
                'execution="eager" or "compile".'
            )
        print(
            f"The last of {len(shapes)} steps is incomplete and left out, "
            "because a CUDA graph takes one shape."
        )
        shapes.pop()
        self.limit = len(shapes)
        self.counted[0].pop()

    def read(self, epoch: int | None) -> Iterator:
        """Yield the steps of an epoch on the device, or where it is None those of an evaluation.

        Several batches are Parts of a step. Each batch and each step has the same random numbers in
        every precision, although 16-bit types draw fewer. Raises UserError at a batch that cannot
        be counted, and Failed at the end of an epoch that is not as it was when it was first read.
        """
        batches = self.batches
        limit = self.limit
        accumulate = self.accumulate
        if epoch is None:
            batches = self.held_out
            limit = self.max_steps
            accumulate = 1
        before = random_state()
        order = epoch or 0
        on_gpu = self.device is not None and self.device.type == "cuda"
        seed_all(order)
        if epoch == 0 and self.generator:
            self.generator.set_state(self.first_order)
        given = iter(batches)
        steps = iter(lambda: tuple(itertools.islice(given, accumulate)), ())
        counts = []
        try:
            for number, parts in enumerate(itertools.islice(steps, limit or None)):
                parts = Parts(mapped(part, self.moved, is_leaf=is_numbers) for part in parts)
                counts.append((0, 0) if epoch is None else self.count(parts, number))
                seed_all(
                    self.seed, order, number, on_gpu=on_gpu and (self.seeds_gpu or number == 0)
                )
                yield parts if accumulate > 1 else parts[0]
                seed_all(order, number)  # of the next batch
        finally:
            set_random_state(before)
        self.check_same(epoch, counts)

    def count(self, parts: Parts, number: int) -> tuple[int, int]:
        """Return a hash of all shapes in a step, and its samples."""
        sizes = [sizes_in(part) for part in parts]
        for known in sizes:
            if not any(size for (_, axis), (_, size) in known.items() if type(axis) is torch.dtype):
                raise UserError(
                    f"batch {number} has 0 samples; it must hold a tensor with some, "
                    "such as (inputs, labels)."
                )
        if self.place is None:
            self.place, self.size = counted_place(
                sizes[0], self.size, getattr(self.batches, "batch_size", None)
            )
        return hash(str(sizes)), sum(known.get(self.place, (0, 0))[1] for known in sizes)

    def check_same(self, epoch: int | None, counts: list[tuple]) -> None:
        """Raise Failed where an epoch is not what was counted or what another precision was
        given.
        """
        known = self.counted.setdefault(epoch, counts)
        first = self.counted[0] if epoch else known
        name = "eval_batches" if epoch is None else "batches"
        totals = [(len(steps), sum(size for _, size in steps)) for steps in (counts, first)]
        if counts != known or totals[0] != totals[1] or not (counts or epoch == 0):
            raise Failed(
                f"{name} gave {len(counts)} steps where there were {len(first)}, "
                "or other samples or shapes; yield the same in every epoch"
            )

    def moved(self, leaf: Any, path: str) -> Any:
        """Return a tensor, an array, a number or an object that can be moved on the device, and
        others as they are.

        What is the reader's own is copied, because a loss may change its batch in place.
        """
        leaf = as_tensor(leaf)
        if self.device is None or not hasattr(leaf, "to"):
            return leaf
        if isinstance(leaf, Tensor):
            return leaf.to(self.device, non_blocking=True, copy=True)
        return copy.deepcopy(leaf).to(self.device)

    def steps_per_epoch(self, size: int) -> int:
        return self.steps

    def samples_in(self, steps: int, size: int) -> int:
        return sum(self.sizes[:steps])

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator:
        return self.read(epoch)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Any:
        return HeldOut(self)


@dataclass
class HeldOut:
    """Held-out batches that are moved to the device when they are read, as often as one likes,
    or by number.
    """

    data: IterableData

    def __iter__(self) -> Iterator:
        return self.data.read(None)

    def __len__(self) -> int:
        given = len(self.data.held_out)
        return min(given, self.data.max_steps or given)

    def __getitem__(self, place: Any) -> Any:
        return mapped(self.data.held_out[: len(self)][place], self.data.moved, is_leaf=is_numbers)


def check_readable(name: str, batches: Any) -> None:
    """Raise UserError where batches are single samples, cannot be read again and again, or are
    none.
    """
    if any(kind.__name__ in ("Dataset", "IterableDataset") for kind in type(batches).__mro__):
        raise UserError(
            f"{name} is a Dataset, which yields single samples; give DataLoader(dataset, "
            "batch_size=...), or with batch_size=None if it yields whole batches."
        )
    if isinstance(batches, Iterator) or not (
        hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    ):
        raise UserError(
            f"{name}, of type {type(batches).__name__}, cannot be read again and again; "
            "give a list, a DataLoader or a class with __iter__."
        )
    if length_hint(batches, 1) == 0:
        raise UserError(f"{name} is empty; it must yield at least one batch.")


def is_numbers(value: Any, kinds: Any = list) -> bool:
    """Return whether a value is a list, of any depth, of numbers that are no flags."""
    if not isinstance(value, kinds) or not value:
        return False
    return all(is_number(part) or is_numbers(part, list | tuple) for part in value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | numpy.number) and not isinstance(value, bool)


def as_tensor(value: Any) -> Any:
    """Return the tensor of an array, a number or a list of numbers.

    What no tensor can hold stays as it is.
    """
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        if isinstance(value, numpy.ndarray | numpy.number):
            return torch.from_numpy(numpy.array(value, order="C"))
        if isinstance(value, list) or is_number(value):
            return torch.tensor(value)
    return value


def parts_of(value: Any, path: str, is_leaf: Callable) -> list[tuple[str, Any]]:
    """Return leaves_of() a nest, and of an object there that can be moved what it holds."""
    parts = []
    for place, leaf in leaves_of(value, path, is_leaf):
        if hasattr(leaf, "to") and hasattr(leaf, "__dict__") and not isinstance(leaf, Tensor):
            parts += parts_of(vars(leaf), place, is_leaf)
        else:
            parts.append((place, leaf))
    return parts


def sizes_in(batch: Any, path: str = "batch", rank: int = OUTSIDE_LISTS) -> dict:
    """Return {(path, dimension): (rank, size)} of all tensors and lists in a batch.

    The lower the rank, the likelier the size is the number of samples. A tensor with numbers
    in it has size 1 in a dimension that is named after its type, so that a batch of scalars is one
    sample.
    """
    sizes = {}
    if isinstance(batch, list):
        of_tensors = isinstance(next(iter(batch), None), Tensor | tuple)
        likely = of_tensors or rank == OUTSIDE_LISTS
        sizes[path, 0] = OF_TENSORS if likely else OTHERS, len(batch)
    inner = parts_of(batch, path, lambda part: isinstance(part, list) and part is not batch)
    for place, part in inner:
        if isinstance(part, list):
            sizes |= sizes_in(part, place, IN_LISTS)
        if isinstance(part, Tensor):
            sizes[place, part.dtype] = OTHERS, min(1, part.numel())
            if part.is_nested:
                raise UserError(
                    f"{place} is a nested tensor, so give its values() and offsets() instead."
                )
            part = tuple(part.shape)
        if type(part) is tuple:  # or how many of the packed sequences have a first, a second entry
            for dimension, size in enumerate(part):
                sizes[place, dimension] = OTHERS if dimension else rank, size
    return sizes


def counted_place(sizes: dict, wanted: Any, of_loader: Any) -> tuple[Any, int]:
    """Return where in sizes_in() a batch samples are counted, and how many the first batch has.

    They fit the reader's batch_size or that of the DataLoader, or else are the most frequent of the
    likeliest sizes.
    """
    ranked = sorted(sizes.items(), key=lambda item: item[1][0])
    lowest = min(rank for rank, size in sizes.values() if size)
    likely = [size for rank, size in sizes.values() if size and rank == lowest]
    first_sizes = [size for rank, size in sizes.values() if rank != OTHERS]
    size = wanted or (of_loader if of_loader in first_sizes else statistics.mode(likely))
    places = {size: place for place, (_, size) in reversed(ranked)}
    if size not in places:
        raise UserError(
            f"batch_size is {wanted!r}, but the first batch has no such dimension; "
            f"give one of {', '.join(map(str, places))}."
        )
    if not wanted and size != of_loader and len(set(likely)) > 1:
        print(
            f"A batch is taken to have {size} samples, "
            "because that is the most frequent first dimension of its tensors; "
            "if it is another number, set batch_size=."
        )
    return places[size], size
