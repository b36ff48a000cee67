"""An experiment: one model trained in every precision, under equal conditions, with a record of
each run.
"""

import copy
import gc
import itertools
import math
import os
import pickle
import reprlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .explain.attention import read_attention, use_attention
from .explain.inference import measure_inference
from .explain.lost_updates import read_lost_updates
from .explain.memory_breakdown import read_memory_breakdown
from .explain.out_of_memory import first_remedy
from .explain.profile import count_work, profile_steps
from .explain.roofline import measure_limits
from .measure import memory
from .measure.energy import summarise_gpu
from .measure.environment import choose_device, describe_environment
from .measure.nvml import MIB
from .measure.order import in_turn
from .measure.preflight import clear_workspaces, show_preflight
from .measure.progress import progress
from .measure.timing import startup, summarise_times
from .parameters import (
    MAX_NUMBER,
    Diverged,
    Failed,
    Unsupported,
    UserError,
    error_line,
    own_parameters,
    planned_ways,
    shown_traceback,
    sized,
)
from .store.record import (
    EXPLAINING,
    NOT_YET_EXPLAINED,
    RunRecord,
    given_study,
    new_record,
    notebook_name,
    refused,
    run_id_of,
    utc_now,
    write_record,
)
from .store.variables import ORDER_ENV, RUNNER_ENV
from .tasks.batches import TrainingData, leaves_of, prefetch_to_device, side_stream
from .tasks.data_files import data_files_hash, hash_of_files
from .train.as_found import AsFound
from .train.batch_size import largest_batch, limit_memory
from .train.loss_scale import read_gradients
from .train.precision import (
    PRECISIONS,
    backends_as_found,
    check_supported,
    may_lose_updates,
    set_fp32_precision,
)
from .train.remedies import check_remedies, remedied
from .train.step import (
    Trainer,
    TrainingLog,
    allow_search,
    cycle_batches,
    describe_trainer,
    evaluating,
    read_switches,
    timed_epoch,
    warm_up,
)

EXPLAINED_STEPS = 20  # of a training that only serves an explanation; at most one epoch
NOT_ASKED = "its study asks for other explanations alone"
NOT_ABOUT_INFERENCE = "only a study that shows inference measures it, because that takes seconds"
FROZEN = 50_000  # objects, more than Python freezes by itself, and fewer than PyTorch brings
BEGUN = itertools.count()  # the trainings of this process
FOR_TRAINER = {
    "execution",
    "compile_mode",
    "scaler",
    "rounding",
    "moments",
    "loss_scale",
    "keep_batchnorm_fp32",
    "offload",
    "optimizer_in_backward",
    "micro_batches",
}


@dataclass
class Metric:
    """What `evaluate` returns.

    better: "higher" or "lower". chance: what a model that ignores its input reaches, if known.
    margin: up to which difference from fp32 it counts as equivalent, or, with margin_is_share, up
    to which share of fp32's; it is fixed
    before any run. target: to which value the report tells the time of training.

    Raises UserError where one of them is something else.
    """

    name: str | None = None
    better: str | None = None
    chance: float | None = None
    margin: float | None = None
    margin_is_share: bool = False
    target: float | None = None

    def __post_init__(self):
        if self.chance is not None:
            self.chance = number_of("chance of a Metric", self.chance)
        is_named = isinstance(self.name, str) and self.better in ("higher", "lower")
        if self.name is not None and not is_named:
            raise UserError(
                'a Metric needs a name and which is better, such as Metric("accuracy", '
                'better="higher").'
            )


def number_of(what: str, value: Any) -> float:
    """Return a value as a number that a record can hold, or infinity.

    Raise UserError where it is no number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{what} is {reprlib.repr(value)}; it must be a number.") from None
    if abs(number) > MAX_NUMBER:
        print(f"{what} is {number:g}, which is more than a record holds, so it counts as infinite.")
        number = math.copysign(math.inf, number)
    return number


class Gpu(NamedTuple):
    """The device that everything runs on, and the fields of a record that the preflight fills
    in.
    """

    device: torch.device
    fields: dict


def preflight(parameters: Any, without_gpu: dict | None = None, minutes: int | None = None) -> Gpu:
    """Choose the device, check it within seconds, print what was found, and return it.

    without_gpu: parameters that make a training short enough for a CPU. They are set where there is
    no GPU and nobody has chosen a number of steps (max_steps is 0), but not under run_all.py.
    minutes: how long the notebook takes on an H100 with its own parameters, which is printed.

    Precisions that this GPU lacks are left out of parameters.precisions, unless no other is asked
    for; run_all.py wants a record of each that it has planned, so there they stay.

    Raises UserError if PyTorch is too old or memory_limit_gib is more than the GPU has.
    """
    device = choose_device()
    if (
        without_gpu
        and device.type == "cpu"
        and not (parameters.max_steps or os.environ.get(RUNNER_ENV))
    ):
        vars(parameters).update(without_gpu)
        reduced = ", ".join(f"{name} = {value}" for name, value in without_gpu.items())
        print(
            f"A reduced form is run instead: {reduced}. To choose the size yourself, set max_steps."
        )
    # which the first optimizer imports, but its objects are to be frozen, too
    from torch import _dynamo  # noqa: F401

    startup.lap("import")
    # later there may be trainings among the objects, which must be freed
    if gc.get_freeze_count() < FROZEN:
        # a collection took 0.2 s to look through half a million objects of what was imported
        gc.freeze()
    fields, refused = show_preflight(device, parameters.execution, check_supported, minutes)
    if device.type == "cuda" and not os.environ.get(RUNNER_ENV):
        leave_out(parameters, refused)
    limit_memory(parameters.memory_limit_gib, device)
    startup.lap("preflight")
    return Gpu(device, fields)


def leave_out(parameters: Any, refused: dict[str, str]) -> None:
    """Take the refused modes, {name: why}, out of the precisions, unless no other is asked for."""
    possible = [name for name in parameters.precisions if name not in refused]
    if not possible:
        return
    for name in parameters.precisions:
        if name in refused:
            print(f"{name} is left out: {refused[name]}.")
    parameters.precisions = possible


def describe(model: torch.nn.Module, batch: tuple) -> None:
    """Print a model's number of parameters and the shapes of its input and output, tried on the
    CPU.

    `batch` begins with the model's input; two items of it are enough.
    """
    inputs = batch[0].cpu()
    with torch.no_grad():
        outputs = model.cpu().eval()(inputs)
    if isinstance(outputs, tuple):
        outputs = outputs[0]
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{parameters:,} parameters, {tuple(inputs.shape)} -> {tuple(outputs.shape)}")


def first_outputs(model: torch.nn.Module, batch: tuple, count: int) -> torch.Tensor:
    """Return the outputs for the first `count` items of a batch whose first tensor is the
    model's input.
    """
    inputs = next(leaf for _, leaf in leaves_of(batch) if isinstance(leaf, torch.Tensor))
    return model(inputs[:count])


@dataclass(eq=False, repr=False)
class Experiment:
    """Trains one model in every precision and leaves a record of each run.

    name: begins the name of every record; under run_all.py it is that of the notebook.
    parameters: what check_parameters() returns; or a dict of the parameters of OwnExperiment
        (parameters.py) that differ from their defaults, such as precisions, batch_size, epochs, lr,
        execution, seed and output_dir, and of any others of your own.
    data: a TrainingData (tasks/batches.py). It yields the batches, tuples of tensors on the device,
        and says how many samples there are. All batches of a training have one shape.
    make_model(): returns the model with its initial weights. The seed is set before each call.
    compute_loss(model, batch, hidden): returns (loss, hidden). The loss is a mean, a scalar in
        fp32. `hidden` is what the next step needs, such as the detached state of a recurrent
        network: a tensor, a tuple of them or None. It is None at the start of an epoch. A model
        without such a state returns None.
    evaluate(model, batches): returns the metric over data.eval_batches() as a float. Without it
        there is no metric.
    metric: a Metric, which says what `evaluate` returns.
    training_step(model, batch, hidden, compute_loss, optimizer, scaler, precision): takes one step
    and returns
        (detached loss, hidden). The default is training_step in train/step.py, which is also a
        model for your own.
    make_optimizer(weights) or (model), by the name of its argument: returns the optimizer. The
    default is
        torch.optim.SGD at parameters.lr. A CUDA graph needs torch.optim.SGD or AdamW.
    schedule(step): returns the learning rate of the first parameter group, and the others keep
        their ratio to it. `step` counts from 0 through all epochs. A schedule may also ask, by the
        names of its arguments, for `steps_per_epoch` and for `metrics`, those of the epochs so far.
        The default rate is constant.
    infer(model, batch, count): returns the outputs for the first `count` items of a batch, to
        measure inference.
    after_training(model, precision): is called with the trained model in evaluation mode, outside
        all timing.
    log: a TrainingLog, or None.
    model_title: the model's name for people, as in "LSTM, 2 × 200 units"; by default
        parameters.model.
    gpu: what preflight() returned. Without it the preflight runs here.
    identity: what tells this experiment from another one of its name, see train/identity.py.
        The weights of parameters.init_from are added.

    Raises UserError if a parameter is wrong. A run that fails is no error: its record has the
    status and the reason.
    """

    name: str
    parameters: Any
    data: TrainingData
    make_model: Callable
    compute_loss: Callable
    evaluate: Any = None
    metric: Metric | None = None
    _: KW_ONLY
    training_step: Callable | None = None
    make_optimizer: Any = None
    schedule: Callable | None = None
    infer: Callable = first_outputs
    after_training: Callable | None = None
    log: TrainingLog | None = None
    model_title: str | None = None
    gpu: Any = None
    identity: dict[str, str] | None = None

    def __post_init__(self):
        self.name = notebook_name(self.name)
        if isinstance(self.parameters, dict):
            self.parameters = own_parameters(self.name, self.parameters)
        self.make_optimizer = self.make_optimizer or partial(torch.optim.SGD, lr=self.parameters.lr)
        self.gpu = self.gpu or preflight(self.parameters)
        self.device = self.gpu.device

    def run(self) -> list[RunRecord]:
        """Train in every precision and return the records in the order of the precisions.

        The trainings of a way follow each other in a row of a Latin square, see measure/order.py.
        Where run_all.py has planned several ways for this process, they follow in the order in
        which their study names them. The first repetition explains, but not before all is timed,
        because what explains a training may slow the next one. A training that is alone is
        explained at once; several are explained with new models that train a little.
        """
        if self.evaluate is not None and getattr(self.metric, "name", None) is None:
            raise UserError(
                'evaluate needs a metric, such as metric=Metric("accuracy", better="higher").'
            )
        # what an earlier run of this cell or execution has left would count as data
        clear_workspaces()
        memory.release_memory()
        records = self.new_records()
        if reason := refused(records[0]):
            raise UserError(f"no record of this could be read: {reason}.")
        given = AsFound(self.compute_loss, self.training_step, self.schedule, self.evaluate)
        for place, record in enumerate(self.in_order(records), int(os.environ.get(ORDER_ENV, 0))):
            given.put_back()  # a counter of the loss begins anew, as the model does
            record.order_in_comparison = place
            record.runs_before_in_process = next(BEGUN)
            guard = guarded(record, self.parameters.output_dir, self.device)
            with self.as_in(record), guard, backends_as_found():
                self.train_and_evaluate(record, record.precision)
        for record in records:
            if record.status == "ok" and record.profile_reason == NOT_YET_EXPLAINED:
                with self.as_in(record), backends_as_found():
                    self.explain_afterwards(record)
                with suppress(RuntimeError):  # a lost device must not cost the records
                    memory.release_memory()
        return records

    def new_records(self) -> list[RunRecord]:
        """Return the record of each training of this process, way by way."""
        facts = self.facts()
        records = []
        for way in planned_ways():
            settings = vars(self.parameters) | way
            check_remedies(settings)
            records += [
                new_record(self.name, settings, name, facts, way) for name in settings["precisions"]
            ]
        return records

    def in_order(self, records: list[RunRecord]) -> Iterator[RunRecord]:
        """Yield the records in the order in which they are trained."""
        for settings, own in itertools.groupby(records, attrgetter("settings")):
            key = run_id_of(self.name, settings | {"seed": 0, "repeat": 0}, "any")
            order = in_turn(settings["precisions"], key, settings["repeat"] or settings["seed"])
            yield from sorted(own, key=lambda record: order.index(record.precision))

    @contextmanager
    def as_in(self, record: RunRecord) -> Iterator[None]:
        """Give the parameters, within the block, the values that they have in a record."""
        before = {**vars(self.parameters)}
        vars(self.parameters).update(record.settings)
        self.data.seed = self.parameters.seed
        # or Dynamo gives up
        compiles = "compile" in str(record.settings["execution"])
        budget = record.settings.get("memory_budget") or 1.0
        try:
            with (
                torch._dynamo.config.patch(fail_on_recompile_limit_hit=compiles),
                torch._functorch.config.patch(activation_memory_budget=budget),
            ):
                yield
        finally:
            vars(self.parameters).update(before)

    def facts(self) -> dict:
        """Return the fields of a record that are known before a run."""
        data, metric = self.data, self.metric or Metric()
        return {
            "dataset_used": data.used,
            "dataset_source": data.source,
            "data_fingerprint": data.fingerprint,
            "identity": self.identity_with_weights(),
            "data_title": data.title,
            "data_folder": data.folder,
            "data_files_hash": data_files_hash(vars(self.parameters), data.folder),
            "model_title": self.model_title,
            "synthetic": data.source == "synthetic",
            "train_samples": data.train_samples,
            "eval_samples": data.eval_samples,
            "sample_unit": data.sample_unit,
            "data_on_device_mib": torch.cuda.memory_allocated() / MIB
            if self.device.type == "cuda"
            else None,
            "metric_name": metric.name,
            "metric_better": metric.better,
            "chance_metric": metric.chance,
            "metric_margin": metric.margin,
            "metric_margin_is_share": metric.margin_is_share,
            "metric_target": metric.target,
            **self.gpu.fields,
        }

    def identity_with_weights(self) -> dict[str, str] | None:
        """Return the identity with a hash of the weights that a training begins with."""
        begins = self.parameters.init_from
        if not begins:
            return self.identity
        file = Path(self.parameters.data_dir) / begins
        return (self.identity or {}) | {"weights": hash_of_files([file])}

    def make_trainer(self, precision: str) -> Trainer:
        """Return a Trainer of a new model, which starts the same in every precision."""
        settings = self.parameters
        torch.manual_seed(settings.seed)
        # a switch that it sets would hold for the precisions after it, too
        with backends_as_found():
            model = self.make_model()
        if settings.init_from:
            begin_with(model, Path(settings.data_dir) / settings.init_from)
        model = remedied(model, settings)
        if not model.training:
            model.train()  # as from_pretrained() returns none
        if getattr(settings, "channels_last", False):
            model = model.to(memory_format=torch.channels_last)
        model = model.to(self.device)
        if self.device.type == "cpu" and any(
            isinstance(part, torch.nn.RNNBase) for part in model.modules()
        ):
            # oneDNN's recurrent networks support 16-bit types on some processors only.
            torch.backends.mkldnn.set_flags(_enabled=PRECISIONS[precision]["autocast"] is None)
        options = {name: value for name, value in vars(settings).items() if name in FOR_TRAINER}
        return Trainer(
            model,
            precision,
            self.compute_loss,
            device=self.device,
            step_function=self.training_step,
            make_optimizer=self.make_optimizer,
            data=self.data,
            **options,
        )

    def batches(self, epoch: int, precision: str, size: int, ahead: bool = True) -> Iterator[tuple]:
        """Return an epoch's batches in the type of the weights;

        `ahead`: prefetched if the data ask for it.
        """
        every = self.data.train_batches(epoch, PRECISIONS[precision]["weights"], size)
        batches = itertools.islice(every, self.parameters.max_steps or None)
        if ahead and self.data.prefetch:
            return prefetch_to_device(batches, side_stream(self.device))
        return batches

    def train_and_evaluate(self, record: RunRecord, precision: str) -> None:
        """Train a new model in `precision`, measure it and fill in the record."""
        trainer, size = self.warmed_up(record, precision)
        self.train(record, trainer, size)
        samples: Any = record.samples_per_epoch
        summarise_times(record, samples)
        summarise_gpu(record, samples * len(record.epoch_seconds))
        self.try_out(record, trainer, size)  # before the explanation, which trains on
        if self.parameters.repeat:
            why = (
                "only the first repetition is explained, because its steps stand for those "
                "of the others"
            )
            leave_unexplained(record, why)
        elif asked_for(precision) == set():
            leave_unexplained(record, NOT_ASKED)
        elif len(self.parameters.precisions) * len(planned_ways()) > 1:
            leave_unexplained(record, NOT_YET_EXPLAINED if self.device.type == "cuda" else "no GPU")
        else:
            measured = record.model_copy(deep=True)
            measured.status, measured.reason, measured.finished_at = "ok", None, utc_now()
            leave_unexplained(measured, NOT_YET_EXPLAINED)
            # a run that is killed while it is explained keeps it
            write_record(measured, self.parameters.output_dir)
            self.explain_trained(record, trainer, size)

    def warmed_up(self, record: RunRecord, precision: str) -> tuple[Trainer, int]:
        """Return a Trainer that is ready for its first timed step, and its batch size.

        A setting `attention` may name the one backend that computes attention.
        """
        settings, data = self.parameters, self.data
        check_supported(precision, settings.execution, self.device, record.fp16_check)
        if "compile" in settings.execution:
            torch._dynamo.reset()  # no precision runs code that was compiled for another
        set_fp32_precision(precision)
        matmul: Any = torch.backends.cuda.matmul
        matmul.allow_fp16_accumulation = False  # PyTorch's default
        record.allow_fp16_accumulation = matmul.allow_fp16_accumulation
        allow_search(wanted=settings.cudnn_benchmark and not data.shapes)
        size = record.batch_size_used or settings.batch_size
        if size == "max":
            size = largest_batch(
                record,
                partial(self.make_trainer, precision),
                partial(self.batches, 0, precision),
                self.device,
                data.largest_batch,
                data.samples_per_item,
            )
        record.batch_size_used = size
        record.steps_per_epoch = min(data.steps_per_epoch(size), settings.max_steps or sys.maxsize)
        record.samples_per_epoch = data.samples_in(record.steps_per_epoch, size)
        trainer = self.make_trainer(precision)
        batches = partial(self.batches, 0, precision, size)
        use_attention(getattr(settings, "attention", None), trainer, batches)
        describe_trainer(record, trainer)
        warm_up(record, trainer, batches)
        read_switches(record, trainer)
        torch.manual_seed(settings.seed)
        return trainer, size

    def explain_trained(self, record: RunRecord, trainer: Trainer, size: int) -> None:
        """Measure inference and what explains the run.

        The trainer cannot be used for training afterwards.
        """
        began = time.perf_counter()
        shapes = self.data.shapes
        if shapes and 2 * shapes.count(0) <= len(shapes):
            leave_unexplained(
                record, "the batches have several shapes, so no step stands for the others"
            )
            return
        # a profiled step runs alone
        given = partial(self.batches, 0, trainer.precision, size, ahead=False)

        def batches() -> Iterator:  # those of an epoch that have the shape of its first
            return (
                itertools.compress(given(), [shape == 0 for shape in shapes]) if shapes else given()
            )

        explain(record, trainer, batches, self.infer)
        record.explanation_seconds = time.perf_counter() - began

    def lr_at(self, record: RunRecord, metrics: list[float]) -> Callable[[int], float] | None:
        """Return the schedule as a function of the step alone, or None where there is none."""
        schedule = self.schedule
        if schedule is None:
            return None
        known = {"steps_per_epoch": record.steps_per_epoch, "metrics": metrics}
        asked = {name: known[name] for name in known.keys() & signature(schedule).parameters}
        return lambda step: number_of("what schedule returned", schedule(step, **asked))

    def explain_afterwards(self, record: RunRecord) -> None:
        """Explain a run that is measured, with a new model that trains a few steps.

        A failure leaves its reason.
        """
        # so the busy fraction and the like are those of its own median step
        other = copy.deepcopy(record)
        leave_unexplained(other, None)
        try:
            clear_workspaces()  # those of the run before would count as data
            next(BEGUN)
            trainer, size = self.warmed_up(other, record.precision)
            lr_at = self.lr_at(other, [])
            other.steps_per_epoch = min(other.steps_per_epoch, EXPLAINED_STEPS)
            batches = itertools.islice(
                self.batches(0, record.precision, size), other.steps_per_epoch
            )
            timed_epoch(other, trainer, batches, lr_at, f"{record.precision}, to be explained")
            self.explain_trained(other, trainer, size)
            for part in EXPLAINING:
                setattr(record.measured, part, getattr(other.measured, part))
        except Exception as error:  # the run itself is measured and must not be lost
            leave_unexplained(record, error_line(error))
            memory.clear_tracebacks(error)
        write_record(record, self.parameters.output_dir)

    def train(self, record: RunRecord, trainer: Trainer, size: int) -> None:
        """Train and evaluate for all epochs."""
        epochs = self.parameters.epochs
        lr_at = self.lr_at(record, record.metric)
        for epoch in range(epochs):
            if self.log is not None:
                self.log.begin(size)
            batches = self.batches(epoch, trainer.precision, size)
            timed_epoch(
                record,
                trainer,
                batches,
                lr_at,
                f"{trainer.precision}, epoch {epoch + 1}/{epochs}",
                self.log,
            )
            read_switches(record, trainer)
            if self.evaluate is not None:
                record.metric.append(self.measure(record, trainer, self.data.eval_batches, size))

    def measure(self, record: RunRecord, trainer: Trainer, batches: Callable, size: int) -> float:
        """Return the metric of the model over `batches(dtype, size)`."""
        began = time.perf_counter()
        with evaluating(trainer) as model, progress(None, f"{trainer.precision}, evaluating"):
            metric = self.evaluate(model, batches(PRECISIONS[trainer.precision]["weights"], size))
        record.evaluation_seconds = (record.evaluation_seconds or 0.0) + time.perf_counter() - began
        return number_of("what evaluate returned", metric)

    def try_out(self, record: RunRecord, trainer: Trainer, size: int) -> None:
        """Save the trained model where that is asked for, call after_training with it, and note
        its metric on the test set if there is one.
        """
        if beginning := self.parameters.save_to:
            torch.save(
                trainer.network.state_dict(),
                Path(self.parameters.data_dir) / f"{beginning}-{trainer.precision}.pt",
            )
        if self.after_training is not None:
            with evaluating(trainer) as model:
                self.after_training(model, trainer.precision)
        batches = self.data.test_batches
        if self.evaluate is not None and batches(torch.float32, size) is not None:
            record.test_metric = self.measure(record, trainer, batches, size)


def begin_with(model: torch.nn.Module, file: Path) -> None:
    """Give a model the weights of a file. Raise UserError where they are another model's."""
    try:
        found = model.load_state_dict(torch.load(file, "cpu", weights_only=True), strict=False)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise UserError(f"init_from {file} cannot be used: {error_line(error)}") from None
    # where batch normalisation does not count its batches, it keeps no count
    missing = [name for name in found.missing_keys if not name.endswith("num_batches_tracked")]
    if wrong := [*missing, *found.unexpected_keys]:
        raise UserError(f"init_from {file} holds another model's weights, as {wrong[0]} shows.")


def asked_for(precision: str) -> set[str] | None:
    """Return which parts of an explanation a study asks for where a precision has them; None:
    all.
    """
    names = (given_study() or {}).get("show", {}).get("explained")
    if names is None:
        return None
    return {*names} - (set() if may_lose_updates(precision) else {"update"})


def those_asked_for(record: RunRecord, stages: list[tuple]) -> list[tuple]:
    """Return the stages (part, function) that a study asks for, and note that of the others."""
    asked = asked_for(record.precision)
    if asked is None:
        return stages
    leave_unexplained(record, NOT_ASKED)
    for what in asked:
        setattr(record, f"{what}_reason", None)
    return [one for one in stages if one[0] in asked]


def leave_unexplained(record: RunRecord, reason: str | None) -> None:
    """Note why nothing explains the run. None forgets such a reason."""
    record.inference_reason = record.profile_reason = reason
    record.limit_reason = record.ledger_reason = record.attention_reason = reason
    if "fp16" in record.precision:
        record.gradient_reason = reason
    if may_lose_updates(record.precision):
        record.update_reason = reason


def explain(
    record: RunRecord, trainer: Trainer, batches: Callable, infer: Callable = first_outputs
) -> None:
    """Measure inference and what explains the run: memory, profile, roofline, lost gradients.
    Failures leave a reason.

    `batches()` gives an epoch's batches. The trainer takes more steps here and cannot be used for
    training afterwards.
    """
    if trainer.device.type != "cuda":
        leave_unexplained(record, "no GPU")
        return
    given = cycle_batches(batches)
    # the profile leaves workspaces behind, so memory comes before it
    stages: list[tuple[str, Callable]] = [
        ("inference", partial(measure_inference, infer=infer)),
        ("ledger", read_memory_breakdown),
        ("profile", profile_steps),
        ("attention", read_attention),
        ("limit", count_work),
        ("limit", measure_limits),
        ("gradient", read_gradients),
        ("update", read_lost_updates),
    ]
    if trainer.captured:  # the memory breakdown takes steps outside the graph, which drop it
        stages[1:3] = reversed(stages[1:3])
    if not (given_study() or {}).get("show", {}).get("inference"):
        del stages[0]
        record.inference_reason = NOT_ABOUT_INFERENCE
    for what, measure in those_asked_for(record, stages):
        try:
            memory.release_memory()
            with progress(None, f"{record.precision}, explaining: {what}"):
                measure(record, trainer, given)
        except Exception as error:  # the run itself is measured and must not be lost
            setattr(record, f"{what}_reason", error_line(error))


def advised(record: RunRecord, error: BaseException) -> str:
    """Return why a training ran out of memory, what filled it, and which remedy comes first."""
    reason = f"{error_line(error)} {first_remedy(error)}".strip()
    if "checkpointing" not in record.settings:
        return reason
    limit = record.settings["memory_limit_gib"] or (record.device_total_mib or 0) / 1024
    return (
        f"{reason} The fastest way that fits is predicted by: python run_all.py "
        f"fit/{sized(record.notebook, record.settings)} -p memory_limit_gib {limit:.4g}"
    )


@contextmanager
def guarded(record: RunRecord, output_dir: str | Path, device: torch.device) -> Iterator[RunRecord]:
    """Run the block as one run and always write its record. An exception becomes its status and
    reason.

    Only UserError and an interrupt end the notebook, without a record.
    """
    record.started_at = utc_now()
    clear_workspaces()
    memory.reset_peaks(device)  # else the peak of the run before would count
    try:
        describe_environment(record, device)
        yield record
        record.status, record.reason = "ok", None
    except UserError:
        raise
    except (Unsupported, Diverged, Failed) as error:
        record.status, record.reason = type(error).__name__.lower(), str(error)
    except Exception as error:
        record.status = "oom" if memory.is_out_of_memory(error) else "failed"
        record.reason = error_line(error)
        if record.status == "oom":
            record.reason = advised(record, error)
        memory.read_peaks(record, device, "_with_warmup")  # how far it came
        if record.status == "failed":
            print(shown_traceback(error))
        memory.clear_tracebacks(error)
    with suppress(RuntimeError):  # a lost device must not cost the record
        memory.release_memory()
    record.finished_at = utc_now()
    write_record(record, output_dir)
    result = f"{record.status} - {record.reason}"
    if record.status == "ok":
        seconds = statistics.fmean(record.epoch_seconds)
        result = f"{seconds:.2f} s/epoch, {record.samples_per_second:,.0f} {record.sample_unit}/s"
    print(f"{record.precision}: {result}")
