"""The run record: what one run writes down, how it is named, stored, read back and judged.

Only the standard library is used, so that run_all.py and the summary can import it without loading PyTorch.
"""

import hashlib
import json
import math
import os
import re
import zipfile
import zlib
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from .files import written_whole


@dataclass(kw_only=True)
class DiagnosticFields:
    """What explains the time and memory of a run. A field that was not measured is None, and a reason says why."""

    overflow_steps: list = field(default_factory=list)  # which timed steps were skipped, counted from 0 in each repeat
    gradient_flush_fraction_scale_1: float | None = None  # of non-zero gradient elements: lost in fp16 unscaled
    gradient_flush_fraction_scaled: float | None = None  # the same at the loss scale of the last step
    gradient_reason: str | None = None  # why an fp16 run has no such fractions
    gpu_busy_fraction: float | None = None  # kernel time of a profiled step / median timed step
    gpu_busy_ms_per_step: float | None = None  # time in which at least one kernel or copy ran
    kernels_per_step: float | None = None  # kernels, copies and fills that one step launches
    tensor_core_fraction: float | None = None  # of kernel time, told by the kernels' names
    fp16_kernel_fraction: float | None = None  # of kernel time: kernels whose names say fp16, in amp_bf16 unasked for
    kernel_family_fractions: list = field(default_factory=list)  # [family, fraction of kernel time], longest first
    profile_reason: str | None = None  # why there is no profile
    flops_per_step: float | None = None  # of convolutions, matmuls, attention, RNNs; a multiply-add counts 2
    bytes_per_step: float | None = None  # inputs and outputs of every operation: what moves where no cache helps
    misaligned_flops_fraction: float | None = None  # of flops_per_step: sizes that are not multiples of 8
    achieved_tflop_per_second: float | None = None  # flops_per_step / median timed step
    ceiling_matmul_tflop_per_second: float | None = None  # measured on this card in the run's arithmetic
    ceiling_conv_tflop_per_second: float | None = None  # FLOPs of a direct convolution; cuDNN may need fewer
    ceiling_copy_gb_per_second: float | None = None  # read plus written, 10^9 bytes
    compute_limit_fraction: float | None = None  # achieved / the higher of the two measured ceilings
    bandwidth_limit_fraction: float | None = None  # bytes_per_step / busy time / measured copy
    limit_reason: str | None = None  # why a figure of the limits is missing
    energy_joules: float | None = None  # whole card, timed epochs
    energy_source: str | None = None  # "counter" or "power" (samples integrated)
    energy_reason: str | None = None  # why energy is unavailable
    joules_per_1000_samples: float | None = None  # energy_joules / samples of the timed epochs x 1000
    power_watts_mean: float | None = None  # in the timed epochs, as all up to `gpu_shared`
    power_watts_limit: float | None = None  # the cap that holds now
    sm_clock_mhz_median: float | None = None  # of the samples
    sm_clock_mhz_max: float | None = None  # what the card could do
    temperature_celsius_max: float | None = None  # of the samples
    throttle_fractions: list = field(default_factory=list)  # [reason, fraction of the samples]
    throttled: bool | None = None  # a reason held in 5% of the samples or more
    gpu_shared: bool | None = None  # another process held or used the card during the run
    card_samples: int | None = None  # about ten a second
    card_samples_all: list = field(default_factory=list)  # every sample; too long to be written
    card_reason: str | None = None  # why the state of the card is not known
    native_bf16: bool | None = None  # False: this card would only emulate it
    fp16_check: str | None = None  # "passed", or what is wrong with fp16 arithmetic on this card
    ledger_parameters_mib: float | None = None  # at the peak: weights and buffers of the model
    ledger_gradients_mib: float | None = None  # those alive when memory stood highest
    ledger_optimizer_mib: float | None = None  # the optimizer's state, such as momentum
    ledger_masters_mib: float | None = None  # fp32 copies of fp16 weights
    ledger_data_mib: float | None = None  # the data set kept on the device
    ledger_activations_mib: float | None = None  # the rest of the peak: saved activations, temporaries, workspace
    ledger_slack_mib: float | None = None  # reserved by the allocator above the peak
    ledger_context_mib: float | None = None  # CUDA context and libraries: device less reserved, after warm-up
    ledger_error_fraction: float | None = None  # sum of the ledger against the device's use by this run, as NVML has it
    ledger_reason: str | None = None  # why there is no ledger, or no context in it
    saved_activations_mib: float | None = None  # what the forward pass leaves allocated for the backward pass


@dataclass(kw_only=True)
class EnvironmentFields:
    """Where a run ran. A field that was not read is None."""

    device_type: str | None = None  # "cuda" or "cpu"
    gpu_name: str | None = None  # as the driver calls it
    gpu_uuid: str | None = None  # of this very card
    compute_capability: str | None = None  # for example "9.0"
    device_total_mib: float | None = None  # memory of the card
    driver_version: str | None = None  # of NVIDIA
    cuda_version: str | None = None  # that PyTorch was built with
    cudnn_version: str | None = None  # as a number
    torch_version: str | None = None  # with its build
    timm_version: str | None = None  # the models come from it
    python_version: str | None = None  # of the kernel
    host_platform: str | None = None  # operating system
    host_cores: int | None = None  # which this process may use
    fp32_precision_matmul: str | None = None  # the three switches as read back while the run was on
    fp32_precision_conv: str | None = None  # likewise
    fp32_precision_rnn: str | None = None  # likewise
    autocast_dtype: str | None = None  # null where autocast is off
    parameter_dtypes: str | None = None  # for example "float16 + float32"
    commit: str | None = None  # of the suite, where it is known
    code_hash: str | None = None  # of the notebook's code as run_all.py read it; null in a notebook run by hand


DISTURBED = 0.05  # a throttle reason that held in this share of the samples
STATUSES = ("ok", "oom", "diverged", "unsupported", "failed", "timeout", "killed")
LEDGER_AT_PEAK = ("parameters", "gradients", "optimizer", "masters", "data", "activations")  # ledger_<part>_mib
NOT_WRITTEN = ("parameters", "step_ms_all", "data_wait_seconds_all", "card_samples_all")  # flattened, or too long


@dataclass
class RunRecord(EnvironmentFields, DiagnosticFields):
    """One run: one notebook, one set of parameters, one precision, one seed. A field that was not measured is None."""

    run_id: str  # readable and unique: notebook, model, data, precision, batch, seed, hash of all parameters
    notebook: str  # file name without its ending
    precision: str  # one of the six modes
    parameters: dict  # every parameter of the notebook; written out as flat keys
    schema_version: int = 1  # of these fields
    status: str = "failed"  # one of STATUSES; a run is not "ok" until it has ended well
    reason: str | None = None  # one sentence, for every status but "ok"
    started_at: str | None = None  # ISO 8601, UTC
    finished_at: str | None = None  # ISO 8601, UTC
    dataset_used: str | None = None  # what dataset="auto" became
    dataset_source: str | None = None  # "folder", "download", "package", "csv" or "synthetic"
    synthetic: bool | None = None  # made-up data: proves plumbing, says nothing about quality
    train_samples: int | None = None  # images or tokens to train on
    eval_samples: int | None = None  # held out
    sample_unit: str | None = None  # "images" or "tokens"
    steps_per_epoch: int | None = None  # timed in each epoch
    batch_size_used: int | None = None  # what batch_size="max" became, else the same
    samples_per_epoch: int | None = None  # that were timed
    batch_probes: list = field(default_factory=list)  # [batch size, "ok" or "oom", peak MiB, samples per second]
    warmup_steps: int | None = None  # taken before the clock starts, and undone
    warmup_seconds: float | None = None  # before the clock starts: cuDNN's search, compilation, loss scale settling
    compile_seconds: float | None = None  # of the warm-up, what torch.compile took; 0 without it
    search_seconds: float | None = None  # of it, at most: first step, not compiling, less a steady one; cuDNN's search
    search_limit_algorithms: int | None = None  # that cuDNN may time for each convolution; 0: all
    search_reason: str | None = None  # why there was no search
    startup_seconds: float | None = None  # from the notebook's first cell to its first timed step: the next five
    startup_import_seconds: float | None = None  # PyTorch, timm and the other packages
    startup_preflight_seconds: float | None = None  # the checks of the card
    startup_data_seconds: float | None = None  # read or decode them, and move them to the device
    startup_model_seconds: float | None = None  # build it, and search the largest batch where that is asked for
    startup_warmup_seconds: float | None = None  # from there to the first timed step
    startup_reason: str | None = None  # why there are none: only the first run of a kernel has them
    epoch_seconds: list = field(default_factory=list)  # training only, every timed epoch of every repeat, in order
    step_ms_median: float | None = None  # over every timed step
    step_ms_p10: float | None = None  # a tenth of the steps were faster
    step_ms_p90: float | None = None  # a tenth were slower
    step_ms_all: list = field(default_factory=list)  # every timed step; too long to be written
    block_seconds: list = field(default_factory=list)  # up to ten parts of each timed epoch, in order: what ratios pair
    data_wait_fraction: float | None = None  # of the timed epochs: the host was getting its next batch
    data_wait_seconds_all: list = field(default_factory=list)  # per timed epoch; written as the fraction
    samples_per_second: float | None = None  # samples of an epoch / median epoch time
    peak_allocated_mib: float | None = None  # PyTorch's tensors in the timed steps
    peak_reserved_mib: float | None = None  # what PyTorch's allocator took from the driver in the timed steps
    peak_allocated_with_warmup_mib: float | None = None  # includes the workspaces that cuDNN's search tried
    peak_reserved_with_warmup_mib: float | None = None  # the same of the allocator
    data_on_device_mib: float | None = None  # part of the peak: the data set kept on the device
    device_used_mib: float | None = None  # NVML, whole device, when the first timed epoch has ended
    device_used_before_mib: float | None = None  # NVML, before this process touched the device: what others used
    device_memory_reason: str | None = None  # why NVML gave no figure
    train_loss: list = field(default_factory=list)  # mean per epoch
    training_log: list = field(default_factory=list)  # [epoch from 1, step from 1, loss, accuracy so far in the epoch]
    metric_name: str | None = None  # "accuracy", "mean_absolute_error" or "perplexity"
    metric_better: str | None = None  # "higher" or "lower"
    metric: list = field(default_factory=list)  # on held-out data, after each epoch
    chance_metric: float | None = None  # what a model that ignores its input reaches
    test_metric: float | None = None  # the same at the end, on a test set on which no choice rests; None: there is none
    inference_latency_ms: float | None = None  # median forward pass of one sample, waited for
    inference_latency_ms_p10: float | None = None  # a tenth of the passes were faster
    inference_latency_ms_p90: float | None = None  # a tenth were slower
    inference_samples_per_second: float | None = None  # forward passes at the batch size of the training
    inference_memory_mib: float | None = None  # weights, a batch, and what its pass computes; not what training needs
    inference_difference_fraction: float | None = None  # largest, from an fp32 copy's output / its largest output
    inference_reason: str | None = None  # why a figure of the inference is missing
    loss_scale_trace: list = field(default_factory=list)  # [timed step, scale] at the start and at each change
    skipped_steps: int | None = None  # timed steps whose gradients overflowed
    warmup_skipped_steps: int | None = None  # while the loss scale settled
    host_syncs_per_step: float | None = None  # waits for the GPU counted by torch.cuda.set_sync_debug_mode


def run_id_of(notebook, parameters, precision):
    """Return a readable name, unique for the notebook, the precision and every parameter but the folders."""
    kept = {name: value for name, value in parameters.items() if name not in (*PLACES, "precisions")}
    text = json.dumps([notebook, precision, kept], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    dataset = "csv" if kept.get("csv_path") else kept["dataset"]
    words = (notebook, kept["model"], dataset, precision, f"b{kept['batch_size']}", f"s{kept['seed']}", digest)
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(word)) for word in words)


def new_record(notebook, parameters, precision, facts):
    """Return the record of a run that is about to start; `facts` are fields known beforehand."""
    return RunRecord(run_id_of(notebook, parameters, precision), notebook, precision, parameters, **facts)


def utc_now():
    """Return the time as records have it: ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def flat_record(record):
    """Return the record as it is written: a dict with the parameters beside the fields of RunRecord."""
    return record.parameters | {name: value for name, value in asdict(record).items() if name not in NOT_WRITTEN}


def write_record(record, output_dir):
    """Write `output_dir/<run_id>.json` whole or not at all, and return its path.

    The keys are flat: the parameters beside the fields of RunRecord. A number that is not finite becomes null.
    """
    path = Path(output_dir) / f"{record.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record.code_hash = record.code_hash or os.environ.get("MIXED_PRECISION_CODE_HASH")
    write_flat(flat_record(record), path)
    return path


def write_flat(flat, path):
    """Write a flat dict to `path` as JSON, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(finite(flat), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def finite(value):
    """Return `value` with every NaN and infinity replaced by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(folder):
    """Return (records, left out): every record below `folder` as a flat dict, and (path, reason) of what is no record.

    Zip archives of records are read too. Other JSON files, such as those of Jupyter, are passed over in silence
    only when they do not claim to be a record (no `run_id`).
    """
    records, left_out = [], []
    for name, text in record_texts(Path(folder), left_out):
        try:
            record = json.loads(text)
        except ValueError as error:
            left_out.append((name, f"not readable as JSON ({error})"))
            continue
        if not isinstance(record, dict) or "run_id" not in record:
            continue
        missing = [
            key for key in ("notebook", "precision", "status", "model", "batch_size", "seed") if key not in record
        ]
        if missing:
            left_out.append((name, f"lacks {', '.join(missing)}"))
        elif record["status"] not in STATUSES:
            left_out.append((name, f"unknown status {record['status']!r}"))
        else:
            record.pop("inference_peak_mib", None)  # of older records: had the data set and the optimizer in it
            records.append({**PARAMETERS_OF_OLD_RECORDS.get(record["notebook"], {}), **record, "path": name})
    return records, left_out


PARAMETERS_OF_OLD_RECORDS = {
    "cifar_resnet": {"keep_batchnorm_fp32": False}
}  # parameters that older records do not name, as they were
UNREADABLE = (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)


def record_texts(folder, left_out):
    """Yield (name, text) of every JSON file below `folder`, also inside zips; add what cannot be read to `left_out`."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            if path.suffix == ".json" and path.is_file():
                yield str(name), path.read_text(encoding="utf-8")
            elif path.suffix == ".zip" and path.is_file():
                with zipfile.ZipFile(path) as archive:
                    yield from zipped_texts(archive, name, left_out)
        except UNREADABLE as error:
            left_out.append((str(name), f"not readable ({error})"))


def zipped_texts(archive, archive_name, left_out):
    """Yield (name, text) of every JSON file in a zip; a broken one costs only itself. macOS adds hidden ones."""
    for name in sorted(archive.namelist()):
        if Path(name).suffix == ".json" and not Path(name).name.startswith("."):
            try:
                yield f"{archive_name}/{name}", archive.read(name).decode("utf-8")
            except UNREADABLE as error:
                left_out.append((f"{archive_name}/{name}", f"not readable ({error})"))


PLACES = ("data_dir", "output_dir")  # parameters that say where files lie; they do not change the result
NOT_COMPARED = ("precisions", "seed", "repeat", "path", "dataset", *PLACES)  # what was asked for; what came of it is


def comparison_key(record):
    """Return what must be equal before two runs are compared: notebook, device, data and every parameter but the
    precision, the seed, the number of the repetition and the folders."""
    parameters = sorted(set(record) - set(RunRecord.__dataclass_fields__) - set(NOT_COMPARED))
    values = record | {"dataset_used": record.get("dataset_used") or record.get("dataset")}  # as far as a run came
    same = ("notebook", "device_type", "gpu_name", "dataset_used", *parameters)
    return tuple((name, json.dumps(values.get(name))) for name in same)


def samples_in_epoch(record):
    """Return how many samples a timed epoch had; older records say so by their throughput alone, or not at all: 0."""
    return record.get("samples_per_epoch") or (record["samples_per_second"] or 0) * median(record["epoch_seconds"])


def gain_over_chance(record):
    """Return by what factor the last metric beats chance (1 = no better), or None where it is not known."""
    last, chance = (record.get("metric") or [None])[-1], record.get("chance_metric")
    if not last or not chance:
        return None
    return last / chance if record["metric_better"] == "higher" else chance / last


def find_diverged(records, learned=1.5, chance=1.02):
    """Return {run_id: reason} of the comparable runs that ended no better than chance although others learned.

    A run has learned when it beats chance by the factor `learned`, and has not when it stays below `chance`. Where no
    run has learned, as in a plumbing check of two steps or after too few epochs, nothing is said.
    """
    gains = {record["run_id"]: gain_over_chance(record) for record in records if record["status"] == "ok"}
    gains = {run_id: gain for run_id, gain in gains.items() if gain is not None}
    if not any(gain >= learned for gain in gains.values()):
        return {}
    best = max(gains.values())
    return {
        run_id: f"ended no better than chance ({gain:.2f}x) where another precision reached {best:.2f}x"
        for run_id, gain in gains.items()
        if gain <= chance
    }
