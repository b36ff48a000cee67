"""An experiment: one model trained in every precision, under equal conditions, with a record of each run."""

import statistics
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import torch

from .batch_size import limit_memory, resolve_batch_size
from .data.batches import prefetch_to_device, side_stream
from .environment import choose_device, describe_environment
from .errors import Diverged, Unsupported, UserError, error_line
from .gpu.energy import summarise_gpu
from .gpu.nvml import MIB
from .gpu.preflight import clear_workspaces, show_preflight
from .inference import measure_inference
from .loss_scaling import read_gradients
from .memory import clear_tracebacks, is_out_of_memory, read_memory_breakdown, read_peaks, release_memory, reset_peaks
from .parameters import OWN_EXPERIMENT, check_output_dir, check_values
from .precision import PRECISIONS, check_supported, set_fp32_precision
from .profiling import count_work, profile_steps
from .record import find_diverged, new_record, utc_now, write_record
from .roofline import measure_limits
from .timing import startup, summarise_times
from .training import Trainer, allow_search, cycle_batches, describe_trainer, evaluating, timed_epoch, warm_up


@dataclass(frozen=True)
class Metric:
    """What counts as good: its name, whether "higher" or "lower" is better, and what a model that ignores its input
    reaches (`chance`, None where that is not known)."""

    name: str
    better: str
    chance: float | None = None


@dataclass(frozen=True)
class Gpu:
    """The device that everything runs on, and the fields of a record that the preflight fills in."""

    device: torch.device
    fields: dict


def preflight(parameters):
    """Choose the device, check it within seconds, show what was found, and return it as a Gpu.

    Raises UserError where PyTorch does not fit the GPU, or memory_limit_gib is more than it has.
    """
    device = choose_device()
    startup.lap("import")
    fields = show_preflight(device, parameters.execution, PRECISIONS, check_supported)
    limit_memory(parameters.memory_limit_gib, device)
    startup.lap("preflight")
    return Gpu(device, fields)


def describe(model, batch):
    """Print how many parameters a model has, and the shapes of what goes in and comes out, tried on the CPU.

    `batch` is a tuple that begins with the model's input; two items of it are enough.
    """
    inputs = batch[0].cpu()
    with torch.no_grad():
        outputs = model.cpu().eval()(inputs)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{parameters:,} parameters, {tuple(inputs.shape)} -> {tuple(outputs.shape)}")


class Experiment:
    """Trains one model in every precision and leaves a record of each run.

    name: of the experiment; begins the name of every record.
    parameters: a namespace as check_parameters() returns it, or a dict of those of OWN_EXPERIMENT that differ from
        their defaults: precisions, batch_size, epochs, lr, execution, seed, output_dir and so on.
    data: a TrainingData (data/batches.py): the batches, on the device, and what the record says of them.
    make_model(): returns the model with its initial weights; the seed is set before each call.
    compute_loss(model, batch, hidden): returns (mean loss as a fp32 scalar, hidden). `hidden` is what the next step
        needs, such as the state of a recurrent network, and None at the start of an epoch; others return None.
    evaluate(model, batches): returns the metric over data.eval_batches(), as a float. Without it there is no metric.
    metric: a Metric.
    training_step: like training.training_step, which is the default.
    make_optimizer(weights): returns the optimizer; the default is torch.optim.SGD at parameters.lr. A CUDA graph needs
        torch.optim.SGD.
    schedule(step, steps_per_epoch, metrics): returns the learning rate of a step, counted through all epochs; `metrics`
        are those of the epochs so far. The default is a constant rate.
    infer(model, batch, count): returns the outputs for the first `count` items of a batch, for the cost of inference.
    after_training(model, precision): is called with the trained model, in evaluation mode, outside of all timing.
    log: a TrainingLog, or None.
    gpu: what preflight() returned, which is asked here where it is not given.

    Raises UserError where a value is wrong. A failure of a run is no error: its record has the status and the reason.
    """

    def __init__(
        self,
        name,
        parameters,
        data,
        make_model,
        compute_loss,
        evaluate=None,
        metric=None,
        *,
        training_step=None,
        make_optimizer=None,
        schedule=None,
        infer=None,
        after_training=None,
        log=None,
        gpu=None,
    ):
        self.name, self.data, self.make_model, self.compute_loss = name, data, make_model, compute_loss
        self.parameters = own_parameters(name, parameters) if isinstance(parameters, dict) else parameters
        self.evaluate, self.metric = evaluate, metric or Metric(None, None)
        self.training_step, self.schedule, self.log = training_step, schedule, log
        self.make_optimizer = make_optimizer or partial(torch.optim.SGD, lr=self.parameters.lr)
        self.infer = infer or (lambda model, batch, count: model(batch[0][:count]))
        self.after_training = after_training
        self.gpu = gpu or preflight(self.parameters)
        self.device = self.gpu.device

    def run(self):
        """Train every precision, `repeats` times each, and return the records in the order of the precisions.

        The order turns round from one repetition to the next (a b c, c b a), so that a drift of the clock cancels.
        """
        release_memory(self.device)  # what an earlier run of this cell has left would count as data
        settings = self.parameters
        facts = self.facts()
        records = {name: new_record(self.name, vars(settings), name, facts) for name in settings.precisions}
        for repeat in range(settings.repeats):
            for precision in settings.precisions[:: 1 if repeat % 2 == 0 else -1]:
                if repeat == 0 or records[precision].status == "ok":
                    with guarded(records[precision], settings.output_dir, self.device) as record:
                        self.train_and_evaluate(record, precision)
        return judged(records.values(), settings.output_dir)

    def facts(self):
        """Return the fields of a record that are known before a run."""
        data, metric = self.data, self.metric
        return {
            "dataset_used": data.used,
            "dataset_source": data.source,
            "synthetic": data.source == "synthetic",
            "train_samples": data.train_samples,
            "eval_samples": data.eval_samples,
            "sample_unit": data.sample_unit,
            "metric_name": metric.name,
            "metric_better": metric.better,
            "chance_metric": metric.chance,
            "data_on_device_mib": torch.cuda.memory_allocated() / MIB if self.device.type == "cuda" else None,
            **self.gpu.fields,
        }

    def make_trainer(self, precision):
        """Return the model and its optimizer as they are at the start, the same for every precision."""
        settings = self.parameters
        torch.manual_seed(settings.seed)
        model = self.make_model()
        if getattr(settings, "channels_last", False):
            model = model.to(memory_format=torch.channels_last)
        model = model.to(self.device)
        if self.device.type == "cpu" and any(isinstance(part, torch.nn.RNNBase) for part in model.modules()):
            # oneDNN's recurrent networks know 16-bit types on some processors only.
            torch.backends.mkldnn.set_flags(_enabled=PRECISIONS[precision]["autocast"] is None)
        return Trainer(
            model,
            precision,
            self.compute_loss,
            device=self.device,
            step_function=self.training_step,
            make_optimizer=self.make_optimizer,
            execution=settings.execution,
            compile_mode=settings.compile_mode,
            loss_scale=settings.loss_scale,
            keep_batchnorm_fp32=getattr(settings, "keep_batchnorm_fp32", False),
        )

    def batches(self, epoch, precision, size, ahead=True):
        """Return an epoch's batches in the type of the mode's weights; `ahead`: each made during the step before."""
        batches = self.data.train_batches(epoch, PRECISIONS[precision]["weights"], size)
        return prefetch_to_device(batches, side_stream(self.device)) if ahead and self.data.prefetch else batches

    def train_and_evaluate(self, record, precision):
        """Train the model once in `precision` from the same start and fill in the record."""
        settings, data = self.parameters, self.data
        check_supported(precision, settings.execution, self.device, record.fp16_check)
        switches = set_fp32_precision(precision)
        allow_search()
        build, first_epoch = partial(self.make_trainer, precision), partial(self.batches, 0, precision)
        size = resolve_batch_size(
            record,
            settings.batch_size,
            build,
            first_epoch,
            self.device,
            data.largest_batch,
            data.samples_per_item,
        )
        data.set_batch_size(size)
        steps = record.steps_per_epoch = data.steps_per_epoch(size)
        record.samples_per_epoch = steps * size * data.samples_per_item
        trainer = build()
        describe_trainer(record, trainer, switches, PRECISIONS[precision])
        warm_up(record, trainer, partial(first_epoch, size))
        torch.manual_seed(settings.seed)
        metrics = []
        for epoch in range(settings.epochs):
            rate = partial(self.schedule, steps_per_epoch=steps, metrics=metrics) if self.schedule else None
            label = f"{precision}, epoch {epoch + 1}/{settings.epochs}"
            if self.log is not None:
                self.log.begin(size)
            timed_epoch(record, trainer, self.batches(epoch, precision, size), rate, label, self.log)
            if self.evaluate is not None:
                metrics.append(self.measure(trainer, data.eval_batches, size))
                record.metric.append(metrics[-1])
        summarise_times(record, record.samples_per_epoch)
        summarise_gpu(record, record.samples_per_epoch * len(record.epoch_seconds))
        self.try_out(record, trainer, size)  # before explain(), which trains on
        if record.gpu_busy_fraction is None:  # once, not at every repeat
            keep_training(record, settings.output_dir)
            given = partial(first_epoch, size, ahead=False)  # nothing else may run in a profiled step
            measure_inference(record, trainer, given(), self.infer)
            explain(record, trainer, given, settings.output_dir)

    def measure(self, trainer, batches, size):
        """Return the metric of the model over `batches(dtype, size)`."""
        with evaluating(trainer) as model:
            return self.evaluate(model, batches(PRECISIONS[trainer.precision]["weights"], size))

    def try_out(self, record, trainer, size):
        """Give the trained model to after_training, then note its metric on the test set where there is one."""
        if self.after_training is not None:
            with evaluating(trainer) as model:
                self.after_training(model, trainer.precision)
        batches = self.data.test_batches
        if self.evaluate is not None and batches(torch.float32, size) is not None:
            record.test_metric = self.measure(trainer, batches, size)


def own_parameters(name, given):
    """Return a dict of parameters, completed with the defaults and checked, as a namespace."""
    values = {parameter.name: parameter.default for parameter in OWN_EXPERIMENT}
    checked = check_values(name, values | given, OWN_EXPERIMENT)
    check_output_dir(checked["output_dir"])
    return SimpleNamespace(**checked)


def keep_training(record, folder):
    """Write what the training has measured before it is explained: a run that is ended meanwhile keeps that."""
    names = ("inference", "profile", "limit", "ledger", *["gradient"] * ("fp16" in record.precision))
    ended = {f"{name}_reason": "the run was ended before it was explained" for name in names}
    write_record(replace(record, status="ok", reason=None, finished_at=utc_now(), **ended), folder)


def explain(record, trainer, batches, folder, hidden=None):
    """Measure what explains the run, after its last epoch; what fails leaves its reason and takes nothing else down.

    `batches()` gives an epoch's batches. The model takes more steps here and is of no more use for training.
    """
    if trainer.device.type != "cuda":
        record.profile_reason = record.limit_reason = record.ledger_reason = "no GPU"
        return
    given = cycle_batches(batches)
    stages = [
        ("ledger_reason", read_memory_breakdown),  # first: the others leave workspaces behind
        ("profile_reason", profile_steps),
        ("limit_reason", count_work),
        ("limit_reason", lambda record, trainer, *_: measure_limits(record, trainer, folder)),
        ("gradient_reason", read_gradients),
    ]
    if trainer.captured:  # the profile is of replays, and a step outside the graph drops it
        stages[:2] = stages[1::-1]
    for reason, measure in stages:
        try:
            release_memory(trainer.device)
            measure(record, trainer, given, hidden)
        except Exception as error:  # a run that was measured is not lost for want of its explanation
            setattr(record, reason, error_line(error))


@contextmanager
def guarded(record, output_dir, device):
    """Run the block as one run: whatever ends it becomes the record's status and reason, the device is freed, the
    record is written, and the notebook goes on. A user's mistake (UserError) and an interrupt do end the notebook."""
    record.started_at = utc_now()
    if device.type == "cuda":
        clear_workspaces()
    reset_peaks(device)  # or this run would inherit the peak of the one before it in this kernel
    described = None
    try:
        describe_environment(record, device)
        yield record
        record.status, record.reason = "ok", None
    except UserError:
        raise
    except (Unsupported, Diverged) as error:
        record.status, record.reason = type(error).__name__.lower(), str(error)
    except Exception as error:
        record.status = "oom" if is_out_of_memory(error) else "failed"
        read_peaks(record, device, "_with_warmup")  # how far it came
        record.reason = error_line(error)
        described = traceback.format_exc() if record.status == "failed" else None
        clear_tracebacks(error)
    with suppress(RuntimeError):  # a device that answers nothing any more must not cost the record
        release_memory(device)
    record.finished_at = utc_now()
    write_record(record, output_dir)
    if described:
        print(described)
    print(one_line(record))


def judged(records, output_dir):
    """Return the records as a list; those that learned nothing where another precision did are marked `diverged`."""
    records = list(records)
    for run_id, reason in find_diverged([vars(record) for record in records]).items():
        record = next(record for record in records if record.run_id == run_id)
        record.status, record.reason = "diverged", reason
        write_record(record, output_dir)
        print(one_line(record))
    return records


def one_line(record):
    """Return the result of a run as a sentence."""
    if record.status != "ok":
        return f"{record.precision}: {record.status} - {record.reason}"
    peak = f", peak {record.peak_allocated_mib:,.0f} MiB" if record.peak_allocated_mib else ""
    seconds = statistics.median(record.epoch_seconds)
    speed = f"{seconds:.2f} s/epoch, {record.samples_per_second:,.0f} {record.sample_unit}/s"
    metric = f", {record.metric_name} {record.metric[-1]:.4g}" if record.metric else ""
    return f"{record.precision}: {speed}{peak}{metric}"
