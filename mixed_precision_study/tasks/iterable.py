"""Batches of any iterable, as compare() takes them: each nest as it is, its samples counted, its randomness fixed."""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Any

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

from ..parameters import Failed, UserError
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
        check_readable("batches", batches)
        if eval_batches is not None:
            check_readable("eval_batches", eval_batches)
        self.batches = batches
        self.held_out: Any = eval_batches
        self.max_steps, self.accumulate = max_steps, accumulate
        self.generator = getattr(batches, "generator", None)  # which a DataLoader shuffles by
        self.first_order = self.generator and self.generator.get_state()
        self.counted: dict[Any, list] = {}  # the shapes of each epoch's steps, when it was read first
        self.shapes_seen: dict[tuple, tuple] = {}
        self.limit = max_steps
        self.sizes: list[int] = []
        self.steps_hashed: list[str] = []
        try:
            first = self.count(batch_size)
        except RecursionError:
            raise UserError("a batch holds itself; take that reference out of it.") from None
        if not first:
            raise UserError("batches is empty; it must yield at least one batch.")
        seen: dict[tuple, int] = {}  # the number of each shape, in the order in which they appear
        shapes = [seen.setdefault(shape, len(seen)) for shape in self.counted[0]]
        if one_shape and any(shapes):
            self.leave_last_out(shapes)
        self.shapes = shapes if any(shapes) else ()
        self.steps = len(shapes)
        self.train_samples = self.samples_in(self.steps, self.size)
        self.fingerprint = fingerprint_of(*(tensor for _, tensor in first), torch.tensor(self.steps))

    def count(self, batch_size: Any) -> list[tuple[str, torch.Tensor]]:
        """Read an epoch, note how many samples each step has and what is in it, and return the tensors of the first."""
        first: list = []
        for step in self.read(self.batches, 0, self.accumulate):
            parts = step if isinstance(step, Parts) else (step,)
            for part in parts:
                check_batch(tensors_of(part))
            tensors = tensors_of(step)
            if not first:
                self.place, self.size = counted_place(parts[0], batch_size, getattr(self.batches, "batch_size", None))
                first = tensors
            self.sizes.append(sum(size_at(self.place, part) for part in parts))
            texts = [one for one in leaves_of(step) if isinstance(one[1], str | bytes | bool | None)]
            self.steps_hashed.append(fingerprint_of(*(part for one in [*tensors, *texts] for part in one)))
        return first

    def leave_last_out(self, shapes: list[int]) -> None:
        """Leave out the last step if it alone has another shape, for a CUDA graph; else raise UserError."""
        different = sum(shape != 0 for shape in shapes)
        if different > 1 or not shapes[-1]:
            raise UserError(
                f"{different} of {len(shapes)} steps have batches of another shape or type than the first, but a"
                ' CUDA graph takes one; pad all to one length, or run them with execution="eager" or "compile".'
            )
        print(f"The last of {len(shapes)} steps is incomplete and left out, because a CUDA graph takes one shape.")
        shapes.pop()
        self.limit = len(shapes)
        self.counted[0].pop()

    def read(self, batches: Iterable, epoch: Any, accumulate: int = 1) -> Iterator:
        """Yield the steps of an epoch on the device, at most max_steps. Several batches are Parts of a step.

        Each batch and each step has the same random numbers in every precision, although 16-bit types draw fewer.
        Raises Failed at the end of an epoch that is not as it was when it was first read. Evaluations are epoch None.
        """
        before = random_state()
        seed_all(epoch or 0)
        if epoch == 0 and self.generator:
            self.generator.set_state(self.first_order)
        given = iter(batches)
        several = accumulate > 1
        steps = iter(lambda: Parts(islice(given, accumulate)), ()) if several else given
        found = []
        try:
            for number, step in enumerate(islice(steps, (self.max_steps if epoch is None else self.limit) or None)):
                own = random_state()
                self.shape: list[tuple] = []
                parts = Parts(mapped(one, self.moved, is_leaf=is_numbers) for one in (step if several else (step,)))
                shape = () if epoch is None else tuple(self.shape)
                found.append(self.shapes_seen.setdefault(shape, shape))  # once, for there are many steps
                on_gpu = self.device is not None and self.device.type == "cuda"
                seed_all(self.seed, epoch or 0, number, on_gpu=on_gpu and (self.seeds_gpu or number == 0))
                yield parts if several else parts[0]
                set_random_state(own)
        finally:
            set_random_state(before)
        self.check_same(epoch, found)

    def check_same(self, epoch: int | None, found: list[tuple]) -> None:
        """Raise Failed where an epoch is not what was counted or what another precision was given."""
        known = self.counted.setdefault(epoch, found)
        counts, wanted = map(self.samples_of, (found, self.counted[0] if epoch else known))
        if found != known or counts != wanted or not (found or epoch == 0):
            raise Failed(
                f"{'eval_batches' if epoch is None else 'batches'} gave {counts[0]} steps where there"
                f" were {wanted[0]}, or other samples or shapes; yield the same in every epoch"
            )

    def samples_of(self, steps: list[tuple]) -> tuple[int, int]:
        """Return the numbers of steps and of samples, if a dimension of a tensor counts them, or 0."""
        path, place = self.place or ("", 0)
        return len(steps), sum(part[1][place] for step in steps for part in step if part[0] == path)

    def moved(self, leaf: Any, path: str) -> Any:
        """Return a tensor, an array, a number or an object that can be moved on the device, and others as they are.

        What is the reader's own is copied, because a loss may change its batch in place.
        """
        leaf = as_tensor(leaf)
        if isinstance(leaf, torch.Tensor):
            self.shape.append((path, leaf.shape, leaf.dtype))
            return leaf if self.device is None else leaf.to(self.device, non_blocking=True, copy=True)
        if not hasattr(leaf, "to"):
            return leaf
        self.shape += [(place, tensor.shape, tensor.dtype) for place, tensor in tensors_of(leaf, path)]
        return leaf if self.device is None else copy.deepcopy(leaf).to(self.device)

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
    if isinstance(batches, Iterator) or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise UserError(
            f"{name}, of type {type(batches).__name__}, cannot be read again and again; give a list, a DataLoader"
            " or a class with __iter__."
        )
    if length_hint(batches, 1) == 0:
        raise UserError(f"{name} is empty; it must yield at least one batch.")


def check_batch(tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Raise UserError where a batch holds no tensor, nothing but empty ones, or one of several lengths."""
    if not tensors:
        raise UserError("a batch holds no tensor; it must hold at least one, such as (inputs, labels).")
    if nested := [path for path, tensor in tensors if tensor.is_nested]:
        raise UserError(f"{nested[0]} is a nested tensor, which cannot be counted; give its values() and offsets().")
    if not any(tensor.numel() for _, tensor in tensors):
        raise UserError("a batch has 0 samples; leave empty batches out.")


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
            found += tensors_of(vars(leaf), place)
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
    weak: dict[Place, int] = {}
    others: dict[Place, int] = {("batch", None): len(batch)} if isinstance(batch, list) else {}
    for path, part in tensors_of(batch, is_leaf=counts_as_one):
        inner = [(path, part)] if isinstance(part, torch.Tensor) else tensors_of(part, path)
        others |= {(place, number): size for place, one in inner for number, size in enumerate(one.shape)}
        if isinstance(part, PackedSequence):
            likely[path, None] = int(part.batch_sizes[0])
        elif isinstance(part, list) and inner:
            (weak if isinstance(part[0], Mapping) else lengths)[path, None] = len(part)
        elif (path, 0) in others:
            likely[path, 0] = others.pop((path, 0))
    columns = {place: size for place, size in others.items() if place[1] == 0}
    return (likely | lengths | weak if likely or lengths else columns or weak), others | weak


def most_frequent(sizes: dict[Place, int]) -> int:
    counted = Counter(filter(None, sizes.values()))
    return counted.most_common(1)[0][0] if counted else 1


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
