"""Batches of any iterable, as compare() takes them: each nest as it is, its samples counted, its randomness fixed."""

import copy
import itertools
import math
import random
import re
import statistics
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import length_hint
from typing import Any

import numpy
import torch

from ..parameters import Failed, UserError
from .batches import Parts, TrainingData, fingerprint_of, leaves_of, mapped

EACH = r"\[\d+\]"  # pattern of a number of a batch in its step, or of a part in its list


def random_state() -> tuple:
    """Return the state of the generators that a reader's data and loss may use: torch on the CPU, random and numpy."""
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

    A batch is the reader's own nest, see mapped(). Its numbers, lists of numbers and NumPy arrays become tensors. An
    object with a method `to`, such as a graph of another library, is moved by it. The arguments are those of compare();
    one_shape: whether a CUDA graph takes the batches, so that a last step of another shape is left out.
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
        self.max_steps, self.accumulate = max_steps, accumulate
        self.generator = getattr(batches, "generator", None)  # which a DataLoader shuffles by
        self.first_order = self.generator and self.generator.get_state()
        self.wanted = batch_size
        # (hash of its shapes, samples) of an epoch's steps, when first read
        self.counted: dict[Any, list] = {}
        self.limit = max_steps
        self.steps_hashed: list[str] = []
        first: list = []
        try:
            for step in self.read(batches, 0, accumulate):
                held = parts_of(step)
                if not first:
                    first = [part for _, part in held if isinstance(part, torch.Tensor)]
                kept = [
                    one
                    for one in held
                    if isinstance(one[1], torch.Tensor | str | bytes | bool | tuple)
                ]
                self.steps_hashed.append(fingerprint_of(*itertools.chain(*kept)))
        except RecursionError:
            raise UserError("a batch holds itself; take that reference out of it.") from None
        if not self.steps_hashed:
            raise UserError("batches is empty; it must yield at least one batch.")
        seen: dict[tuple, int] = {}  # the number of each shape, in the order in which they appear
        shapes = [seen.setdefault(shape, len(seen)) for shape in self.counted[0]]
        if one_shape and any(shapes):
            self.leave_last_out(shapes)
        self.shapes = shapes if any(shapes) else ()
        self.sizes = [size for _, size in self.counted[0]]
        self.steps = len(shapes)
        self.train_samples = self.samples_in(self.steps, self.size)
        self.fingerprint = fingerprint_of(*first, torch.tensor(self.steps))

    def leave_last_out(self, shapes: list[int]) -> None:
        """Leave out the last step if it alone has another shape, for a CUDA graph; else raise UserError."""
        different = sum(shape != 0 for shape in shapes)
        if different > 1 or not shapes[-1]:
            raise UserError(
                f"{different} of {len(shapes)} steps have batches of another shape or type than the first, but a"
                ' CUDA graph takes one; pad all to one length, or run them with execution="eager" or "compile".'
            )
        print(
            f"The last of {len(shapes)} steps is incomplete and left out, because a CUDA graph takes one shape."
        )
        shapes.pop()
        self.limit = len(shapes)
        self.counted[0].pop()

    def read(self, batches: Iterable, epoch: Any, accumulate: int = 1) -> Iterator:
        """Yield the steps of an epoch on the device, at most max_steps. Several batches are Parts of a step.

        Each batch and each step has the same random numbers in every precision, although 16-bit types draw fewer.
        Raises UserError at a batch that cannot be counted, and Failed at the end of an epoch that is not as it was
        when it was first read. Evaluations are epoch None.
        """
        before = random_state()
        seed_all(epoch or 0)
        if epoch == 0 and self.generator:
            self.generator.set_state(self.first_order)
        given = iter(batches)
        steps = iter(lambda: Parts(itertools.islice(given, accumulate)), ())
        limit = self.max_steps if epoch is None else self.limit
        on_gpu = self.device is not None and self.device.type == "cuda"
        found = []
        try:
            for number, parts in enumerate(itertools.islice(steps, limit or None)):
                own = random_state()
                self.shape: list[tuple] = []
                parts = mapped(parts, self.moved, "", is_numbers)
                if epoch == 0 and not any(math.prod(size) for _, size, _ in self.shape):
                    raise UserError(
                        f"batch {number} has 0 samples; it must hold a tensor with some, such as (inputs, labels)."
                    )
                if not self.counted and number == 0:
                    of_loader = getattr(batches, "batch_size", None)
                    self.place, self.size = counted_place(
                        parts[0], self.shape, self.wanted, of_loader
                    )
                found.append(
                    (0, 0) if epoch is None else (hash(tuple(self.shape)), self.samples_of_step())
                )
                seed_all(
                    self.seed, epoch or 0, number, on_gpu=on_gpu and (self.seeds_gpu or number == 0)
                )
                yield parts if accumulate > 1 else parts[0]
                set_random_state(own)
        finally:
            set_random_state(before)
        self.check_same(epoch, found)

    def check_same(self, epoch: int | None, found: list[tuple]) -> None:
        """Raise Failed where an epoch is not what was counted or what another precision was given."""
        known = self.counted.setdefault(epoch, found)
        first = self.counted[0] if epoch else known
        counts = [(len(steps), sum(size for _, size in steps)) for steps in (found, first)]
        if found != known or counts[0] != counts[1] or not (found or epoch == 0):
            raise Failed(
                f"{'eval_batches' if epoch is None else 'batches'} gave {counts[0][0]} steps where there"
                f" were {counts[1][0]}, or other samples or shapes; yield the same in every epoch"
            )

    def samples_of_step(self) -> int:
        """Return how many samples the step has that was read last. See counted_place()."""
        pattern, dimension = self.place
        found = {
            place[0]: size for name, size, _ in self.shape if (place := re.match(pattern, name))
        }
        return sum(1 if dimension is None else size[dimension] for size in found.values())

    def moved(self, leaf: Any, path: str) -> Any:
        """Return a tensor, an array, a number or an object that can be moved on the device, and others as they are.

        What is the reader's own is copied, because a loss may change its batch in place.
        """
        if type(leaf) is tuple:  # how many of the packed sequences have a first, a second entry
            self.shape.append((path, leaf, None))
        leaf = as_tensor(leaf)
        for place, part in parts_of(leaf, path):
            if isinstance(part, torch.Tensor):
                if part.is_nested:
                    name = f"batch{place.partition(']')[2]}"
                    raise UserError(
                        f"{name} is a nested tensor, so give its values() and offsets() instead."
                    )
                self.shape.append((place, part.shape, part.dtype))
        if self.device is None or not hasattr(leaf, "to"):
            return leaf
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device, non_blocking=True, copy=True)
        return copy.deepcopy(leaf).to(self.device)

    def steps_per_epoch(self, size: int) -> int:
        return self.steps

    def samples_in(self, steps: int, size: int) -> int:
        return sum(self.sizes[:steps])

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator:
        return self.read(self.batches, epoch, self.accumulate)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Any:
        return HeldOut(self)


class HeldOut:
    """Held-out batches that are moved to the device when they are read, as often as one likes, or by number."""

    def __init__(self, data: IterableData):
        self.data = data

    def __iter__(self) -> Iterator:
        return self.data.read(self.data.held_out, None)

    def __len__(self) -> int:
        given = len(self.data.held_out)
        return min(given, self.data.max_steps or given)

    def __getitem__(self, place: Any) -> Any:
        return mapped(self.data.held_out[: len(self)][place], self.data.moved, is_leaf=is_numbers)


def check_readable(name: str, batches: Any) -> None:
    """Raise UserError where batches are single samples, cannot be read again and again, or are none."""
    if any(kind.__name__ in ("Dataset", "IterableDataset") for kind in type(batches).__mro__):
        raise UserError(
            f"{name} is a Dataset, which yields single samples; give DataLoader(dataset, batch_size=...), or"
            " with batch_size=None if it yields whole batches."
        )
    if isinstance(batches, Iterator) or not (
        hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    ):
        raise UserError(
            f"{name}, of type {type(batches).__name__}, cannot be read again and again; give a list, a DataLoader"
            " or a class with __iter__."
        )
    if length_hint(batches, 1) == 0:
        raise UserError(f"{name} is empty; it must yield at least one batch.")


def is_numbers(value: Any) -> bool:
    """Return whether a value is a list, of any depth, of numbers that are no flags."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        is_number(one) or is_numbers(list(one) if isinstance(one, tuple) else one) for one in value
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | numpy.number) and not isinstance(value, bool)


def as_tensor(value: Any) -> Any:
    """Return the tensor of an array, a number or a list of numbers. What no tensor can hold stays as it is."""
    if not (isinstance(value, numpy.ndarray | list) or is_number(value)):
        return value
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        return (
            torch.from_numpy(numpy.array(value, order="C"))
            if hasattr(value, "dtype")
            else torch.tensor(value)
        )
    return value


def parts_of(value: Any, path: str = "batch") -> list[tuple[str, Any]]:
    """Return leaves_of() a nest, and of an object there that can be moved what it holds."""
    found = []
    for place, leaf in leaves_of(value, path):
        if hasattr(leaf, "to") and hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor):
            found += parts_of(vars(leaf), place)
        else:
            found.append((place, leaf))
    return found


def counted_place(
    batch: Any, shapes: list[tuple], wanted: Any, of_loader: Any
) -> tuple[tuple, int]:
    """Return where samples are counted, and how many the first batch has.

    Where is (pattern, dimension): that of a tensor with this path in the step, or None to count the
    parts with such a path. It fits the reader's batch_size or that of the DataLoader, or else the
    most frequent first dimension of tensors outside lists, the length of lists of tensors, or the
    first dimension within lists.
    """
    ranked = ranked_sizes(batch, shapes)
    first, lengths, inside, others = ranked
    likely = [*filter(None, next(filter(any, (one.values() for one in ranked)), [1]))]
    known = first | lengths | inside
    size = wanted or (of_loader if of_loader in known.values() else statistics.mode(likely))
    every = known | others
    if wanted and wanted not in {1, *every.values()}:
        sizes = ", ".join(map(str, dict.fromkeys(every.values())))
        raise UserError(
            f"batch_size is {wanted!r}, but the first batch has no such dimension; give one of {sizes}."
        )
    if not wanted and size != of_loader and len(set(likely)) > 1:
        print(
            f"A batch is taken to have {size} samples, because that is the most frequent first dimension of its"
            " tensors; if it is another number, set batch_size=."
        )
    return next((place for place, found in every.items() if found == size), (EACH, None)), size


def ranked_sizes(batch: Any, shapes: list[tuple]) -> list[dict[tuple, int]]:
    """Return {place: size} of four kinds of sizes in a first batch, the likeliest number of samples first."""
    ranked: list[dict[tuple, int]] = [{}, {}, {}, {}]
    first, lengths, inside, others = ranked
    for path, part in leaves_of(
        batch, "", lambda part: isinstance(part, list) and part is not batch
    ):
        if isinstance(part, list):
            of_tensors = part and isinstance(part[0], torch.Tensor | tuple)
            (lengths if of_tensors else others)[EACH + re.escape(path) + EACH, None] = len(part)
    lists = [pattern for pattern, _ in lengths | others]
    for name, shape, _ in shapes:
        path = name.partition("]")[2]
        in_list = any(re.match(pattern, name) for pattern in lists)
        for dimension, size in enumerate(shape):
            of = others if dimension else inside if in_list else first
            # of the first of several parts
            of.setdefault((EACH + re.escape(path) + "$", dimension), size)
    if isinstance(batch, list):
        inside[EACH + EACH, None] = len(batch)
    return ranked
