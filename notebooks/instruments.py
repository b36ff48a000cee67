"""The instruments, shared by every experiment notebook: what reads time, memory and the state of a run.

Kept apart from harness.py, which holds the method a reader must understand; sync.py copies these sections likewise.
None of them waits for the GPU inside a timed epoch.
"""

import itertools
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress

import torch
from card import MIB, Card, Diverged, Stop, Unsupported, card_before, clear_workspaces
from record import find_diverged, utc_now, write_record

# isort: split


# %% Meter -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title Time and memory of a training epoch
import gc


class StepClock:
    """Times an epoch on the wall and every step on the device, with one synchronisation at each end.

    On a GPU a step lies between two CUDA events, read when the epoch is over; on the CPU between two clock readings.
    """

    def __init__(self, device):
        self.device = device

    def start(self):
        synchronize(self.device)
        self.began = time.perf_counter()
        self.marks = [self.mark()]

    def mark(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def tick(self):
        """Mark the end of a step."""
        self.marks.append(self.mark())

    def stop(self):
        """Return (wall seconds of the epoch, [milliseconds of each step])."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        if self.device.type != "cuda":
            return seconds, [(end - start) * 1000 for start, end in pairs]
        return seconds, [start.elapsed_time(end) for start, end in pairs]


def synchronize(device):
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peaks(device):
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peaks(record, device, suffix="", unseen=0):
    """Raise the record's peaks, in MiB, to those since the last reset: `peak_allocated<suffix>_mib` and reserved.

    Those with warm-up are raised along. `unseen` bytes are in use beside what the allocator counts: those that a CUDA
    graph has for its own.
    """
    if device.type != "cuda":
        return
    allocated, reserved = torch.cuda.max_memory_allocated(device) + unseen, torch.cuda.max_memory_reserved(device)
    for kind, size in (("allocated", allocated), ("reserved", reserved)):
        for name in {f"peak_{kind}{suffix}_mib", f"peak_{kind}_with_warmup_mib"}:
            setattr(record, name, max(getattr(record, name) or 0, size / MIB))


def release_memory(device):
    """Hand the allocator's free blocks back to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# %% Counts -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title Waits for the GPU and for data, blocks of an epoch, percentiles
def count_syncs(trainer, batches, carry, steps):
    """Take `steps` steps; return how often one waited for the GPU (torch.cuda.set_sync_debug_mode), None on the CPU."""
    if trainer.device.type != "cuda":
        return None
    taken = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _, batch in zip(range(steps), batches(), strict=False):
                torch.cuda.set_sync_debug_mode("warn")  # not for the first batch: an epoch's order may be waited for
                _, carry = trainer.step(batch, carry)
                taken += 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) / taken


def read_compiler(trainer):
    """Return {"graphs": how many torch.compile has made in this process, "seconds": how long that took}."""
    if trainer.model is trainer.network:  # not compiled: its modules need not even be loaded
        return {"graphs": 0, "seconds": 0.0}
    from torch._dynamo.utils import calculate_time_spent, counters

    return {"graphs": counters["stats"]["unique_graphs"], "seconds": calculate_time_spent()["total_wall_time"]}


def waited_for(batches, waits):
    """Yield `batches` and add the host's seconds in getting each to `waits`."""
    batches = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waits.append(time.perf_counter() - asked)
        if batch is None:
            return
        yield batch


def in_blocks(step_ms, blocks=10):
    """Return the seconds of up to `blocks` parts of an epoch of (nearly) equally many steps."""
    blocks = min(blocks, len(step_ms))
    edges = [len(step_ms) * number // blocks for number in range(blocks + 1)]
    return [sum(step_ms[start:end]) / 1000 for start, end in itertools.pairwise(edges)]


class TrainingLog:
    """Notes the loss and `right` (how many were right so far) on the device every so many steps; 0: never."""

    def __init__(self, every, batch_size, right):
        self.every, self.batch_size, self.right, self.notes = every, batch_size, right, []

    def step(self, number, loss):
        """Take note of step `number` of the epoch, counted from 1, without waiting for the device."""
        if self.every and number % self.every == 0:
            self.notes.append((number, loss.clone(), self.right.clone()))  # a graph overwrites its loss

    def entries(self):
        """Return [[step, loss of that step, accuracy so far]], which waits for the device."""
        return [[step, loss.item(), right.item() / (step * self.batch_size)] for step, loss, right in self.notes]


def summarise_times(record, samples_per_epoch):
    """Fill in step percentiles (ms) and samples per second from what was timed so far."""
    times = sorted(record.step_ms_all)
    if times:
        record.step_ms_median = statistics.median(times)
        record.step_ms_p10 = times[int(0.1 * (len(times) - 1))]
        record.step_ms_p90 = times[math.ceil(0.9 * (len(times) - 1))]
    record.samples_per_second = samples_per_epoch / statistics.median(record.epoch_seconds)
    record.data_wait_fraction = sum(record.data_wait_seconds_all) / sum(record.epoch_seconds)


# %% Loss scale -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title The loss scale step by step
class ScaleTrace:
    """Tells the loss scale of an epoch's steps from which of them were skipped, when the clock has stopped."""

    def __init__(self, record, trainer):
        self.record, self.trainer, self.number = record, trainer, trainer.steps
        self.on = trainer.scaler.is_enabled()
        self.dynamic = self.on and trainer.fixed_scale is None
        self.state = trainer.scaler.state_dict() if self.dynamic else {}
        self.scale = trainer.scaler.get_scale() if self.on else None
        self.note()

    def note(self):
        """Add [step, scale] to the record where the scale has changed, or the steps are counted anew."""
        trace = self.record.loss_scale_trace
        if self.on and (not trace or trace[-1][1] != self.scale or trace[-1][0] > self.number):
            trace.append([self.number, self.scale])

    def step(self, skipped):
        """Take note of a step, with GradScaler's own rule: less after an overflow, more after so many good steps."""
        state = self.state
        if skipped:
            self.record.overflow_steps.append(self.number)
        self.number += 1
        if not self.dynamic:
            return
        state["_growth_tracker"] = 0 if skipped else state["_growth_tracker"] + 1
        if skipped:  # in fp32, as the scaler's own, which comes to 0
            self.scale = torch.tensor(self.scale * state["backoff_factor"]).item()
        elif state["_growth_tracker"] == state["growth_interval"]:
            self.scale, state["_growth_tracker"] = self.scale * state["growth_factor"], 0
        self.note()

    def end(self, skipped=()):
        """Go through the steps of the epoch, [whether each was skipped], then ask the scaler itself."""
        for each in skipped:
            self.step(each)
        self.scale = self.trainer.scaler.get_scale() if self.on else None
        self.note()


# %% Progress -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title A progress bar, and the same for run_all.py
import threading
from pathlib import Path

import psutil
from tqdm import tqdm


def progress_wanted():
    """Return False under TQDM_DISABLE=1 and where the notebook's papermill was started with --no-progress-bar."""
    try:
        quiet = "--no-progress-bar" in psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        quiet = False
    return not quiet and os.environ.get("TQDM_DISABLE", "") in ("", "0")


class Progress:
    """A text bar that is touched once in `every` steps, so that drawing it costs the timed loop next to nothing."""

    def __init__(self, total, label, every=25):
        self.bar = tqdm(
            total=total, desc=label, file=sys.stdout, mininterval=1, leave=False, disable=not progress_wanted()
        )
        self.every, self.steps, self.total, self.label = every, 0, total, label

    def advance(self):
        self.steps += 1
        if self.steps % self.every == 0:
            self.bar.update(self.every)

    def tell(self, path):
        """Write how far the steps are where run_all.py looks for it, whole or not at all."""
        with suppress(OSError):  # a full disk must not end a run
            Path(f"{path}.new").write_text(f"{self.label}, step {self.steps}/{self.total}")
            os.replace(f"{path}.new", path)

    def keep_telling(self, path, ended, seconds):
        """Tell every few seconds until `ended` is set: from a thread that sleeps, for the timed loop must not write."""
        while not ended.wait(seconds):
            self.tell(path)


@contextmanager
def progress(total, label, seconds=5):
    """Yield a Progress over `total` steps and close it; under run_all.py its count goes into a file meanwhile."""
    shown, path, ended = Progress(total, label), os.environ.get("MIXED_PRECISION_PROGRESS"), threading.Event()
    teller = threading.Thread(target=shown.keep_telling, args=(path, ended, seconds), daemon=True)
    if path:
        shown.tell(path)
        teller.start()
    try:
        yield shown
    finally:
        ended.set()
        if path:
            teller.join()
            shown.tell(path)
        shown.bar.update(shown.steps % shown.every)
        shown.bar.close()


# %% Device and environment -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title What the device and the software are, and how much memory the driver says is used
import platform
from importlib.metadata import version
from pathlib import Path


def read_device_memory(record, device):
    """Note what NVML says is used on the whole device, in MiB, now and before this process touched it."""
    if device.type != "cuda":
        record.device_memory_reason = "no GPU"
        return
    memory = Card(record.gpu_uuid).memory()
    record.device_used_mib, record.device_memory_reason = memory["used_mib"], memory["reason"]
    record.device_used_before_mib = card_before(record.gpu_uuid)["used_mib"]
    if record.peak_reserved_mib is not None:
        record.ledger_slack_mib = record.peak_reserved_mib - record.peak_allocated_mib


def read_context(record, device):
    """Note what context and libraries take, MiB: the device less others and less what the allocator holds.

    Called after warm-up, when the libraries are loaded, so that the ledger's sum is set against another reading.
    """
    if device.type == "cuda":
        used, before = (one["used_mib"] for one in (Card(record.gpu_uuid).memory(), card_before(record.gpu_uuid)))
        reserved = torch.cuda.memory_reserved(device) / MIB
        record.ledger_context_mib = None if None in (used, before) else used - before - reserved


def suite_commit():
    """Return the commit of the suite where it is known: from run_all.py, or from the clone this notebook lies in."""
    if "MIXED_PRECISION_COMMIT" in os.environ or not Path("harness.py").exists():
        return os.environ.get("MIXED_PRECISION_COMMIT")
    answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def describe_environment(record, device):
    """Fill in device, versions and host."""
    record.device_type, record.torch_version, record.timm_version = device.type, torch.__version__, version("timm")
    record.python_version, record.host_platform = platform.python_version(), platform.platform(terse=True)
    allowed = getattr(os, "sched_getaffinity", None)  # fewer than the host has under taskset, in many a container
    record.host_cores = len(allowed(0)) if allowed else os.cpu_count()
    record.commit = suite_commit()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record.gpu_name, record.gpu_uuid = properties.name, str(properties.uuid)
        record.compute_capability = f"{properties.major}.{properties.minor}"
        record.cuda_version, record.cudnn_version = torch.version.cuda, str(torch.backends.cudnn.version())
        record.driver_version = Card(record.gpu_uuid).driver()
        record.device_total_mib = properties.total_memory / MIB


def describe_trainer(record, trainer, switches, mode):
    """Fill in the precision as it really is: the switches read back, the autocast type, the types of the weights."""
    record.fp32_precision_matmul = switches["matmul"]
    record.fp32_precision_conv, record.fp32_precision_rnn = switches["conv"], switches["rnn"]
    record.autocast_dtype = str(mode["autocast"]).removeprefix("torch.") if mode["autocast"] else None
    types = {str(weight.dtype).removeprefix("torch.") for weight in trainer.weights}
    record.parameter_dtypes = " + ".join(sorted(types))


# %% Run guard -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title One run must not take the others down
import traceback


def is_out_of_memory(error):
    """Tell a lack of memory, on the device or the host, from other failures."""
    signs = ("out of memory", "_ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in signs)


def error_line(error):
    """Return an error in one line: its kind and the first line of what it says, of a long one the first sentences."""
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    whole = line[:400].rpartition(". ")[0] if len(line) > 400 else ""
    return f"{whole}." if whole else line[:400]


def let_go(error):
    """Clear the frames that led to an error: they hold the tensors of the run, and the device with them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def guarded(record, output_dir, device):
    """Run the block as one run: whatever ends it becomes the record's status and reason, the device is freed, the
    record is written, and the notebook goes on. A user's mistake (Stop) and an interrupt do end the notebook."""
    record.started_at = utc_now()
    if device.type == "cuda":
        clear_workspaces()
    reset_peaks(device)  # or this run would inherit the peak of the one before it in this kernel
    described = None
    try:
        describe_environment(record, device)
        yield record
        record.status, record.reason = "ok", None
    except Stop:
        raise
    except (Unsupported, Diverged) as error:
        record.status, record.reason = type(error).__name__.lower(), str(error)
    except Exception as error:
        record.status = "oom" if is_out_of_memory(error) else "failed"
        read_peaks(record, device, "_with_warmup")  # how far it came
        record.reason = error_line(error)
        described = traceback.format_exc() if record.status == "failed" else None
        let_go(error)
    with suppress(RuntimeError):  # a device that answers nothing any more must not cost the record
        release_memory(device)
    record.finished_at = utc_now()
    write_record(record, output_dir)
    if described:
        print(described)
    print(one_line(record))


def settled(records, output_dir):
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
    return f"{record.precision}: {speed}{peak}, {record.metric_name} {record.metric[-1]:.4g}"
