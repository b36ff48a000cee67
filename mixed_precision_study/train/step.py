"""The method: the training step, warm-up and the timed epoch."""

import inspect
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ..measure.energy import watched
from ..measure.memory import (
    read_context,
    read_device_memory,
    read_peaks,
    release_memory,
    reset_peaks,
)
from ..measure.progress import progress
from ..measure.timing import (
    StepClock,
    count_syncs,
    in_blocks,
    read_compiler,
    startup,
    synchronize,
    waited_for,
)
from ..parameters import Diverged, Failed, Unsupported, UserError
from ..store.record import RunRecord
from ..tasks.batches import parts_of
from .as_found import AsFound
from .cuda_graph import CapturedStep
from .device_optimizer import MOMENTS, in_8_bits, on_device
from .float8 import use_float8
from .loss_scale import LossScaleTrace, make_scaler
from .precision import (
    FP32_SWITCHES,
    PRECISIONS,
    Precision,
    after_step,
    autocasts_seen,
    backends_as_found,
    cast_model,
    compiled,
    cudnn_flags,
    keep_masters,
    read_switch,
    switches_now,
)
from .remedies import InBackward, offloaded, one_a_weight


def training_step(
    model: torch.nn.Module,
    batch: tuple,
    hidden: Any,
    compute_loss: Callable,
    optimizer: Any,
    scaler: Any,
    precision: Precision,
    clip: float = 0.0,
) -> tuple[torch.Tensor, Any]:
    """Take one step and return (loss, hidden). It is the step of experiments that bring none of
    their own.

    compute_loss(model, batch, hidden) returns (mean loss, hidden). clip: the largest norm of the
    gradient; 0: it is not clipped.
    """
    optimizer.zero_grad(set_to_none=True)
    with precision.autocast():
        loss, hidden = compute_loss(model, batch, hidden)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if clip:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, clip)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), hidden


def made_optimizer(make_optimizer: Callable, model: torch.nn.Module, weights: list) -> Any:
    """Return the optimizer of a reader's function, which gets the model where it asks for a
    `model`.
    """
    wants_model = next(iter(inspect.signature(make_optimizer).parameters), "") == "model"
    with backends_as_found():  # a switch that it sets would hold for the training
        return make_optimizer(model if wants_model else weights)


def set_up_groups(optimizer: Any, masters: dict) -> None:
    """Let an optimizer update the master copy of each weight, in the loops over many tensors that
    are PyTorch's default on a GPU, so that the CPU computes the same.

    A fused SGD gets momenta of 0, which change no step. PyTorch would leave them uninitialised
    where a loss scaler skips the first one.
    """
    for group in optimizer.param_groups:
        group["params"] = [masters.get(weight, weight) for weight in group["params"]]
        is_sgd = isinstance(optimizer, torch.optim.SGD) and group.get("fused")
        if is_sgd and group["momentum"] and not group["dampening"]:
            for weight in group["params"]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def prepared(optimizer: Any, masters: dict, moments: str, rounding: str | bool) -> Any:
    """Return an optimizer without steps in the form in which a step uses it.

    rounding: of its form on the device; False for PyTorch's own form.
    """
    if moments == "8bit":
        optimizer = in_8_bits(optimizer)
    set_up_groups(optimizer, masters)
    return on_device(optimizer, str(rounding), MOMENTS.get(moments)) if rounding else optimizer


class Trainer:
    """Takes the steps of one training run, in eager mode or as replays of a CUDA graph.

    compute_loss, make_optimizer, step_function: as in Experiment. The default step is
    training_step.
    found_inf: 1.0 on the device if the last step was skipped; None where the host itself decides
        that.
    network: the model as it was built. model: the same for inference, compiled if `execution` says
        so.
    loss_of: what the step calls as compute_loss, because torch.compile compiles network and loss as
        one.
    weights, masters: the model's parameters, and what the optimizer updates in their place (see
        cast_model).
    data: what the batches come from, so that its tensors can be found in memory.
    steps, updates: steps taken, and in eager mode those that updated the weights.
    """

    switches: dict[str, Any]  # as they were before the warm-up
    kept_for_graph: list | None = None  # what the warm-up has left

    def __init__(
        self,
        model: torch.nn.Module,
        precision: str,
        compute_loss: Callable,
        *,
        device: torch.device,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        step_function: Callable | None = None,
        execution: str = "eager",
        compile_mode: str = "default",
        scaler: str = "pytorch",
        rounding: str = "nearest",
        moments: str = "as_weights",
        loss_scale: str | float = "dynamic",
        keep_batchnorm_fp32: bool = False,
        offload: bool = False,
        optimizer_in_backward: bool = False,
        micro_batches: int = 1,
        data: Any = None,
    ):
        self.precision = precision
        self.data = data
        self.shapes = getattr(data, "shapes", ())
        self.micro_batches = micro_batches
        self.device = device
        self.compute_loss = compute_loss
        self.step_function = step_function or training_step
        self.fixed_scale = None if loss_scale == "dynamic" else float(loss_scale)
        self.masters = cast_model(model, precision, keep_batchnorm_fp32)
        self.fp8_linear_fraction = use_float8(model) if precision == "fp8" else None
        self.weights = list(model.parameters())
        self.network = self.model = model
        self.loss_of = compute_loss
        if "compile" in execution:
            # else recompilations of earlier runs count towards the limit, and it gives up
            torch.compiler.reset()
            several = bool(self.shapes)
            # Without compile_mode, whose longer search is for training.
            self.model = compiled(self.network, several_shapes=several)
            self.loss_of = compiled(self.compute_loss, compile_mode, several)
        if offload:
            self.loss_of = offloaded(self.loss_of, pinned=device.type == "cuda")
        rounding = rounding if precision == "bf16_true" else "nearest"
        # optimizer and loss scale
        is_ours = rounding != "nearest" or moments in MOMENTS
        self.on_device = "cuda_graph" in execution or scaler == "device" or is_ours
        self.scaler = make_scaler(precision, loss_scale, device, self.on_device)
        self.steps = 0
        self.updates = 0
        self.captured: CapturedStep | None = None
        # A graph would go on using the copies of the weights that autocast kept at its capture.
        self.mode = Precision(precision, device, cache="cuda_graph" not in execution)
        optimizer: Any = made_optimizer(make_optimizer, model, self.masters)
        set_mode(optimizer, "train")
        parts = one_a_weight(optimizer) if optimizer_in_backward else [optimizer]
        self.rates = [float(group["lr"]) for part in parts for group in part.param_groups]
        pairs = dict(zip(self.weights, self.masters, strict=True))
        made = [prepared(part, pairs, moments, self.on_device and rounding) for part in parts]
        is_scaled = self.scaler.is_enabled()
        self.optimizer: Any = InBackward(made, is_scaled) if optimizer_in_backward else made[0]
        self.found_inf: torch.Tensor | None = None
        if self.on_device:
            self.found_inf, self.skipped = self.scaler.found_inf, self.scaler.skipped
        else:
            self._count_updates()
        if "cuda_graph" in execution:
            self.captured = CapturedStep(self.eager_step, self.scaler.found_inf, device)
        keep_masters(self.optimizer, self.weights, self.masters)

    def _count_updates(self) -> None:
        after_step(self.optimizer, self._count_update)
        # a fused optimizer is called in every step, and skips the update by itself
        is_fused = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if is_fused and self.scaler.is_enabled():
            self.found_inf, self.skipped = torch.zeros(2, device=self.device)

    def _count_update(self, optimizer: Any) -> None:
        self.updates += 1
        if self.found_inf is not None:
            self.found_inf.fill_(getattr(optimizer, "found_inf", 0.0))
            self.skipped += self.found_inf

    @property
    def is_compiled(self) -> bool:
        return self.model is not self.network

    @property
    def skipped_steps(self) -> int:
        """How many steps updated no weight because a gradient overflowed.

        On the device, this waits for it.
        """
        return self.steps - self.updates if self.found_inf is None else int(self.skipped.item())

    def step(self, batch: tuple, hidden: Any = None) -> tuple[torch.Tensor, Any]:
        """Take one step and return (loss on the device, hidden).

        With a graph the next step overwrites both.
        """
        self.steps += 1
        return (
            self.captured.step(batch, hidden) if self.captured else self.eager_step(batch, hidden)
        )

    def eager_step(self, batch: tuple, hidden: Any = None) -> tuple[torch.Tensor, Any]:
        """Take a step operation by operation, without counting it. A graph captures this; the
        profiler looks into it.

        The graph is dropped, because cuDNN may free its dropout state in a step outside the
        capture.
        """
        if self.captured:
            self.captured.graph = None
        return self.step_function(
            self.network, batch, hidden, self.loss_in_parts, self.optimizer, self.scaler, self.mode
        )

    def loss_in_parts(self, model: Any, batch: Any, hidden: Any) -> tuple[torch.Tensor, Any]:
        """Return (mean loss, hidden) of a step whose gradients are averaged over the parts of its
        batch, so that it needs the memory of one.

        All parts but the last have gone backward when it returns, outside autocast, as they would
        in the step. Its own backward pass adds the gradients of the last.
        """
        parts = parts_of(batch, self.micro_batches)
        if len(parts) == 1:
            return self.loss_of(model, parts[0], hidden)
        total = 0.0
        for number, part in enumerate(parts, 1):
            loss, hidden = self.loss_of(model, part, hidden)
            if hidden is not None and self.micro_batches > 1:
                raise Unsupported("micro_batches would give a part the hidden state of another")
            loss = loss / len(parts) + total
            if number < len(parts):
                with torch.autocast(self.device.type, enabled=False):
                    torch.clear_autocast_cache()  # its copies would fill memory until the end
                    self.scaler.scale(loss).backward()
                total = loss.detach()
        return loss, hidden

    def set_lr(self, lr: float) -> None:
        """Set the first group's rate. The others keep their ratio to it."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            ratio = rate / self.rates[0] if self.rates[0] else 1.0
            if torch.is_tensor(group["lr"]):
                group["lr"].fill_(lr * ratio)
            else:
                group["lr"] = lr * ratio

    def start_again(self) -> None:
        """Forget counts, and on the device momenta. What a graph reads keeps its address."""
        if self.on_device:
            self.optimizer.reset()
        if self.found_inf is not None:
            self.skipped.zero_()
        self.steps = self.updates = 0


class LossMeter:
    """Keeps the loss of every step of an epoch, and whether it was skipped, on the device until
    its end.
    """

    def __init__(self, trainer: Trainer, room: int = 4096):
        self.trainer = trainer
        self.outcome = getattr(trainer.captured, "outcome", None)  # of a graph
        self.updates = trainer.updates
        self.count = 0
        self.blocks = [torch.zeros(room, 2, device=trainer.device)]

    def step(self, loss: torch.Tensor) -> None:
        row = self.blocks[-1][self.count % len(self.blocks[0])]
        if self.outcome is not None:
            row.copy_(self.outcome)
        elif self.trainer.found_inf is not None:
            torch.stack((loss, self.trainer.found_inf), out=row)
        else:  # the host itself knows whether it was skipped
            row[0] = loss
            if self.trainer.updates == self.updates:
                row[1] = 1.0
            self.updates = self.trainer.updates
        self.count += 1
        if self.count % len(self.blocks[0]) == 0:
            self.blocks.append(torch.zeros_like(self.blocks[0]))

    def end(self) -> tuple[float | None, list[bool]]:
        """Return (mean loss of the steps that were not skipped, or None; [whether each step was
        skipped]).
        """
        rows = torch.cat(self.blocks)[: self.count].cpu().double()
        losses = rows[:, 0]
        skipped = rows[:, 1] != 0
        mean = None if skipped.all() else losses[~skipped].mean().item()
        return mean, skipped.tolist()


class TrainingLog:
    """Notes loss and running accuracy every `every` steps of an epoch, on the device; 0: never."""

    def __init__(self, every: int, device: torch.device):
        self.every = every
        # samples classified correctly so far in the epoch
        self.right = torch.zeros((), device=device)
        self.begin(1)

    def begin(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.notes: list = []
        self.right.zero_()

    def count(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count correct answers from logits (N, classes) and labels (N,).

        Call it where the loss is computed.
        """
        if self.every:
            self.right.add_((logits.detach().argmax(1) == labels).sum())

    def step(self, number: int, loss: torch.Tensor) -> None:
        """Note step `number` of the epoch, counted from 1, without waiting for the device."""
        if self.every and number % self.every == 0:
            # a graph overwrites its loss
            self.notes.append((number, loss.clone(), self.right.clone()))

    def entries(self, epoch: int) -> list[list]:
        """Return [[epoch, step, loss of that step, accuracy so far]]. This waits for the device."""
        return [
            [epoch, step, loss.item(), right.item() / (step * self.batch_size)]
            for step, loss, right in self.notes
        ]


def read_switches(record: RunRecord, trainer: Trainer) -> None:
    """Note PyTorch's switches for fp32.

    Raise Failed where any switch is no more as it was before the warm-up.
    """
    for name, line in FP32_SWITCHES.items():
        setattr(record, f"fp32_precision_{name}", read_switch(line))
    for line, value in switches_now().items():
        if value != trainer.switches[line]:
            raise Failed(
                f"torch.{line.split()[0]} changed during the training, "
                "so it is not what its name says; leave that out of the model, the loss, "
                "the optimizer, the batches and evaluate, and set it before you compare"
            )


def describe_trainer(record: RunRecord, trainer: Trainer) -> None:
    """Note the precision as it really is: switches as read back, type of autocast, types of the
    weights.
    """
    trainer.switches = switches_now()
    read_switches(record, trainer)
    dtype = PRECISIONS[trainer.precision]["autocast"]
    record.autocast_dtype = str(dtype).removeprefix("torch.") if dtype else None
    if dtype and trainer.is_compiled:
        record.compiled_backward_autocast = read_switch("_functorch.config.backward_pass_autocast")
    record.parameter_dtypes = " + ".join(
        sorted({str(weight.dtype).removeprefix("torch.") for weight in trainer.weights})
    )
    record.fp8_linear_fraction = trainer.fp8_linear_fraction


SEARCH_LIMIT = 10  # algorithms that cuDNN may time for each convolution: PyTorch's default
SEARCH_SECONDS = 60  # what the search may take, about, if the time of a step is known
STEPS_PER_ALGORITHM = 6  # what timing one algorithm in every layer costs, about


def allow_search(step_seconds: float = 0.0, wanted: bool = True) -> None:
    """Let cuDNN time its algorithms at each new shape. It remembers the best for the rest of the
    process.

    It must not be wanted for batches of several shapes, where each new one would wait for its
    search.
    With `step_seconds`, the time of a step, fewer are timed if the search would take more than
    SEARCH_SECONDS.
    """
    affordable = (
        int(SEARCH_SECONDS / STEPS_PER_ALGORITHM / step_seconds) if step_seconds else SEARCH_LIMIT
    )
    torch.backends.cudnn.benchmark = wanted
    torch.backends.cudnn.benchmark_limit = max(1, min(SEARCH_LIMIT, affordable))


def read_search(record: RunRecord, trainer: Trainer, first: float, steady: float) -> None:
    """Note how long cuDNN's search took, at most: the seconds of the first step, uncompiled,
    less a steady one.
    """
    convolves = any(
        isinstance(module, torch.nn.modules.conv._ConvNd) for module in trainer.network.modules()
    )
    if trainer.device.type != "cuda":
        record.search_reason = "no GPU"
    elif not convolves:
        record.search_reason = "the model has no convolution"
    elif not torch.backends.cudnn.benchmark:
        record.search_reason = "cuDNN's search is off"
    elif record.search_seconds is None:  # else the last probe or an earlier repeat has searched
        record.search_seconds = max(0.0, first - steady)
        record.search_limit_algorithms = torch.backends.cudnn.benchmark_limit


def cycle_batches(batches: Callable[[], Iterable]) -> Iterator:
    """Yield from `batches()` again and again. Raise UserError where it gives none."""
    while True:
        batch = None
        for batch in batches():
            yield batch
        if batch is None:
            raise UserError("train_batches gave no batch; there must be at least one in an epoch.")


@dataclass
class WarmUpSteps:
    times: list[float] = field(default_factory=list)  # seconds
    good: int = 0  # last steps of which none was skipped
    first: float = 0.0  # seconds of the first step without compilation
    scale: float | None = None  # loss scale of the last step that was not skipped
    hidden: Any = None


def steps_until_stable(
    trainer: Trainer,
    batches: Callable[[], Iterable],
    compiled_before: float,
    at_least: int,
    at_most: int,
) -> WarmUpSteps:
    """Take steps until the median of five is within 5% of that of the five before, and none of them
    was skipped.

    compiled_before: seconds that compiling took before.
    """
    taken = WarmUpSteps()
    times, skipped = taken.times, 0
    compiling = ": compiling" if trainer.is_compiled else ""
    with progress(None, f"{trainer.precision}, first step{compiling}") as shown:
        for batch in cycle_batches(batches):
            begin = time.perf_counter()
            _, taken.hidden = trainer.step(batch, taken.hidden)
            synchronize(trainer.device)
            times.append(time.perf_counter() - begin)
            if len(times) == 1:
                compiled = read_compiler(trainer.is_compiled)["seconds"] - compiled_before
                taken.first = times[0] - compiled
            taken.good += 1
            if trainer.skipped_steps > skipped:
                skipped, taken.good = trainer.skipped_steps, 0
            else:
                taken.scale = trainer.scaler.get_scale()
            before, last = statistics.median(times[-10:-5] or times), statistics.median(times[-5:])
            stable = taken.good >= 4 and abs(last - before) <= 0.05 * before
            if len(times) >= (at_least if stable else at_most):
                break
            shown.desc = f"{trainer.precision}, warm-up, step {len(times)}"
    return taken


def visit_shapes(trainer: Trainer, batches: Callable[[], Iterable]) -> None:
    """Take a step on the first batch of each shape, where there are several, and one more with
    its hidden state.
    """
    firsts = {trainer.shapes.index(shape) for shape in set(trainer.shapes)}
    if not firsts:
        return
    with progress(None, f"{trainer.precision}, warm-up of {len(firsts)} shapes"):
        for number, batch in enumerate(itertools.islice(batches(), max(firsts) + 1)):
            if number in firsts:
                _, hidden = trainer.step(batch)
                if hidden is not None:
                    trainer.step(batch, hidden)
    synchronize(trainer.device)


def warm_up(
    record: RunRecord,
    trainer: Trainer,
    batches: Callable[[], Iterable],
) -> None:
    """Take steps until their time is stable, then undo them. Only the loss scale is kept.

    cuDNN's search, compilation and the growth of the allocator's memory happen here, outside every
    timing. The memory peak is recorded apart, because the search may need more memory than
    training. If the last step was skipped, the scale is set to that of the last step that was not:
    a hidden state that is not finite overflows at any scale.
    """
    at_least, at_most = 10, 60
    if trainer.device.type != "cuda":
        at_least = at_most = 3 if trainer.is_compiled else 1  # compiled without hidden, and with
    startup.lap("model")
    compiled_before = read_compiler(trainer.is_compiled)["seconds"]
    # on the device, start_again() sets its buffers to zero where the graph reads them
    optimizer = None if trainer.on_device else trainer.optimizer
    before = AsFound(trainer.network, trainer.masters, trainer.compute_loss, optimizer)
    started = time.perf_counter()
    if trainer.captured:  # the capture resets the peaks
        trainer.captured.before_capture = lambda: read_peaks(record, trainer.device, "_with_warmup")
    with autocasts_seen(trainer.device) as seen:
        visit_shapes(trainer, batches)
        taken = steps_until_stable(trainer, batches, compiled_before, at_least, at_most)
    if seen - {PRECISIONS[trainer.precision]["autocast"]}:
        record.autocast_dtype = " + ".join(
            sorted(str(dtype).removeprefix("torch.") for dtype in seen)
        )
        print(
            f"{trainer.precision}: the model or the loss turns on autocast "
            f"by itself ({record.autocast_dtype} in all), so this run is not what its name says; "
            "take that out to compare precisions."
        )
    read_search(record, trainer, taken.first, statistics.median(taken.times[-5:]))
    read_peaks(record, trainer.device, "_with_warmup")
    # gives back what the search took; the next three steps take what training needs
    release_memory()
    read_context(record, trainer.device)

    def take_step(batch):
        _, taken.hidden = trainer.step(batch, taken.hidden)

    record.host_syncs_per_step = count_syncs(take_step, batches, 3, trainer.device)
    left = before.put_back()
    trainer.kept_for_graph = left if trainer.captured else None
    record.fill(
        warmup_steps=trainer.steps,
        warmup_skipped_steps=trainer.skipped_steps,
        warmup_seconds=time.perf_counter() - started,
        compile_seconds=read_compiler(trainer.is_compiled)["seconds"] - compiled_before,
    )
    if taken.scale and not taken.good:
        trainer.scaler.update(taken.scale)
    trainer.start_again()


def timed_epoch(
    record: RunRecord,
    trainer: Trainer,
    batches: Iterable,
    lr_at: Callable[[int], float] | None = None,
    label: str = "",
    log: TrainingLog | None = None,
) -> None:
    """Train on `batches` once and add time, loss and memory to the record.

    The loop reads nothing from the GPU: losses stay there until the clock has stopped. lr_at(step)
    returns the learning rate; steps are counted through all epochs. `label` names the progress bar.

    Raises Diverged if the loss is not finite or no step updated the weights.
    """
    log = log or TrainingLog(0, trainer.device)
    reset_peaks(trainer.device)
    unseen = trainer.captured.unseen() if trainer.captured else 0
    hidden = None
    rate = None
    waits: list = []
    clock = StepClock(trainer.device)
    scales = LossScaleTrace(record, trainer)
    meter = LossMeter(trainer)
    compiled_before = read_compiler(trainer.is_compiled)["graphs"]
    with progress(record.steps_per_epoch, label) as bar, watched(record, trainer.device):
        startup.end(record)
        clock.start()
        for batch in waited_for(batches, waits):
            if lr_at is not None and (new_rate := lr_at(trainer.steps)) != rate:
                trainer.set_lr(new_rate)
                rate = new_rate
            loss, hidden = trainer.step(batch, hidden)
            meter.step(loss)
            clock.tick()
            log.step(len(clock.marks) - 1, loss)
            bar.n += 1
        seconds, step_ms = clock.stop()
    record.epoch_seconds.append(seconds)
    record.step_ms_all.extend(step_ms)
    record.block_seconds.extend(in_blocks(step_ms))
    record.training_log.extend(log.entries(len(record.epoch_seconds)))
    record.data_wait_seconds_all.append(sum(waits))
    mean_loss, skipped = meter.end()
    record.skipped_steps = (record.skipped_steps or 0) + sum(skipped)
    read_peaks(record, trainer.device, unseen=unseen)
    # later epochs begin with memory that an evaluation has left reserved
    if len(record.epoch_seconds) == 1:
        read_device_memory(record, trainer.device)
    scales.end(skipped)
    if read_compiler(trainer.is_compiled)["graphs"] > compiled_before:
        raise RuntimeError(
            "torch.compile compiled again within a timed epoch, so its time is not that of training"
        )
    if mean_loss is not None:
        record.train_loss.append(mean_loss)
    check_loss(trainer, mean_loss)


def check_loss(trainer: Trainer, mean_loss: float | None) -> None:
    """Raise Diverged where no step of an epoch updated the weights, or its loss is not finite."""
    if mean_loss is None and not trainer.scaler.is_enabled():
        raise Diverged(
            "no step updated the weights: training_step must call scaler.step(optimizer)"
        )
    if mean_loss is None:
        raise Diverged(
            "every step was skipped: loss or gradients are not finite at loss scale "
            f"{trainer.scaler.get_scale():g}"
        )
    if not math.isfinite(mean_loss):
        raise Diverged(f"the training loss is not finite after {trainer.steps} steps")


@contextmanager
def evaluating(trainer: Trainer) -> Iterator[torch.nn.Module]:
    """Yield the network in evaluation mode, without gradients and under the run's autocast.

    cuDNN's search is off, because its workspaces would count as training's memory.
    """
    flags = cudnn_flags(benchmark=False, deterministic=torch.backends.cudnn.deterministic)
    autocast = Precision(trainer.precision, trainer.device).autocast()
    with evaluation_mode(trainer), flags, torch.no_grad(), autocast:
        yield trainer.network


@contextmanager
def evaluation_mode(trainer: Trainer) -> Iterator[None]:
    """Put a model into evaluation mode, and after the block each of its modules back into its own.

    So modules that were frozen on purpose stay so. A schedule-free optimizer changes its mode, too.
    """
    modes = [(module, module.training) for module in trainer.network.modules()]
    trainer.network.eval()
    set_mode(trainer.optimizer, "eval")
    try:
        yield
    finally:
        set_mode(trainer.optimizer, "train")
        for module, training in modes:  # an outer one before those in it
            if module.training != training:
                module.train(training)


def set_mode(optimizer: Any, mode: str) -> None:
    """Put an optimizer into the mode "train" or "eval" if it has modes, as schedule-free ones
    do.
    """
    if callable(method := getattr(optimizer, mode, None)):
        method()
