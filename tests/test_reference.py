"""The reference run that is published: complete, real, small, and free of anything about the machine's folders."""

import json
import re
import statistics

import harness
import pytest
import results
import sync
from conftest import EXPERIMENTS, ROOT, run_cells
from record import NOT_WRITTEN, Explanation, read_records
from verdict import paired_ratio, ratios_of

import planning

FOLDER = ROOT / "outputs" / "reference"
PUBLISHED = ROOT / "outputs" / "published"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine


def test_every_record_is_of_a_gpu_and_real_data_and_has_its_executed_notebook():
    records, left_out = read_records(FOLDER)
    assert left_out == []
    assert {record["notebook"] for record in records} == set(EXPERIMENTS)
    for record in records:
        assert record["status"] == "ok"
        assert record["gpu_name"] == "NVIDIA H200"
        assert record["synthetic"] is False
        assert record["host_syncs_per_step"] == (1 if record["precision"] == "amp_fp16" else 0)
        assert len(record["epoch_seconds"]) == record["epochs"] * record["repeats"] >= 2
        assert set(Explanation.__dataclass_fields__) - set(NOT_WRITTEN) <= set(record)
        notebook = json.loads((FOLDER / f"{record['run_id']}.ipynb").read_text())
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in code)
        assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    quick = {(r["notebook"], r["precision"]) for r in records if not r.get("channels_last")}
    assert quick == {(name, precision) for name in EXPERIMENTS for precision in list(harness.PRECISIONS)[:4]}


def test_every_record_explains_itself():
    for record in read_records(FOLDER)[0]:
        reasons = {name: value for name, value in record.items() if name.endswith("_reason") and value}
        assert reasons == {}, record["run_id"]
        assert abs(record["ledger_error_fraction"]) < 0.02  # against NVML
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02  # events against the wall
        assert (record["throttled"], record["gpu_shared"]) == (False, False)
        assert record["energy_source"] == "counter"
        assert record["joules_per_1000_samples"] > 0
        assert sum(share for _, share in record["kernel_family_fractions"]) == pytest.approx(1)
        assert (record["tensor_core_fraction"] > 0) is (record["precision"] != "fp32")
        assert 0 < record["compute_limit_fraction"] < 1
        assert (record["gradient_flush_fraction_scale_1"] is None) is (record["precision"] != "amp_fp16")


def test_it_is_small_and_names_no_folder_of_a_machine():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {"summary.html", "summary.ipynb", "scaled_time.png", "README.md"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < 5_000_000
    for path in files:
        if path.suffix in (".json", ".ipynb", ".html", ".md", ".csv"):
            found = re.search(FOREIGN, path.read_text(encoding="utf-8"))
            assert not found, f"{path.name}: {found[0]}"


def test_precisions_have_one_order_and_one_colour_everywhere():
    order = list(harness.PRECISIONS)
    assert list(results.COLOURS) == list(planning.PRECISION_NAMES) == order
    summary = run_cells("summary", "imports")["PRECISIONS"]
    assert list(summary) == order
    assert {name: style[0].lower() for name, style in summary.items()} == {
        name: colour.lower() for name, colour in results.COLOURS.items()
    }


def test_the_same_comparison_three_times_agrees_within_a_percent():
    records, left_out = read_records(ROOT / "outputs" / "repeatability")
    assert left_out == []
    base, own = sorted(records, key=lambda record: record["precision"])
    assert (base["precision"], own["precision"], base["repeats"]) == ("fp32", "tf32", 3)
    assert base["gpu_uuid"] == own["gpu_uuid"]
    for record in records:
        runs = [record["epoch_seconds"][6 * number : 6 * number + 6] for number in range(3)]
        assert min(map(sum, runs)) >= 20
        assert (record["throttled"], record["gpu_shared"]) == (False, False)
    ratios = [statistics.median(ratio.flat) for ratio in ratios_of(own, base)]
    assert max(ratios) / min(ratios) - 1 < 0.01
    assert [round(ratio, 3) for ratio in ratios] == [1.204, 1.201, 1.202]  # as docs/measurements.md has them


def published():
    """Return the records of the published experiments: {(model, batch size, execution, precision): record}."""
    records, left_out = read_records(PUBLISHED)
    assert left_out == []
    names = ("model", "batch_size", "execution", "precision")
    runs = {tuple(record[name] for name in names): record for record in records}
    assert len(runs) == len(records)
    return runs


def test_the_published_experiments_are_measured_on_a_gpu_undisturbed_and_explained():
    for record in published().values():
        assert (record["status"], record["gpu_name"], record["synthetic"]) == ("ok", "NVIDIA H200", False)
        assert (record["throttled"], record["gpu_shared"]) == (False, False)
        assert len(record["epoch_seconds"]) == record["epochs"]
        assert [record[f"{name}_reason"] for name in ("profile", "limit", "ledger", "energy", "card")] == [None] * 5
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02
        assert abs(record["ledger_error_fraction"]) < (0.025 if record["execution"] == "cuda_graph" else 0.001)


def test_no_precision_costs_accuracy():
    runs = {key: record for key, record in published().items() if record["epochs"] >= 10}
    accuracy = {mode: run["metric"][-1] for (model, *_, mode), run in runs.items() if model == "resnet18"}
    assert set(accuracy) >= {"fp32", "tf32", "amp_fp16", "amp_bf16"}
    assert min(accuracy.values()) >= 0.93
    perplexity = [run["metric"] for (model, *_), run in runs.items() if model == "lstm"]
    assert max(curve[-1] for curve in perplexity) / min(curve[-1] for curve in perplexity) < 1.03
    assert all(len(curve) == 30 and curve[5] <= 153 for curve in perplexity)  # the public example's after six epochs
    wide = {mode: run["metric"] for (model, *_, mode), run in runs.items() if model == "wide_resnet28_10"}
    assert set(wide) == {"fp32", "amp_fp16", "o2_fp16", "o3_fp16"}
    assert min(curve[-1] for curve in wide.values()) > 0.8  # o3_fp16 converges, too


def test_its_table_has_every_run_and_how_it_ended():
    runs = published()
    lines = [line for line in sync.runs_table(list(runs.values())).splitlines() if line.startswith("| ")]
    assert sum(cell.strip() != "" for line in lines[1:] for cell in line.split("|")[3:-1]) == len(runs)
    assert lines[0] == "| training | epochs | `fp32` | `tf32` | `amp_fp16` | `amp_bf16` | `o2_fp16` | `o3_fp16` |"
    dpn = next(line for line in lines if line.startswith("| dpn92 on cifar10, batch 256, loss scale 128 |"))
    assert dpn.endswith("| 1 | 38.9 s, 12.5 GiB, 38.3% |  |  |  | 12.5 s, 6.74 GiB, 27.0% |  |")
    fp32, tf32 = (dict(runs["resnet50", 512, "eager", mode]) for mode in ("fp32", "tf32"))
    fp32 |= {"status": "oom", "batch_size": "max", "memory_limit_gib": 24.0}
    tf32 |= {"status": "diverged", "batch_size": "max", "memory_limit_gib": 24.0}
    name = "resnet50 on cifar10, largest batch, 24 GiB at most"
    assert f"| {name} | 3 | out of memory | diverged |" in sync.runs_table([fp32, tf32])


def test_its_readme_says_what_the_records_say():
    runs, text = published(), " ".join((PUBLISHED / "README.md").read_text(encoding="utf-8").split())
    dpn = [runs["dpn92", batch, "eager", mode] for batch in (128, 256, 512) for mode in ("fp32", "o2_fp16")]
    gains = [paired_ratio([(half, full)])["ratio"] for full, half in zip(dpn[::2], dpn[1::2], strict=True)]
    assert "{:.2f}, {:.2f} and {:.2f} times as fast in half precision".format(*gains) in text
    (full,), (half,) = ([entry[2:] for entry in one["training_log"] if entry[1] == 350] for one in dpn[:2])
    assert f"{full[0]:.3f} and {full[1]:.1%} in fp32, {half[0]:.3f} and {half[1]:.1%} in o2_fp16" in text
    assert f"waits for kernel launches {1 - dpn[1]['gpu_busy_fraction']:.0%} of the time" in text
    assert f"{dpn[4]['peak_allocated_mib'] / 1024:.1f} GiB of PyTorch's" in text
    fifty, base = (runs["resnet50", 512, "eager", mode] for mode in ("o2_fp16", "fp32"))
    less = 1 - fifty["peak_allocated_mib"] / base["peak_allocated_mib"]
    assert (
        f"takes {less:.0%} less memory" in text
        and f"{paired_ratio([(fifty, base)])['ratio']:.2f} times as fast" in text
    )
    half, base = (runs["tf_efficientnet_b0", 32, "eager", mode] for mode in ("amp_fp16", "fp32"))
    assert f"amp_fp16 takes {1 - half['device_used_mib'] / base['device_used_mib']:.0%} less of the card" in text
    assert f"and is {paired_ratio([(half, base)])['ratio']:.2f} times as fast, as on its" in text
    half, base = (runs["resnet18", 128, "eager", mode] for mode in ("amp_fp16", "tf32"))
    gain = paired_ratio([(half, base)])
    assert f"({gain['ratio']:.2f}, {gain['low']:.2f} to {gain['high']:.2f})" in text
    curve = [f"{value:.1f}" for value in runs["lstm", 20, "cuda_graph", "fp32"]["metric"][:6]]
    assert f"{', '.join(curve[:-1])} and {curve[-1]} after epochs 1 to 6" in text


def test_the_start_takes_what_the_documentation_says():
    runs = [run for (model, _, execution, _), run in published().items() if (model, execution) == ("resnet18", "eager")]
    parts = [f"startup_{part}seconds" for part in ("", "import_", "preflight_", "data_", "model_", "warmup_")]
    spans = [(min(run[part] for run in runs), max(run[part] for run in runs)) for part in parts]
    assert spans[0][1] <= 30  # the aim of an eager run on CIFAR
    text = " ".join((ROOT / "docs" / "measurements.md").read_text(encoding="utf-8").split())
    said = ["{:.1f} to {:.1f}".format(*span) for span in spans]
    words = "start in {} s: import {}, preflight {}, data from the cache {}, model {}, warm-up {}."
    assert len(runs) == 7 and words.format(*said) in text


def test_the_published_records_are_small_and_name_no_folder_of_a_machine():
    files = [path for path in PUBLISHED.rglob("*") if path.is_file()]
    assert {"summary.html", "summary.ipynb", "summary.csv", "README.md"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < 6_000_000
    for path in files:
        found = re.search(FOREIGN, path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found[0]}"


def test_the_readmes_gains_of_graphs_are_the_reports():
    text, runs = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()), published()
    for model in ("resnet18", "lstm"):
        batch = 128 if model == "resnet18" else 20
        own, base = (runs[model, batch, "cuda_graph", mode] for mode in ("amp_fp16", "fp32"))
        gain = paired_ratio([(own, base)])
        assert f"{gain['ratio']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})" in text
