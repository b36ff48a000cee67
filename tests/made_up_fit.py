"""Made-up records of the studies of remedies for memory, whose parts grow by known rules."""

import json

from conftest import NOTEBOOKS

from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies
from mixed_precision_study.store.record import new_record, write_json

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
MIB = 2**20
GPU = {"device_type": "cuda", "gpu_name": "NVIDIA H200", "gpu_uuid": "GPU-1"}


BYTES = {"tf32": (4, 40), "amp_bf16": (4, 20), "bf16_true": (2, 20)}  # a weight, an activation
VIT = {"width": 768, "layers": 12, "context": 197, "vocabulary": 0}
NOTHING = {"loss_chunks": 1, "micro_batches": 1, "memory_budget": 0, "offload": False}


def ledger_of(settings, precision="amp_bf16"):
    """Return the fields of memory and time of a training with some settings."""
    given = VIT | NOTHING | settings
    chunks, parts, budget = (
        given[name] for name in ("loss_chunks", "micro_batches", "memory_budget")
    )
    ways = 1 + (given["execution"] == "compile")
    numbers = given["batch_size"] * given["context"]
    weights = 12 * given["layers"] * given["width"] ** 2
    weights += (given["vocabulary"] + given["context"]) * given["width"]
    each, kept = BYTES[precision]
    share = {0: 1, 1: 0.1, 2: 0.55}[given["checkpointing"]] * (budget or 1) / ways
    kept *= share * (not given["offload"])
    time = weights * numbers / 2.5e11 / ways * (1 + 0.3 * (given["checkpointing"] > 0))
    time *= (1 + (precision == "tf32")) * (2 - (budget or 1)) * (1 + 2 * given["offload"])
    time += 0.5 * (chunks > 1) + 0.2 * (parts > 1) + (given["moments"] != "as_weights")
    numbers /= parts * MIB
    logits = numbers * given["vocabulary"] * 10 / ways / chunks
    blocks = numbers * given["width"] * given["layers"] * kept
    inner = numbers * given["width"] * (2 + 28 * (given["checkpointing"] > 0))
    at_end = each * weights / MIB * (not given.get("optimizer_in_backward"))
    gradients = at_end * (at_end > blocks + logits)  # when all of them are there
    found = {
        "ledger_parameters_mib": each * weights / MIB,
        "ledger_optimizer_mib": {"8bit": 2, "bf16": 4}.get(given["moments"], 2 * each)
        * weights
        / MIB,
        "ledger_gradients_mib": gradients,
        "ledger_masters_mib": 0.0,
        "ledger_data_mib": 16.0,
        "ledger_activations_mib": inner + (blocks + logits) * (not gradients),
        "saved_activations_mib": blocks + 0.6 * logits * (chunks == 1),
        "step_ms_median": time * (1 + 0.02 * (precision == "bf16_true")),
        "data_on_device_mib": 16.0,
    }
    peak = sum(value for name, value in found.items() if name.startswith("ledger"))
    found |= {"peak_allocated_mib": peak, "peak_reserved_mib": 1.05 * peak}
    return found | {"device_used_mib": peak + 1500, "epoch_seconds": [0.1 * time]}


def write_fit(folder, names=("fit", "fit-held-out", "fit-time"), **given):
    """Write a record of each run of some studies into a folder, with parameters `given` by -p."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for comparison in plan(STUDIES[name], NOTEBOOKS, folder, given, on_gpu=True)[0]:
            for run in comparison:
                ((settings, precision),) = run.trainings.values()
                record = new_record(run.notebook.stem, settings, precision, GPU)
                record.fill(
                    **ledger_of(settings, precision),
                    status="ok",
                    study=run.study,
                    model_title="ViT-B/16",
                )
                if "width" in settings:
                    size = f"{settings['layers']} × {settings['width']}"
                    record.fill(model_title=f"GPT, {size}, context {settings['context']:,}")
                record.fill(
                    dataset_used="synthetic",
                    synthetic=True,
                    batch_size_used=settings["batch_size"],
                    samples_per_epoch=1000,
                    process_id=record.run_id,
                    started_at="2026-11-29T12:00:00+00:00",
                )
                write_json(json.loads(record.model_dump_json()), folder / f"{record.run_id}.json")
