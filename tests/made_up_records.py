"""Made-up run records for the tests of the report, with round numbers so that the tests know the
answers.
"""

import copy
from pathlib import Path
from types import SimpleNamespace

import yaml

from mixed_precision_study.store.record import new_record
from mixed_precision_study.tasks import images, language_model

KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
H200, TURING, CPU = KNOWN["devices"].values()
NOT_STARTED = KNOWN["not_started"]


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
    joules, of_data = sum(seconds) * (400 if half else 500), KNOWN["data"][notebook]
    masters, parts = 43.0 * (precision == "o2_fp16"), KNOWN["explained"]
    others = sum(parts[f"ledger_{one}_mib"] for one in ("parameters", "gradients", "optimizer"))
    return parts | {
        "ledger_masters_mib": masters,
        "ledger_data_mib": data,
        "ledger_activations_mib": peak - others - masters - data,
        "gpu_busy_fraction": 0.6 if notebook == "lstm_language_model" else 0.9,
        "tensor_core_fraction": 0.0 if precision == "fp32" else 0.4,
        "step_ms_median": 1000 * sorted(seconds)[len(seconds) // 2] / of_data["steps_per_epoch"],
        "energy_joules": joules,
        "joules_per_1000_samples": 1000 * joules / (len(seconds) * of_data["train_samples"]),
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
    values = {**KNOWN["usual"], **KNOWN["parameters"][notebook], **(parameters or {})}
    record = new_record(notebook, values, precision, {"status": "ok", "synthetic": False})
    data, (first, more) = KNOWN["data"][notebook], KNOWN["learned"][notebook]
    used, epochs = data["dataset_used"], len(seconds)
    switches = ("fp32_precision_matmul", "fp32_precision_conv", "fp32_precision_rnn")
    known = {
        **dict.fromkeys(switches, "tf32" if precision == "tf32" else "ieee"),
        "epoch_seconds": list(seconds),
        "train_loss": [2.0 / (epoch + 1) + 0.01 * values["seed"] for epoch in range(epochs)],
        "metric_target": KNOWN["targets"].get(f"{values['model']} {used}"),
        "metric": [first + more * epoch + shift for epoch in range(epochs)],
        "autocast_dtype": {"amp_fp16": "float16", "amp_bf16": "bfloat16"}.get(precision),
        "model_title": title_of(notebook, values),
        "data_title": KNOWN["titles"].get(fields.get("dataset_used", used)),
        "samples_per_second": data["train_samples"] / sorted(seconds)[epochs // 2],
        "metric_margin_is_share": False,
        **KNOWN["metrics"][notebook],
        **data,
        **KNOWN["ran"],
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
    record.fill(**copy.deepcopy(known | fields))
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
    told = {"seconds": [1.0], "status": status, "reason": reason}
    return make(notebook, precision, **{**KNOWN["nothing"], **told, **rest})
