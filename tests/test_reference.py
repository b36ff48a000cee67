"""The reference run that is published: complete, real, small, and free of anything about the machine's folders."""

import json
import re
import statistics

import harness
import pytest
import results
from conftest import EXPERIMENTS, ROOT, run_cells
from record import NOT_WRITTEN, Explanation, read_records
from verdict import ratios_of

import planning

FOLDER = ROOT / "outputs" / "reference"


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
            found = re.search(r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+", path.read_text(encoding="utf-8"))
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
