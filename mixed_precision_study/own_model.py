"""Your own model in ten lines: compare() trains it in every precision and says what each one buys."""

import gc
import inspect
import os
import random
import shlex
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

from .data.batches import TrainingData, leaves_of, mapped
from .data.fingerprint import fingerprint_of
from .errors import UserError
from .experiment import Experiment, Metric, own_parameters
from .precision import backends_as_found
from .record import RunRecord

STEPS_WITHOUT_GPU = 2


class RandomState:
    """The state of the random generators that a reader's data may use: torch on the CPU, random and numpy."""

    def __init__(self, seed: int):
        self.own: tuple | None = None
        self.seed = seed

    def swap(self) -> None:
        """Make this state the current one, or give back the one that was current before."""
        before = self.now()
        if self.own is None:
            torch.default_generator.manual_seed(self.seed)
            random.seed(self.seed)
            numpy.random.seed(self.seed)
        else:
            self.set(self.own)
        self.own = before

    @staticmethod
    def now() -> tuple:
        """Return the current state."""
        return torch.get_rng_state(), random.getstate(), numpy.random.get_state()

    @staticmethod
    def set(state: tuple) -> None:
        """Make a state from now() the current one."""
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        numpy.random.set_state(state[2])


class IterableData(TrainingData):
    """Batches of any iterable, such as a DataLoader or a list, on the device.

    A batch is the reader's own nest (see mapped() of data/batches.py), passed through with its tensors on the device.
    Numbers, lists of numbers and NumPy arrays become tensors, because they belong to this batch, as its strings do.
    An object with a method `to`, such as a graph of another library, is moved by it.

    batches: yields the batches of an epoch each time it is iterated over.
    eval_batches: the same of held-out data, or None.
    batch_size: samples in the first batch, where the reader says so. It shows which dimension of which tensor is
        counted; else that is what fits the DataLoader's batch_size, or the most frequent first dimension.
    one_shape: whether a CUDA graph takes the batches. A last batch of another shape is then left out.
    """

    source = "own"

    device: torch.device | None = None  # set it before a batch is asked for; None: batches stay where they are

    def __init__(
        self,
        batches: Iterable,
        eval_batches: Iterable | None,
        max_steps: int = 0,
        batch_size: Any = None,
        one_shape: bool = False,
    ):
        for name, given in (("batches", batches), ("eval_batches", eval_batches)):
            if any(kind.__name__ in ("Dataset", "IterableDataset") for kind in type(given).__mro__):
                raise UserError(
                    f"{name} is a Dataset, which yields single samples; give DataLoader(dataset, batch_size=...), or"
                    " with batch_size=None if it yields whole batches."
                )
        if isinstance(batches, Iterator):
            raise UserError(
                "batches can be read only once, as a generator can; give a list, a DataLoader or a class with __iter__."
            )
        if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            kind = type(batches).__name__
            raise UserError(f"batches is a {kind}, which yields no batch; give a list, a DataLoader or the like.")
        self.batches = batches
        self.held_out = eval_batches
        self.max_steps = max_steps
        self.sizes: list[int] = []
        seen: dict[tuple, int] = {}  # the number of each shape, in the order in which they appear
        shapes: list[int] = []
        for batch in self.read(batches, 0):
            tensors = tensors_of(batch)
            if not tensors:
                raise UserError("a batch holds no tensor; it must hold at least one, such as (inputs, labels).")
            if not shapes:
                self.place, self.size = counted_place(batch, batch_size, getattr(batches, "batch_size", None))
                first = tensors
            self.sizes.append(size_at(self.place, batch))
            shape = tuple((path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors)
            shapes.append(seen.setdefault(shape, len(seen)))
        if not shapes:
            raise UserError("batches is empty; it must yield at least one batch.")
        self.limit = max_steps or None
        if one_shape and any(shapes):
            shapes, self.limit = without_last(shapes), len(shapes) - 1
        self.shapes = shapes if any(shapes) else ()
        self.steps = len(shapes)
        self.train_samples = self.samples_in(self.steps, self.size)
        self.fingerprint = fingerprint_of(*(hashable(tensor) for _, tensor in first), torch.tensor(self.steps))

    def read(self, batches: Iterable, epoch: int) -> Iterator:
        """Yield the batches of an epoch on the device, at most max_steps. An epoch always has the same random numbers.

        The random numbers are those of the epoch while the next batch is made, and the model's own meanwhile.
        """
        state = RandomState(epoch)
        state.swap()
        try:
            for batch in islice(batches, self.max_steps or None):
                state.swap()
                try:
                    yield mapped(batch, self.moved, is_leaf=is_numbers)
                finally:
                    state.swap()
        finally:
            state.swap()

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
        return islice(self.read(self.batches, epoch), self.limit)

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


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yield the tensors that an object holds in its attributes, and in those of its parts."""
    for _, leaf in leaves_of(vars(value)) if depth and hasattr(value, "__dict__") else ():
        yield from [leaf] if isinstance(leaf, torch.Tensor) else tensors_in(leaf, depth - 1)


def tensors_of(batch: Any, path: str = "batch", is_leaf: Callable = lambda part: False) -> list[tuple[str, Any]]:
    """Return (path, tensor) of each tensor of a batch, also of those within objects that can be moved.

    Parts that is_leaf(part) is true of are returned as they are.
    """
    found = []
    for place, leaf in leaves_of(batch, path, is_leaf):
        if is_leaf(leaf) or isinstance(leaf, torch.Tensor):
            found.append((place, leaf))
        elif is_movable(leaf):
            found += [(f"{place}, tensor {number}", tensor) for number, tensor in enumerate(tensors_in(leaf))]
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
            if part.dim():
                likely[path, 0] = len(part)
        elif inner := tensors_of(part, path):
            likely[path, None] = len(part)
            first = tuple(inner[0][1].shape[:1])
            if first and all(isinstance(one, torch.Tensor) and tuple(one.shape[:1]) == first for one in part):
                likely[inner[0][0], 0] = first[0]
    others: dict[Place, int] = {("batch", None): len(batch)} if isinstance(batch, list) else {}
    for path, tensor in tensors_of(batch):
        others |= {(path, number): size for number, size in enumerate(tensor.shape) if (path, number) not in likely}
    return likely, others


def most_frequent(sizes: dict[Place, int]) -> int:
    """Return the most frequent size, the first of several; 1 where there is none."""
    return Counter(sizes.values()).most_common(1)[0][0] if sizes else 1


def counted_place(batch: Any, wanted: Any, of_loader: Any) -> tuple[Place | None, int]:
    """Return where the samples of a batch are counted, and how many the first batch has. None: each batch has one.

    wanted: the reader's batch_size, or None. of_loader: that of the DataLoader, if there is one.
    """
    likely, others = sizes_of(batch)
    every = likely | others
    if wanted is not None:
        if type(wanted) is not int or wanted not in {1, *every.values()}:
            known = ", ".join(str(size) for size in dict.fromkeys(every.values()))
            raise UserError(
                f"batch_size is {wanted!r}, but no tensor of the first batch has such a dimension; give one of {known},"
                " or leave it out."
            )
        size = wanted
    elif type(of_loader) is int and of_loader in (*likely.values(), others.get(("batch", None))):
        size = of_loader
    else:
        size = most_frequent(likely)
        if len(set(likely.values())) > 1:
            print(
                f"A batch is taken to have {size} samples, because that is the most frequent first dimension of its"
                " tensors; if it is another number, set batch_size=."
            )
    return next((place for place, found in every.items() if found == size), None), size


def size_at(place: Place | None, batch: Any) -> int:
    """Return how many samples a batch has, counted where they were in the first one if this one has that place."""
    likely, others = sizes_of(batch)
    return 1 if place is None else (likely | others).get(place, most_frequent(likely))


def without_last(shapes: list[int]) -> list[int]:
    """Return the shapes of the batches without the last, which alone may differ where a CUDA graph takes them."""
    different = sum(shape != 0 for shape in shapes)
    if different > 1 or not shapes[-1]:
        raise UserError(
            f"{different} of {len(shapes)} batches have another shape or type than the first, but a CUDA graph takes"
            ' one; pad all batches to one length, or run them with execution="eager" or "compile".'
        )
    print(
        f"1 of {len(shapes)} batches, the last and incomplete one, has another shape than the first and is left out,"
        " because a CUDA graph takes one shape."
    )
    return shapes[:-1]


def hashable(tensor: torch.Tensor) -> Any:
    """Return a tensor, or its text where NumPy has no such type or layout."""
    try:
        tensor.detach().cpu().contiguous().numpy()
    except (TypeError, RuntimeError):
        return repr(tensor)
    return tensor


@contextmanager
def process_as_found() -> Iterator[None]:
    """Leave the process, after the block, as it was before: switches, random numbers, environment and warnings."""
    frozen = gc.get_freeze_count()
    environment = dict(os.environ)
    random_state = RandomState.now()
    seed = torch.initial_seed()
    cuda: Any = torch.cuda
    before = None
    if cuda.is_initialized():
        before = cuda.get_rng_state_all(), cuda.get_per_process_memory_fraction(), cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(), backends_as_found():
            yield
    finally:
        RandomState.set(random_state)
        if cuda.is_initialized():
            with suppress(RuntimeError):  # a lost device must not cost the records
                states, fraction, debug = before or (None, 1.0, 0)
                cuda.set_rng_state_all(states) if states else cuda.manual_seed_all(seed)
                cuda.set_sync_debug_mode(debug)
                if cuda.get_per_process_memory_fraction() != fraction:
                    cuda.set_per_process_memory_fraction(fraction)
        if not frozen:
            gc.unfreeze()
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)


def compare(
    name: str,
    make_model: Callable[[], torch.nn.Module],
    batches: Iterable,
    compute_loss: Callable,
    *,
    make_optimizer: Callable | None = None,
    evaluate: Callable | None = None,
    eval_batches: Iterable | None = None,
    metric: Metric | None = None,
    **parameters: Any,
) -> list[RunRecord]:
    """Train your own model in every precision under equal conditions, print what each one buys, and return the records.

    name: begins the name of every record; they go to outputs/NAME.
    make_model(): returns the model with new weights. The seed is set before each call.
    batches: what one epoch trains on: a DataLoader, a list, or anything that can be iterated over again and again. A
        batch is any nest of tuples, lists, mappings, dataclasses and packed sequences, and compute_loss gets it as it
        is, with its tensors on the device. NumPy arrays, numbers and lists of numbers become tensors, because they
        belong to this batch as its strings do. Every batch is trained on, whatever its shape; only a CUDA graph takes
        one shape, so it leaves out a last batch of another shape and stops where more differ.
    compute_loss(model, batch): returns the mean loss, a scalar. Or compute_loss(model, batch, hidden), which returns
        (loss, hidden), where the next step needs a state.
    make_optimizer(weights): returns the optimizer; the default is torch.optim.SGD at lr. As a CUDA graph it must
        be torch.optim.SGD or AdamW. Use diagnose() for a loop with two optimizers, as of a GAN.
    evaluate(model, batches): returns the metric over `eval_batches`, a float; `metric` says what it is.
    batch_size: how many samples the first batch has, where its tensors do not agree on that.
    parameters: what is to differ from its default, such as precisions, epochs, max_steps, lr, seed, output_dir,
        execution ("eager", "compile", "cuda_graph", "compile_cuda_graph" or a list of them). repeat: the number of this
        process. Runs with repeat=0, 1 and 2, each in a process of its own, give an interval.

    With 16-bit weights the model's arguments are cast to their type, but targets keep their own. The process is left
    as it was found: random numbers, PyTorch's switches, environment and warnings.

    Raises UserError where an argument is wrong. A training that fails is a record with its reason.

    Example:
        import torch
        from mixed_precision_study import compare

        inputs = torch.randn(64, 16)
        labels = inputs.sum(1, keepdim=True)
        batches = [(inputs[:32], labels[:32]), (inputs[32:], labels[32:])]

        def make_model():
            return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

        def compute_loss(model, batch):
            x, y = batch
            return torch.nn.functional.mse_loss(model(x).float(), y.float())

        records = compare("squares", make_model, batches, compute_loss, epochs=2, lr=0.01)
    """
    try:
        with process_as_found():
            return trained_in_every_precision(
                name, make_model, batches, compute_loss, make_optimizer, evaluate, eval_batches, metric, parameters
            )
    except UserError as error:
        raise error.with_traceback(None) from None  # a reader needs the sentence, not our code


def trained_in_every_precision(
    name: str,
    make_model: Callable,
    batches: Iterable,
    compute_loss: Callable,
    make_optimizer: Callable | None,
    evaluate: Callable | None,
    eval_batches: Iterable | None,
    metric: Metric | None,
    parameters: dict,
) -> list[RunRecord]:
    """Do what compare() says."""
    if not (torch.cuda.is_available() or parameters.get("max_steps")):
        parameters["max_steps"] = STEPS_WITHOUT_GPU
        print(f"No GPU: an epoch has {STEPS_WITHOUT_GPU} steps at most. To choose the number yourself, set max_steps.")
    if evaluate is not None and eval_batches is None:
        raise UserError("evaluate needs eval_batches, the held-out batches that it is called with.")
    executions = parameters.pop("execution", "eager")
    executions = executions if isinstance(executions, list | tuple) else [executions]
    given = {"output_dir": f"outputs/{name}", "model": name, **parameters}
    checked = [own_parameters(name, {**given, "execution": execution}) for execution in executions]
    one_shape = any("cuda_graph" in one.execution for one in checked)
    data = IterableData(batches, eval_batches, given.get("max_steps", 0), given.get("batch_size"), one_shape)
    data.used = name
    given["batch_size"] = data.size
    records = []
    gpu = None
    for execution in executions:
        experiment = Experiment(
            name,
            {**given, "execution": execution},
            data,
            one_model(make_model),
            loss_of(compute_loss),
            (lambda model, held_out: float(evaluate(model, held_out))) if evaluate is not None else None,
            metric or Metric("metric"),
            make_optimizer=one_optimizer(make_optimizer) if make_optimizer is not None else None,
            gpu=gpu,
        )
        gpu = experiment.gpu
        data.device = gpu.device
        records += experiment.run()
        show_results(records[-len(experiment.parameters.precisions) :])
    if gpu is not None and gpu.device.type == "cuda" and all(record.status == "ok" for record in records):
        print("One process gives no interval: run this again with repeat=1 and with repeat=2.")
    print(f"The report: {command_of_report(given['output_dir'])}")
    return records


def command_of_report(folder: str) -> str:
    """Return how the report is drawn: a command to be typed in the working folder, or what works without a clone."""
    script = Path(__file__).resolve().parents[1] / "run_all.py"
    if not script.exists():
        return f"open summary.ipynb, set records_dir = {folder!r}, and run all cells"
    return shlex.join(["python", os.path.relpath(script), "--report", folder])


def show_results(records: list[RunRecord]) -> None:
    """Show the results: as a notebook does in a notebook, else as plain text."""
    from .report import results  # loads Matplotlib

    results.show(records)


def loss_of(compute_loss: Callable) -> Callable:
    """Return compute_loss(model, batch, hidden) of an Experiment from the reader's own function.

    That stops with a sentence where the reader's function returns no loss.
    """
    try:
        number = len(inspect.signature(compute_loss).parameters)
    except (TypeError, ValueError):
        number = 0
    if number not in (2, 3):
        raise UserError("compute_loss must be a function of (model, batch), or of (model, batch, hidden).")

    def checked(model: torch.nn.Module, batch: Any, hidden: Any) -> tuple:
        if number == 2:
            return checked_loss(compute_loss(model, batch)), None
        returned = compute_loss(model, batch, hidden)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UserError(f"compute_loss returned {kind_of(returned)}; with `hidden` it must return (loss, hidden).")
        return checked_loss(returned[0]), returned[1]

    return checked


def kind_of(value: Any) -> str:
    """Return what a value is, in a few words."""
    if value is None:
        return "None"
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss. Raise UserError where it is none that a model can be trained by."""
    if not isinstance(loss, torch.Tensor) or loss.dim():
        raise UserError(f"compute_loss returned {kind_of(loss)}; it must return the mean loss as a scalar tensor.")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UserError("compute_loss returned a loss that does not depend on the model; compute it from model(...).")
    return loss


def one_model(make_model: Callable) -> Callable:
    """Return the reader's own function, which stops with a sentence where it returns no model or an old one."""
    if isinstance(make_model, torch.nn.Module) or not callable(make_model):
        raise UserError("make_model must be a function that returns a new model, for each precision begins with one.")
    made: list = []

    def checked() -> torch.nn.Module:
        model = make_model()
        if not isinstance(model, torch.nn.Module):
            raise UserError(f"make_model returned {kind_of(model)}; it must return a torch.nn.Module.")
        if any(one() is model for one in made):
            raise UserError("make_model returned the same model twice; it must make a new one each time.")
        made.append(weakref.ref(model))
        return model

    return checked


def one_optimizer(make_optimizer: Callable) -> Callable:
    """Return the reader's own function, which stops with a sentence where it returns no optimizer, or several."""
    if not callable(make_optimizer):
        raise UserError("make_optimizer must be a function of the weights; each precision has an optimizer of its own.")

    def checked(weights: list) -> Any:
        optimizer = make_optimizer(weights)
        if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
            raise UserError(
                f"make_optimizer returned a {type(optimizer).__name__}; it must return one optimizer. A loop with two,"
                " as of a GAN, has no single step to compare: use diagnose() on it."
            )
        return optimizer

    return checked
