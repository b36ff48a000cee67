"""The run record: the fields that describe one run, their names on disk, writing, reading and comparing.

It does not load PyTorch, so that run_all.py and the report can use it.
"""

import hashlib
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError, create_model
from typing_extensions import TypeAliasType

from .measure.commit import hash_that_ran
from .measure.files import check_is_file, written_whole
from .parameters import EXPERIMENTS, MAX_NUMBER, OwnExperiment, Precision, Text, said_of

Integer = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Status = Literal["ok", "oom", "diverged", "unsupported", "failed", "timeout", "killed"]
Scalar = bool | Integer | Number | Text | None
Plain = TypeAliasType("Plain", "Scalar | list[Plain] | dict[Text, Plain]")  # what JSON can hold


SHORTEST_FOR_ENERGY = 5.0  # seconds of timed training: the counter goes on in steps of about 0.1 s
DISTURBED = 0.05  # a run is throttled if one reason held in this share of the samples
LEDGER_AT_PEAK = ("parameters", "gradients", "optimizer", "masters", "data", "activations")  # ledger_<part>_mib
NOT_WRITTEN = ("parameters", "step_ms_all", "data_wait_seconds_all", "card_samples_all")  # flattened, or too long
NO_EFFECT = ("data_dir", "output_dir", "checkpoint_minutes", "more_seeds")  # parameters that do not change the result
# Of a data set `dataset_used` is compared. graph_gain is what a report finds out.
NOT_COMPARED = {"precisions", "seed", "repeat", "purpose", "path", "dataset", "graph_gain", *NO_EFFECT}
IN_FP8 = {"fp8_scaling": "tensorwise"}  # a parameter until version 0.3, without which old runs would have other keys
DEFAULTS = {"optimizer": "sgd", "scaler": "pytorch", "rounding": "nearest", "fp16_accumulation": False}
PARAMETERS_OF_OLD_RECORDS = {  # that older records do not name
    "cifar_resnet": {**DEFAULTS, **IN_FP8, "keep_batchnorm_fp32": False, "clip": 0.0, "batchnorm_momentum": 0.1},
    "efficientnet_regression": DEFAULTS,
    "lstm_language_model": DEFAULTS | IN_FP8,
}
ORDER_ENV = "MIXED_PRECISION_ORDER"  # environment variable from run_all.py: order_in_comparison
STUDY_ENV = "MIXED_PRECISION_ABOUT"  # environment variable from run_all.py: the field `study`, as JSON
MAX_FILE_BYTES = 2**22  # read of a record, whose JSON is broken there; the largest have 0.1 MiB
MAX_ARCHIVE_BYTES = 2**25  # of all JSON files in an archive together, unpacked
NOT_YET_EXPLAINED = "the run was ended before it was explained"
NO_RECORD = "it is no record"
HIDDEN = re.compile(r"(^|/)\.\w")  # in the name of a file, such as ._x.json of macOS
BESIDE_RECORDS = ("batch.json", "code.json", "conf.json", "kernel.json")  # files of run_all.py that are no records


@dataclass
class RunRecord:
    """One run: one notebook, one set of parameters, one precision. A field that was not measured is None."""

    run_id: str  # what was run
    notebook: str  # what was run
    precision: str  # what was run
    parameters: dict  # every parameter; not written, each is a key beside the fields
    study: dict[Text, Plain] | None = None  # name, description and show of its study; null in a notebook run by hand
    schema_version: int = 1  # of these fields
    status: str = "failed"  # ok, oom, diverged, unsupported, failed, timeout or killed
    reason: Text | None = None  # for every status but ok
    started_at: Text | None = None  # ISO 8601, UTC
    finished_at: Text | None = None  # ISO 8601, UTC
    order_in_comparison: Integer | None = None  # planned place in its comparison, from 0
    runs_before_in_process: Integer | None = None  # trainings begun earlier in its process
    dataset_used: Text | None = None  # what "auto" became
    dataset_source: Text | None = None  # "folder", "download", "package", "csv" or "synthetic"
    data_fingerprint: Text | None = None  # hash of contents, counts and classes
    data_files_hash: Text | None = None  # of the files read in data_dir
    synthetic: bool | None = None  # made-up data
    train_samples: Integer | None = None  # images or tokens
    eval_samples: Integer | None = None  # images or tokens
    sample_unit: Text | None = None  # images or tokens
    steps_per_epoch: Integer | None = None  # timed in each epoch
    batch_size_used: Integer | None = None  # what "max" became
    samples_per_epoch: Integer | None = None  # timed in each epoch
    batch_probes: list = field(default_factory=list)  # [batch size, "ok" or "oom", peak MiB, samples per second]
    warmup_steps: Integer | None = None  # before the clock starts, then undone
    warmup_seconds: Number | None = None  # search, compilation, settling of the loss scale
    compile_seconds: Number | None = None  # of the warm-up
    search_seconds: Number | None = None  # of the warm-up, at most
    search_limit_algorithms: Integer | None = None  # timed for each convolution; 0: all
    search_reason: Text | None = None  # why there was no search
    startup_seconds: Number | None = None  # first cell to first timed step
    startup_import_seconds: Number | None = None  # part of startup_seconds
    startup_preflight_seconds: Number | None = None  # part of startup_seconds
    startup_data_seconds: Number | None = None  # part of startup_seconds
    startup_model_seconds: Number | None = None  # part of startup_seconds
    startup_warmup_seconds: Number | None = None  # part of startup_seconds
    startup_reason: Text | None = None  # why there are none: only the first run of a kernel has them
    evaluation_seconds: Number | None = None  # outside the clock
    explanation_seconds: Number | None = None  # outside the clock
    epoch_seconds: list = field(default_factory=list)  # training only, every timed epoch
    step_ms_median: Number | None = None  # timed steps
    step_ms_p10: Number | None = None  # timed steps
    step_ms_p90: Number | None = None  # timed steps
    step_ms_all: list = field(default_factory=list)  # every timed step; not written, too long
    block_seconds: list[Number] = field(default_factory=list)  # up to ten parts of each timed epoch
    data_wait_fraction: Number | None = None  # of the timed epochs: waiting for a batch
    data_wait_seconds_all: list = field(default_factory=list)  # per timed epoch; not written, see the fraction
    samples_per_second: Number | None = None  # at the mean epoch time; older records: median
    peak_allocated_mib: Number | None = None  # PyTorch's allocator, timed steps
    peak_reserved_mib: Number | None = None  # PyTorch's allocator, timed steps
    peak_allocated_with_warmup_mib: Number | None = None  # the same with the warm-up
    peak_reserved_with_warmup_mib: Number | None = None  # the same with the warm-up
    data_on_device_mib: Number | None = None  # part of the peak: the data set
    device_used_mib: Number | None = None  # NVML, whole GPU, highest at an epoch's end; older records: the first's
    device_used_before_mib: Number | None = None  # NVML, used by others beforehand
    device_memory_reason: Text | None = None  # why NVML gave no figure
    train_loss: list = field(default_factory=list)  # mean of each epoch
    training_log: list = field(default_factory=list)  # [epoch, step, loss, accuracy so far in the epoch]
    metric_name: Text | None = None  # "accuracy", "mean_absolute_error" or "perplexity"
    metric_better: Text | None = None  # "higher" or "lower"
    metric: list = field(default_factory=list)  # held-out data, after each epoch
    chance_metric: Number | None = None  # of a model that ignores its input
    test_metric: Number | None = None  # on a test set that decides nothing, or null
    inference_latency_ms: Number | None = None  # one sample, synchronised
    inference_latency_ms_p10: Number | None = None  # one sample, synchronised
    inference_latency_ms_p90: Number | None = None  # one sample, synchronised
    inference_samples_per_second: Number | None = None  # at the training's batch size
    inference_memory_mib: Number | None = None  # weights, batch, forward pass
    inference_difference_fraction: Number | None = None  # largest difference from fp32 / its largest output
    inference_reason: Text | None = None  # why a figure of the inference is missing
    loss_scale_trace: list = field(default_factory=list)  # [timed step, scale] at each change
    skipped_steps: Integer | None = None  # timed steps whose gradients overflowed
    warmup_skipped_steps: Integer | None = None  # while the loss scale settled
    host_syncs_per_step: Number | None = None  # waits for the GPU, by torch.cuda.set_sync_debug_mode
    overflow_steps: list[Number] = field(default_factory=list)  # timed steps skipped, counted from 0 in each repeat
    gradient_flush_fraction_scale_1: Number | None = None  # of non-zero gradients: zero in fp16 without scaling
    gradient_flush_fraction_scaled: Number | None = None  # the same at the last loss scale
    lost_update_fraction: Number | None = None  # of weights that a step should change: unchanged
    kept_update_fraction: Number | None = None  # of that step's update: reached the weights
    update_reason: Text | None = None  # why a run whose weights are 16-bit alone has no such fractions
    gradient_reason: Text | None = None  # why an fp16 run has no such fractions
    gpu_busy_fraction: Number | None = None  # kernel time of a profiled step / median timed step
    gpu_busy_ms_per_step: Number | None = None  # with a kernel or copy running
    kernels_per_step: Number | None = None  # kernels, copies and fills
    tensor_core_fraction: Number | None = None  # of kernel time, by kernel names
    fp16_kernel_fraction: Number | None = None  # of kernel time, by kernel names
    fp8_kernel_fraction: Number | None = None  # of kernel time, by kernel names
    kernel_family_fractions: list = field(default_factory=list)  # [family, fraction of kernel time]
    profile_reason: Text | None = None  # why there is no profile
    flops_per_step: Number | None = None  # convolution, matmul, attention, RNN; a multiply-add counts 2
    bytes_per_step: Number | None = None  # inputs and outputs of every operation, without any cache
    misaligned_flops_fraction: Number | None = None  # sizes that are not multiples of 8
    achieved_tflop_per_second: Number | None = None  # flops_per_step / median timed step
    ceiling_matmul_tflop_per_second: Number | None = None  # measured on this GPU in the run's arithmetic
    ceiling_conv_tflop_per_second: Number | None = None  # older records: the same of a convolution
    ceiling_copy_gb_per_second: Number | None = None  # measured; read plus written
    compute_limit_fraction: Number | None = None  # achieved_tflop_per_second / ceiling_matmul_tflop_per_second
    bandwidth_limit_fraction: Number | None = None  # bytes_per_step / busy time / ceiling_copy_gb_per_second
    limit_reason: Text | None = None  # why a figure of FLOPs, bytes or ceilings is missing
    energy_joules: Number | None = None  # whole GPU, timed epochs
    energy_source: Text | None = None  # "counter" or "power"
    energy_reason: Text | None = None  # why there is no energy
    joules_per_1000_samples: Number | None = None  # timed epochs
    power_watts_mean: Number | None = None  # timed epochs
    power_watts_limit: Number | None = None  # power cap in force
    sm_clock_mhz_median: Number | None = None  # timed epochs
    sm_clock_mhz_max: Number | None = None  # highest that the GPU offers
    application_clock_mhz: Number | None = None  # graphics clock for programs, where NVML has it
    application_clock_mhz_default: Number | None = None  # graphics clock for programs, where NVML has it
    temperature_celsius_max: Number | None = None  # timed epochs
    throttle_fractions: list = field(default_factory=list)  # [reason, fraction of samples]
    throttled: bool | None = None  # one reason held in at least 5% of the samples
    gpu_shared: bool | None = None  # another process used the GPU
    card_samples: Integer | None = None  # about ten a second
    card_samples_all: list = field(default_factory=list)  # every sample; not written, too long
    card_reason: Text | None = None  # why there are no samples
    native_bf16: bool | None = None  # false where only emulated
    fp16_check: Text | None = None  # "passed", or what is wrong
    ledger_parameters_mib: Number | None = None  # part of the peak
    ledger_gradients_mib: Number | None = None  # part of the peak
    ledger_optimizer_mib: Number | None = None  # part of the peak
    ledger_masters_mib: Number | None = None  # part of the peak
    ledger_data_mib: Number | None = None  # part of the peak
    ledger_activations_mib: Number | None = None  # rest of the peak: activations, temporaries, workspaces
    ledger_slack_mib: Number | None = None  # reserved by the allocator above the peak
    ledger_context_mib: Number | None = None  # CUDA context and libraries
    ledger_error_fraction: Number | None = None  # (peak + slack + context) / NVML's figure - 1
    ledger_reason: Text | None = None  # why there is no memory breakdown, or no context in it
    saved_activations_mib: Number | None = None  # kept by the forward pass for the backward pass
    device_type: Text | None = None  # the device
    gpu_name: Text | None = None  # the device
    gpu_uuid: Text | None = None  # the device
    compute_capability: Text | None = None  # the device
    device_total_mib: Number | None = None  # the device
    driver_version: Text | None = None  # version in use
    cuda_version: Text | None = None  # version in use
    cudnn_version: Text | None = None  # version in use
    torch_version: Text | None = None  # version in use
    timm_version: Text | None = None  # version in use
    python_version: Text | None = None  # version in use
    host_platform: Text | None = None  # the host, as this process sees it
    host_cores: Integer | None = None  # the host, as this process sees it
    host_threads: Integer | None = None  # that PyTorch uses on the CPU
    host_cpu: Text | None = None  # the host, as this process sees it
    host_id: Text | None = None  # hash that tells hosts apart
    process_id: Text | None = None  # hash that tells processes apart
    kernel_forked: bool | None = None  # from a loaded process that forks others, too
    package_version: Text | None = None  # of the suite
    fp32_precision_matmul: Text | None = None  # PyTorch's switch, read back
    fp32_precision_conv: Text | None = None  # PyTorch's switch, read back
    fp32_precision_rnn: Text | None = None  # PyTorch's switch, read back
    allow_fp16_accumulation: bool | None = None  # PyTorch's switch, read back
    autocast_dtype: Text | None = None  # null if autocast is off
    compiled_backward_autocast: Text | None = None  # PyTorch's switch, read back; null in eager mode or no autocast
    parameter_dtypes: Text | None = None  # for example "float16 + float32"
    fp8_linear_fraction: Number | None = None  # of the Linear layers' work: in fp8
    commit: Text | None = None  # of the suite, if known
    code_hash: Text | None = None  # of the measuring code; null in a notebook run by hand


def run_id_of(notebook: str, parameters: dict, precision: str) -> str:
    """Return a readable name, unique for the notebook, the precision and every parameter but the folders.

    Images of one's own (dataset "folder") are named after the folder that holds them.
    """
    kept = {name: value for name, value in parameters.items() if name not in (*NO_EFFECT, "precisions")}
    if kept["dataset"] == "folder":
        kept["dataset"] = f"folder {Path(parameters['data_dir']).name}"
    text = json.dumps([notebook, precision, kept], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    dataset = "csv" if kept.get("csv_path") else kept["dataset"]
    words = (notebook, kept["model"], dataset, precision, f"b{kept['batch_size']}", f"s{kept['seed']}", digest)
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(word)) for word in words)


def new_record(notebook: str, parameters: dict, precision: str, facts: dict) -> RunRecord:
    """Return the record of a run that is about to start; `facts` are fields that are known already."""
    return RunRecord(run_id_of(notebook, parameters, precision), notebook, precision, parameters, **facts)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def flat_record(record: RunRecord) -> dict:
    """Return the record as it is written: the parameters and the fields of RunRecord in one dict."""
    return record.parameters | {name: value for name, value in asdict(record).items() if name not in NOT_WRITTEN}


def write_record(record: RunRecord, output_dir: str | Path) -> Path:
    """Write `output_dir/<run_id>.json`, whole or not at all, and return its path.

    A measured record of other data in its place is renamed, so that the fingerprint of its data ends its name.
    """
    path = Path(output_dir) / f"{record.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    old = read_run(path) if record.data_fingerprint else None
    if old and old["status"] in ("ok", "diverged") and old.get("data_fingerprint") != record.data_fingerprint:
        old["run_id"] = f"{old['run_id']}-{old.get('data_fingerprint') or 'unknown_data'}"
        write_flat(old, path.with_name(f"{old['run_id']}.json"))
    record.code_hash = record.code_hash or hash_that_ran()
    record.study = record.study or given_study()
    write_flat(flat_record(record), path)
    return path


def given_study() -> dict | None:
    """Return name, description and show of the study that run_all.py runs, and None in a notebook run by hand."""
    return json.loads(os.environ.get(STUDY_ENV, "null"))


def write_flat(flat: dict, path: str | Path) -> None:
    """Write a dict as JSON, whole or not at all. Numbers that are not finite become null, as JSON has none."""
    written = json.loads(json.dumps(flat), parse_constant=lambda _: None)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


EXPLAINING = (  # what the names of fields begin with that an explanation fills in, also in old records; by their kinds
    ("gradient_",),
    ("gpu_busy_", "kernels_", "kernel_family_", "tensor_core_", "fp16_kernel_", "fp8_kernel_", "profile_"),
    ("flops_", "bytes_", "misaligned_", "achieved_", "ceiling_", "compute_limit_", "bandwidth_limit_", "limit_"),
    ("ledger_", "saved_activations_"),
    ("inference_",),
    ("lost_update_", "kept_update_", "update_", "explanation_"),
)
OF_NO_RUN = (*sum(EXPLAINING, ()), "resumed_at_epochs")  # the last is of checkpoints, which version 0.3 gave up
EXPLANATION = tuple(name for name in RunRecord.__dataclass_fields__ if name.startswith(OF_NO_RUN))
FIELDS = {name: spec for name, spec in RunRecord.__dataclass_fields__.items() if name not in NOT_WRITTEN}
CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
# JSON has no other sequences than lists, so that a list stands for a tuple.
NamedShare = Annotated[tuple[Text, Annotated[Number, Field(ge=0)]], Strict(False)]
Probe = tuple[Annotated[Number, Field(ge=1)], Text, Number | None, Number | None]
TYPES: dict[str, Any] = {
    **{name: spec.type for name, spec in FIELDS.items()},
    **dict.fromkeys(("epoch_seconds", "train_loss", "metric"), list[Number | None]),
    **dict.fromkeys(("kernel_family_fractions", "throttle_fractions"), list[NamedShare]),
    "loss_scale_trace": list[Annotated[tuple[Number, Number | None], Strict(False)]],
    "training_log": list[Annotated[tuple[Number, Number, Number | None, Number | None], Strict(False)]],
    "batch_probes": list[Annotated[Probe, Strict(False)]],
    **{"status": Status, "precision": Precision, "parameters": dict[Text, Plain]},
    **dict.fromkeys(("model", "batch_size", "seed"), Any),
}
REQUIRED = ("run_id", "notebook", "precision", "status", "model", "batch_size", "seed")  # older records lack others
KINDS: dict[str, Any] = {name: (kind, ... if name in REQUIRED else None) for name, kind in TYPES.items()}
FlatRecord = create_model("FlatRecord", __config__=CONFIG, **KINDS)
SETTINGS = TypeAdapter(dict[Text, Scalar], config=CONFIG)  # in which runs are compared
BESIDE = TypeAdapter(dict[Text, Plain], config=CONFIG)  # the others that stand beside the fields


def read_records(folder: str | Path) -> tuple[list[dict], list[tuple[str, str]]]:
    """Return every record below a folder, also in zips, or in one zip, and (path, reason) of what cannot be used.

    A record is a flat dict; its `path` is where it was found. The reason of other JSON files is NO_RECORD; those
    that run_all.py writes itself are ignored.
    """
    records: list[dict] = []
    left_out: list[tuple[str, str]] = []
    for name, read in json_files(Path(folder), left_out):
        try:
            value = json.loads(read())
        except Exception as error:  # a broken archive raises whatever it likes
            left_out.append((name, f"not readable ({error})"))
            continue
        is_record = isinstance(value, dict) and "run_id" in value
        if reason := wrong_field({**value, "path": name}) if is_record else NO_RECORD:
            if is_record or PurePath(name).name not in BESIDE_RECORDS:
                left_out.append((name, reason))
        else:
            records.append({**PARAMETERS_OF_OLD_RECORDS.get(value["notebook"], IN_FP8), **value, "path": name})
    return records, left_out


def flaw(record: Any) -> str | None:
    """Return why a JSON value cannot be used as a record, or None."""
    return wrong_field(record) or contradiction(record)


def wrong_field(record: Any) -> str | None:
    """Return why a JSON value is no record, or which field holds what cannot be computed with, or None.

    A parameter with a choice that is unknown is sound, because it may be one of another version.
    """
    try:
        FlatRecord.model_validate(record)
        settings = compared_settings(record)
        SETTINGS.validate_python({name: record[name] for name in settings})
        BESIDE.validate_python({name: record[name] for name in record.keys() - FIELDS.keys() - settings})
        declared = EXPERIMENTS.get(record["notebook"], OwnExperiment)
        declared.model_validate({name: record[name] for name in declared.model_fields if name in record})
    except ValidationError as error:
        kinds = {one["type"] if isinstance(one["input"], str) else "" for one in error.errors()}
        if error.title == "FlatRecord" or kinds != {"literal_error"}:
            return said_of(error, "a record", ()).rstrip(".")
    return None


def contradiction(record: dict) -> str | None:
    """Return which fields of a record with sound values contradict each other or this version, or None."""
    version = record.get("schema_version", RunRecord.schema_version)
    if version != RunRecord.schema_version:
        return f"schema version {version}; this version reads {RunRecord.schema_version}"
    if record.get("metric") and record.get("metric_better") not in ("higher", "lower"):
        return "metric_better must be higher or lower where there is a metric"
    if record["status"] != "ok":
        return None
    if not isinstance(record.get("batch_size_used") or record["batch_size"], int):
        return "status ok, but no batch_size_used"
    peak = record.get("peak_allocated_mib")
    if peak is not None and peak <= (record.get("data_on_device_mib") or 0):
        return "status ok, but no peak_allocated_mib above 0 and above data_on_device_mib"
    seconds = record.get("epoch_seconds")
    if not seconds or not all((one or 0) > 0 for one in seconds):
        return "status ok, but no usable epoch_seconds"
    return None if all(one > 0 for one in record.get("block_seconds", ())) else "status ok, but no usable block_seconds"


def read_run(path: Path) -> dict | None:
    """Return the record of a training in the file that bears its run_id, or None where it is of another or unusable."""
    try:
        value = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return None
    return None if flaw(value) or value["run_id"] != path.stem else value


def json_files(folder: Path, left_out: list[tuple[str, str]]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield (name, what reads it) of every JSON file below `folder`, also in zips; add broken zips to `left_out`.

    Hidden files are ignored, because macOS adds them to zips. Higher files come first, and files before archives,
    because the order decides which of several copies of a record stands, see sort_out(). No link is followed.
    """
    named = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")} or {folder.name: folder}
    for name, path in sorted(named.items(), key=lambda one: (len(one[1].parts), one[1].suffix == ".zip", one[1])):
        if HIDDEN.search(name) or path.is_dir():
            continue
        if path.suffix == ".json":
            yield name, partial(read_file, path)
        elif path.suffix == ".zip":
            try:
                check_is_file(path)
                with zipfile.ZipFile(path) as archive:
                    entries = [one for one in archive.infolist() if re.search(r"(^|/)[^./][^/]*\.json$", one.filename)]
                    if sum(one.file_size for one in entries) > MAX_ARCHIVE_BYTES:
                        raise ValueError(f"its files have more than {MAX_ARCHIVE_BYTES // 2**20} MiB")
                    for one in entries:
                        yield f"{name}/{one.filename}", partial(read_entry, archive, one)
            except Exception as error:  # a broken archive raises whatever it likes
                left_out.append((name, f"not readable ({error})"))


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the contents of a file in an archive up to MAX_FILE_BYTES, as read_file() does."""
    with archive.open(entry) as opened:
        return opened.read(MAX_FILE_BYTES)


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file up to MAX_FILE_BYTES; raise OSError if it is another thing.

    Links are refused, because a stranger's folder may hold links to files that only its reader can read.
    """
    check_is_file(path)
    with path.open("rb") as opened:
        return opened.read(MAX_FILE_BYTES)


def data_asked_for(record: dict) -> str | None:
    """Return the data set that a run was given. Images of one's own are named after their folder."""
    dataset, folder = record.get("dataset"), record.get("data_dir")
    return Path(folder).name if dataset == "folder" and isinstance(folder, str) else dataset


def compared_settings(record: dict) -> set[str]:
    """Return the names of a record's parameters that must be equal before two runs are compared."""
    others = record.keys() - RunRecord.__dataclass_fields__.keys() - NOT_COMPARED
    return {name for name in others if not name.startswith(OF_NO_RUN)}


def comparison_key(record: dict) -> tuple:
    """Return what must be equal before two runs are compared.

    It holds notebook, device, data and every parameter but the precision, the seed, the repetition and the folders.
    Data are compared by name and contents. Records without a fingerprint are compared among themselves only.
    """
    used = record.get("dataset_used") or data_asked_for(record)  # a run that ended early has only the second
    values = record | {"dataset_used": used}
    same = ("notebook", "device_type", "gpu_name", "dataset_used", "data_fingerprint")
    return tuple((name, json.dumps(values.get(name))) for name in (*same, *sorted(compared_settings(record))))


def samples_in_epoch(record: dict) -> float:
    """Return the samples of a timed epoch. Older records give them by their throughput only, or not at all (0)."""
    return record.get("samples_per_epoch") or (record["samples_per_second"] or 0) * median(record["epoch_seconds"])


def is_explanation(record: dict) -> bool:
    """Return whether a record is of the untimed process that only explains a precision. Its times count nowhere."""
    return record.get("purpose") == "explain"


def too_short_for_energy(seconds: float) -> str | None:
    """Return why the energy of so many seconds of timed training is no figure, or None where it is."""
    short = f"less than {SHORTEST_FOR_ENERGY:g} s of timed training, too short for the energy counter"
    return short if seconds < SHORTEST_FOR_ENERGY else None


def last_metric(record: dict) -> float | None:
    """Return the last metric on held-out data, or None where it is missing or not finite."""
    last = (record.get("metric") or [None])[-1]
    return last if last is not None and math.isfinite(last) else None
