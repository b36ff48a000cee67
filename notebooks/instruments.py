"""The instruments, shared by every experiment notebook: what reads time, memory and the state of the device.

Kept apart from harness.py, which holds the method a reader must understand; sync.py copies these sections likewise.
None of them waits for the GPU inside a timed epoch.
"""

from record import find_diverged, utc_now, write_record

# isort: split

# %% Environment check -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
import gc
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

warnings.filterwarnings("ignore", message="IProgress not found")  # the bars here are plain text


class Stop(Exception):
    """Ends the notebook with one sentence for the reader in place of a traceback."""

    def _render_traceback_(self):  # IPython asks for this before it prints a traceback
        return [f"Stopped: {self}"]


def missing_packages(packages):
    """Return the pip names of those `packages` ({module: pip name}) that are not installed here."""
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def require_packages(packages):
    """Install what is missing on Colab and Kaggle; elsewhere stop and say which command installs it."""
    missing = missing_packages(packages)
    hosted = "COLAB_RELEASE_TAG" in os.environ or "KAGGLE_KERNEL_RUN_TYPE" in os.environ
    if missing and not hosted:
        raise Stop(f"these packages are missing; install them with: pip install {' '.join(missing)}")
    if missing:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *missing], check=True)
        importlib.invalidate_caches()  # or a package installed just now is not found


require_packages({"torch": "torch", "timm": "timm", "torchvision": "torchvision", "pandas": "pandas", "tqdm": "tqdm"})
import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
    raise Stop(f"PyTorch {torch.__version__} is too old: the fp32_precision switches need 2.9; pip install -U torch")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if device.type == "cuda":
    print(f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPU(s); the first is used.")
else:
    print(
        "No GPU: everything runs on the CPU, which shows that it works and measures nothing. For a GPU, on Colab choose"
        " Runtime > Change runtime type > T4 GPU; on Kaggle choose Settings > Accelerator; elsewhere install a driver"
        " and a CUDA build of PyTorch."
    )


# %% Meter -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title Time and memory of a training epoch
MIB = 2**20


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


def read_peaks(record, device, suffix=""):
    """Raise the record's peaks, in MiB, to those since the last reset: `peak_allocated<suffix>_mib` and reserved."""
    if device.type != "cuda":
        return
    for kind, read in (("allocated", torch.cuda.max_memory_allocated), ("reserved", torch.cuda.max_memory_reserved)):
        name = f"peak_{kind}{suffix}_mib"
        setattr(record, name, max(getattr(record, name) or 0, read(device) / MIB))


def release_memory(device):
    """Hand the allocator's free blocks back to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# %% Counts and progress -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title Waits for the GPU, loss scale, percentiles, progress bar
import psutil
from tqdm import tqdm


def count_syncs(trainer, batches, carry, steps):
    """Take `steps` steps; return how often one waited for the GPU (torch.cuda.set_sync_debug_mode), None on the CPU."""
    if trainer.device.type != "cuda":
        return None
    taken = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _, batch in zip(range(steps), batches(), strict=False):
                _, carry = trainer.step(batch, carry)
                taken += 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) / taken


def note_scale(record, trainer):
    """Add [timed step, loss scale] to the record where the scale has changed; asks the GPU, so only at an epoch's ends
    and at a skipped step, when the host has waited anyway."""
    if isinstance(trainer.scaler, torch.amp.GradScaler) and not trainer.scaler.is_enabled():
        return
    trace, scale = record.loss_scale_trace, trainer.scaler.get_scale()
    if not trace or trace[-1][1] != scale or trace[-1][0] > trainer.steps:
        trace.append([trainer.steps, scale])


def summarise_times(record, samples_per_epoch):
    """Fill in step percentiles (ms) and samples per second from what was timed so far."""
    times = sorted(record.step_ms_all)
    if times:
        record.step_ms_median = statistics.median(times)
        record.step_ms_p10 = times[int(0.1 * (len(times) - 1))]
        record.step_ms_p90 = times[math.ceil(0.9 * (len(times) - 1))]
    record.samples_per_second = samples_per_epoch / statistics.median(record.epoch_seconds)


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
        self.every, self.waiting = every, 0

    def advance(self):
        self.waiting += 1
        if self.waiting == self.every:
            self.bar.update(self.waiting)
            self.waiting = 0


@contextmanager
def progress(total, label):
    """Yield a Progress over `total` steps and close it."""
    shown = Progress(total, label)
    try:
        yield shown
    finally:
        shown.bar.update(shown.waiting)
        shown.bar.close()


# %% Device and environment -- the same in every notebook; edit notebooks/instruments.py, then run sync.py
# @title What the device and the software are, and how much memory the driver says is used
import platform
from importlib.metadata import version


def nvml_memory(uuid=None):
    """Return {"used_mib", "total_mib", "driver", "reason"} of a GPU from NVML; without a figure the reason says why.

    `uuid` as PyTorch prints it; without it the first GPU of CUDA_VISIBLE_DEVICES. Works with nvidia-ml-py and with
    the old nvidia-ml-py3 7.352.0, which returns bytes and knows no second version of the memory call.
    """
    nothing = {"used_mib": None, "total_mib": None, "driver": None}
    try:
        import pynvml
    except ImportError:
        return {**nothing, "reason": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        name = f"GPU-{uuid}" if uuid else first
        if name.startswith("GPU-"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(name.encode())
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(name))
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except (AttributeError, TypeError, pynvml.NVMLError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        driver = pynvml.nvmlSystemGetDriverVersion()
        driver = driver.decode() if isinstance(driver, bytes) else driver
        return {"used_mib": memory.used / MIB, "total_mib": memory.total / MIB, "driver": driver, "reason": None}
    except (pynvml.NVMLError, ValueError) as error:
        return {**nothing, "reason": f"NVML gave no figure ({error})"}


MEMORY_BEFORE = nvml_memory() if not torch.cuda.is_initialized() else {"used_mib": None}
print(torch.cuda.get_device_name() if device.type == "cuda" else "The device is the CPU.")


def read_device_memory(record, device):
    """Note what NVML says is used on the whole device, in MiB, now and before this process touched it."""
    if device.type != "cuda":
        record.device_memory_reason = "no GPU"
        return
    memory = nvml_memory(record.gpu_uuid)
    record.device_used_mib, record.device_memory_reason = memory["used_mib"], memory["reason"]
    record.device_used_before_mib = MEMORY_BEFORE["used_mib"]


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
    record.host_cores, record.commit = os.cpu_count(), suite_commit()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record.gpu_name, record.gpu_uuid = properties.name, str(properties.uuid)
        record.compute_capability = f"{properties.major}.{properties.minor}"
        record.cuda_version, record.cudnn_version = torch.version.cuda, str(torch.backends.cudnn.version())
        record.driver_version = nvml_memory(record.gpu_uuid)["driver"]
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


class Unsupported(Exception):
    """The device or this suite cannot run the mode: status `unsupported`, with the reason."""


class Diverged(Exception):
    """Training broke down: status `diverged`, with the reason."""


def is_out_of_memory(error):
    """Tell a lack of memory, on the device or the host, from other failures."""
    signs = ("out of memory", "_ALLOC_FAILED", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in signs)


@contextmanager
def guarded(record, output_dir, device):
    """Run the block as one run: whatever ends it becomes the record's status and reason, the device is freed, the
    record is written, and the notebook goes on. A user's mistake (Stop) and an interrupt do end the notebook."""
    record.started_at = utc_now()
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
        first_line = str(error).strip().partition("\n")[0]
        record.reason = f"{type(error).__name__}: {first_line}"[:400]
        described = traceback.format_exc() if record.status == "failed" else None
        while error is not None:  # frames hold the tensors of the run, and the device with them
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
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
