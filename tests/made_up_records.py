"""Made-up run records for the tests of the report, with round numbers so that the tests know the
answers.
"""

from types import SimpleNamespace

from mixed_precision_study.store.record import new_record, run_id_of, write_record
from mixed_precision_study.tasks import images, language_model

PARAMETERS = {
    "cifar_resnet": {
        "dataset": "cifar10",
        "model": "resnet18",
        "batch_size": 128,
        "epochs": 3,
        "loader": "gpu",
    },
    "efficientnet_regression": {
        "dataset": "auto",
        "model": "tf_efficientnet_b0",
        "batch_size": 32,
        "epochs": 3,
    },
    "lstm_language_model": {
        "dataset": "auto",
        "model": "lstm",
        "batch_size": 20,
        "epochs": 1,
        "bptt": 35,
    },
}
USUAL = {
    "max_steps": 0,
    "lr": 0.1,
    "loss_scale": "dynamic",
    "execution": "eager",
    "repeats": 1,
    "seed": 0,
    "data_dir": "../data",
    "output_dir": "../outputs",
    "precisions": ["fp32"],
}
DATA = {  # data, unit of the samples, their number, steps of an epoch
    "cifar_resnet": ("cifar10", "images", 50_000, 391),
    "efficientnet_regression": ("elpv", "images", 2_100, 66),
    "lstm_language_model": ("wikitext-2", "tokens", 2_088_628, 2983),
}
METRICS = {
    "cifar_resnet": ("accuracy", "higher", 0.1, 0.002, lambda epoch: 0.5 + 0.1 * epoch),
    "efficientnet_regression": (
        "mean_absolute_error",
        "lower",
        0.3,
        0.02,
        lambda epoch: 0.2 - 0.02 * epoch,
    ),
    "lstm_language_model": ("perplexity", "lower", 33_278, 0.02, lambda epoch: 251.0 - 30 * epoch),
}
TARGETS = {("resnet18", "cifar10"): 0.92, ("lstm", "wikitext-2"): 160.0}
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "elpv": "ELPV",
    "wikitext-2": "WikiText-2",
}
H200 = {
    "device_type": "cuda",
    "gpu_name": "NVIDIA H200",
    "gpu_uuid": "GPU-1",
    "compute_capability": "9.0",
}
TURING = {
    **H200,
    "gpu_name": "NVIDIA GeForce RTX 2080 Ti",
    "gpu_uuid": "GPU-2",
    "compute_capability": "7.5",
}
CPU = {"device_type": "cpu"}
SOFTWARE = {
    "driver_version": "580.1",
    "cuda_version": "13.0",
    "cudnn_version": "91000",
    "torch_version": "2.9.1",
}
KERNELS = [
    ["convolution", 0.45],
    ["matmul", 0.2],
    ["normalisation", 0.2],
    ["elementwise", 0.1],
    ["optimizer", 0.05],
]
NOT_STARTED = {"device_type": None, "gpu_name": None, "dataset_used": None, "synthetic": None}


def title_of(notebook, values):
    """Return the name for people of the model that a notebook trains with these parameters."""
    if values["model"] == "transformer":  # as it was in this notebook until version 0.3
        return f"Transformer, width {values.get('units')}"
    if notebook == "lstm_language_model" and values["model"] in language_model.RNNS:
        return language_model.title_of(SimpleNamespace(**{"layers": None, "units": None, **values}))
    return images.title_of(str(values["model"]))


def explanation_of(notebook, precision, seconds, peak, data):
    """Return the fields that explain a run on a GPU: memory breakdown, profile, energy, state,
    inference.
    """
    half = precision not in ("fp32", "tf32")
    joules = sum(seconds) * (400 if half else 500)
    parts = {
        "parameters": 43.0,
        "gradients": 43.0,
        "optimizer": 43.0,
        "masters": 43.0 * (precision == "o2_fp16"),
    }
    parts |= {
        "data": data,
        "activations": peak - sum(parts.values()) - data,
        "slack": 200.0,
        "context": 1290.0,
    }
    return {
        **{f"ledger_{name}_mib": mib for name, mib in parts.items()},
        "gpu_busy_fraction": 0.6 if notebook == "lstm_language_model" else 0.9,
        "kernel_family_fractions": KERNELS,
        "tensor_core_fraction": 0.0 if precision == "fp32" else 0.4,
        "data_wait_fraction": 0.01,
        "step_ms_median": 1000 * sorted(seconds)[len(seconds) // 2] / DATA[notebook][-1],
        "energy_joules": joules,
        "joules_per_1000_samples": 1000 * joules / (len(seconds) * DATA[notebook][2]),
        "inference_latency_ms": 3.0 if half else 2.0,
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
    """Return the record of a run that went well; `shift` is added to its metric, `fields` replace
    what is set here.

    Without `explained` it is as records were before they explained their figures.
    """
    values = {**USUAL, **PARAMETERS[notebook], **(parameters or {})}
    record = new_record(notebook, values, precision, {"status": "ok", "synthetic": False})
    name, better, chance, margin, at = METRICS[notebook]
    data, unit, samples, steps = DATA[notebook]
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
        "metric_margin": margin,
        "metric_margin_is_share": name == "perplexity",
        "metric_target": TARGETS.get((values["model"], data)),
        "metric": [at(epoch) + shift for epoch in range(epochs)],
        "fp32_precision_matmul": switch,
        "fp32_precision_conv": switch,
        "fp32_precision_rnn": switch,
        "autocast_dtype": {"amp_fp16": "float16", "amp_bf16": "bfloat16"}.get(precision),
        "model_title": title_of(notebook, values),
        "dataset_used": data,
        "data_title": TITLES.get(fields.get("dataset_used", data)),
        "sample_unit": unit,
        "train_samples": samples,
        "steps_per_epoch": steps,
        "samples_per_second": samples / sorted(seconds)[epochs // 2],
        **SOFTWARE,
        **device,
    }
    if device["device_type"] == "cuda":
        mib = 150.0 if notebook == "cifar_resnet" else 0.0
        known |= {
            "peak_allocated_mib": peak,
            "device_used_mib": peak + 1500,
            "data_on_device_mib": mib,
        }
        if explained and fields.get("status", "ok") == "ok":
            known |= explanation_of(
                notebook, precision, fields.get("epoch_seconds", seconds), peak, mib
            )
    if precision.endswith("fp16"):
        known |= {"skipped_steps": 2, "loss_scale_trace": [[0, 65536.0], [5, 32768.0]]}
    for field, value in {**known, **fields}.items():
        setattr(record, field, value)
    return record


def pair_of(**fields):
    """Return the records of a ResNet in fp32 and in fp16 AMP."""
    return [make("cifar_resnet", name, **fields) for name in ("fp32", "amp_fp16")]


def over_seeds(changes, precision="tf32", notebook="cifar_resnet", **fields):
    """Return a record of a precision for each change of the last metric from fp32's, and that of
    fp32, a seed each.
    """
    runs = []
    for seed, change in enumerate(changes):
        values = {"parameters": {"seed": seed}, **fields}
        runs.append(make(notebook, "fp32", **values))
        runs.append(make(notebook, precision, seconds=[3.0] * 3, shift=change, **values))
    return runs


def make_failed(notebook, precision, status, reason, **rest):
    """Return the record of a run that did not end well, at once and without figures."""
    nothing = {
        "seconds": [1.0],
        "peak_allocated_mib": None,
        "device_used_mib": None,
        "samples_per_second": None,
        "epoch_seconds": [],
        "train_loss": [],
        "metric": [],
    }
    return make(notebook, precision, **{**nothing, "status": status, "reason": reason, **rest})


def write_processes(record, folder, number=3):
    """Write a record as several processes with equal figures: with three a ratio has an
    interval, of no width.
    """
    for repeat in range(number):
        one = record.model_copy(deep=True)
        one.settings["repeat"] = repeat
        one.run_id = run_id_of(one.notebook, one.settings, one.precision)
        write_record(one, folder)
