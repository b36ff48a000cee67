"""Your own model in ten lines: compare() trains it in every precision and says what each one buys.

The module is not called compare, because a module of that name would take the function's place in the package.
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
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from .experiment import FROZEN, Experiment, Metric, number_of, own_parameters
from .parameters import UserError, planned
from .store.record import RunRecord, notebook_name
from .tasks.iterable import IterableData, random_state, set_random_state
from .train.identity import identity_of
from .train.precision import backends_as_found
from .train.step import made_optimizer
from .train.step import training_step as usual_step

STEPS_WITHOUT_GPU = 2
# arguments that are given though they have a default
OPTIONAL = ("hidden", "steps_per_epoch", "metrics")
RUN_ALL = Path(__file__).parents[1] / "run_all.py"  # in a clone


@contextmanager
def process_as_found() -> Iterator[None]:
    """Leave the process, after the block, as it was before: switches, random numbers, environment and warnings."""
    frozen = gc.get_freeze_count() >= FROZEN
    state = random_state()
    seed = torch.initial_seed()
    cuda: Any = torch.cuda
    before = None
    if cuda.is_initialized():
        before = (
            cuda.get_rng_state_all(),
            cuda.get_per_process_memory_fraction(),
            cuda.get_sync_debug_mode(),
        )
    try:
        with patch.dict(os.environ), warnings.catch_warnings(), backends_as_found():
            yield
    finally:
        set_random_state(state)
        if cuda.is_initialized():
            with suppress(RuntimeError):  # a lost device must not cost the records
                states, fraction, debug = before or (None, 1.0, 0)
                cuda.set_rng_state_all(states) if states else cuda.manual_seed_all(seed)
                cuda.set_sync_debug_mode(debug)
                if cuda.get_per_process_memory_fraction() != fraction:
                    cuda.set_per_process_memory_fraction(fraction)
        if not frozen:
            gc.unfreeze()


def apart(function: Callable) -> Callable:
    """Return a function that leaves the process as it found it, and of whose UserError no frame of ours is shown."""

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
    make_model: Callable[[], torch.nn.Module],
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
    """Train your own model in every precision under equal conditions, print what each one buys, and return the records.

    name: begins the name of every record; they go to outputs/NAME. Under run_all.py it is that of the notebook.
    make_model(): returns the model with new weights. The seed is set before each call.
    batches: what one epoch trains on: a DataLoader, a list, or anything that can be iterated over again and again. A
        batch is any nest of tuples, lists, mappings, dataclasses and packed sequences, and compute_loss gets it as it
        is, with its tensors on the device. NumPy arrays, numbers and lists of numbers become tensors, because they
        belong to this batch as its strings do. Every batch is trained on, whatever its shape; only a CUDA graph takes
        one shape, so it leaves out a last step of another shape and stops where more differ.
    compute_loss(model, batch): returns the mean loss, a scalar. Or compute_loss(model, batch, hidden), which returns
        (loss, hidden), where the next step needs a state. What it draws at random is equal in every precision.
    make_optimizer(weights) or make_optimizer(model), by the name of its argument: returns the optimizer, which may
        have several parameter groups; the default is torch.optim.SGD at lr. As a CUDA graph it must be torch.optim.SGD
        or AdamW. Use diagnose() for a loop with two optimizers, as of a GAN.
    clip: the largest norm of the gradient. accumulate: how many batches a step takes, whose gradients are averaged.
    schedule(step): returns the learning rate of the first parameter group, and the others keep their ratio to it.
        Steps count from 0 through all epochs. It may also ask for `steps_per_epoch` and `metrics`, those so far.
    training_step(model, batch, hidden, compute_loss, optimizer, scaler, precision): takes a step in place of
        mixed_precision_study.train.step.training_step, which is a model for it. With `accumulate` the batch is a tuple
        of batches.
    evaluate(model, batches): returns the metric over `eval_batches`, a float, which it may read as often as it likes.
    metric: a mixed_precision_study.experiment.Metric, which says what `evaluate` returns.
    batch_size: how many samples the first batch has, where its tensors do not agree on that.
    parameters: what is to differ from its default, such as precisions, epochs, max_steps, lr, seed, output_dir,
        execution ("eager", "compile", "cuda_graph", "compile_cuda_graph" or a list of them). repeat: the number of this
        process. Runs with repeat=0, 1 and 2, each in a process of its own, give an interval. Any other name is a
        parameter of your own, which the records hold; only your functions make use of it.

    A model that make_model returns in evaluation mode is trained in training mode, but what it has frozen by eval()
    within a model in training mode stays so. The warm-up is undone in all that hangs on the model, the optimizer and
    the loss: tensors, numbers, lists and dicts. What a function keeps in its globals or closure cannot be undone, so
    keep a counter, as of an annealed weight, in a buffer or an attribute of the model. PyTorch's switches are set for
    each precision, and a training fails where it changes one of them.

    Runs count as repetitions of one comparison only if model, functions, optimizer and the first epoch are the same. A
    name that is used for something else leaves the earlier records beside the new ones.

    With 16-bit weights the model's arguments are cast to their type, but targets keep their own. The process is left
    as it was found: random numbers, PyTorch's switches, environment and warnings.

    Raises UserError where an argument is wrong, and where every training failed, so that a script ends with a status. A
    training that fails while others do not is a record with its reason.

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
    from .report import results  # loads Matplotlib

    functions = {
        "make_optimizer": make_optimizer,
        "schedule": schedule,
        "training_step": training_step,
        "evaluate": evaluate,
    }
    if not torch.is_grad_enabled():  # nor is it in inference mode
        raise UserError(
            "compare() trains, so call it outside torch.no_grad() and torch.inference_mode()."
        )
    if not (torch.cuda.is_available() or parameters.get("max_steps") or planned()):
        parameters["max_steps"] = STEPS_WITHOUT_GPU
        print(
            f"No GPU: an epoch has {STEPS_WITHOUT_GPU} steps at most. To choose the number yourself, set max_steps."
        )
    executions = parameters.pop("execution", "eager")
    if not isinstance(executions, list | tuple) or not executions:
        executions = [executions]  # an empty list is refused as any other wrong value
    name = notebook_name(name)
    if (plan := planned()) and len(executions) > 1:
        reason = "run_all.py makes one execution a run, so assign execution in the parameters cell"
        raise UserError(f"{reason}, pass execution=execution and let the study sweep over it.")
    if plan and "execution" in plan.given:
        executions = [plan.parameters["execution"]]
    given = {"output_dir": f"outputs/{name}", "model": name, **parameters}
    checked = [own_parameters(name, {**given, "execution": execution}) for execution in executions]
    settings = checked[0]
    one_shape = any("cuda_graph" in one.execution for one in checked)
    size = given.get("batch_size")
    data = IterableData(
        batches, eval_batches, settings.max_steps, size, one_shape, settings.accumulate
    )
    data.used, data.seed = name, settings.seed
    data.title = None if settings.dataset == "own" else settings.dataset
    if evaluate is not None and eval_batches is None:
        raise UserError("evaluate needs eval_batches, the held-out batches that it is called with.")
    all_functions = functions | {"make_model": make_model, "compute_loss": compute_loss}
    make_model, loss = new_models(make_model), loss_of(compute_loss)
    functions = checked_functions(functions, settings)
    identity = identity_of_first(make_model, all_functions, data)
    records: list[RunRecord] = []
    gpu = None
    for one in checked:
        one.batch_size = data.size
        whole: dict[str, Any] = {**functions, "metric": metric, "gpu": gpu, "identity": identity}
        experiment = Experiment(name, one, data, make_model, loss, **whole)
        gpu = experiment.gpu
        data.device = gpu.device
        records += experiment.run()
        results.show(records[-len(one.precisions) :])
    statuses = {record.status for record in records}
    if gpu is not None and gpu.device.type == "cuda" and statuses == {"ok"}:
        print("One process gives no interval: run this again with repeat=1 and with repeat=2.")
    folder = os.path.abspath(given["output_dir"])
    if RUN_ALL.exists():
        print(
            f"The report: python {shlex.quote(os.path.relpath(RUN_ALL))} --report {shlex.quote(folder)}"
        )
    else:  # installed, without what draws a report
        print(f"All numbers: mixed_precision_study.report.tables.read_tables({folder!r}).ratios")
    if "failed" in statuses <= {"failed", "unsupported"}:
        reason = next(record.reason for record in records if record.status == "failed")
        raise UserError(f"every training failed, the first with {reason}")
    return records


def checked_functions(given: dict[str, Any], settings: Any) -> dict[str, Any]:
    """Return the functions that may be left out as Experiment takes them, without those that are None."""
    functions = {name: function for name, function in given.items() if function is not None}
    for name, function in functions.items():
        if not callable(function):
            raise UserError(
                f"{name} is {kind_of(function)}, but it must be a function; help(compare) says of what."
            )
    if "training_step" in functions and settings.clip:
        raise UserError(
            "clip belongs to the usual step, so clip within your own training_step and leave it out here."
        )
    if "make_optimizer" in functions:
        arguments_of("make_optimizer", given["make_optimizer"])
    functions.setdefault("training_step", partial(usual_step, clip=settings.clip or None))
    if "schedule" in functions:
        names = arguments_of("schedule", given["schedule"])
        functions["schedule"] = lambda step, **known: number_of(
            "what schedule returned",
            given["schedule"](
                step, **{name: value for name, value in known.items() if name in names}
            ),
        )
    return functions


def arguments_of(what: str, function: Callable) -> list[str]:
    """Return the names of a function's arguments that must be given, or are OPTIONAL ones.

    Raise UserError where Python does not know them.
    """
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:
        raise UserError(
            f"{what} is built into Python, which does not say what it takes; write a function."
        ) from None
    return [one.name for one in arguments if one.default is one.empty or one.name in OPTIONAL]


def loss_of(compute_loss: Callable) -> Callable:
    """Return compute_loss(model, batch, hidden) of an Experiment from the reader's own function.

    That stops with a sentence where the reader's function returns no loss.
    """
    number = len(arguments_of("compute_loss", compute_loss)) if callable(compute_loss) else 0
    if number not in (2, 3):
        raise UserError(
            "compute_loss must be a function of (model, batch), or of (model, batch, hidden)."
        )

    @wraps(compute_loss, assigned=(), updated=())
    def loss_and_hidden(model: torch.nn.Module, batch: Any, hidden: Any) -> tuple:
        returned = (
            compute_loss(model, batch, hidden)
            if number == 3
            else (compute_loss(model, batch), None)
        )
        loss = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else None
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise UserError(
                f"compute_loss returned {kind_of(returned if number == 3 else returned[0])}; it must return the mean"
                " loss as a scalar tensor, or (loss, hidden) where it takes `hidden`, so add several losses up, and"
                " take the .loss of a model's output."
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise UserError(
                "compute_loss returned a loss that does not depend on the model, so compute it by model."
            )
        return returned

    return loss_and_hidden


def kind_of(value: Any) -> str:
    """Return what a value is, in a few words."""
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"a {type(value).__name__}"
    )


def new_models(make_model: Callable) -> Callable:
    """Return the reader's own function, which stops with a sentence where it returns an old model."""
    if isinstance(make_model, torch.nn.Module) or not callable(make_model):
        raise UserError(
            "make_model must be a function that returns a new model, for each precision begins with one."
        )
    made: Any = weakref.WeakSet()

    def new_model() -> torch.nn.Module:
        model = make_model()
        if not isinstance(model, torch.nn.Module):
            raise UserError(
                f"make_model returned {kind_of(model)}; it must return a torch.nn.Module."
            )
        if model in made:
            raise UserError(
                "make_model returned the same model twice; it must make a new one each time."
            )
        made.add(model)
        return model

    return new_model


def identity_of_first(make_model: Callable, functions: dict, data: IterableData) -> dict | None:
    """Return identity_of() of a model made before the trainings, or None where making it fails.

    Raise UserError where model or optimizer cannot be trained by the step that is to train them.
    """
    state = random_state()
    try:
        model = make_model()
        if any(map(torch.nn.parameter.is_lazy, model.parameters())):
            raise UserError(
                "make_model returned lazy modules; call the model there on a batch, to give it shapes."
            )
        left = [
            name for name, part in model.named_modules() if model.training and not part.training
        ]
        if left:
            print(
                f"make_model leaves {left[0]} in evaluation mode, so that part of the model is trained in it."
            )
        data.seeds_gpu = not any(
            isinstance(part, torch.nn.RNNBase) and part.dropout for part in model.modules()
        )
        make_optimizer = functions["make_optimizer"] or torch.optim.SGD
        optimizer = made_optimizer(make_optimizer, model, list(model.parameters()))
        check_optimizer(optimizer, functions["training_step"] is None)
        return identity_of(model, optimizer, functions, data.steps_hashed)
    except UserError:
        raise
    except Exception:  # each training will fail of the same, with a record that says so
        return None
    finally:
        set_random_state(state)


def check_optimizer(optimizer: Any, usual: bool) -> None:
    """Raise UserError where it is no optimizer, or none that the usual step can take, if it is to."""
    kind = type(optimizer).__name__
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise UserError(
            f"make_optimizer returned a {kind}; it must return one optimizer. A loop with two, as of a GAN, has no"
            " single step to compare: use diagnose() on it."
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is closure.empty
    if usual and (needs_closure or not hasattr(optimizer, "_optimizer_step_post_hooks")):
        raise UserError(
            f"{kind} wants a closure in its step or lacks the hooks of torch.optim.Optimizer, so take the step"
            " yourself, in training_step=."
        )
