"""Made-up records of the studies of remedies for memory, whose parts grow by known rules."""

import json

from conftest import NOTEBOOKS

from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies
from mixed_precision_study.store.record import new_record, write_json

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
MIB = 2**20
GPU = {"device_type": "cuda", "gpu_name": "NVIDIA H200", "gpu_uuid": "GPU-1"}


def ledger_of(settings, precision="amp_bf16"):
    """Return the fields of memory and time of a training with some settings."""
    width, layers, context = (settings.get(name, 1) for name in ("width", "layers", "context"))
    is_gpt, is_compiled = width > 1, settings["execution"] == "compile"
    tokens = settings["batch_size"] * context
    if not is_gpt:  # ViT-B/16
        tokens, width, layers = tokens * 197, 768, 12
    weights = 12 * layers * width**2
    weights += (settings["vocabulary"] + context) * width if is_gpt else 0
    every, budget = settings["checkpointing"], settings.get("memory_budget") or 1
    kept = 20 * budget / (2 if is_compiled else 1) * (2 if precision == "tf32" else 1)
    kept *= {0: 1, 1: 0.1, 2: 0.55}[every] * (0 if settings.get("offload") else 1)
    chunks, bytes_each = settings.get("loss_chunks", 1), 6 if is_compiled else 10
    each = 2 if precision == "bf16_true" else 4
    moments = {"8bit": 2, "bf16": 4}.get(settings["moments"], 2 * each)
    time = weights * tokens / (5e11 if is_compiled else 2.5e11) * (1.3 if every else 1.0)
    time *= (2 if precision == "tf32" else 1) * (2 - budget) * (3 if kept == 0 else 1)
    time *= 1.02 if precision == "bf16_true" else 1.0
    tokens /= settings.get("micro_batches", 1)
    time += 0.5 * (chunks > 1) + 1.0 * (settings["moments"] != "as_weights")
    time += 0.2 * (settings.get("micro_batches", 1) > 1)
    logits = tokens * settings["vocabulary"] * bytes_each / MIB / chunks if is_gpt else 0.0
    blocks = tokens * width * layers * kept / MIB
    inner = tokens * width * (30 if every else 2) / MIB
    at_end = 0 if settings.get("optimizer_in_backward") else each * weights / MIB
    gradients = at_end if at_end > blocks + logits else 0.0  # when all of them are there
    found = {
        "ledger_parameters_mib": each * weights / MIB,
        "ledger_optimizer_mib": moments * weights / MIB,
        "ledger_gradients_mib": gradients,
        "ledger_masters_mib": 0.0,
        "ledger_data_mib": 16.0,
        "ledger_activations_mib": inner + (0 if gradients else blocks + logits),
        "saved_activations_mib": blocks + (0.6 * logits if chunks == 1 else 0),
        "step_ms_median": time,
        "data_on_device_mib": 16.0,
    }
    peak = sum(value for name, value in found.items() if name.startswith("ledger"))
    found |= {"peak_allocated_mib": peak, "peak_reserved_mib": 1.05 * peak}
    return found | {"device_used_mib": peak + 1500, "epoch_seconds": [0.1 * time]}


def write_fit(folder, names=("fit", "fit-held-out", "fit-time")):
    """Write a record of each run of some studies into a folder."""
    for name in names:
        for comparison in plan(STUDIES[name], NOTEBOOKS, folder, {}, on_gpu=True)[0]:
            for run in comparison:
                ((settings, precision),) = run.trainings.values()
                record = new_record(run.notebook.stem, settings, precision, GPU)
                record.fill(**ledger_of(settings, precision), status="ok", study=run.study)
                record.fill(model_title="ViT-B/16")
                if "width" in settings:
                    size = f"{settings['layers']} × {settings['width']}"
                    record.fill(model_title=f"GPT, {size}, context {settings['context']:,}")
                record.fill(dataset_used="synthetic", synthetic=True)
                record.fill(batch_size_used=settings["batch_size"], samples_per_epoch=1000)
                record.fill(process_id=record.run_id, started_at="2026-11-29T12:00:00+00:00")
                write_json(json.loads(record.model_dump_json()), folder / f"{record.run_id}.json")
