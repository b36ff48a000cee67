"""What an experiment needs of its data (TrainingData), and batches prepared in advance."""

import copy
import dataclasses
import functools
import hashlib
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Batch = Any  # a tuple of tensors, or the nest of a reader's own data
Batches = Iterator[Batch]  # of an epoch, on the device


def mapped(
    value: Any, convert: Callable, path: str = "batch", is_leaf: Callable = lambda value: False
) -> Any:
    """Return the same nest with convert(leaf, path) in place of each leaf. The nest that is given
    does not change.

    Taken apart are tuples, lists, mappings, dataclasses and packed sequences, but neither what
    is_leaf(part) is true of nor a library's mapping that can move itself, such as a TensorDict. The
    lengths in a packed sequence stay on the CPU, so they are converted as a tuple that is not put
    back.
    """

    def inner(part: Any, place: str) -> Any:
        return mapped(part, convert, path + place, is_leaf)

    is_plain = isinstance(value, dict | UserDict)
    moves_itself = isinstance(value, Mapping) and not is_plain and hasattr(value, "to")
    if isinstance(value, Tensor | torch.Size) or moves_itself or is_leaf(value):
        return convert(value, path)
    if isinstance(value, PackedSequence):
        convert(tuple(value.batch_sizes.tolist()), f"{path}.batch_sizes")
        names = ("data", "sorted_indices", "unsorted_indices")
        return value._replace(**{name: inner(getattr(value, name), f".{name}") for name in names})
    if isinstance(value, Mapping):
        # Python's own is copied; the copy of another one may share its contents
        items: Any = copy.copy(value) if is_plain else {}
        for key, part in value.items():
            items[key] = inner(part, f"[{key!r}]")
        return items
    if dataclasses.is_dataclass(type(value)):
        same = copy.copy(value)
        held = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        for name in held:
            object.__setattr__(same, name, inner(getattr(value, name), f".{name}"))
        return same
    if isinstance(value, list | tuple):
        parts = [inner(part, f"[{number}]") for number, part in enumerate(value)]
        return getattr(value, "_make", type(value))(parts)
    return convert(value, path)


def leaves_of(
    value: Any, path: str = "batch", is_leaf: Callable = lambda value: False
) -> list[tuple[str, Any]]:
    """Return (path, leaf) of each leaf of a nest, such as ("batch['labels'][0]", tensor)."""
    leaves = []

    def note(leaf: Any, place: str) -> Any:
        leaves.append((place, leaf))
        return leaf

    mapped(value, note, path, is_leaf)
    return leaves


class Parts(tuple):
    """The batches of one step that adds up their gradients, see Trainer.loss_in_parts()."""


def parts_of(batch: Any, count: int) -> Sequence[Batch]:
    """Return what a step adds up: one batch or several, each in `count` parts with equally many
    of the samples that its tensors begin with.
    """

    def part(number, leaf, _):
        return leaf.unflatten(0, (count, -1))[number] if isinstance(leaf, Tensor) else leaf

    batches = batch if isinstance(batch, Parts) else [batch]
    cuts = [functools.partial(part, number) for number in range(count)]
    return [mapped(one, cut) for one in batches for cut in cuts] if count > 1 else batches


def fingerprint_of(*parts: Any) -> str:
    """Return 12 hex digits for tensors, texts and numbers: shapes, types and contents, in their
    order.

    Tensors are taken as they are held. CIFAR-10 takes about 0.2 s.
    """
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, Tensor):
            digest.update(f"{part!r};".encode())
            continue
        digest.update(f"{tuple(part.shape)} {part.dtype};".encode())
        if part.numel():
            digest.update(part.detach().cpu().to_dense().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


class TrainingData:
    """What an experiment trains and evaluates on. To train on your own data, write a subclass.

    It must have `steps_per_epoch`, `train_batches` and `eval_batches`, as in the example;
    Experiment itself stops at max_steps. A batch is a tuple of tensors on the device, or another
    nest of them. The first is the model's input, such as images (size, 3, height, width). `size` is
    the batch size. `dtype` is the type of the model's weights: float16 in o2_fp16 and o3_fp16,
    otherwise float32. Convert floating-point inputs to it. Labels and indices keep their own type.

    Example:
        class Points(TrainingData):
            used, title, sample_unit, train_samples, eval_samples = "points", "made-up points",
            "points", 640, 64

            def steps_per_epoch(self, size):
                return len(inputs) // size

            def train_batches(self, epoch, dtype, size):
                for start in range(0, len(inputs) // size * size, size):
                    yield inputs[start : start + size].to(device, dtype), labels[start : start +
                        size].to(device)

            def eval_batches(self, dtype, size):
                yield held_out.to(device, dtype), held_out_labels.to(device)
    """

    used: str = "own"  # the name of the data, for the record
    source: str = "own"  # where they came from, for the record; "synthetic" marks made-up data
    # A hash of the contents, see fingerprint_of(). Runs of different ones are never compared. None:
    # the name counts.
    fingerprint: str | None = None
    title: str | None = None  # the name for people; None: `used`
    folder: str | None = None  # in data_dir, whose files dataset="auto" stands for
    sample_unit: str = "samples"  # what a sample is called, in the plural
    train_samples: int | None = None
    eval_samples: int | None = None
    seed: int = 0  # of the order of batches, which an Experiment sets for each training
    samples_per_item: int = 1  # in one item of a batch, for example the words in a column of text
    largest_batch: int = 2**20  # the largest size that makes sense, for batch_size="max"
    # Whether to make each batch on another stream while the step before it runs, as pays for
    # batches made by GPU work.
    prefetch: bool = False
    # For each batch of epoch 0 the number of its shape, in order of appearance; empty where all
    # have one shape.
    shapes: Sequence[int] = ()

    def steps_per_epoch(self, size: int) -> int:
        """Return how many batches `train_batches` yields."""
        raise NotImplementedError

    def samples_in(self, steps: int, size: int) -> int:
        """Return how many samples the first `steps` batches of an epoch have in all."""
        return steps * size * self.samples_per_item

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Batches:
        """Yield the batches of an epoch (counted from 0), on the device.

        All must have the same shape unless `shapes` says otherwise, because cuDNN, torch.compile
        and CUDA graphs
        prepare for one shape: leave out an incomplete last batch. The same epoch must give the same
        batches again, so that all precisions train alike. With batch_size="max", other sizes are
        tried before the final one is set.
        """
        raise NotImplementedError

    def eval_batches(self, dtype: torch.dtype, size: int) -> Batches:
        """Yield the held-out batches, on the device. The last one may be smaller."""
        raise NotImplementedError

    def test_batches(self, dtype: torch.dtype, size: int) -> Batches | None:
        """Return the batches of a test set on which no choice rests, or None if there is none."""
        return None

    def example(self, count: int) -> Batch:
        """Return the first training batch of `count` items in fp32."""
        return next(self.train_batches(0, torch.float32, count))


@functools.cache
def side_stream(device: torch.device) -> "torch.cuda.Stream | None":
    """Return the stream on which this process makes its batches; None on the CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def prefetch_to_device(
    batches: Iterable[Batch], side: Any, main: Any = None, on: Callable = torch.cuda.stream
) -> Batches:
    """Yield `batches` in order, each made on the stream `side` while the step before it runs on
    `main`.

    The host waits for nothing. `main` is the current stream by default. If `side` is None, nothing
    is prefetched. The side stream waits for the step before last, so at most one extra batch is in
    memory, and what was freed before is reused safely. record_stream would hold memory while the
    host runs ahead.
    """
    if side is None:
        yield from batches
        return
    source = iter(batches)
    main = main or torch.cuda.current_stream(side.device)

    def prepare() -> tuple[Batch, Any]:
        side.wait_stream(main)
        with on(side):
            return next(source, None), side.record_event()

    try:
        batch, ready = prepare()
        while batch is not None:
            following = prepare()
            main.wait_event(ready)
            yield batch
            batch, ready = following
    finally:
        # if the loop was left early, the next batch is still being made from tensors that are freed
        # now
        main.wait_stream(side)
