"""Made-up run records for the tests of the summary: every status, several seeds and devices, and files that are none.

The numbers are round, so that the tests know the answers: see `write_everything`.
"""

import dataclasses
import itertools
import json
import zipfile

from mixed_precision_study.record import RunRecord, run_id_of, write_record

PARAMETERS = {
    "cifar_resnet": {"dataset": "cifar10", "model": "resnet18", "batch_size": 128, "epochs": 3, "loader": "gpu"},
    "efficientnet_regression": {"dataset": "auto", "model": "tf_efficientnet_b0", "batch_size": 32, "epochs": 3},
    "lstm_language_model": {"dataset": "auto", "model": "lstm", "batch_size": 20, "epochs": 1, "bptt": 35},
}
USUAL = {"max_steps": 0, "lr": 0.1, "loss_scale": "dynamic", "execution": "eager", "repeats": 1, "seed": 0}
USUAL |= {"data_dir": "../data", "output_dir": "../outputs", "precisions": ["fp32"]}
DATA_FIELDS = ("dataset_used", "sample_unit", "train_samples", "steps_per_epoch")
DATA = {
    "cifar_resnet": dict(zip(DATA_FIELDS, ("cifar10", "images", 50_000, 391), strict=True)),
    "efficientnet_regression": dict(zip(DATA_FIELDS, ("elpv", "images", 2_100, 66), strict=True)),
    "lstm_language_model": dict(zip(DATA_FIELDS, ("wikitext-2", "tokens", 2_088_628, 2983), strict=True)),
}
METRICS = {
    "cifar_resnet": ("accuracy", "higher", 0.1, lambda epoch: 0.5 + 0.1 * epoch),
    "efficientnet_regression": ("mean_absolute_error", "lower", 0.3, lambda epoch: 0.2 - 0.02 * epoch),
    "lstm_language_model": ("perplexity", "lower", 33_278, lambda epoch: 251.0 - 30 * epoch),
}
H200 = {"device_type": "cuda", "gpu_name": "NVIDIA H200", "gpu_uuid": "GPU-1", "compute_capability": "9.0"}
TURING = {**H200, "gpu_name": "NVIDIA GeForce RTX 2080 Ti", "gpu_uuid": "GPU-2", "compute_capability": "7.5"}
CPU = {"device_type": "cpu"}
SOFTWARE = {"driver_version": "580.1", "cuda_version": "13.0", "cudnn_version": "91000", "torch_version": "2.9.1"}
SOFTWARE |= {"timm_version": "1.0.20", "python_version": "3.11.9", "host_platform": "Linux", "host_cores": 16}
# kernel families: share of kernel time
IMAGES = {"convolution": 0.7, "normalisation": 0.12, "elementwise": 0.08, "optimizer": 0.07, "copy": 0.03}
HALF_IMAGES = {"convolution": 0.45, "normalisation": 0.25, "elementwise": 0.15, "layout change": 0.1, "optimizer": 0.05}
WORDS = {"matmul": 0.6, "recurrent cell": 0.2, "softmax and loss": 0.1, "elementwise": 0.06, "other": 0.04}
UNKNOWN = "nvidia-ml-py is not installed"
NOT_STARTED = {"device_type": None, "gpu_name": None, "dataset_used": None, "synthetic": None}


def explanation_of(notebook, precision, seconds, peak, data):
    """Return the fields that explain a run on a GPU: memory breakdown, profile, energy, state, inference."""
    half = precision not in ("fp32", "tf32")
    families = WORDS if notebook == "lstm_language_model" else HALF_IMAGES if half else IMAGES
    joules = sum(seconds) * (400 if half else 500)
    parts = {"parameters": 43.0, "gradients": 43.0, "optimizer": 43.0, "masters": 43.0 * (precision == "o2_fp16")}
    parts |= {"data": data, "activations": peak - sum(parts.values()) - data, "slack": 200.0, "context": 1290.0}
    return {f"ledger_{name}_mib": mib for name, mib in parts.items()} | {
        "gpu_busy_fraction": 0.6 if notebook == "lstm_language_model" else 0.9,
        "kernel_family_fractions": [list(item) for item in families.items()],
        "tensor_core_fraction": 0.0 if precision == "fp32" else 0.4,
        "data_wait_fraction": 0.01,
        "step_ms_median": 1000 * sorted(seconds)[len(seconds) // 2] / DATA[notebook]["steps_per_epoch"],
        "misaligned_flops_fraction": 0.0,
        "compute_limit_fraction": 0.2 if half else 0.3,
        "energy_joules": joules,
        "joules_per_1000_samples": 1000 * joules / (len(seconds) * DATA[notebook]["train_samples"]),
        "power_watts_limit": 700.0,
        "sm_clock_mhz_median": 1900.0,
        "throttled": False,
        "throttle_fractions": [["power cap", 0.01]],
        "gpu_shared": False,
        "inference_latency_ms": 3.0 if half else 2.0,
        "inference_latency_ms_p10": 1.75,
        "inference_latency_ms_p90": 4.25,
        "inference_samples_per_second": 4000.0 if half else 2000.0,
        "inference_memory_mib": peak / 4,
        "inference_difference_fraction": 0.0012 if half else 0.0,
    }


def make(
    notebook,
    precision,
    *,
    device=H200,
    seconds=(6.0, 6.1, 6.2),
    peak=4096.0,
    shift=0.0,
    parameters=None,
    explained=True,
    **fields,
):
    """Return the record of a run that went well; `shift` is added to its metric, `fields` replace what is set here.

    Without `explained` it is as records were before they explained their figures.
    """
    values = {**USUAL, **PARAMETERS[notebook], **(parameters or {})}
    record = RunRecord(
        run_id_of(notebook, values, precision), notebook, precision, values, status="ok", synthetic=False
    )
    name, better, chance, at = METRICS[notebook]
    switch = "tf32" if precision == "tf32" else "ieee"
    epochs = len(seconds)
    known = {
        "started_at": "2025-11-01T10:00:00+00:00",
        "finished_at": "2025-11-01T10:10:00+00:00",
        "epoch_seconds": list(seconds),
        "train_loss": [2.0 / (epoch + 1) + 0.01 * values["seed"] for epoch in range(epochs)],
        "metric_name": name,
        "metric_better": better,
        "chance_metric": chance,
        "metric": [at(epoch) + shift for epoch in range(epochs)],
        "fp32_precision_matmul": switch,
        "fp32_precision_conv": switch,
        "fp32_precision_rnn": switch,
        "autocast_dtype": {"amp_fp16": "float16", "amp_bf16": "bfloat16"}.get(precision),
        **DATA[notebook],
        **SOFTWARE,
        **device,
    }
    known["samples_per_second"] = DATA[notebook]["train_samples"] / sorted(seconds)[epochs // 2]
    if device["device_type"] == "cuda":
        data = 150.0 if notebook == "cifar_resnet" else 0.0
        known |= {"peak_allocated_mib": peak, "device_used_mib": peak + 1500, "data_on_device_mib": data}
        if explained and fields.get("status", "ok") == "ok":
            known |= explanation_of(notebook, precision, fields.get("epoch_seconds", seconds), peak, data)
    if precision.endswith("fp16"):
        known |= {"skipped_steps": 2, "loss_scale_trace": [[0, 65536.0], [5, 32768.0]]}
    for field, value in {**known, **fields}.items():
        setattr(record, field, value)
    return record


def over_seeds(changes, precision="tf32", notebook="cifar_resnet", **fields):
    """Return a record of a precision for each change of the last metric from fp32's, and that of fp32, a seed each."""
    runs = []
    for seed, change in enumerate(changes):
        values = {"parameters": {"seed": seed}, **fields}
        runs.append(make(notebook, "fp32", **values))
        runs.append(make(notebook, precision, seconds=[3.0] * 3, shift=change, **values))
    return runs


def make_failed(notebook, precision, status, reason, **rest):
    """Return the record of a run that did not end well, at once and without figures."""
    nothing = {"seconds": [1.0], "peak_allocated_mib": None, "device_used_mib": None, "samples_per_second": None}
    nothing |= {"epoch_seconds": [], "train_loss": [], "metric": []}
    return make(notebook, precision, **{**nothing, "status": status, "reason": reason, **rest})


def write_cifar(folder):
    """ResNet-18 at three seeds: against fp32, tf32 2x, amp_fp16 2x with half the memory, amp_bf16 like tf32."""
    modes = {"fp32": (1, 4096.0, 0), "tf32": (2, 3000.0, 0), "amp_fp16": (2, 2123.0, 1), "amp_bf16": (2.02, 2200.0, -1)}
    for seed, (precision, (factor, peak, shift)) in itertools.product(range(3), modes.items()):
        times = [(6.0 + 0.2 * epoch + 0.1 * seed) / factor for epoch in range(3)]
        values = {"shift": 0.01 * (seed + shift) * bool(shift), "parameters": {"seed": seed}}
        write_record(make("cifar_resnet", precision, seconds=times, peak=peak, **values), folder)
    write_record(make("cifar_resnet", "o2_fp16", seconds=[2.5, 2.6, 2.7], peak=2000.0), folder)
    for seed in (1, 2):
        oom = make_failed("cifar_resnet", "o2_fp16", "oom", "CUDA out of memory", parameters={"seed": seed})
        write_record(oom, folder)
    stuck = make("cifar_resnet", "o3_fp16", seconds=[2.4, 2.4, 2.4], metric=[0.1, 0.1, 0.1])
    write_record(stuck, folder)  # status ok, but at chance: the summary finds it


def write_others(folder):
    """The other comparisons on the H200: no fp32, HTML in a reason, one epoch, a killed kernel, synthetic data."""
    big = {"parameters": {"model": "resnet50", "batch_size": 512}}
    records = [
        make_failed("cifar_resnet", "fp32", "oom", "CUDA out of memory", **big),
        make("cifar_resnet", "tf32", seconds=[20.0, 20.0, 20.0], peak=60_000.0, **big),
        make("cifar_resnet", "amp_fp16", seconds=[10.0, 10.0, 10.0], peak=30_000.0, **big),
    ]
    name = "efficientnet_regression"
    for channels_last in (False, True):
        layout = {"parameters": {"channels_last": channels_last}}
        records.append(make(name, "fp32", seconds=[4.0, 4.1, 4.2], peak=11_000.0, **layout))
        disturbed = {"throttled": channels_last, "gpu_shared": channels_last}
        disturbed |= {"throttle_fractions": [["power cap", 0.3], ["thermal, software", 0.01]] if channels_last else []}
        slower = {"seconds": [5.0, 5.1, 5.2], "peak": 5_300.0, "shift": 0.01}
        records.append(make(name, "amp_fp16", **slower, **disturbed, **layout))
    records.append(make_failed(name, "amp_bf16", "timeout", "ended after 30 minutes", **layout))
    reason = "RuntimeError: <script>alert('x')</script> & <b>bold</b> | $a$ " + "and so on " * 20 + "to the end"
    records.append(make_failed(name, "o2_fp16", "failed", reason, **layout))
    name, unknown = "lstm_language_model", {**NOT_STARTED, "driver_version": None}
    records += [make(name, mode, seconds=[time], peak=900.0) for mode, time in (("fp32", 16.0), ("tf32", 14.0))]
    records.append(make_failed(name, "amp_fp16", "killed", "the kernel was killed by signal 9", **unknown))
    records.append(make_failed(name, "o3_fp16", "unsupported", "needs a fixed loss scale"))
    made_up = {"parameters": {"model": "gru", "dataset": "synthetic"}, "dataset_used": "synthetic", "synthetic": True}
    records.append(make(name, "fp32", seconds=[3.0, 3.1], peak=500.0, **made_up))
    records.append(make(name, "amp_fp16", seconds=[3.0, 3.2], peak=400.0, gpu_shared=True, **made_up))
    for record in records:
        write_record(record, folder)


def write_second_gpu(folder):
    """The same ResNet-18 runs on an older card: same run_ids, other device, other driver in one of the runs."""
    old = {"device": TURING, "explained": False}
    write_record(make("cifar_resnet", "fp32", seconds=[15.0, 15.1, 15.2], peak=2000.0, **old), folder)
    other = {"driver_version": "570.9", "profile_reason": "the profiler saw no kernel", "peak": 1500.0, **old}
    other |= {name: UNKNOWN for name in ("ledger_reason", "energy_reason", "limit_reason", "card_reason")}
    write_record(make("cifar_resnet", "amp_fp16", seconds=[10.0, 10.1, 10.2], **other), folder)
    reason = "TF32 needs compute capability 8.0 (Ampere) or newer; this GPU has 7.5"
    write_record(make_failed("cifar_resnet", "tf32", "unsupported", reason, device=TURING), folder)


def write_not_used(folder):
    """What the summary must leave out and name: {path: a word of the reason}, and files that it passes over."""
    name = "efficientnet_regression"
    layout = {"parameters": {"channels_last": False}}
    write_record(make("cifar_resnet", "fp32", device=CPU), folder / "cpu")
    fake = make(
        name, "fp32", dataset_used="synthetic", synthetic=True, finished_at="2025-11-02T00:00:00+00:00", **layout
    )
    write_record(fake, folder / "fake")
    old = make("cifar_resnet", "fp32", seconds=[99.0, 99.0, 99.0], finished_at="2025-10-01T00:00:00+00:00")
    write_record(old, folder / "old")
    (folder / "truncated.json").write_text('{"run_id": "cut off", "status": "o', encoding="utf-8")
    good = json.loads((folder / "old" / f"{old.run_id}.json").read_text(encoding="utf-8"))
    for file, changes in {
        "status.json": {"status": "fine"},
        "precision.json": {"precision": "fp4"},
        "number.json": {"peak_allocated_mib": "much"},
        "family.json": {"kernel_family_fractions": [["convolution", "much"]]},
        "block.json": {"block_seconds": [0.0]},
        "untimed.json": {"epoch_seconds": []},
        "later.json": {"schema_version": 99},
    }.items():
        (folder / file).write_text(json.dumps({**good, "run_id": file, **changes}), encoding="utf-8")
    (folder / "poor.json").write_text('{"run_id": "poor"}', encoding="utf-8")
    (folder / "broken.zip").write_bytes(b"PK no zip")
    (folder / "foreign.json").write_text("[1, 2, 3]", encoding="utf-8")  # no record, as the next
    (folder / "settings.json").write_text('{"theme": "dark"}', encoding="utf-8")
    return {
        f"cpu/{old.run_id}.json": "CPU",
        f"fake/{fake.run_id}.json": "synthetic",
        f"old/{old.run_id}.json": "copy of",
        "truncated.json": "not readable",
        "status.json": "status is",
        "precision.json": "precision is",
        "number.json": "peak_allocated_mib",
        "family.json": "kernel_family_fractions",
        "block.json": "block_seconds",
        "untimed.json": "epoch_seconds",
        "later.json": "schema version",
        "poor.json": "lacks",
        "broken.zip": "not readable",
    }


def write_processes(record, folder, number=3):
    """Write a record as several processes with equal figures: with three a ratio has an interval, of no width."""
    for repeat in range(number):
        values = {**record.parameters, "repeat": repeat}
        run_id = run_id_of(record.notebook, values, record.precision)
        write_record(dataclasses.replace(record, parameters=values, run_id=run_id), folder)


def write_everything(folder):
    """Write all of it below `folder`, the second GPU inside a zip archive; return what must be left out, and why."""
    write_cifar(folder / "cifar")
    write_others(folder / "others")
    write_second_gpu(folder / "second")
    with zipfile.ZipFile(folder / "second.zip", "w") as archive:
        archive.writestr("__MACOSX/._record.json", b"\x00\xa3")  # what macOS adds
        for path in sorted((folder / "second").iterdir()):
            archive.write(path, path.name)
            path.unlink()
    return write_not_used(folder)


def write_published(folder):
    """Runs that can be set beside published ones, and runs beside them that never may be.

    WideResNet-28-10 as in colab-wide-resnet, ten epochs: amp_fp16 2x with 40% less memory, o2_fp16 as fast as fp32
    with equal memory, o3_fp16 converges. DPN-92 as in rtx-titan-dpn: at batch 512 fp32 is out of memory, 256 is short.
    """
    wide = {"model": "wide_resnet28_10", "epochs": 10}
    modes = {"fp32": (60.0, 8000.0), "amp_fp16": (30.0, 4800.0), "o2_fp16": (60.0, 8000.0), "o3_fp16": (20.0, 4000.0)}
    for precision, (time, peak) in modes.items():
        memory = {"peak": peak, "device_used_mib": 1.1 * peak}
        memory["metric"] = [0.5] * 9 + [0.9 if precision != "o2_fp16" else 0.7]
        write_processes(make("cifar_resnet", precision, seconds=[time] * 10, parameters=wide, **memory), folder)
        short = {**wide, "max_steps": 5}
        write_processes(make("cifar_resnet", precision, seconds=[0.1] * 10, parameters=short), folder)
    made_up = {"dataset_used": "synthetic", "synthetic": True, "parameters": {**wide, "dataset": "synthetic"}}
    write_processes(make("cifar_resnet", "fp32", seconds=[1.0] * 10, **made_up), folder)
    dense = {"model": "dpn92", "batch_size": 512, "epochs": 1, "loss_scale": 128}
    write_processes(make_failed("cifar_resnet", "fp32", "oom", "CUDA out of memory", parameters=dense), folder)
    write_processes(make("cifar_resnet", "o2_fp16", seconds=[40.0], parameters=dense), folder)
    for precision, time in (("fp32", 1.0), ("o2_fp16", 0.9)):
        few = {"seconds": [time], "parameters": {**dense, "batch_size": 256}}
        write_processes(make("cifar_resnet", precision, **few), folder)


def write_sweep(folder):
    """ResNet-18 in amp_fp16 at fixed loss scales, of which the largest makes all gradients overflow."""
    for scale in (1.0, 256.0, 65536.0, "dynamic"):
        skipped = {"skipped_steps": 391 * 3 // 10 if scale == 65536.0 else 0}
        write_record(make("cifar_resnet", "amp_fp16", parameters={"loss_scale": scale}, **skipped), folder)
    overflown = {"parameters": {"loss_scale": 2.0**20}}
    write_record(make_failed("cifar_resnet", "amp_fp16", "diverged", "every step was skipped", **overflown), folder)


def write_batches(folder):
    """ResNet-18 at the largest batch: 256 in fp32, and 512 in amp_fp16, where an epoch takes half of the time."""
    for precision, size, seconds in (("fp32", 256, 5.0), ("amp_fp16", 512, 2.5)):
        probes = [[size // 2, "ok", 2000.0, 4000.0], [2 * size, "oom", 8000.0, None], [size, "ok", 4000.0, 7000.0]]
        found = {"batch_size_used": size, "samples_per_epoch": 50_000 // size * size, "batch_probes": probes}
        record = make("cifar_resnet", precision, seconds=[seconds] * 6, parameters={"batch_size": "max"}, **found)
        write_record(record, folder)


def write_ladder(folder):
    """A ladder of ResNet-18: 2x, 2.4x, channels_last nothing, 3x, 4.8x; of EfficientNet, in which `compile` failed."""

    def write(notebook, precision, seconds, execution="eager", layout=False, size=128, **fields):
        parameters = {"epochs": 6, "batch_size": size, "execution": execution, "channels_last": layout}
        write_processes(make(notebook, precision, seconds=[seconds] * 6, parameters=parameters, **fields), folder)
        return parameters

    name, both = "cifar_resnet", "compile_cuda_graph"
    for precision, seconds in (("fp32", 6.0), ("tf32", 3.0), ("amp_bf16", 2.5)):
        write(name, precision, seconds)
    for execution, seconds in (("eager", 2.5), ("compile", 2.0), (both, 1.25)):
        write(name, "amp_bf16", seconds, execution, True, peak=700.0)
    write(name, "amp_bf16", 0.5, both, True, 512)
    name = "efficientnet_regression"
    for precision, seconds in (("fp32", 4.8), ("tf32", 4.0), ("amp_fp16", 3.0)):
        write(name, precision, seconds)
    write(name, "amp_fp16", 2.0, layout=True)
    parameters = write(name, "amp_fp16", 1.6, both, True) | {"execution": "compile"}
    write_processes(make_failed(name, "amp_fp16", "failed", "no compiler", parameters=parameters), folder)


WIDTHS = (200, 1024, 2048, 4096)
# Seconds of an epoch in each mode, for each million of weights and besides: what rounding to fp8 costs grows less fast.
WIDTH_TIMES = {
    "fp32": (4, 0.1),
    "tf32": (1.2, 0.1),
    "amp_bf16": (0.6, 0.2),
    "bf16_true": (0.55, 0.12),
    "fp8": (0.38, 1),
}


def write_crossover(folder):
    """A Transformer of four widths in five modes: fp8 is slower than amp_bf16 at 1,024 and faster from 2,048 on.

    fp8 is unsupported at 200, takes 90% of amp_bf16's memory and energy, and ends 0.01 nats above it.
    """
    for width, (mode, (slope, fixed)) in itertools.product(WIDTHS, WIDTH_TIMES.items()):
        million = width**2 / 1e6
        heads = 2 if width == 200 else width // 64
        values = {"model": "transformer", "units": width, "heads": heads, "optimizer": "adamw"}
        if (width, mode) == (200, "fp8"):
            reason = "200 is not a multiple of 16"
            write_record(make_failed("lstm_language_model", mode, "unsupported", reason, parameters=values), folder)
            continue
        half = 0.6 if mode in ("amp_bf16", "bf16_true") else 0.54 if mode == "fp8" else 1.0
        facts = {"peak": half * (1000 + 500 * million), "joules_per_1000_samples": half * million}
        facts |= {"train_loss": [5.0 - million / 100 + 0.01 * (mode == "fp8")]}
        for number in range(3):
            seconds = 2 + 10 * (fixed + slope * million) * (1 + 0.002 * number)
            repeat = {**values, "repeat": number, "epochs": 1}
            write_record(make("lstm_language_model", mode, seconds=[seconds], parameters=repeat, **facts), folder)
