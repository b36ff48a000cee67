"""The run record: one pydantic model of what a training was, what it ran on, what was measured and what it reached.

On disk it is nested: `run`, `settings` (exactly the parameters), `machine`, `measured` and `quality`. The names of all
fields differ, so that the model finds each by its name alone: `record.gpu_name` is `record.machine.gpu_name`. A field
that another version adds or lacks is no setting, so it changes no comparison. This module does not load PyTorch.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from typing_extensions import TypeAliasType

from .. import __version__
from ..parameters import MAX_NUMBER, Common, Precision, Text, planned, said_of
from .commit import NOTEBOOK_ENV, hash_that_ran
from .files import read_file, written_whole

Integer = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Number = Integer | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Status = Literal["ok", "oom", "diverged", "unsupported", "failed", "timeout", "killed"]
# what JSON can hold
Plain = TypeAliasType("Plain", "bool | Number | Text | list[Plain] | dict[Text, Plain] | None")
# JSON has no other sequences than lists, so that a list stands for a tuple.
NamedShare = Annotated[tuple[Text, Annotated[Number, Field(ge=0)]], Strict(False)]
Change = Annotated[tuple[Number, Number | None], Strict(False)]
Logged = Annotated[tuple[Number, Number, Number | None, Number | None], Strict(False)]
Probe = Annotated[
    tuple[Annotated[Number, Field(ge=1)], Text, Number | None, Number | None], Strict(False)
]

SHORTEST_FOR_ENERGY = 5.0  # seconds of timed training: the counter goes on in steps of about 0.1 s
DISTURBED = 0.05  # a run is throttled if one reason held in this share of the samples
# ledger_<part>_mib
LEDGER_AT_PEAK = ("parameters", "gradients", "optimizer", "masters", "data", "activations")
NO_EFFECT = ("data_dir", "output_dir")  # parameters that do not change the result
# Settings in which runs of one comparison may differ; of the data what was used is compared, not what was asked for.
OF_ONE_RUN = {"precisions", "seed", "repeat", "dataset", *NO_EFFECT}
# fields of a comparison
SAME = ("notebook", "device_type", "gpu_name", "dataset_used", "data_fingerprint")
ORDER_ENV = "MIXED_PRECISION_ORDER"  # environment variable from run_all.py: order_in_comparison
# environment variable from run_all.py: the field `study`, as JSON
STUDY_ENV = "MIXED_PRECISION_ABOUT"
NOT_YET_EXPLAINED = "the run was ended before it was explained"
SCHEMA_VERSION = 2
RESULTS = ("ok", "diverged")  # statuses of what was measured


class Section(BaseModel):
    """A part of a record. What it does not declare is of another version: plain JSON, which is kept as it is."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=()
    )
    if not TYPE_CHECKING:  # mypy would take it for a field
        __pydantic_extra__: dict[str, Plain]


class Run(Section):
    """What was run, with which code and on which data."""

    run_id: Text  # begins the names of its files
    notebook: Text  # whose stem it is, or the name given to Experiment or compare()
    precision: Precision  # that was trained in
    purpose: Text | None = None  # of version 0.2: explain or aa, whose times count in no comparison
    # name, description, show, axis and base of its study; null in a notebook run by hand
    study: dict[Text, Plain] | None = None
    schema_version: Integer = SCHEMA_VERSION  # of these fields
    status: Status = "failed"  # ok, oom, diverged, unsupported, failed, timeout or killed
    reason: Text | None = None  # for every status but ok
    started_at: Text | None = None  # ISO 8601, UTC
    finished_at: Text | None = None  # ISO 8601, UTC
    order_in_comparison: Integer | None = None  # planned place in its comparison, from 0
    runs_before_in_process: Integer | None = None  # trainings begun earlier in its process
    process_id: Text | None = None  # hash that tells processes apart
    kernel_forked: bool | None = None  # from a loaded process that forks others, too
    package_version: Text | None = None  # of the suite
    commit: Text | None = None  # of the suite, if known
    code_hash: Text | None = None  # of the measuring code; null in a notebook run by hand
    model_title: Text | None = None  # the model's name for people; else its key
    data_title: Text | None = None  # the data's name for people; else `dataset_used`
    dataset_used: Text | None = None  # what "auto" became
    dataset_source: Text | None = None  # "folder", "download", "package", "csv" or "synthetic"
    data_folder: Text | None = None  # where in data_dir "auto" looks for its files
    data_fingerprint: Text | None = None  # hash of contents, counts and classes
    # of one's own model: hashes of it, its functions, optimizer, batches
    identity: dict[Text, Text] | None = None
    data_files_hash: Text | None = None  # of the files read in data_dir
    synthetic: bool | None = None  # made-up data
    train_samples: Integer | None = None  # images or tokens
    eval_samples: Integer | None = None  # images or tokens
    sample_unit: Text | None = None  # images or tokens


class Machine(Section):
    """The device, its driver, the host and the versions in use."""

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
    application_clock_mhz: Number | None = None  # graphics clock for programs, where NVML has it
    # graphics clock for programs, where NVML has it
    application_clock_mhz_default: Number | None = None
    sm_clock_mhz_max: Number | None = None  # highest that the GPU offers
    native_bf16: bool | None = None  # false where only emulated
    fp16_check: Text | None = None  # "passed", or what is wrong


class Time(Section):
    """Seconds and milliseconds, what was timed, and what came before it."""

    steps_per_epoch: Integer | None = None  # timed in each epoch
    batch_size_used: Integer | None = None  # what "max" became
    samples_per_epoch: Integer | None = None  # timed in each epoch
    batch_probes: list[Probe] = []  # [batch size, "ok" or "oom", peak MiB, samples per second]
    epoch_seconds: list[Number | None] = []  # training only, every timed epoch
    block_seconds: list[Number] = []  # up to ten parts of each timed epoch
    step_ms_median: Number | None = None  # timed steps
    step_ms_p10: Number | None = None  # timed steps
    step_ms_p90: Number | None = None  # timed steps
    step_ms_all: list = Field(default=[], exclude=True)  # every timed step; not written, too long
    data_wait_fraction: Number | None = None  # of the timed epochs: waiting for a batch
    # per timed epoch; not written, see the fraction
    data_wait_seconds_all: list = Field(default=[], exclude=True)
    samples_per_second: Number | None = None  # at the mean epoch time; older records: median
    # waits for the GPU, by torch.cuda.set_sync_debug_mode
    host_syncs_per_step: Number | None = None
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
    # why there are none: only the first run of a kernel has them
    startup_reason: Text | None = None
    evaluation_seconds: Number | None = None  # outside the clock


class Memory(Section):
    """MiB of the GPU."""

    peak_allocated_mib: Number | None = None  # PyTorch's allocator, timed steps
    peak_reserved_mib: Number | None = None  # PyTorch's allocator, timed steps
    peak_allocated_with_warmup_mib: Number | None = None  # the same with the warm-up
    peak_reserved_with_warmup_mib: Number | None = None  # the same with the warm-up
    data_on_device_mib: Number | None = None  # part of the peak: the data set
    # NVML, whole GPU, highest at an epoch's end; older records: the first's
    device_used_mib: Number | None = None
    device_used_before_mib: Number | None = None  # NVML, used by others beforehand
    device_memory_reason: Text | None = None  # why NVML gave no figure


class Energy(Section):
    """Joules and watts of the whole GPU, and what slowed it."""

    energy_joules: Number | None = None  # whole GPU, timed epochs
    energy_source: Text | None = None  # "counter" or "power"
    energy_reason: Text | None = None  # why there is no energy
    joules_per_1000_samples: Number | None = None  # timed epochs
    power_watts_mean: Number | None = None  # timed epochs
    power_watts_limit: Number | None = None  # power cap in force
    sm_clock_mhz_median: Number | None = None  # timed epochs
    temperature_celsius_max: Number | None = None  # timed epochs
    throttle_fractions: list[NamedShare] = []  # [reason, fraction of samples]
    throttled: bool | None = None  # one reason held in at least 5% of the samples
    gpu_shared: bool | None = None  # another process used the GPU
    card_samples: Integer | None = None  # about ten a second
    card_samples_all: list = Field(default=[], exclude=True)  # every sample; not written, too long
    card_reason: Text | None = None  # why there are no samples


class Arithmetic(Section):
    """In which types the training computed, read back."""

    fp32_precision_matmul: Text | None = None  # PyTorch's switch, read back
    fp32_precision_conv: Text | None = None  # PyTorch's switch, read back
    fp32_precision_rnn: Text | None = None  # PyTorch's switch, read back
    allow_fp16_accumulation: bool | None = None  # PyTorch's switch, read back
    autocast_dtype: Text | None = None  # null if autocast is off
    # PyTorch's switch, read back; null in eager mode or no autocast
    compiled_backward_autocast: Text | None = None
    parameter_dtypes: Text | None = None  # for example "float16 + float32"
    fp8_linear_fraction: Number | None = None  # of the Linear layers' work: in fp8


class Ledger(Section):
    """What filled the memory at its peak."""

    ledger_parameters_mib: Number | None = None  # part of the peak
    ledger_gradients_mib: Number | None = None  # part of the peak
    ledger_optimizer_mib: Number | None = None  # part of the peak
    ledger_masters_mib: Number | None = None  # part of the peak
    ledger_data_mib: Number | None = None  # part of the peak
    # rest of the peak: activations, temporaries, workspaces
    ledger_activations_mib: Number | None = None
    ledger_slack_mib: Number | None = None  # reserved by the allocator above the peak
    ledger_context_mib: Number | None = None  # CUDA context and libraries
    ledger_error_fraction: Number | None = None  # (peak + slack + context) / NVML's figure - 1
    ledger_reason: Text | None = None  # why there is no memory breakdown, or no context in it
    saved_activations_mib: Number | None = None  # kept by the forward pass for the backward pass


class Kernels(Section):
    """What a profiled step ran, and how long the whole explanation took."""

    explanation_seconds: Number | None = None  # outside the clock
    gpu_busy_fraction: Number | None = None  # kernel time of a profiled step / median timed step
    gpu_busy_ms_per_step: Number | None = None  # with a kernel or copy running
    kernels_per_step: Number | None = None  # kernels, copies and fills
    tensor_core_fraction: Number | None = None  # of kernel time, by kernel names
    fp16_kernel_fraction: Number | None = None  # of kernel time, by kernel names
    fp8_kernel_fraction: Number | None = None  # of kernel time, by kernel names
    kernel_family_fractions: list[NamedShare] = []  # [family, fraction of kernel time]
    profile_reason: Text | None = None  # why there is no profile


class Work(Section):
    """How much a step computes and moves, against what the GPU can do."""

    # convolution, matmul, attention, RNN; a multiply-add counts 2
    flops_per_step: Number | None = None
    bytes_per_step: Number | None = None  # inputs and outputs of every operation, without any cache
    misaligned_flops_fraction: Number | None = None  # sizes that are not multiples of 8
    achieved_tflop_per_second: Number | None = None  # flops_per_step / median timed step
    # measured on this GPU in the run's arithmetic
    ceiling_matmul_tflop_per_second: Number | None = None
    ceiling_conv_tflop_per_second: Number | None = None  # older records: the same of a convolution
    ceiling_copy_gb_per_second: Number | None = None  # measured; read plus written
    # achieved_tflop_per_second / ceiling_matmul_tflop_per_second
    compute_limit_fraction: Number | None = None
    # bytes_per_step / busy time / ceiling_copy_gb_per_second
    bandwidth_limit_fraction: Number | None = None
    limit_reason: Text | None = None  # why a figure of FLOPs, bytes or ceilings is missing


class Lost(Section):
    """What 16 bits lose of gradients and updates."""

    # of non-zero gradients: zero in fp16 without scaling
    gradient_flush_fraction_scale_1: Number | None = None
    gradient_flush_fraction_scaled: Number | None = None  # the same at the last loss scale
    gradient_reason: Text | None = None  # why an fp16 run has no such fractions
    lost_update_fraction: Number | None = None  # of weights that a step should change: unchanged
    kept_update_fraction: Number | None = None  # of that step's update: reached the weights
    # why a run whose weights are 16-bit alone has no such fractions
    update_reason: Text | None = None


class Inference(Section):
    """The trained model in use."""

    inference_latency_ms: Number | None = None  # one sample, synchronised
    inference_latency_ms_p10: Number | None = None  # one sample, synchronised
    inference_latency_ms_p90: Number | None = None  # one sample, synchronised
    inference_samples_per_second: Number | None = None  # at the training's batch size
    inference_memory_mib: Number | None = None  # weights, batch, forward pass
    # largest difference from fp32 / its largest output
    inference_difference_fraction: Number | None = None
    inference_reason: Text | None = None  # why a figure of the inference is missing


class Measured(Section):
    """What was measured, and from `ledger` on what explains it."""

    time: Time = Time()
    memory: Memory = Memory()
    energy: Energy = Energy()
    arithmetic: Arithmetic = Arithmetic()
    ledger: Ledger = Ledger()
    kernels: Kernels = Kernels()
    work: Work = Work()
    lost: Lost = Lost()
    inference: Inference = Inference()


class Quality(Section):
    """What the training reached, and how its loss scale went."""

    train_loss: list[Number | None] = []  # mean of each epoch
    training_log: list[Logged] = []  # [epoch, step, loss, accuracy so far in the epoch]
    metric_name: Text | None = None  # "accuracy", "mean_absolute_error" or "perplexity"
    metric_better: Text | None = None  # "higher" or "lower"
    metric: list[Number | None] = []  # held-out data, after each epoch
    chance_metric: Number | None = None  # of a model that ignores its input
    metric_margin: Number | None = None  # differences from fp32 up to this one count as equivalent
    metric_margin_is_share: bool = False  # the margin is a share of fp32's metric
    metric_target: Number | None = None  # metric to which the time of training is told
    test_metric: Number | None = None  # on a test set that decides nothing, or null
    loss_scale_trace: list[Change] = []  # [timed step, scale] at each change
    skipped_steps: Integer | None = None  # timed steps whose gradients overflowed
    warmup_skipped_steps: Integer | None = None  # while the loss scale settled
    overflow_steps: list[Number] = []  # timed steps skipped, counted from 0 in each repeat


# parts of Measured that an explanation fills in
EXPLAINING = ("ledger", "kernels", "work", "lost", "inference")


class RunRecord(Section):
    """One training: one notebook, one set of parameters, one precision. A field that was not measured is None."""

    run: Run
    settings: dict[Text, Plain]  # every parameter, with the name that it has in the notebook
    machine: Machine = Machine()
    measured: Measured = Measured()
    quality: Quality = Quality()

    def part_with(self, name: str) -> Section:
        """Return the section that holds a field."""
        part: Any = self
        for step in PLACES[name]:
            part = vars(part)[step]
        return part

    def __getattr__(self, name: str) -> Any:
        if name in PLACES:
            return vars(self.part_with(name))[name]
        raise AttributeError(f"a record has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self.part_with(name) if name in PLACES else self)[name] = value


def places_in(
    section: type[BaseModel], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (name of a field, names of the sections that lead to it)."""
    for name, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from places_in(kind, (*above, name))
        elif section is not RunRecord:  # whose settings are no fields
            yield name, above


PLACES = dict(places_in(RunRecord))
SECTIONS = {"settings", *(name for place in PLACES.values() for name in place)}


def notebook_name(name: str) -> str:
    """Return the name of the notebook that run_all.py runs, or `name` in a notebook run by hand."""
    return Path(given).stem if (given := os.environ.get(NOTEBOOK_ENV)) else name


def digest_of(notebook: str, parameters: dict, precision: str) -> str:
    """Return eight hex digits for the notebook, the precision and every parameter but the folders.

    They are what makes a run the same run: run_all.py plans by them, and the notebook names its records by them.
    """
    text = json.dumps([notebook, precision, parameters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_id_of(notebook: str, parameters: dict, precision: str) -> str:
    """Return a readable name that ends in digest_of() the run.

    Images of one's own (dataset "folder") are named after the folder that holds them.
    """
    kept = {
        name: value for name, value in parameters.items() if name not in (*NO_EFFECT, "precisions")
    }
    if kept["dataset"] == "folder":
        kept["dataset"] = f"folder {Path(parameters['data_dir']).name}"
    dataset = "csv" if kept.get("csv_path") else kept["dataset"]
    digest = digest_of(notebook, kept, precision)
    words = (
        notebook,
        kept["model"],
        dataset,
        precision,
        f"b{kept['batch_size']}",
        f"s{kept['seed']}",
        digest,
    )
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(word)) for word in words)


def new_record(notebook: str, settings: dict, precision: str, facts: dict) -> RunRecord:
    """Return the record of a run that is about to start; `facts` are fields that are known already."""
    plan = planned()
    run_id = run_id_of(notebook, plan.parameters if plan else settings, precision)
    run = Run.model_construct(run_id=run_id, notebook=notebook, precision=precision)
    record = RunRecord.model_construct(run=run, settings=settings)
    for name, value in facts.items():
        setattr(record, name, value)
    return record


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def flat_record(record: RunRecord) -> dict:
    """Return {name: value} of all fields, with `settings` as one of them, as the judgement and the report read it."""

    def fields_of(part: Section) -> Iterator[tuple[str, Any]]:
        for name, value in (part.model_extra or {}).items():
            if name not in PLACES and name not in SECTIONS and name != "path":
                yield name, value
        for name, field in type(part).model_fields.items():
            value = vars(part)[name]
            if isinstance(value, Section):
                yield from fields_of(value)
            elif not field.exclude:
                yield name, value

    return dict(fields_of(record))


def write_record(record: RunRecord, output_dir: str | Path) -> Path:
    """Write `output_dir/<run_id>.json`, whole or not at all, and return its path.

    What was measured is not lost: a result of other data or of another model in its place is renamed, so that a hash
    of them ends its name, and one of another version of this package moves into a folder beside it. What the reader
    would refuse becomes a failed run with that reason.
    """
    path = Path(output_dir) / f"{record.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record.code_hash = record.code_hash or hash_that_ran()
    record.study = record.study or given_study()
    if reason := refused(record):
        record.measured, record.quality = Measured(), Quality()
        record.status, record.reason = "failed", f"its record could not be read, because {reason}"
    old = load(path)
    if old and old.status in RESULTS:
        keep_beside(old, record, path)
    save_record(record, path)
    return path


def is_of_other_version(old: RunRecord) -> bool:
    return old.package_version not in (None, __version__)


def keep_beside(old: RunRecord, new: RunRecord, path: Path) -> None:
    """Keep a result whose place `new` takes, where that is of another version, of other data or of another model."""
    if is_of_other_version(old):
        aside = path.parent / f"other_code-{old.package_version}"
        aside.mkdir(exist_ok=True)
        os.replace(path, aside / path.name)
    elif new.data_fingerprint and (old.data_fingerprint, old.identity) != (
        new.data_fingerprint,
        new.identity,
    ):
        ends = old.data_fingerprint or "unknown_data"
        if old.identity is not None:
            ends = hashlib.sha256(json.dumps([ends, old.identity]).encode()).hexdigest()[:12]
        old.run_id = f"{old.run_id}-{ends}"
        save_record(old, path.with_name(f"{old.run_id}.json"))


def refused(record: RunRecord) -> str | None:
    """Return why a record could not be read again, or None."""
    try:
        return contradiction(flat_record(record_of(as_json(record.model_dump(warnings=False)))))
    except (TypeError, ValueError) as error:  # it holds what is no JSON
        return str(error)


def save_record(record: RunRecord, path: str | Path) -> None:
    """Write a record as it is, in its nested form."""
    write_json(record.model_dump(warnings=False), path)


def given_study() -> dict | None:
    """Return what the study that run_all.py runs says of itself, and None in a notebook run by hand."""
    return json.loads(os.environ.get(STUDY_ENV, "null"))


def write_json(value: dict, path: str | Path) -> None:
    """Write a dict as JSON, whole or not at all. Numbers that are not finite become null, as JSON has none."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(as_json(value), indent=1) + "\n", encoding="utf-8")


def as_json(value: dict) -> dict:
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


# the parameters of version 0.3, whose records are flat; all other keys are fields
SETTINGS_OF_0_3 = {
    "dataset",
    "model",
    "precisions",
    "batch_size",
    "epochs",
    "max_steps",
    "lr",
    "loss_scale",
    "execution",
    "memory_limit_gib",
    "seed",
    "data_dir",
    "output_dir",
    "compile_mode",
    "scaler",
    "rounding",
    "repeat",
    "clip",
    "accumulate",
    "channels_last",
    "optimizer",
    "image_size",
    "schedule",
    "batchnorm_momentum",
    "dropout",
    "log_every",
    "keep_batchnorm_fp32",
    "loader",
    "num_workers",
    "csv_path",
    "image_height",
    "image_width",
    "loss_function",
    "bptt",
    "units",
    "layers",
    "heads",
    "generate_words",
    "temperature",
}
# up to which a difference of a metric from fp32 counts as equivalent, and whether it is a share
MARGINS_OF_0_3 = {
    "accuracy": {"metric_margin": 0.002},
    "perplexity": {"metric_margin": 0.02, "metric_margin_is_share": True},
    "mean_absolute_error": {"metric_margin": 0.02},
}
FOLDERS_OF_0_3 = {"cifar_resnet": "cifar10", "lstm_language_model": "wikitext-2"}


def lifted(flat: dict) -> dict:
    """Return the nested form of a flat record of version 0.3. Raise ValueError where another version wrote it."""
    version = str(flat.get("package_version"))
    if not version.startswith("0.3."):
        raise ValueError(
            f"version {version} wrote it; only records of 0.3 and later are read, so read it with 0.3"
        )
    given: dict[str, Any] = MARGINS_OF_0_3.get(flat.get("metric_name") or "", {})
    given = {"data_folder": FOLDERS_OF_0_3.get(flat.get("notebook") or ""), **given, **flat}
    nested: dict = {"settings": {name: given[name] for name in SETTINGS_OF_0_3 if name in given}}
    for name in given.keys() - nested["settings"].keys():
        part = nested
        for step in PLACES.get(name, ("run",)):
            part = part.setdefault(step, {})
        part[name] = given[name]
    nested["run"]["schema_version"] = SCHEMA_VERSION
    return nested


def record_of(value: Any) -> RunRecord:
    """Return the record in a JSON value. Raise ValueError with the reason where there is none that can be used."""
    if not isinstance(value, dict):
        raise ValueError("it is no record")
    try:
        record = RunRecord.model_validate(lifted(value) if "run_id" in value else value)
        known = {
            name: record.settings[name] for name in Common.model_fields if name in record.settings
        }
        Common.model_validate(known)
        lacking = [name for name in ("model", "batch_size", "seed") if name not in known]
    except ValidationError as error:
        raise ValueError(said_of(error, "a record", (), SECTIONS).rstrip(".")) from None
    if lacking:
        raise ValueError(f"a record lacks {lacking[0]}")
    return record


def load(path: Path) -> RunRecord | None:
    """Return the record of a training in the file that bears its run_id, or None where it is of another or unusable."""
    try:
        record = record_of(json.loads(read_file(path)))
    except (OSError, ValueError, RecursionError):
        return None
    return record if record.run_id == path.stem and not contradiction(flat_record(record)) else None


def read_run(path: Path) -> dict | None:
    """Return what load() returns as fields."""
    record = load(path)
    return flat_record(record) if record else None


def contradiction(record: dict) -> str | None:
    """Return which fields of a record with sound values contradict each other or this version, or None."""
    if record["schema_version"] != SCHEMA_VERSION:
        return f"schema version {record['schema_version']}; this version reads {SCHEMA_VERSION}"
    if record["metric"] and record["metric_better"] not in ("higher", "lower"):
        return "metric_better must be higher or lower where there is a metric"
    if record["status"] != "ok":
        return None
    if not isinstance(record["batch_size_used"] or record["settings"]["batch_size"], int):
        return "status ok, but no batch_size_used"
    peak = record["peak_allocated_mib"]
    if peak is not None and peak <= (record["data_on_device_mib"] or 0):
        return "status ok, but no peak_allocated_mib above 0 and above data_on_device_mib"
    if not record["epoch_seconds"] or not all((one or 0) > 0 for one in record["epoch_seconds"]):
        return "status ok, but no usable epoch_seconds"
    return (
        None
        if all(one > 0 for one in record["block_seconds"])
        else "status ok, but no usable block_seconds"
    )


def data_asked_for(record: dict) -> str | None:
    """Return the data set that a run was given. Images of one's own are named after their folder."""
    dataset, folder = (record["settings"].get(name) for name in ("dataset", "data_dir"))
    return Path(folder).name if dataset == "folder" and isinstance(folder, str) else dataset


def comparison_key(record: dict) -> tuple:
    """Return what must be equal before two runs are compared.

    It holds notebook, device, data, each part of the identity of one's own training, and every
    parameter but the precision, the seed, the repetition and the folders. Data are compared by name
    and contents. Records without a fingerprint are compared among themselves only.
    """
    # a run that ended early has only the second
    used = record["dataset_used"] or data_asked_for(record)
    values = {**record, "dataset_used": used}
    fields = [(name, json.dumps(values[name])) for name in SAME]
    settings = {name: value for name, value in record["settings"].items() if name not in OF_ONE_RUN}
    named = {
        f"{name} (parameter)" if name in SAME else name: value for name, value in settings.items()
    }
    named |= {f"identity {part}": value for part, value in (record["identity"] or {}).items()}
    return (*fields, *((name, json.dumps(named[name])) for name in sorted(named)))


def samples_in_epoch(record: dict) -> float:
    """Return the samples of a timed epoch, or 0 where they are not known."""
    return record["samples_per_epoch"] or 0


def is_explanation(record: dict) -> bool:
    """Return whether a record of version 0.2 is of a process that only explained. Its times count nowhere."""
    return record["purpose"] == "explain"


def too_short_for_energy(seconds: float) -> str | None:
    """Return why the energy of so many seconds of timed training is no figure, or None where it is."""
    short = (
        f"less than {SHORTEST_FOR_ENERGY:g} s of timed training, too short for the energy counter"
    )
    return short if seconds < SHORTEST_FOR_ENERGY else None


def last_metric(record: dict) -> float | None:
    """Return the last metric on held-out data, or None where it is missing or not finite."""
    last = (record["metric"] or [None])[-1]
    return last if last is not None and math.isfinite(last) else None
