"""Your own model in ten lines: compare() trains it in every precision and says what each one buys.

The module is not called compare, because a module of that name would take the function's place in
the package.
"""

import functools
import gc
import inspect
import os
import shlex
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from .experiment import FROZEN, Experiment, Metric, preflight
from .parameters import UserError, own_parameters, planned
from .store.record import RunRecord, notebook_name
from .tasks.iterable import IterableData, random_state, set_random_state
from .train.identity import identity_of
from .train.precision import backends_as_found
from .train.step import made_optimizer
from .train.step import training_step as usual_step

STEPS_WITHOUT_GPU = 2
RUN_ALL = Path(__file__).parents[1] / "run_all.py"  # in a clone


@contextmanager
def process_as_found() -> Iterator[None]:
    """Leave the process, after the block, as it was before: switches, random numbers,
    environment and warnings.
    """
    frozen = gc.get_freeze_count() >= FROZEN
    state = random_state()
    cuda = torch.cuda
    on_gpu = cuda.is_available()
    if on_gpu:
        states = cuda.get_rng_state_all()
        debug = cuda.get_sync_debug_mode()
        fraction = cuda.get_per_process_memory_fraction()
    try:
        with patch.dict(os.environ), warnings.catch_warnings(), backends_as_found():
            yield
    finally:
        set_random_state(state)
        if on_gpu:
            with suppress(RuntimeError):  # a lost device must not cost the records
                cuda.set_rng_state_all(states)
                cuda.set_sync_debug_mode(debug)
                cuda.set_per_process_memory_fraction(fraction)
        if not frozen:
            gc.unfreeze()


def apart(function: Callable) -> Callable:
    """Return a function that leaves the process as it found it, and of whose UserError no frame
    of ours is shown.
    """

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        try:
            with process_as_found():
                return function(*args, **kwargs)
        except UserError as error:
            raise error.with_traceback(None) from None  # a reader needs the sentence, not our code

    return through


@apart
def compare(
    name: str,
    make_model: Callable[[], nn.Module],
    batches: Iterable,
    compute_loss: Callable,
    *,
    make_optimizer: Callable | None = None,
    schedule: Callable | None = None,
    training_step: Callable | None = None,
    evaluate: Callable | None = None,
    eval_batches: Iterable | None = None,
    metric: Metric | None = None,
    **parameters: Any,
) -> list[RunRecord]:
    """Train your own model in every precision under equal conditions, print what each one buys, and
    return the records.

    name: begins the name of every record; they go to outputs/NAME. Under run_all.py it is that of
        the notebook.
    make_model(): returns the model with new weights. The seed is set before each call.
    batches: what one epoch trains on: a DataLoader, a list, or anything that can be iterated over
        again and again. A batch is any nest of tuples, lists, mappings, dataclasses and packed
        sequences, and compute_loss gets it as it is, with its tensors on the device. NumPy arrays,
        numbers and lists of numbers become tensors, because they belong to this batch as its
        strings do. Every batch is trained on, whatever its shape; only a CUDA graph takes one
        shape, so it leaves out a last step of another shape and stops where more differ.
    compute_loss(model, batch): returns the mean loss, a scalar. Or compute_loss(model, batch,
        hidden), which returns (loss, hidden), where the next step needs a state. What it draws at
        random is equal in every precision.
    make_optimizer(weights) or make_optimizer(model), by the name of its argument: returns the
    optimizer, which may
        have several parameter groups; the default is torch.optim.SGD at lr. As a CUDA graph it must
        be torch.optim.SGD or AdamW. Use diagnose() for a loop with two optimizers, as of a GAN.
    clip: the largest norm of the gradient. accumulate: how many batches a step takes, whose
        gradients are averaged.
    schedule(step): returns the learning rate of the first parameter group, and the others keep
        their ratio to it. Steps count from 0 through all epochs. It may also ask for
        `steps_per_epoch` and `metrics`, those so far.
    training_step(model, batch, hidden, compute_loss, optimizer, scaler, precision): takes a step in
    place of
        mixed_precision_study.train.step.training_step, which is a model for it. With `accumulate`
        the batch is a tuple of batches. compute_loss takes one of them, or all: then it has gone
        backward for all but the last when it returns, and the step goes backward for that.
    evaluate(model, batches): returns the metric over `eval_batches`, a float, which it may read as
        often as it likes.
    metric: a mixed_precision_study.experiment.Metric, which says what `evaluate` returns.
    batch_size: how many samples the first batch has, where its tensors do not agree on that.
    parameters: what is to differ from its default, such as precisions, epochs, max_steps, lr, seed,
        output_dir, execution ("eager", "compile", "cuda_graph", "compile_cuda_graph" or a list of
        them). repeat: the number of this process. Runs with repeat=0, 1 and 2, each in a process of
        its own, give an interval. Any other name is a parameter of your own, which the records
        hold; only your functions make use of it.

    A model that make_model returns in evaluation mode is trained in training mode, but what it has
    frozen by eval() within a model in training mode stays so. The warm-up is undone in all that
    hangs on the model, the optimizer and
    the loss: tensors, numbers, lists and dicts. What a function keeps in its globals or closure
    cannot be undone, so keep a counter, as of an annealed weight, in a buffer or an attribute of
    the model. PyTorch's switches are set for each precision, and a training fails where it changes
    one of them.

    Runs count as repetitions of one comparison only if model, functions, optimizer and the first
    epoch are the same. A name that is used for something else leaves the earlier records beside the
    new ones.

    With 16-bit weights the model's arguments are cast to their type, but targets keep their own.
    The process is left
    as it was found: random numbers, PyTorch's switches, environment and warnings.

    Raises UserError where an argument is wrong, and where every training failed, so that a script
    ends with a status. A training that fails while others do not is a record with its reason.

    Example:
        import torch
        from mixed_precision_study import compare

        inputs = torch.randn(64, 16)
        labels = inputs.sum(1, keepdim=True)
        batches = [(inputs[:32], labels[:32]), (inputs[32:], labels[32:])]

        def make_model():
            return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64,
            1))

        def compute_loss(model, batch):
            x, y = batch
            return torch.nn.functional.mse_loss(model(x).float(), y.float())

        records = compare("squares", make_model, batches, compute_loss, epochs=2, lr=0.01)
    """
    from .report import results  # loads Matplotlib

    if not torch.is_grad_enabled():  # nor is it in inference mode
        raise UserError(
            "compare() trains, so call it outside torch.no_grad() and torch.inference_mode()."
        )
    name = notebook_name(name)
    settings = checked_parameters(name, parameters)
    first = settings[0]
    functions = {
        "make_model": make_model,
        "compute_loss": compute_loss,
        "make_optimizer": make_optimizer,
        "schedule": schedule,
        "training_step": training_step,
        "evaluate": evaluate,
    }
    check_functions(functions, first.clip)
    if evaluate is not None and eval_batches is None:
        raise UserError("evaluate needs eval_batches, the held-out batches that it is called with.")
    new_model = new_models(make_model)
    loss = loss_of(compute_loss)
    gpu = preflight(first, {"max_steps": STEPS_WITHOUT_GPU})
    data = IterableData(
        batches,
        eval_batches,
        first.max_steps,
        parameters.get("batch_size"),
        any("cuda_graph" in chosen.execution for chosen in settings),
        first.accumulate,
    )
    data.used = name
    data.seed = first.seed
    data.device = gpu.device
    data.title = None if first.dataset == "own" else first.dataset
    identity = identity_of_first(new_model, functions, data)
    records = []
    for chosen in settings:
        chosen.batch_size = data.size
        chosen.max_steps = first.max_steps
        chosen.precisions = first.precisions  # those that this GPU has
        made = Experiment(
            name,
            chosen,
            data,
            new_model,
            loss,
            evaluate,
            metric,
            training_step=training_step or functools.partial(usual_step, clip=chosen.clip),
            make_optimizer=make_optimizer,
            schedule=schedule,
            gpu=gpu,
            identity=identity,
        ).run()
        results.show(made)
        records += made
    say_what_comes_next(records, os.path.abspath(first.output_dir))
    check_records(records)
    return records


def check_records(records: list[RunRecord]) -> None:
    """Raise UserError where every training failed, but not where none is supported."""
    reasons = [record.reason for record in records if record.status == "failed"]
    if reasons and {record.status for record in records} <= {"failed", "unsupported"}:
        raise UserError(f"every training failed, the first with {reasons[0]}")


def say_what_comes_next(records: list[RunRecord], folder: str) -> None:
    """Print how the numbers of these records get an interval, and what shows all of them."""
    if {(record.status, record.device_type) for record in records} == {("ok", "cuda")}:
        print("One process gives no interval: run this again with repeat=1 and with repeat=2.")
    if RUN_ALL.exists():
        print(f"The report: {shlex.join(('python', os.path.relpath(RUN_ALL), '--report', folder))}")
    else:  # installed, without what draws a report
        print(f"All numbers: mixed_precision_study.report.tables.read_tables({folder!r}).ratios")


def checked_parameters(name: str, parameters: dict) -> list:
    """Return the parameters of compare(), completed and checked, for each execution given."""
    given = {"output_dir": f"outputs/{name}", "model": name, **parameters}
    executions = given.get("execution")
    if not isinstance(executions, list | tuple) or not executions:  # none is refused as a wrong one
        return [own_parameters(name, given)]
    if len(executions) > 1 and planned():
        raise UserError(
            "run_all.py makes one execution a run, so assign execution in the parameters cell, "
            "pass execution=execution and let the study sweep over it."
        )
    return [own_parameters(name, given | {"execution": execution}) for execution in executions]


def check_functions(functions: dict, clip: float) -> None:
    """Raise UserError where one of the functions given is none, or where two exclude each other."""
    for name, function in functions.items():
        if function is not None:
            arguments_of(name, function)
    if isinstance(functions["make_model"], nn.Module):
        raise UserError(
            "make_model must be a function that returns a new model, "
            "because each precision begins with one."
        )
    if clip and functions["training_step"]:
        raise UserError(
            "clip belongs to the usual step, so clip within your own training_step "
            "and leave it out here."
        )


def arguments_of(what: str, function: Any) -> list[str]:
    """Return the names of a function's arguments that must be given, and of `hidden`.

    Raise UserError where it is no function, or one of which Python does not know them.
    """
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UserError(
            f"{what} is {type_in_words(function)}; it must be a function written in Python, "
            "and help(compare) says what it takes and returns."
        ) from None
    return [
        argument.name
        for argument in arguments
        if argument.default is argument.empty or argument.name == "hidden"
    ]


def loss_of(compute_loss: Callable) -> Callable:
    """Return compute_loss(model, batch, hidden) of an Experiment from the reader's own function.

    That stops with a sentence where the reader's function returns no loss.
    """
    number = len(arguments_of("compute_loss", compute_loss))
    if number not in (2, 3):
        raise UserError(
            "compute_loss must be a function of (model, batch), or of (model, batch, hidden)."
        )

    @functools.wraps(compute_loss, assigned=(), updated=())
    def loss_and_hidden(model: nn.Module, batch: Any, hidden: Any) -> tuple:
        returned = compute_loss(*(model, batch, hidden)[:number])
        pair = returned if number == 3 else (returned, None)
        loss: Any = pair[0] if isinstance(pair, tuple) and len(pair) == 2 else None
        is_scalar = isinstance(loss, Tensor) and not loss.dim()
        if not is_scalar or (torch.is_grad_enabled() and not loss.requires_grad):
            raise UserError(
                f"compute_loss returned {type_in_words(returned)}; it must return the mean loss, "
                "a scalar tensor that depends on the model, or (loss, "
                "hidden) where it takes `hidden`, so add several losses up, "
                "and take the .loss of a model's output."
            )
        return pair

    return loss_and_hidden


def type_in_words(value: Any) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def new_models(make_model: Callable) -> Callable:
    """Return the reader's function, which stops with a sentence where it returns no new model."""
    made: Any = weakref.WeakSet()

    def new_model() -> nn.Module:
        model = make_model()
        if not isinstance(model, nn.Module) or model in made:
            raise UserError(
                f"make_model returned {type_in_words(model)}; it must return a torch.nn.Module, "
                "and never one twice."
            )
        made.add(model)
        return model

    return new_model


def identity_of_first(make_model: Callable, functions: dict, data: IterableData) -> dict | None:
    """Return identity_of() of a model made before the trainings, or None where making it fails.

    Raise UserError where model or optimizer cannot be trained by the step that is to train them.
    """
    try:
        with process_as_found():
            model = make_model()
            check_model(model)
            data.seeds_gpu = not any(
                isinstance(part, nn.RNNBase) and part.dropout for part in model.modules()
            )
            make_optimizer = functions["make_optimizer"] or torch.optim.SGD
            optimizer = made_optimizer(make_optimizer, model, list(model.parameters()))
            check_optimizer(optimizer, functions["training_step"] is None)
            return identity_of(model, optimizer, functions, data.steps_hashed)
    except UserError:
        raise
    except Exception:  # each training will fail of the same, with a record that says so
        return None


def check_model(model: nn.Module) -> None:
    """Raise UserError where a model has no shapes yet; print which part is in evaluation mode."""
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise UserError(
            "make_model returned lazy modules; call the model there on a batch, to give it shapes."
        )
    left = [name for name, part in model.named_modules() if model.training and not part.training]
    if left:
        print(
            f"make_model leaves {left[0]} in evaluation mode, "
            "so that part of the model is trained in it."
        )


def check_optimizer(optimizer: Any, usual: bool) -> None:
    """Raise UserError where it is no optimizer, or none that the usual step can take, if it is
    to.
    """
    kind = type(optimizer).__name__
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise UserError(
            f"make_optimizer returned a {kind}; it must return one optimizer. "
            "A loop with two, as of a GAN, has no single step to compare: use diagnose() on it."
        )
    needs_closure = "closure" in arguments_of("the optimizer's step", optimizer.step)
    if usual and (needs_closure or not hasattr(optimizer, "_optimizer_step_post_hooks")):
        raise UserError(
            f"{kind} wants a closure in its step or lacks the hooks of torch.optim.Optimizer, "
            "so take the step yourself, in training_step=."
        )
