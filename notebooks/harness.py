"""The method, shared by every experiment notebook: precision modes, the training step, warm-up and the timed epoch.

This file is the only place where these cells are edited; sync.py copies each section, from its '# %%' line to the
next, into the notebooks, so that a single notebook works alone. It is plain Python: the tests import it.
"""

import math
import os
import statistics
import time
from contextlib import contextmanager

import torch
from card import Diverged, Stop, Unsupported, watched
from graph import CapturedStep, DeviceScaler, DeviceSGD, DeviceTally, Tally
from instruments import (
    ScaleTrace,
    StepClock,
    count_syncs,
    in_blocks,
    progress,
    read_compiler,
    read_context,
    read_device_memory,
    read_peaks,
    release_memory,
    reset_peaks,
    synchronize,
    waited_for,
)
from preparation import read_search, startup

# isort: split

# %% Parameter check -- the same in every notebook; edit notebooks/harness.py, then run sync.py
import difflib
from pathlib import Path

COMPILE_MODES = {  # what torch.compile gets; PyTorch's other modes have CUDA graphs of their own
    "default": {},
    "coordinate-descent": {"options": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}


def check_parameters(parameters, choices, own_models=None):
    """Return `parameters` with whole-number rates made floats; stop with one sentence at the first wrong value.

    `choices` maps names to their possible values; where `own_models` is given, timm's models are possible beside them.
    Numbers named in `minimum` below are checked against it.
    """
    minimum = {"batch_size": 1, "epochs": 1, "repeats": 1, "bptt": 1, "layers": 1, "units": 1}
    minimum |= {"image_height": 1, "image_width": 1, "max_steps": 0, "num_workers": 0, "seed": 0, "repeat": 0}
    minimum |= {"image_size": 1, "log_every": 0, "heads": 1, "generate_words": 0}
    checked = {
        name: float(value) if type(value) is int and name in ("lr", "memory_limit_gib") else value
        for name, value in parameters.items()
    }
    for name, value in checked.items():
        if name == "batch_size" and value == "max":
            continue
        if name == "memory_limit_gib" and not (type(value) in (int, float) and 0 <= value < float("inf")):
            raise Stop(f"memory_limit_gib is {value!r}; it must be a number of GiB, or 0 for the whole card.")
        if name in minimum and (type(value) is not int or value < minimum[name]):
            raise Stop(f"{name} is {value!r}; it must be a whole number of {minimum[name]} or more.")
        if name in ("lr", "clip") and (type(value) not in (int, float) or not 0 < value < float("inf")):
            raise Stop(f"{name} is {value!r}; it must be a number above 0.")
        if name == "dropout" and not (type(value) in (int, float) and 0 <= value < 1):
            raise Stop(f"dropout is {value!r}; it must be a number from 0 up to, but not including, 1.")
        if name in ("channels_last", "keep_batchnorm_fp32") and type(value) is not bool:
            raise Stop(f"{name} is {value!r}; it must be True or False.")
        if name in ("model", "csv_path", "data_dir", "output_dir") and type(value) is not str:
            raise Stop(f"{name} is {value!r}; it must be text in quotes.")
    choices = {**choices, "execution": ("eager", "compile", "cuda_graph", "compile_cuda_graph")}
    choices["compile_mode"] = tuple(COMPILE_MODES)
    for name, possible in choices.items():
        if checked[name] not in possible:
            raise Stop(f"{name} is {checked[name]!r}; possible are {', '.join(map(str, possible))}.")
    if own_models is not None and checked["model"] not in own_models:
        check_timm_model(checked["model"])
    names = checked["precisions"]
    known = isinstance(names, list) and names and all(name in list(PRECISIONS) for name in names)
    if not known or len(set(names)) < len(names):
        raise Stop(f"precisions is {names!r}; it must be a list with some of {', '.join(PRECISIONS)}, each once.")
    scale = checked["loss_scale"]
    if scale != "dynamic" and (type(scale) not in (int, float) or not 0 < scale < float("inf")):
        raise Stop(f'loss_scale is {scale!r}; it must be "dynamic" or a number above 0.')
    return checked


def check_timm_model(name):
    """Stop with the nearest names where timm has no model of this one."""
    import timm

    names = timm.list_models()
    if name not in names:
        near = ", ".join(difflib.get_close_matches(name, names, n=5)) or "see timm.list_models()"
        raise Stop(f"model {name!r} is not in timm; the nearest names: {near}.")


def check_output_dir(output_dir):
    """Stop with one sentence where no record could be written."""
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        probe = Path(output_dir) / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Stop(f"output_dir {output_dir!r} cannot be written ({error.strerror}); choose another folder.") from None


# %% Precision modes -- the same in every notebook; edit notebooks/harness.py, then run sync.py
PRECISIONS = {  # what each name means; everything else about a run is the same
    "fp32": {"tf32": False, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "tf32": {"tf32": True, "autocast": None, "weights": torch.float32, "masters": False, "scale": False},
    "amp_fp16": {"tf32": False, "autocast": torch.float16, "weights": torch.float32, "masters": False, "scale": True},
    "amp_bf16": {"tf32": False, "autocast": torch.bfloat16, "weights": torch.float32, "masters": False, "scale": False},
    "o2_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": True, "scale": True},
    "o3_fp16": {"tf32": False, "autocast": None, "weights": torch.float16, "masters": False, "scale": True},
}


def check_supported(precision, execution, device, fp16_check=None):
    """Raise Unsupported, with the reason, where `device` cannot run `precision` as itself, or runs fp16 wrongly."""
    if "cuda_graph" in execution and device.type != "cuda":
        raise Unsupported(f'execution="{execution}" needs an NVIDIA GPU; this run is on the CPU')
    if device.type != "cuda" and precision not in ("fp32", "amp_bf16"):
        raise Unsupported(f"{precision} needs an NVIDIA GPU; this run is on the CPU")
    if "fp16" in precision and fp16_check not in (None, "passed"):
        raise Unsupported(f"fp16 arithmetic is wrong on this GPU: {fp16_check}")
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if precision == "tf32" and major < 8:
            raise Unsupported(f"TF32 needs compute capability 8.0 (Ampere) or newer; this GPU has {major}.{minor}")
        if precision == "amp_bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise Unsupported(f"this GPU (compute capability {major}.{minor}) would only emulate bfloat16")


def set_fp32_precision(precision):
    """Set PyTorch's three switches for fp32 arithmetic and return them as read back: {"matmul", "conv", "rnn"}.

    PyTorch ships with TF32 on for convolutions and RNNs, so an "fp32" that sets nothing is not IEEE fp32 there.
    """
    wanted = "tf32" if PRECISIONS[precision]["tf32"] else "ieee"
    # set_float32_matmul_precision sets the matmul switch and the older flag that torch.compile reads together.
    torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
    torch.backends.cuda.matmul.fp32_precision = wanted
    torch.backends.cudnn.conv.fp32_precision = wanted
    torch.backends.cudnn.rnn.fp32_precision = wanted
    switches = {
        "matmul": torch.backends.cuda.matmul,
        "conv": torch.backends.cudnn.conv,
        "rnn": torch.backends.cudnn.rnn,
    }
    return {name: switch.fp32_precision for name, switch in switches.items()}


def autocast(precision, device, cache=True):
    """Return the autocast context of the mode; it wraps forward and loss only, entered and left at every step."""
    dtype = PRECISIONS[precision]["autocast"]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache)


def compiled(part, mode="default"):
    """Return `part` under torch.compile; what was compiled for amp_fp16 is never taken for amp_bf16."""
    from torch._functorch import config

    config.enable_autograd_cache = False  # before PyTorch's pull request 181564 its key left out autocast's type
    return torch.compile(part, dynamic=False, **COMPILE_MODES[mode])


def cast_model(model, precision, keep_batchnorm_fp32=False):
    """Cast `model` in place and return its fp32 master copies, one per parameter, which the optimizer updates.

    A parameter that stays fp32 is its own master. o2_fp16 keeps batch normalisation in fp32, o3_fp16 nothing. Its
    count, a kernel more in each step, goes unless it averages over all steps (momentum=None), which needs it.
    `keep_batchnorm_fp32` (Apex's name) keeps it in fp32 in o3_fp16 as well.
    """
    mode = PRECISIONS[precision]
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.num_batches_tracked = norm.num_batches_tracked if norm.momentum is None else None
    masters = [parameter.detach().clone() for parameter in model.parameters()] if mode["masters"] else None
    model.to(mode["weights"])
    for norm in norms if masters or keep_batchnorm_fp32 else []:
        norm.float()
    if not masters:
        return list(model.parameters())
    pairs = zip(model.parameters(), masters, strict=True)
    return [weight if weight.dtype == torch.float32 else torch.nn.Parameter(master) for weight, master in pairs]


# %% Loss scaling -- the same in every notebook; edit notebooks/harness.py, then run sync.py
class HalfScaler:
    """Scales by a fixed number where the gradients themselves are fp16, which GradScaler refuses (o3_fp16)."""

    def __init__(self, scale):
        self.fixed = float(scale)
        self.finite = None

    def is_enabled(self):
        return True

    def scale(self, loss):
        return loss * self.fixed

    def unscale_(self, optimizer):
        gradients = [
            weight.grad for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None
        ]
        # Looked for before unscaling: an infinity stays one, and the check sees what the backward pass produced.
        self.finite = torch.stack(torch._foreach_norm(gradients, float("inf"))).isfinite().all()
        torch._foreach_mul_(gradients, 1 / self.fixed)

    def step(self, optimizer):
        if self.finite.item():  # waits for the GPU, as GradScaler does
            optimizer.step()

    def update(self, new_scale=None):
        """Keep the scale: it is fixed."""

    def get_scale(self):
        return self.fixed


def make_scaler(precision, loss_scale, device, execution="eager"):
    """Return the loss scaler of the mode; one that is not enabled passes everything through.

    fp16 gradients of fp32 weights or masters: torch.amp.GradScaler, dynamic or fixed. o3_fp16: none, or a number. A
    CUDA graph has one that follows the same rule on the device.
    """
    dynamic = loss_scale == "dynamic"
    enabled = PRECISIONS[precision]["scale"] and not (precision == "o3_fp16" and dynamic)
    start = 65536.0 if dynamic else float(loss_scale)
    if "cuda_graph" in execution:
        return DeviceScaler(start if enabled else None, enabled and dynamic, device)
    if precision == "o3_fp16" and enabled:
        return HalfScaler(start)
    return torch.amp.GradScaler(device.type, init_scale=start, enabled=enabled)


# %% Training step -- the same in every notebook; edit notebooks/harness.py, then run sync.py
class Trainer:
    """Takes the steps of one training run.

    `compute_loss(model, batch, carry)` returns (mean loss as a fp32 scalar, carry); `carry` is what the next step
    needs (the hidden state of an RNN; None stands for zeros), or None. `options` go to cast_model, torch.compile, which
    gets network and loss as one (`model`, the network alone, is for inference), and torch.optim.SGD, never fused:
    PyTorch's touches its momentum at a skipped step. A step of a CUDA graph overwrites the last loss and carry.
    """

    def __init__(
        self, model, precision, compute_loss, *, device, execution="eager", loss_scale="dynamic", clip=None, **options
    ):
        mode, keep = options.pop("compile_mode", "default"), options.pop("keep_batchnorm_fp32", False)
        self.precision, self.device, self.clip, self.compute_loss = precision, device, clip, compute_loss
        self.fixed_scale = None if loss_scale == "dynamic" else float(loss_scale)
        self.masters, self.weights = cast_model(model, precision, keep), list(model.parameters())
        self.network, self.model, self.loss_of = model, model, compute_loss  # `network` stays as it was built
        if "compile" in execution:
            torch.compiler.reset()  # or it would give up silently, after a few recompilations by the runs before
            self.model, self.loss_of = compiled(model), compiled(compute_loss, mode)  # inference: no longer search
        self.scaler = make_scaler(precision, loss_scale, device, execution)
        self.steps, self.updates, self.captured = 0, 0, None
        if "cuda_graph" in execution:
            self.optimizer = DeviceSGD(self.masters, **options)
            self.captured = CapturedStep(self.eager_step, self.scaler.found, device)
        else:
            self.optimizer = torch.optim.SGD(self.masters, foreach=True, **options)
            self.optimizer.register_step_post_hook(self._count_update)

    def _count_update(self, *_):
        self.updates += 1

    @property
    def skipped_steps(self):
        """How many steps were not carried out because a gradient overflowed; only a graph's scaler must be asked."""
        return int(self.scaler.skipped.item()) if self.captured else self.steps - self.updates

    def step(self, batch, carry=None):
        """Take one step and return (loss on the device, carry); a step that overflows changes no weight."""
        self.steps += 1
        return self.captured.step(batch, carry) if self.captured else self.eager_step(batch, carry)

    def eager_step(self, batch, carry=None):
        """Take a step, not counted, operation by operation: what a graph captures, and what instruments look into."""
        if self.captured:
            self.captured.graph = None  # outside its capture cuDNN may free the dropout state that the graph uses
        for weight in self.weights:
            weight.grad = None
        with autocast(self.precision, self.device, cache=self.captured is None):
            loss, carry = self.loss_of(self.network, batch, carry)
        self.scaler.scale(loss).backward()
        halves = [(w, m) for w, m in zip(self.weights, self.masters, strict=True) if w is not m and w.grad is not None]
        if halves:  # o2_fp16: the optimizer sees fp32 copies of the fp16 gradients
            for _, master in halves:
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
            torch._foreach_copy_([master.grad for _, master in halves], [weight.grad for weight, _ in halves])
        self.scaler.unscale_(self.optimizer)  # before clipping, so that the limit means what it says
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.masters, self.clip, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update(self.fixed_scale)
        if halves:
            with torch.no_grad():
                torch._foreach_copy_([weight for weight, _ in halves], [master for _, master in halves])
        return loss.detach(), carry

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


# %% Warm-up -- the same in every notebook; edit notebooks/harness.py, then run sync.py
def endless(batches):
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
        at_least = at_most = 1 if trainer.model is trainer.network else 3  # compiled without a carry, and with one
    startup.lap("model")
    compiled = read_compiler(trainer)["seconds"]
    saved = {name: value.to("cpu", copy=True) for name, value in trainer.network.state_dict().items()}
    masters = [master.detach().to("cpu", copy=True) for master in trainer.masters]
    started, times, skips, carry, first, scale = time.perf_counter(), [], [0], None, None, None
    if trainer.captured:  # its capture measures the memory anew
        trainer.captured.before_capture = lambda: read_peaks(record, trainer.device, "_with_warmup")
    for batch in endless(batches):
        begin = time.perf_counter()
        _, carry = trainer.step(batch, carry)
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
    record.host_syncs_per_step = count_syncs(trainer, batches, carry, steps=3)
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


# %% Timed epoch -- the same in every notebook; edit notebooks/harness.py, then run sync.py
def timed_epoch(record, trainer, batches, lr_at=None, label="", log=None):
    """Train on `batches` once under the meter and add time, loss and memory to the record.

    The loop asks the GPU for nothing: the loss is summed there, and read when the clock has stopped. `lr_at(step)`
    gives the learning rate, with steps counted through all epochs; `log` is a TrainingLog. Raises Diverged where the
    loss is not finite.
    """
    reset_peaks(trainer.device)
    unseen = trainer.captured.unseen() if trainer.captured else 0
    carry, waits, clock, scales = None, [], StepClock(trainer.device), ScaleTrace(record, trainer)
    tally = DeviceTally(trainer.captured.outcome) if trainer.captured else Tally(trainer)
    compiled = read_compiler(trainer)["graphs"]
    with progress(record.steps_per_epoch, label) as bar, watched(record, trainer.device):
        startup.end(record)
        clock.start()
        for batch in waited_for(batches, waits):
            if lr_at is not None:
                trainer.set_lr(lr_at(trainer.steps))
            loss, carry = trainer.step(batch, carry)
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
