"""The method: the training step, warm-up and the timed epoch."""

import math
import statistics
import time
from contextlib import contextmanager
from functools import partial

import torch

from .cuda_graph import CapturedStep, DeviceSGD
from .errors import Diverged
from .gpu.energy import watched
from .loss_scaling import LossScaleTrace, make_scaler
from .memory import read_context, read_device_memory, read_peaks, release_memory, reset_peaks
from .precision import Precision, autocast, cast_model, compiled, keep_masters
from .progress import progress
from .timing import StepClock, count_syncs, in_blocks, read_compiler, startup, synchronize, waited_for


def training_step(model, batch, hidden, compute_loss, optimizer, scaler, precision, clip=None):
    """Take one step and return (loss, hidden): the step that the notebooks show, for experiments that bring none.

    `compute_loss(model, batch, hidden)` returns (mean loss, hidden). `clip` is the largest norm of the gradient.
    """
    optimizer.zero_grad(set_to_none=True)
    with precision.autocast():
        loss, hidden = compute_loss(model, batch, hidden)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), hidden


class Trainer:
    """Takes the steps of one training run, in eager mode or as replays of a CUDA graph.

    `compute_loss(model, batch, hidden)` returns (mean loss as a fp32 scalar, hidden); `hidden` is what the next step
    needs (the hidden state of an RNN; None stands for zeros), or None. `step_function` is like training_step above,
    and `make_optimizer(weights)` returns the optimizer; without them they are training_step with `clip`, and
    torch.optim.SGD with the other `options`. Under torch.compile network and loss are compiled as one; `model`, the
    network compiled alone, is for inference. A step of a CUDA graph overwrites the last loss and hidden state.
    """

    def __init__(
        self,
        model,
        precision,
        compute_loss,
        *,
        device,
        step_function=None,
        make_optimizer=None,
        execution="eager",
        compile_mode="default",
        loss_scale="dynamic",
        keep_batchnorm_fp32=False,
        clip=None,
        **options,
    ):
        self.precision, self.device, self.compute_loss = precision, device, compute_loss
        self.step_function = step_function or partial(training_step, clip=clip)
        self.fixed_scale = None if loss_scale == "dynamic" else float(loss_scale)
        self.masters, self.weights = cast_model(model, precision, keep_batchnorm_fp32), list(model.parameters())
        self.network, self.model, self.loss_of = model, model, compute_loss  # `network` stays as it was built
        if "compile" in execution:
            torch.compiler.reset()  # or it would give up silently, after a few recompilations by the runs before
            self.model = compiled(model)  # for inference, which no longer searches
            self.loss_of = compiled(compute_loss, compile_mode)
        self.scaler = make_scaler(precision, loss_scale, device, execution)
        self.steps, self.updates, self.captured = 0, 0, None
        # Autocast must not keep copies of the weights within a graph: they would be those of its capture.
        self.mode = Precision(precision, device, cache="cuda_graph" not in execution)
        self.optimizer = make_optimizer(self.masters) if make_optimizer else torch.optim.SGD(self.masters, **options)
        for group in self.optimizer.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True  # as PyTorch itself decides on a GPU; so the CPU computes the same
        if "cuda_graph" in execution:
            self.optimizer = DeviceSGD.like(self.optimizer)
            self.captured = CapturedStep(self.eager_step, self.scaler.found, device)
        else:
            self.optimizer.register_step_post_hook(self._count_update)
        keep_masters(self.optimizer, self.weights, self.masters)

    def _count_update(self, *_):
        self.updates += 1

    @property
    def skipped_steps(self):
        """How many steps were not carried out because a gradient overflowed; only a graph's scaler must be asked."""
        return int(self.scaler.skipped.item()) if self.captured else self.steps - self.updates

    def step(self, batch, hidden=None):
        """Take one step and return (loss on the device, hidden); a step that overflows changes no weight."""
        self.steps += 1
        return self.captured.step(batch, hidden) if self.captured else self.eager_step(batch, hidden)

    def eager_step(self, batch, hidden=None):
        """Take a step, not counted, operation by operation: what a graph captures, and what instruments look into."""
        if self.captured:
            self.captured.graph = None  # outside its capture cuDNN may free the dropout state that the graph uses
        return self.step_function(self.network, batch, hidden, self.loss_of, self.optimizer, self.scaler, self.mode)

    def set_lr(self, lr):
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"].fill_(lr) if self.captured else lr

    def start_again(self):
        """Forget momenta and counts; what a graph reads stays where it is."""
        if self.captured:
            self.optimizer.reset()
            self.scaler.skipped.zero_()
        else:
            self.optimizer.state.clear()
        self.steps = self.updates = 0


class LossMeter:
    """Sums the losses of an epoch on the device and notes which steps were skipped: in eager mode the host knows."""

    def __init__(self, trainer):
        self.trainer, self.updates, self.skipped = trainer, trainer.updates, []
        self.total = torch.zeros((), device=trainer.device)

    def step(self, loss):
        self.skipped.append(self.trainer.updates == self.updates)
        self.updates = self.trainer.updates
        if not self.skipped[-1]:
            self.total += loss

    def end(self):
        """Return (mean loss of the steps that were not skipped, None without one; [whether each was skipped])."""
        counted = self.skipped.count(False)
        return self.total.item() / counted if counted else None, self.skipped


class DeviceLossMeter:
    """Notes the outcome of every step of an epoch on the device, (loss, skipped), and reads them when it is over."""

    def __init__(self, outcome, room=65536):
        self.outcome, self.count, self.read = outcome, 0, []
        self.rows = torch.zeros(room, 2, device=outcome.device)

    def step(self, loss):
        """Note the last step, whose loss is part of its outcome."""
        self.rows[self.count % len(self.rows)].copy_(self.outcome)
        self.count += 1
        if self.count % len(self.rows) == 0:  # waits for the device, once in so many steps
            self.read.append(self.rows.to("cpu", copy=True))

    def end(self):
        """Return (mean loss of the steps that were not skipped, None without one; [whether each was skipped])."""
        rows = torch.cat([*self.read, self.rows[: self.count % len(self.rows)].cpu()]).double()
        losses, skipped = rows[:, 0], rows[:, 1] != 0
        return (None if skipped.all() else losses[~skipped].mean().item()), skipped.tolist()


class TrainingLog:
    """Notes loss and running accuracy on the device every so many steps of an epoch; 0: never."""

    def __init__(self, every, device):
        self.every = every
        self.right = torch.zeros((), device=device)  # samples classified correctly so far in the epoch
        self.begin(1)

    def begin(self, batch_size):
        """Start an epoch of batches of this size."""
        self.batch_size, self.notes = batch_size, []
        self.right.zero_()

    def count(self, logits, labels):
        """Count what a batch's logits (N, classes) get right; called where the loss is computed."""
        if self.every:
            self.right.add_((logits.detach().argmax(1) == labels).sum())

    def step(self, number, loss):
        """Take note of step `number` of the epoch, counted from 1, without waiting for the device."""
        if self.every and number % self.every == 0:
            self.notes.append((number, loss.clone(), self.right.clone()))  # a graph overwrites its loss

    def entries(self):
        """Return [[step, loss of that step, accuracy so far]], which waits for the device."""
        return [[step, loss.item(), right.item() / (step * self.batch_size)] for step, loss, right in self.notes]


def describe_trainer(record, trainer, switches, mode):
    """Fill in the precision as it really is: the switches read back, the autocast type, the types of the weights."""
    record.fp32_precision_matmul = switches["matmul"]
    record.fp32_precision_conv, record.fp32_precision_rnn = switches["conv"], switches["rnn"]
    record.autocast_dtype = str(mode["autocast"]).removeprefix("torch.") if mode["autocast"] else None
    types = {str(weight.dtype).removeprefix("torch.") for weight in trainer.weights}
    record.parameter_dtypes = " + ".join(sorted(types))


SEARCH_LIMIT = 10  # algorithms that cuDNN may time for each convolution, best guess first: PyTorch's default; 0: all
SEARCH_SECONDS = 60  # that it may take, about, where the time of a step is known before: with batch_size="max"


def allow_search(step_seconds=0.0):
    """Let cuDNN time its algorithms, SEARCH_LIMIT at most, at each new shape; it remembers those of this process.

    Fewer where a step takes `step_seconds` and that is long: each algorithm costs about six steps, and the search is to
    stay near SEARCH_SECONDS.
    """
    room = max(1, int(SEARCH_SECONDS / 6 / step_seconds)) if step_seconds else 0
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = min(SEARCH_LIMIT or room, room or SEARCH_LIMIT)


def read_search(record, trainer, first, steady):
    """Fill in what cuDNN's search took: the `first` step, s, without compiling, less a `steady` one.

    An upper bound: kernels are loaded in that step, too.
    """
    convolves = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in trainer.network.modules())
    if trainer.device.type != "cuda":
        record.search_reason = "no GPU"
    elif not (convolves and torch.backends.cudnn.benchmark):
        record.search_reason = "cuDNN's search is off" if convolves else "the model has no convolution"
    elif record.search_seconds is None:  # else it was in the last probe of the largest batch, or in another repeat
        record.search_seconds = max(0.0, first - steady)
        record.search_limit_algorithms = torch.backends.cudnn.benchmark_limit


def cycle_batches(batches):
    """Yield from `batches()` again and again."""
    while True:
        yield from batches()


def warm_up(record, trainer, batches, at_least=10, at_most=60):
    """Take steps until their time is stable, then put weights and optimizer back; only the loss scale stays settled.

    cuDNN tries its algorithms, torch.compile compiles and the allocator grows here, outside every timing. Stable:
    the median of the last five steps within 5% of the five before, and none of them skipped. Where the last step was
    skipped, nothing has settled (a hidden state that is no longer finite has every step skipped, at any scale), and the
    scale is put back to that of the last step that was carried out. The memory peak so far goes to the record apart,
    because the search's workspaces can be larger than the training.
    """
    if trainer.device.type != "cuda":
        at_least = at_most = 1 if trainer.model is trainer.network else 3  # compiled without hidden, and with
    startup.lap("model")
    compiled = read_compiler(trainer)["seconds"]
    saved = {name: value.to("cpu", copy=True) for name, value in trainer.network.state_dict().items()}
    masters = [master.detach().to("cpu", copy=True) for master in trainer.masters]
    started, times, skips, hidden, first, scale = time.perf_counter(), [], [0], None, None, None
    if trainer.captured:  # its capture measures the memory anew
        trainer.captured.before_capture = lambda: read_peaks(record, trainer.device, "_with_warmup")
    for batch in cycle_batches(batches):
        begin = time.perf_counter()
        _, hidden = trainer.step(batch, hidden)
        synchronize(trainer.device)
        times.append(time.perf_counter() - begin)
        first = first or times[0] - (read_compiler(trainer)["seconds"] - compiled)
        skips.append(trainer.skipped_steps)
        scale = trainer.scaler.get_scale() if skips[-1] == skips[-2] else scale
        before, last = statistics.median(times[-10:-5] or times), statistics.median(times[-5:])
        stable = abs(last - before) <= 0.05 * before and skips[-1] == skips[-5:][0]
        if len(times) >= at_most or (stable and len(times) >= at_least):
            break
    read_search(record, trainer, first, statistics.median(times[-5:]))
    read_peaks(record, trainer.device, "_with_warmup")
    release_memory(trainer.device)  # what the search took is handed back; three more steps rebuild the working set
    read_context(record, trainer.device)
    record.host_syncs_per_step = count_syncs(trainer, batches, hidden, steps=3)
    with torch.no_grad():
        for name, value in trainer.network.state_dict().items():
            value.copy_(saved[name])
        for master, value in zip(trainer.masters, masters, strict=True):
            master.copy_(value)
    record.warmup_steps, record.warmup_skipped_steps = trainer.steps, trainer.skipped_steps
    record.warmup_seconds = time.perf_counter() - started
    record.compile_seconds = read_compiler(trainer)["seconds"] - compiled
    if scale and skips[-1] > skips[-2]:
        trainer.scaler.factor.fill_(scale) if trainer.captured else trainer.scaler.update(scale)
    trainer.start_again()


def timed_epoch(record, trainer, batches, lr_at=None, label="", log=None):
    """Train on `batches` once under the meter and add time, loss and memory to the record.

    The loop asks the GPU for nothing: the loss is summed there, and read when the clock has stopped. `lr_at(step)`
    gives the learning rate, with steps counted through all epochs; `log` is a TrainingLog. Raises Diverged where the
    loss is not finite.
    """
    reset_peaks(trainer.device)
    unseen = trainer.captured.unseen() if trainer.captured else 0
    rate = None
    hidden, waits, clock, scales = None, [], StepClock(trainer.device), LossScaleTrace(record, trainer)
    tally = DeviceLossMeter(trainer.captured.outcome) if trainer.captured else LossMeter(trainer)
    compiled = read_compiler(trainer)["graphs"]
    with progress(record.steps_per_epoch, label) as bar, watched(record, trainer.device):
        startup.end(record)
        clock.start()
        for batch in waited_for(batches, waits):
            if lr_at is not None and rate != (rate := lr_at(trainer.steps)):
                trainer.set_lr(rate)
            loss, hidden = trainer.step(batch, hidden)
            tally.step(loss)
            clock.tick()
            if log is not None:
                log.step(len(clock.marks) - 1, loss)
            bar.advance()
        seconds, step_ms = clock.stop()
    record.epoch_seconds.append(seconds)
    record.step_ms_all.extend(step_ms)
    record.block_seconds.extend(in_blocks(step_ms))
    if log is not None:
        record.training_log.extend([len(record.epoch_seconds), *entry] for entry in log.entries())
    record.data_wait_seconds_all.append(sum(waits))
    mean_loss, skipped = tally.end()
    record.skipped_steps = (record.skipped_steps or 0) + sum(skipped)
    read_peaks(record, trainer.device, unseen=unseen)
    if len(record.epoch_seconds) == 1:  # later ones begin with what an evaluation has left with the allocator
        read_device_memory(record, trainer.device)
    scales.end(skipped)
    if read_compiler(trainer)["graphs"] > compiled:
        raise RuntimeError("torch.compile compiled again within a timed epoch, so that its time is not the training's")
    if mean_loss is None:
        scale = trainer.scaler.get_scale()
        why = "the gradients overflow fp16" if scale >= 1 else "loss or gradients are not finite, even"
        raise Diverged(f"every step was skipped: {why} at loss scale {scale:g}")
    record.train_loss.append(mean_loss)
    if not math.isfinite(record.train_loss[-1]):
        raise Diverged(f"the training loss is not finite after {trainer.steps} steps")


@contextmanager
def evaluating(trainer):
    """Evaluation mode without gradients, and without a cuDNN search, whose workspaces would count as training's."""
    trainer.network.eval()
    torch.backends.cudnn.benchmark = False
    with torch.no_grad(), autocast(trainer.precision, trainer.device):
        yield trainer.network
    torch.backends.cudnn.benchmark = True
    trainer.network.train()
