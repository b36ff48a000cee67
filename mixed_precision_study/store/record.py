"""The run record: one pydantic model of what a training was, what it ran on, what was measured and
what it reached.

On disk it is nested: `run`, `settings` (exactly the parameters), `machine`, `measured` and
`quality`. The names of all fields differ, so that the model finds each by its name alone:
`record.gpu_name` is `record.machine.gpu_name`. A field that another version adds or lacks is no
setting, so it changes no comparison. This module does not load PyTorch.
"""

import functools
import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from typing_extensions import TypeAliasType

from .. import __version__
from ..parameters import (
    MAX_NUMBER,
    BatchSize,
    Common,
    Integer,
    Precision,
    Seed,
    Text,
    planned,
    said_of,
)
from .commit import digest, hash_that_ran
from .files import read_file, written_whole
from .variables import NOTEBOOK_ENV, STUDY_ENV

Number = Integer | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Positive = Annotated[Number, Field(gt=0)]
OrNone = Number | None
# What was not measured, or is not of this run, is None.
ELSE_NONE = Field(default=None)
MaybeNumber = Annotated[OrNone, ELSE_NONE]
MaybeText = Annotated[Text | None, ELSE_NONE]
MaybeInteger = Annotated[Integer | None, ELSE_NONE]
MaybeBool = Annotated[bool | None, ELSE_NONE]
NotWritten = Annotated[list, Field(exclude=True)]  # because it is too long
Status = Literal["ok", "oom", "diverged", "unsupported", "failed", "timeout", "killed"]
# what JSON can hold
Plain = TypeAliasType("Plain", "bool | Number | Text | list[Plain] | dict[Text, Plain] | None")
# JSON has no other sequences than lists, so that a list stands for a tuple.
NamedShare = Annotated[tuple[Text, Annotated[Number, Field(ge=0)]], Strict(False)]
Change = Annotated[tuple[Number, OrNone], Strict(False)]
Logged = Annotated[tuple[Number, Number, OrNone, OrNone], Strict(False)]
Probe = Annotated[tuple[Annotated[Number, Field(ge=1)], Text, OrNone, OrNone], Strict(False)]

SHORTEST_FOR_ENERGY = 5.0  # seconds of timed training: the counter goes on in steps of about 0.1 s
DISTURBED = 0.05  # a run is throttled if one reason held in this share of the samples
# ledger_<part>_mib
LEDGER_AT_PEAK = ("parameters", "gradients", "optimizer", "masters", "data", "activations")
NO_EFFECT = ("data_dir", "output_dir")  # parameters that do not change the result
# Settings in which runs of one comparison may differ; of the data what was used is compared, not
# what was asked for.
OF_ONE_RUN = {"precisions", "seed", "repeat", "dataset", *NO_EFFECT}
ADDED = {  # parameters that older records lack, as they trained
    "cudnn_benchmark": True,
    "fused": False,
    "init_from": "",
    "save_to": "",
    "moments": "as_weights",
    "checkpointing": 0,
    "memory_budget": 0.0,
    "offload": False,
    "optimizer_in_backward": False,
    "adapters": 0,
    "micro_batches": 1,
}
ADDED_TO = {"transformer": {"clip": 1.0}}  # those of one notebook
# fields of a comparison
SAME = ("notebook", "device_type", "gpu_name", "dataset_used", "data_fingerprint")
NOT_YET_EXPLAINED = "the run was ended before it was explained"
Runs = Sequence[dict]  # records as flat_record() returns them
RESULTS = ("ok", "diverged")  # statuses of what was measured


class Section(BaseModel):
    """A part of a record. What it does not declare is of another version: plain JSON, which is
    kept as it is.
    """

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
    purpose: MaybeText  # of version 0.2: explain or aa, whose times count in no comparison
    # name, description, show, axis and base of its study; null in a notebook run by hand
    study: dict[Text, Plain] | None = None
    schema_version: Literal[2] = 2  # of these fields
    status: Status = "failed"  # ok, oom, diverged, unsupported, failed, timeout or killed
    reason: MaybeText  # for every status but ok
    started_at: MaybeText  # ISO 8601, UTC
    finished_at: MaybeText  # ISO 8601, UTC
    order_in_comparison: MaybeInteger  # planned place in its comparison, from 0
    runs_before_in_process: MaybeInteger  # trainings begun earlier in its process
    process_id: MaybeText  # hash that tells processes apart
    kernel_forked: MaybeBool  # from a loaded process that forks others, too
    package_version: MaybeText  # of the suite
    commit: MaybeText  # of the suite, if known
    code_hash: MaybeText  # of the measuring code; null in a notebook run by hand
    model_title: MaybeText  # the model's name for people; else its key
    data_title: MaybeText  # the data's name for people; else `dataset_used`
    dataset_used: MaybeText  # what "auto" became
    dataset_source: MaybeText  # "folder", "download", "package", "csv" or "synthetic"
    data_folder: MaybeText  # where in data_dir "auto" looks for its files
    data_fingerprint: MaybeText  # hash of contents, counts and classes
    # of one's own model: hashes of it, its functions, optimizer, batches
    identity: dict[Text, Text] | None = None
    data_files_hash: MaybeText  # of the files read in data_dir
    synthetic: MaybeBool  # made-up data
    train_samples: MaybeInteger  # images or tokens
    eval_samples: MaybeInteger  # images or tokens
    sample_unit: MaybeText  # images or tokens


class Machine(Section):
    """The device, its driver, the machine and the versions in use."""

    device_type: MaybeText  # the device
    gpu_name: MaybeText  # the device
    gpu_uuid: MaybeText  # the device
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None  # the device
    device_total_mib: MaybeNumber  # the device
    driver_version: MaybeText  # version in use
    cuda_version: MaybeText  # version in use
    cudnn_version: MaybeText  # version in use
    torch_version: MaybeText  # version in use
    timm_version: MaybeText  # version in use
    python_version: MaybeText  # version in use
    host_platform: MaybeText  # the machine, as this process sees it
    host_cores: MaybeInteger  # the machine, as this process sees it
    host_threads: MaybeInteger  # that PyTorch uses on the CPU
    host_cpu: MaybeText  # the machine, as this process sees it
    host_id: MaybeText  # hash that tells machines apart
    application_clock_mhz: MaybeNumber  # graphics clock for programs, where NVML has it
    # graphics clock for programs, where NVML has it
    application_clock_mhz_default: MaybeNumber
    sm_clock_mhz_max: MaybeNumber  # highest that the GPU offers
    native_bf16: MaybeBool  # false where only emulated
    fp16_check: MaybeText  # "passed", or what is wrong


class Time(Section):
    """Seconds and milliseconds, what was timed, and what came before it."""

    steps_per_epoch: MaybeInteger  # timed in each epoch
    batch_size_used: MaybeInteger  # what "max" became
    samples_per_epoch: MaybeInteger  # timed in each epoch
    batch_probes: list[Probe] = []  # [batch size, "ok" or "oom", peak MiB, samples per second]
    epoch_seconds: list[Positive] = []  # training only, every timed epoch
    block_seconds: list[Positive] = []  # up to ten parts of each timed epoch
    step_ms_median: MaybeNumber  # timed steps
    step_ms_p10: MaybeNumber  # timed steps
    step_ms_p90: MaybeNumber  # timed steps
    step_ms_all: NotWritten = []  # every timed step; not written, too long
    data_wait_fraction: MaybeNumber  # of the timed epochs: waiting for a batch
    # per timed epoch; not written, see the fraction
    data_wait_seconds_all: NotWritten = []
    samples_per_second: MaybeNumber  # at the mean epoch time; older records: median
    # waits for the GPU, by torch.cuda.set_sync_debug_mode
    host_syncs_per_step: MaybeNumber
    warmup_steps: MaybeInteger  # before the clock starts, then undone
    warmup_seconds: MaybeNumber  # search, compilation, settling of the loss scale
    compile_seconds: MaybeNumber  # of the warm-up
    search_seconds: MaybeNumber  # of the warm-up, at most
    search_limit_algorithms: MaybeInteger  # timed for each convolution; 0: all
    search_reason: MaybeText  # why there was no search
    startup_seconds: MaybeNumber  # first cell to first timed step
    startup_import_seconds: MaybeNumber  # part of startup_seconds
    startup_preflight_seconds: MaybeNumber  # part of startup_seconds
    startup_data_seconds: MaybeNumber  # part of startup_seconds
    startup_model_seconds: MaybeNumber  # part of startup_seconds
    startup_warmup_seconds: MaybeNumber  # part of startup_seconds
    # why there are none: only the first run of a kernel has them
    startup_reason: MaybeText
    evaluation_seconds: MaybeNumber  # outside the clock


class Memory(Section):
    """MiB of the GPU."""

    peak_allocated_mib: MaybeNumber  # PyTorch's allocator, timed steps
    peak_reserved_mib: MaybeNumber  # PyTorch's allocator, timed steps
    peak_allocated_with_warmup_mib: MaybeNumber  # the same with the warm-up
    peak_reserved_with_warmup_mib: MaybeNumber  # the same with the warm-up
    data_on_device_mib: MaybeNumber  # part of the peak: the data set
    # NVML, whole GPU, highest at an epoch's end; older records: the first's
    device_used_mib: MaybeNumber
    device_used_before_mib: MaybeNumber  # NVML, used by others beforehand
    device_memory_reason: MaybeText  # why NVML gave no figure


class Energy(Section):
    """Joules and watts of the whole GPU, and what slowed it."""

    energy_joules: MaybeNumber  # whole GPU, timed epochs
    energy_source: MaybeText  # "counter" or "power"
    energy_reason: MaybeText  # why there is no energy
    joules_per_1000_samples: MaybeNumber  # timed epochs
    power_watts_mean: MaybeNumber  # timed epochs
    power_watts_limit: MaybeNumber  # power cap in force
    sm_clock_mhz_median: MaybeNumber  # timed epochs
    temperature_celsius_max: MaybeNumber  # timed epochs
    throttle_fractions: list[NamedShare] = []  # [reason, fraction of samples]
    throttled: MaybeBool  # one reason held in at least 5% of the samples
    gpu_shared: MaybeBool  # another process used the GPU
    card_samples: MaybeInteger  # about ten a second
    card_samples_all: NotWritten = []  # every sample; not written, too long
    card_reason: MaybeText  # why there are no samples


class Arithmetic(Section):
    """In which types the training computed, read back."""

    fp32_precision_matmul: MaybeText  # PyTorch's switch, read back
    fp32_precision_conv: MaybeText  # PyTorch's switch, read back
    fp32_precision_rnn: MaybeText  # PyTorch's switch, read back
    allow_fp16_accumulation: MaybeBool  # PyTorch's switch, read back
    autocast_dtype: MaybeText  # null if autocast is off
    # PyTorch's switch, read back; null in eager mode or no autocast
    compiled_backward_autocast: MaybeText
    parameter_dtypes: MaybeText  # for example "float16 + float32"
    fp8_linear_fraction: MaybeNumber  # of the Linear layers' work: in fp8


class Ledger(Section):
    """What filled the memory at its peak."""

    ledger_parameters_mib: MaybeNumber  # part of the peak
    ledger_gradients_mib: MaybeNumber  # part of the peak
    ledger_optimizer_mib: MaybeNumber  # part of the peak
    ledger_masters_mib: MaybeNumber  # part of the peak
    ledger_data_mib: MaybeNumber  # part of the peak
    # rest of the peak: activations, temporaries, workspaces
    ledger_activations_mib: MaybeNumber
    ledger_slack_mib: MaybeNumber  # reserved by the allocator above the peak
    ledger_context_mib: MaybeNumber  # CUDA context and libraries
    ledger_error_fraction: MaybeNumber  # (peak + slack + context) / NVML's figure - 1
    ledger_reason: MaybeText  # why there is no memory breakdown, or no context in it
    saved_activations_mib: MaybeNumber  # kept by the forward pass for the backward pass


class Kernels(Section):
    """What a profiled step ran, and how long the whole explanation took."""

    explanation_seconds: MaybeNumber  # outside the clock
    gpu_busy_fraction: MaybeNumber  # kernel time of a profiled step / median timed step
    gpu_busy_ms_per_step: MaybeNumber  # with a kernel or copy running
    kernels_per_step: MaybeNumber  # kernels, copies and fills
    tensor_core_fraction: MaybeNumber  # of kernel time, by kernel names
    fp16_kernel_fraction: MaybeNumber  # of kernel time, by kernel names
    fp8_kernel_fraction: MaybeNumber  # of kernel time, by kernel names
    kernel_family_fractions: list[NamedShare] = []  # [family, fraction of kernel time]
    profile_reason: MaybeText  # why there is no profile
    # what computed scaled_dot_product_attention: cudnn, flash, efficient or math
    attention_forward: MaybeText
    # what computed scaled_dot_product_attention: cudnn, flash, efficient or math
    attention_backward: MaybeText
    attention_reason: MaybeText  # why no other one did, by PyTorch, or why none is known


class Work(Section):
    """How much a step computes and moves, against what the GPU can do."""

    # convolution, matmul, attention, RNN; a multiply-add counts 2
    flops_per_step: MaybeNumber
    bytes_per_step: MaybeNumber  # inputs and outputs of every operation, without any cache
    misaligned_flops_fraction: MaybeNumber  # sizes that are not multiples of 8
    achieved_tflop_per_second: MaybeNumber  # flops_per_step / median timed step
    # measured on this GPU in the run's arithmetic
    ceiling_matmul_tflop_per_second: MaybeNumber
    ceiling_copy_gb_per_second: MaybeNumber  # measured; read plus written
    # achieved_tflop_per_second / ceiling_matmul_tflop_per_second
    compute_limit_fraction: MaybeNumber
    # bytes_per_step / busy time / ceiling_copy_gb_per_second
    bandwidth_limit_fraction: MaybeNumber
    limit_reason: MaybeText  # why a figure of FLOPs, bytes or ceilings is missing


class Lost(Section):
    """What 16 bits lose of gradients and updates."""

    # of non-zero gradients: zero in fp16 without scaling
    gradient_flush_fraction_scale_1: MaybeNumber
    gradient_flush_fraction_scaled: MaybeNumber  # the same at the last loss scale
    gradient_reason: MaybeText  # why an fp16 run has no such fractions
    lost_update_fraction: MaybeNumber  # of weights that a step should change: unchanged
    kept_update_fraction: MaybeNumber  # of that step's update: reached the weights
    # why a run whose weights are 16-bit alone has no such fractions
    update_reason: MaybeText


class Inference(Section):
    """The trained model in use."""

    inference_latency_ms: MaybeNumber  # one sample, synchronised
    inference_latency_ms_p10: MaybeNumber  # one sample, synchronised
    inference_latency_ms_p90: MaybeNumber  # one sample, synchronised
    inference_samples_per_second: MaybeNumber  # at the training's batch size
    inference_memory_mib: MaybeNumber  # weights, batch, forward pass
    # largest difference from fp32 / its largest output
    inference_difference_fraction: MaybeNumber
    inference_reason: MaybeText  # why a figure of the inference is missing


class Measured(Section):
    """What was measured, and from `ledger` on what explains it."""

    time: Time = Time.model_construct()
    memory: Memory = Memory.model_construct()
    energy: Energy = Energy.model_construct()
    arithmetic: Arithmetic = Arithmetic.model_construct()
    ledger: Ledger = Ledger.model_construct()
    kernels: Kernels = Kernels.model_construct()
    work: Work = Work.model_construct()
    lost: Lost = Lost.model_construct()
    inference: Inference = Inference.model_construct()


class Quality(Section):
    """What the training reached, and how its loss scale went."""

    train_loss: list[OrNone] = []  # mean of each epoch
    training_log: list[Logged] = []  # [epoch, step, loss, accuracy so far in the epoch]
    metric_name: MaybeText  # "accuracy", "mean_absolute_error" or "perplexity"
    metric_better: Literal["higher", "lower"] | None = None  # "higher" or "lower"
    metric: list[OrNone] = []  # held-out data, after each epoch
    chance_metric: MaybeNumber  # of a model that ignores its input
    metric_margin: MaybeNumber  # differences from fp32 up to this one count as equivalent
    metric_margin_is_share: bool = False  # the margin is a share of fp32's metric
    metric_target: MaybeNumber  # metric to which the time of training is told
    test_metric: MaybeNumber  # on a test set that decides nothing, or null
    loss_scale_trace: list[Change] = []  # [timed step, scale] at each change
    skipped_steps: MaybeInteger  # timed steps whose gradients overflowed
    warmup_skipped_steps: MaybeInteger  # while the loss scale settled
    overflow_steps: list[Number] = []  # timed steps skipped, counted from 0 in each repeat


# parts of Measured that an explanation fills in
EXPLAINING = ("ledger", "kernels", "work", "lost", "inference")


class RunRecord(Section):
    """One training: one notebook, one set of parameters, one precision.

    A field that was not measured is None.
    """

    run: Run
    settings: dict[Text, Plain]  # every parameter, with the name that it has in the notebook
    machine: Machine = Machine.model_construct()
    measured: Measured = Measured.model_construct()
    quality: Quality = Quality.model_construct()

    def part_with(self, name: str) -> Section:
        """Return the section that holds a field, and the record itself where no section does."""
        return functools.reduce(getattr, PLACES.get(name, ()), self)

    def __getattr__(self, name: str) -> Any:
        if name in PLACES:
            return getattr(self.part_with(name), name)
        raise AttributeError(f"a record has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self.part_with(name))[name] = value

    def fill(self, **values: Any) -> None:
        """Set several fields."""
        for name, value in values.items():
            setattr(self, name, value)


def places_in(section: type[BaseModel], above: tuple) -> dict[str, tuple]:
    """Return {name of a field: names of the sections that lead to it}."""
    places: dict = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            places |= places_in(kind, (*above, name))
        elif above:  # the settings, in no section, are no fields
            places[name] = above
    return places


PLACES = places_in(RunRecord, ())
SECTIONS = {"settings", *(name for place in PLACES.values() for name in place)}


def notebook_name(name: str) -> str:
    """Return the name of the notebook that run_all.py runs, or `name` in a notebook run by hand."""
    return Path(given).stem if (given := os.environ.get(NOTEBOOK_ENV)) else name


def run_id_of(notebook: str, parameters: dict, precision: str) -> str:
    """Return a readable name that ends in eight hex digits for the notebook, the precision and
    every parameter but the folders.

    They are what makes a run the same run: run_all.py plans by them, and the notebook names its
    records by them. Images of one's own (dataset "folder") are named after the folder that holds
    them.
    """
    kept = {
        name: value for name, value in parameters.items() if name not in (*NO_EFFECT, "precisions")
    }
    if kept["dataset"] == "folder":
        kept["dataset"] = f"folder {Path(parameters['data_dir']).name}"
    dataset = "csv" if kept.get("csv_path") else kept["dataset"]
    words = (
        notebook,
        kept["model"],
        dataset,
        precision,
        f"b{kept['batch_size']}",
        f"s{kept['seed']}",
        digest([notebook, precision, kept])[:8],
    )
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(word)) for word in words)


def new_record(
    notebook: str, settings: dict, precision: str, facts: dict, way: dict | None = None
) -> RunRecord:
    """Return the record of a run that is about to start;

    `facts` are fields that are known already. `way` holds what is other in it than run_all.py has
    planned for the first way of this process.
    """
    plan = planned()
    run_id = run_id_of(notebook, plan.parameters | (way or {}) if plan else settings, precision)
    record = RunRecord.model_construct(
        run=Run.model_construct(run_id=run_id, notebook=notebook, precision=precision),
        settings=settings,
    )
    record.fill(**facts)
    return record


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def flat_record(record: RunRecord) -> dict:
    """Return {name: value} of the fields, with `settings` as one of them, as the report reads it.

    Fields of other versions are left out, because nothing here knows what they mean.
    """
    return {"settings": record.settings, **{name: getattr(record, name) for name in PLACES}}


def write_record(record: RunRecord, output_dir: str | Path) -> Path:
    """Write `output_dir/<run_id>.json`, whole or not at all, and return its path.

    What was measured is not lost: a result of other data or of another model in its place is
    renamed, so that a hash of them ends its name, and one of another version of this package moves
    into a folder beside it. What the reader would refuse becomes a failed run with that reason.
    """
    path = Path(output_dir) / f"{record.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record.code_hash = record.code_hash or hash_that_ran()
    record.study = record.study or given_study()
    if reason := refused(record):
        record.measured = Measured.model_construct()
        record.quality = Quality.model_construct()
        record.status = "failed"
        record.reason = f"its record would be wrong, because {reason}"
    old = load(path)
    if old and old.status in RESULTS:
        keep_beside(old, record, path)
    save_record(record, path)
    return path


def keep_beside(old: RunRecord, new: RunRecord, path: Path) -> None:
    """Keep a result whose place `new` takes, where it is of another version, data or model."""
    if old.package_version not in (None, __version__):
        aside = path.parent / f"other_code-{old.package_version}"
        aside.mkdir(exist_ok=True)
        os.replace(path, aside / path.name)
        print(f"The result of version {old.package_version} is kept in {aside}.")
        return
    was, now = ([record.data_fingerprint, record.identity] for record in (old, new))
    if new.data_fingerprint and was != now:
        old.run_id += f"-{digest(was)[:12]}"
        save_record(old, path.with_name(f"{old.run_id}.json"))


def refused(record: RunRecord) -> str | None:
    """Return why a record could not be read again, or None."""
    try:
        record_of(as_json(record.model_dump(warnings=False)))
    except (TypeError, ValueError) as error:  # TypeError: it holds what is no JSON
        return str(error)
    return None


def save_record(record: RunRecord, path: str | Path) -> None:
    """Write a record as it is, in its nested form."""
    write_json(record.model_dump(warnings=False), path)


def given_study() -> dict | None:
    """Return what the study of run_all.py says of itself, None in a notebook run by hand."""
    return json.loads(os.environ.get(STUDY_ENV, "null"))


def write_json(value: dict, path: str | Path) -> None:
    """Write a dict as JSON, whole or not at all.

    Numbers that are not finite become null, as JSON has none.
    """
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(as_json(value), indent=1) + "\n", encoding="utf-8")


def as_json(value: dict) -> dict:
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


# up to which a difference of a metric from fp32 counts as equivalent, and whether it is a share
MARGINS_OF_0_3 = {
    "accuracy": {"metric_margin": 0.002},
    "perplexity": {"metric_margin": 0.02, "metric_margin_is_share": True},
    "mean_absolute_error": {"metric_margin": 0.02},
}
FOLDERS_OF_0_3 = {"cifar_resnet": "cifar10", "lstm_language_model": "wikitext-2"}


def lifted(flat: dict) -> dict:
    """Return the nested form of a flat record of version 0.3.

    Raise ValueError where another version wrote it.
    """
    version = str(flat.get("package_version"))
    if not version.startswith("0.3."):
        raise ValueError(
            f"version {version} wrote it; only records of 0.3 and later are read, "
            "so read it with 0.3"
        )
    given = {
        "data_folder": FOLDERS_OF_0_3.get(str(flat.get("notebook"))),
        **MARGINS_OF_0_3.get(str(flat.get("metric_name")), {}),
        **flat,
        "schema_version": 2,  # of the nested form
    }
    nested: dict = {"settings": {}}
    for name, value in given.items():
        part = nested
        # a record of 0.3 is flat: what is no field is a parameter
        for step in PLACES.get(name, ("settings",)):
            part = part.setdefault(step, {})
        part[name] = value
    # the only field of 0.3 that no record has today
    nested["settings"].pop("ceiling_conv_tflop_per_second", None)
    return nested


class Settings(Common):
    """What the settings of every record hold, beside parameters that no experiment has today."""

    model_config = ConfigDict(extra="ignore")
    model: Text
    batch_size: BatchSize
    seed: Seed


def record_of(value: Any) -> RunRecord:
    """Return the record in a JSON value.

    Raises ValueError, with the reason, where there is none or its fields contradict each other.
    """
    if not isinstance(value, dict):
        raise ValueError("it is no record")
    try:
        record = RunRecord.model_validate(lifted(value) if "run_id" in value else value)
        Settings.model_validate(record.settings)
    except ValidationError as error:
        raise ValueError(said_of(error, "a record", (), SECTIONS).rstrip(".")) from None
    if reason := contradiction(record):
        raise ValueError(reason)
    return record


def contradiction(record: RunRecord) -> str | None:
    """Return which fields of a record with sound values contradict each other, or None."""
    if record.metric and not record.metric_better:
        return "metric_better must be higher or lower where there is a metric"
    if record.status != "ok":
        return None
    if not isinstance(record.batch_size_used or record.settings["batch_size"], int):
        return "status ok, but no batch_size_used"
    if not record.epoch_seconds:
        return "status ok, but no epoch_seconds"
    asked = record.settings.get("attention")
    ran = {record.attention_forward, record.attention_backward} - {None}
    if asked in ("cudnn", "flash", "efficient", "math") and ran - {asked}:
        return f"attention {asked} was asked for, but {' and '.join(ran)} ran"
    peak = record.peak_allocated_mib
    if peak is not None and peak <= (record.data_on_device_mib or 0):
        return "status ok, but no peak_allocated_mib above data_on_device_mib"
    return None


def load(path: Path) -> RunRecord | None:
    """Return the record of a training in the file that bears its run_id.

    None means that it is of another training, or cannot be used.
    """
    with suppress(OSError, ValueError, RecursionError):
        record = record_of(json.loads(read_file(path)))
        if record.run_id == path.stem:
            return record
    return None


def read_run(path: Path) -> dict | None:
    """Return what load() returns as fields."""
    record = load(path)
    return flat_record(record) if record else None


def data_asked_for(record: dict) -> str | None:
    """Return the data set that a run was given.

    Images of one's own are named after their folder.
    """
    settings = record["settings"]
    dataset = settings.get("dataset")
    return Path(settings.get("data_dir", "")).name if dataset == "folder" else dataset


def comparison_key(record: dict) -> tuple:
    """Return what must be equal before two runs are compared.

    It holds notebook, device, data, each part of the identity of one's own training, and every
    parameter but the precision, the seed, the repetition and the folders. One that older records
    lack is in no key where its value is the one they trained with. Data are compared by name and
    contents. Records without a fingerprint are compared among themselves only.
    """
    # a run that ended early has only the second
    used = record["dataset_used"] or data_asked_for(record)
    same = {name: record[name] for name in SAME} | {"dataset_used": used}
    usual = ADDED | ADDED_TO.get(record["notebook"], {})
    named = {
        f"{name} (parameter)" if name in SAME else name: value
        for name, value in record["settings"].items()
        if name not in OF_ONE_RUN and (name, value) not in usual.items()
    }
    named |= {f"identity {part}": value for part, value in (record["identity"] or {}).items()}
    return tuple(
        (name, json.dumps(value)) for name, value in [*same.items(), *sorted(named.items())]
    )


def is_explanation(record: dict) -> bool:
    """Return whether a record of version 0.2 is of a process that only explained.

    Its times count nowhere.
    """
    return record["purpose"] == "explain"


def too_short_for_energy(seconds: float) -> str | None:
    """Return why the energy of so many seconds of timed training is no figure, or None where it
    is.
    """
    short = (
        f"less than {SHORTEST_FOR_ENERGY:g} s of timed training, too short for the energy counter"
    )
    return short if seconds < SHORTEST_FOR_ENERGY else None


def last_metric(record: dict) -> float | None:
    """Return the last metric on held-out data, or None where it is missing or not finite."""
    last = (record["metric"] or [None])[-1]
    return last if last is not None and math.isfinite(last) else None
