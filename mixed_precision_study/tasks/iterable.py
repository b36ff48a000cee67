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

    A batch is the reader's own nest (see mapped() of tasks/batches.py), passed through with its tensors on the device.
    Numbers, lists of numbers and NumPy arrays become tensors, because they belong to this batch, as its strings do.
    An object with a method `to`, such as a graph of another library, is moved by it.

    batches: yields the batches of an epoch each time it is iterated over.
    eval_batches: the same of held-out data, or None.
    batch_size: samples in the first batch, where the reader says so. It shows which dimension of which tensor is
        counted; else that is what fits the DataLoader's batch_size, or the most frequent first dimension.
    one_shape: whether a CUDA graph takes the batches. A last step of another shape is then left out.
    accumulate: batches in a step, which are Parts of it where there are several.
    """

    source = "own"
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
        """Yield the steps of an epoch on the device, at most max_steps.

        An epoch has the same random numbers in every precision while a batch is made, and each step has while the
        model is trained on it, because 16-bit types may draw fewer.
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
        if self.device is None or not is_movable(leaf):
            return leaf
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device, non_blocking=True)
        try:
            return leaf.to(self.device)
        except (TypeError, ValueError):  # a `to` of another meaning, such as a time zone's
            return leaf

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
    """Return the tensor of an array, a number or a list of numbers, and any other value as it is.

    What no tensor can hold, such as an array of words or a list with rows of several lengths, stays as it is.
    """
    if not (isinstance(value, numpy.ndarray | list) or is_number(value)):
        return value
    try:
        return torch.from_numpy(numpy.array(value, order="C")) if hasattr(value, "dtype") else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return value


def is_movable(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "to", None))


def tensors_of(
    value: Any, path: str = "batch", is_leaf: Callable = lambda part: False, depth: int = 5
) -> list[tuple[str, Any]]:
    """Return (path, tensor) of each tensor of a nest, also of those that an object which can be moved holds.

    Parts that is_leaf(part) is true of are returned as they are.
    """
    found = []
    for place, leaf in leaves_of(value, path, is_leaf):
        if is_leaf(leaf) or isinstance(leaf, torch.Tensor):
            found.append((place, leaf))
        elif hasattr(leaf, "__dict__") and (is_movable(leaf) if depth == 5 else depth > 0):
            found += tensors_of(vars(leaf), place, depth=depth - 1)
    return found


Place = tuple[str, int | None]  # a path in a batch, and a dimension of the tensor there or None for a length


def sizes_of(batch: Any) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the sizes in a batch that may be its number of samples: those that are likely, and all others.

    Likely are the first dimension of a tensor, the length of a list of tensors and the number of packed sequences. The
    length of a batch that is a list itself is not, as it may hold the inputs and the labels.
    """

    def counts_as_one(part: Any) -> bool:
        return isinstance(part, PackedSequence) or (isinstance(part, list) and part is not batch)

    likely: dict[Place, int] = {}
    for path, part in tensors_of(batch, is_leaf=counts_as_one):
        if isinstance(part, PackedSequence):
            likely[path, None] = int(part.batch_sizes[0])
        elif isinstance(part, torch.Tensor):
            likely |= {(path, 0): len(part)} if part.dim() else {}
        elif inner := tensors_of(part, path):
            likely[path, None] = len(part)
            firsts = {tuple(one.shape[:1]) if isinstance(one, torch.Tensor) else () for one in part}
            if len(firsts) == 1 and firsts != {()}:
                likely[inner[0][0], 0] = firsts.pop()[0]
    others: dict[Place, int] = {("batch", None): len(batch)} if isinstance(batch, list) else {}
    for path, tensor in tensors_of(batch):
        others |= {(path, number): size for number, size in enumerate(tensor.shape) if (path, number) not in likely}
    return likely, others


def most_frequent(sizes: dict[Place, int]) -> int:
    return Counter(sizes.values()).most_common(1)[0][0] if sizes else 1


def counted_place(batch: Any, wanted: Any, of_loader: Any) -> tuple[Place | None, int]:
    """Return where the samples of a batch are counted, and how many the first batch has. None: each batch has one.

    wanted: the reader's batch_size, or None. of_loader: that of the DataLoader, if there is one.
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
    """Return how many samples a batch has, counted where they were in the first one if this one has that place."""
    likely, others = sizes_of(batch)
    return 1 if place is None else (likely | others).get(place, most_frequent(likely))
