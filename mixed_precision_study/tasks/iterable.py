"""Batches of any iterable, as compare() takes them: each nest as it is, its samples counted, its randomness fixed."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

from ..parameters import UserError
from .batches import Parts, TrainingData, fingerprint_of, leaves_of, mapped


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

    device: torch.device | None = None  # set it before a batch is asked for; None: batches stay where they are
    seed = 0
    seeds_gpu = True  # in each step; False: in the first alone, because it makes cuDNN prepare an RNN's dropout anew

    def __init__(
        self,
        batches: Iterable,
        eval_batches: Iterable | None,
        max_steps: int = 0,
        batch_size: Any = None,
        one_shape: bool = False,
        accumulate: int = 1,
    ):
        for name, given in (("batches", batches), ("eval_batches", eval_batches)):
            if any(kind.__name__ in ("Dataset", "IterableDataset") for kind in type(given).__mro__):
                raise UserError(
                    f"{name} is a Dataset, which yields single samples; give DataLoader(dataset, batch_size=...), or"
                    " with batch_size=None if it yields whole batches."
                )
        if isinstance(batches, Iterator) or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
            raise UserError(
                f"batches, of type {type(batches).__name__}, cannot be read again and again; give a list, a DataLoader"
                " or a class with __iter__."
            )
        self.batches, self.held_out = batches, eval_batches
        self.max_steps, self.accumulate = max_steps, accumulate
        self.sizes: list[int] = []
        seen: dict[tuple, int] = {}  # the number of each shape, in the order in which they appear
        shapes: list[int] = []
        for step in self.read(batches, 0, accumulate):
            parts = step if isinstance(step, Parts) else (step,)
            if not all(map(tensors_of, parts)):
                raise UserError("a batch holds no tensor; it must hold at least one, such as (inputs, labels).")
            tensors = tensors_of(step)
            if not shapes:
                self.place, self.size = counted_place(parts[0], batch_size, getattr(batches, "batch_size", None))
                first = [tensor for _, tensor in tensors]
            self.sizes.append(sum(size_at(self.place, part) for part in parts))
            shape = tuple((path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors)
            shapes.append(seen.setdefault(shape, len(seen)))
        if not shapes:
            raise UserError("batches is empty; it must yield at least one batch.")
        self.limit = None
        if one_shape and any(shapes):
            different = sum(shape != 0 for shape in shapes)
            if different > 1 or not shapes[-1]:
                raise UserError(
                    f"{different} of {len(shapes)} steps have batches of another shape or type than the first, but a"
                    ' CUDA graph takes one; pad all to one length, or run them with execution="eager" or "compile".'
                )
            print(f"The last of {len(shapes)} steps is incomplete and left out, because a CUDA graph takes one shape.")
            shapes.pop()
            self.limit = len(shapes)
        self.shapes = shapes if any(shapes) else ()
        self.steps = len(shapes)
        self.train_samples = self.samples_in(self.steps, self.size)
        self.fingerprint = fingerprint_of(*first, torch.tensor(self.steps))

    def read(self, batches: Iterable, epoch: int, accumulate: int = 1) -> Iterator:
        """Yield the steps of an epoch on the device, at most max_steps. Several batches are Parts of a step.

        Each batch and each step has the same random numbers in every precision, although 16-bit types draw fewer.
        """
        before = random_state()
        seed_all(epoch)
        given = iter(batches)
        steps = given if accumulate == 1 else iter(lambda: Parts(islice(given, accumulate)), ())
        try:
            for number, step in enumerate(islice(steps, self.max_steps or None)):
                own = random_state()
                step = mapped(step, self.moved, is_leaf=is_numbers)
                on_gpu = self.device is not None and self.device.type == "cuda"
                seed_all(self.seed, epoch, number, on_gpu=on_gpu and (self.seeds_gpu or number == 0))
                yield step
                set_random_state(own)
        finally:
            set_random_state(before)

    def moved(self, leaf: Any, path: str) -> Any:
        """Return a tensor, an array, a number or an object that can be moved on the device, and others as they are."""
        leaf = as_tensor(leaf)
        if self.device is None or not hasattr(leaf, "to"):
            return leaf
        return leaf.to(self.device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf.to(self.device)

    def steps_per_epoch(self, size: int) -> int:
        return self.steps

    def samples_in(self, steps: int, size: int) -> int:
        return sum(self.sizes[:steps])

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator:
        return islice(self.read(self.batches, epoch, self.accumulate), self.limit)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator:
        return self.read(self.held_out or (), 0)


def is_numbers(value: Any) -> bool:
    """Return whether a value is a list, of any depth, of numbers that are no flags."""
    if not isinstance(value, list) or not value:
        return False
    return all(is_number(one) or is_numbers(list(one) if isinstance(one, tuple) else one) for one in value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | numpy.number) and not isinstance(value, bool)


def as_tensor(value: Any) -> Any:
    """Return the tensor of an array, a number or a list of numbers. What no tensor can hold stays as it is."""
    if not (isinstance(value, numpy.ndarray | list) or is_number(value)):
        return value
    try:
        return torch.from_numpy(numpy.array(value, order="C")) if hasattr(value, "dtype") else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return value


def tensors_of(value: Any, path: str = "batch", is_leaf: Callable = lambda part: False) -> list[tuple[str, Any]]:
    """Return (path, tensor) of each tensor in a nest, or in an object there that can be moved. See mapped()."""
    found = []
    for place, leaf in leaves_of(value, path, is_leaf):
        if is_leaf(leaf) or isinstance(leaf, torch.Tensor):
            found.append((place, leaf))
        elif hasattr(leaf, "to") and hasattr(leaf, "__dict__"):
            found += [held for held in leaves_of(vars(leaf), place) if isinstance(held[1], torch.Tensor)]
    return found


Place = tuple[str, int | None]  # a path in a batch, and a dimension of the tensor there or None for a length


def sizes_of(batch: Any) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the sizes in a batch that may be its number of samples: those that are likely, and all others.

    Likely are the first dimension of a tensor, the number of packed sequences and the length of a list of tensors. The
    length of a batch that is a list itself is not, as it may hold the inputs and the labels.
    """

    def counts_as_one(part: Any) -> bool:
        return isinstance(part, PackedSequence) or (isinstance(part, list) and part is not batch)

    likely: dict[Place, int] = {}
    lengths: dict[Place, int] = {}
    others: dict[Place, int] = {("batch", None): len(batch)} if isinstance(batch, list) else {}
    for path, part in tensors_of(batch, is_leaf=counts_as_one):
        inner = [(path, part)] if isinstance(part, torch.Tensor) else tensors_of(part, path)
        others |= {(place, number): size for place, one in inner for number, size in enumerate(one.shape)}
        if isinstance(part, PackedSequence):
            likely[path, None] = int(part.batch_sizes[0])
        elif isinstance(part, list) and inner:
            lengths[path, None] = len(part)
        elif (path, 0) in others:
            likely[path, 0] = others.pop((path, 0))
    return likely | lengths, others


def most_frequent(sizes: dict[Place, int]) -> int:
    return Counter(sizes.values()).most_common(1)[0][0] if sizes else 1


def counted_place(batch: Any, wanted: Any, of_loader: Any) -> tuple[Place | None, int]:
    """Return where the samples of a batch are counted, and how many the first batch has. None: each batch has one.

    That is what fits the reader's batch_size or that of the DataLoader, or else the most frequent first dimension.
    """
    likely, others = sizes_of(batch)
    every = likely | others
    size = wanted or most_frequent(likely)
    if wanted and wanted not in {1, *every.values()}:
        known = ", ".join(str(one) for one in dict.fromkeys(every.values()))
        raise UserError(f"batch_size is {wanted!r}, but the first batch has no such dimension; give one of {known}.")
    if not wanted and of_loader and of_loader in (*likely.values(), others.get(("batch", None))):
        size = of_loader
    elif not wanted and len(set(likely.values())) > 1:
        print(
            f"A batch is taken to have {size} samples, because that is the most frequent first dimension of its"
            " tensors; if it is another number, set batch_size=."
        )
    return next((place for place, found in every.items() if found == size), None), size


def size_at(place: Place | None, batch: Any) -> int:
    """Return how many samples a batch has, counted where they were in the first one if it has that place."""
    likely, others = sizes_of(batch)
    return 1 if place is None else (likely | others).get(place, most_frequent(likely))
