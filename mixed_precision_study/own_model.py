"""Your own model in ten lines: compare() trains it in every precision and says what each one buys."""

import inspect
import os
import random
import shlex
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from IPython import get_ipython
from torch.utils import _pytree as pytree

from .data.batches import TrainingData
from .data.fingerprint import fingerprint_of
from .errors import UserError
from .experiment import Experiment, Metric
from .record import RunRecord

STEPS_WITHOUT_GPU = 2


class RandomState:
    """The state of the random generators that a reader's data may use: torch on the CPU, random and numpy."""

    def __init__(self, seed: int):
        self.own: tuple | None = None
        self.seed = seed

    def swap(self) -> None:
        """Make this state the current one, or give back the one that was current before."""
        before = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
        if self.own is None:
            torch.default_generator.manual_seed(self.seed)
            random.seed(self.seed)
            numpy.random.seed(self.seed)
        else:
            torch.set_rng_state(self.own[0])
            random.setstate(self.own[1])
            numpy.random.set_state(self.own[2])
        self.own = before


class IterableData(TrainingData):
    """Batches of any iterable, such as a DataLoader or a list, on the device.

    A batch is any nest of tuples, lists and dicts of tensors; what else is in it stays as in the first batch. All
    batches of a training have the shapes of the first: others, such as an incomplete last one, are left out.

    batches: yields the batches of an epoch each time it is iterated over.
    eval_batches: the same of held-out data, or None. They may have other shapes.
    """

    source = "own"

    device: torch.device = torch.device("cpu")  # set it before a batch is asked for

    def __init__(self, batches: Iterable, eval_batches: Iterable | None, max_steps: int = 0):
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
        first = next(iter(self.leaves_of(batches, 0)), None)
        if first is None:
            raise UserError("batches is empty; it must yield at least one batch.")
        self.leaves, self.spec = first
        self.shapes = shapes_of(self.leaves)
        if not self.shapes:
            raise UserError("a batch holds no tensor; it must hold at least one, such as (inputs, labels).")
        self.size = self.shapes[0][0] if self.shapes[0] else 1
        self.steps = sum(1 for _ in self.alike(0))
        self.train_samples = self.steps * self.size
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.fingerprint = fingerprint_of(*tensors, torch.tensor(self.steps))

    def leaves_of(self, batches: Iterable, epoch: int) -> Iterator[tuple[list, Any]]:
        """Yield (leaves, structure) of each batch of an epoch. An epoch always has the same random numbers."""
        state = RandomState(epoch)
        state.swap()
        try:
            source = iter(batches)
            while True:
                batch = next(source, None)
                if batch is None:
                    return
                state.swap()
                try:
                    yield pytree.tree_flatten(batch)
                finally:
                    state.swap()
        finally:
            state.swap()

    def alike(self, epoch: int) -> Iterator[list]:
        """Yield the leaves of the batches that have the shapes of the first one, at most max_steps of them."""
        steps = 0
        for leaves, _ in self.leaves_of(self.batches, epoch):
            if shapes_of(leaves) == self.shapes:
                yield leaves
                steps += 1
                if steps == self.max_steps:
                    return

    def moved(self, leaves: list, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a batch on the device; floating-point ones have the type of the model's weights."""
        tensors = [leaf.to(self.device, non_blocking=True) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)

    def whole(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Return a batch as the reader's own code knows it, from its tensors."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    def steps_per_epoch(self, size: int) -> int:
        return self.steps

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for leaves in self.alike(epoch):
            yield self.moved(leaves, dtype)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for number, (leaves, _) in enumerate(self.leaves_of(self.held_out or (), 0)):
            if self.max_steps and number >= self.max_steps:
                return
            yield self.moved(leaves, dtype)


def shapes_of(leaves: list) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors among the leaves."""
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


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
        batch is any nest of tuples, lists and dicts of tensors; it is moved to the device. Batches of another shape
        than the first, such as an incomplete last one, are left out.
    compute_loss(model, batch): returns the mean loss, a scalar. Or compute_loss(model, batch, hidden), which returns
        (loss, hidden), where the next step needs a state.
    make_optimizer(weights): returns the optimizer; the default is torch.optim.SGD at lr. As a CUDA graph it must
        be torch.optim.SGD or AdamW. Use diagnose() for a loop with two optimizers, as of a GAN.
    evaluate(model, batches): returns the metric over `eval_batches`, a float; `metric` says what it is.
    parameters: what is to differ from its default, such as precisions, epochs, max_steps, lr, seed, output_dir,
        execution ("eager", "compile", "cuda_graph", "compile_cuda_graph" or a list of them). repeat: the number of this
        process. Runs with repeat=0, 1 and 2, each in a process of its own, give an interval.

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
    data = IterableData(batches, eval_batches, parameters.get("max_steps", 0))
    data.used = name
    if evaluate is not None and eval_batches is None:
        raise UserError("evaluate needs eval_batches, the held-out batches that it is called with.")
    executions = parameters.pop("execution", "eager")
    given = {"output_dir": f"outputs/{name}", "model": name, "batch_size": data.size, **parameters}
    records = []
    gpu = None
    for execution in [executions] if isinstance(executions, str) else executions:
        experiment = Experiment(
            name,
            {**given, "execution": execution},
            data,
            one_model(make_model),
            loss_of(compute_loss, data),
            evaluation_of(evaluate, data) if evaluate is not None else None,
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

    if get_ipython() is not None:
        results.show(records)
        return
    for table in (results.results_table(records), results.memory_table(records)):
        if len(table):
            print(results.as_text(table).to_string())
    print(results.read_results(records))


def loss_of(compute_loss: Callable, data: IterableData) -> Callable:
    """Return compute_loss(model, tensors, hidden) of an Experiment from the reader's own function.

    That stops with a sentence where the reader's function returns no loss.
    """
    try:
        number = len(inspect.signature(compute_loss).parameters)
    except (TypeError, ValueError):
        number = 0
    if number not in (2, 3):
        raise UserError("compute_loss must be a function of (model, batch), or of (model, batch, hidden).")

    def of_tensors(model: torch.nn.Module, tensors: tuple, hidden: Any) -> tuple:
        batch = data.whole(tensors)
        if number == 2:
            return checked_loss(compute_loss(model, batch)), None
        returned = compute_loss(model, batch, hidden)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UserError(f"compute_loss returned {kind_of(returned)}; with `hidden` it must return (loss, hidden).")
        return checked_loss(returned[0]), returned[1]

    return of_tensors


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


def evaluation_of(evaluate: Callable, data: IterableData) -> Callable:
    """Return evaluate(model, batches of tensors) of an Experiment from the reader's own function."""

    def of_tensors(model: torch.nn.Module, batches: Iterable) -> float:
        return float(evaluate(model, map(data.whole, batches)))

    return of_tensors
