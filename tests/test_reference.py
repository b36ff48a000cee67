"""The reference run that is published: complete, real, small, and free of anything about the machine's folders."""

import functools
import json
import re
import statistics

import pytest
import tables
from conftest import EXPERIMENTS, ROOT

from mixed_precision_study.analysis.speedup import paired_ratio, paired_runs, ratios_of
from mixed_precision_study.precision import PRECISIONS
from mixed_precision_study.record import NOT_WRITTEN, DiagnosticFields, read_records

FOLDER = ROOT / "outputs" / "reference"
PUBLISHED = ROOT / "outputs" / "published"
LADDER = ROOT / "outputs" / "ladder-h200"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine


def check_files(folder, most, needed=()):
    """Assert that a folder has the files `needed`, fewer bytes than `most`, and in no text a folder of a machine."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert set(needed) <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < most
    for path in (path for path in files if path.suffix != ".png"):
        found = re.search(FOREIGN, path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found[0]}"


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
        assert set(DiagnosticFields.__dataclass_fields__) - set(NOT_WRITTEN) <= set(record)
        notebook = json.loads((FOLDER / f"{record['run_id']}.ipynb").read_text())
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in code)
        assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    quick = {(r["notebook"], r["precision"]) for r in records if not r.get("channels_last")}
    assert quick == {(name, precision) for name in EXPERIMENTS for precision in list(PRECISIONS)[:4]}


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
    check_files(FOLDER, 5_200_000, {"summary.html", "summary.ipynb", "scaled_time.png", "README.md"})


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


def in_one_line(path):
    return " ".join(path.read_text(encoding="utf-8").split())


@functools.cache
def read_published():
    records, left_out = read_records(PUBLISHED)
    assert left_out == []
    return records


def published(**fields):
    """Return the records of the published experiments that have these values."""
    return [record for record in read_published() if all(record[name] == value for name, value in fields.items())]


def only(model, batch_size, precision, execution="eager", **fields):
    """Return the one record of the published experiments that has these values."""
    names = {"model": model, "batch_size": batch_size, "precision": precision, "execution": execution, **fields}
    (record,) = published(**names)
    return record


def speedup_of(run, base):
    return paired_ratio([(run, base)])


def test_the_published_experiments_are_measured_on_a_gpu_undisturbed_and_explained():
    (too_large,) = published(status="oom")
    assert (too_large["model"], too_large["batch_size"], too_large["memory_limit_gib"]) == ("dpn92", 640, 24.0)
    capped, text = {}, in_one_line(PUBLISHED / "README.md")
    for record in published(throttled=True):
        ((why, capped[record["model"], record["precision"]]),) = record["throttle_fractions"]
        assert (why, record["batch_size"]) == ("power cap", "max")
    assert f"held back by its limit of 700 W {capped.pop(('lstm', 'tf32')):.0%} of the time" in text
    shares = [round(100 * capped.pop(("resnet18", mode))) for mode in ("fp32", "tf32", "amp_fp16")]
    assert not capped and "held in {}, {} and {}% of the samples of fp32, tf32 and amp_fp16".format(*shares) in text
    (stuck,) = published(status="diverged")
    assert (stuck["model"], stuck["precision"]) == ("rnn_relu", "amp_fp16")
    assert len(published(status="ok")) == len(published()) - 2 and len(published()) == 151
    for record in published(status="ok"):
        assert (record["gpu_name"], record["synthetic"], record["gpu_shared"]) == ("NVIDIA H200", False, False)
        assert len(record["epoch_seconds"]) == record["epochs"]
        assert [record[f"{name}_reason"] for name in ("profile", "limit", "ledger", "energy", "card")] == [None] * 5
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02
        old = record["execution"] == "cuda_graph" and record["commit"] == "a2eb8491a1fa"  # as the README says
        small = (record["model"], record["batch_size"], record["dataset_used"]) == ("resnet18", "max", "cifar100")
        assert abs(record["ledger_error_fraction"]) < (0.025 if old else 0.033 if small else 0.001)


def test_none_of_them_waited_for_launches_that_an_earlier_profile_had_slowed():
    """At one commit several precisions ran in one kernel before CUPTI was taken down after a profile."""
    late = [run for run in published(commit="4639ad15b700", status="ok") if run["startup_reason"] is not None]
    assert len(late) > 10
    assert min(run["gpu_busy_fraction"] for run in late) > 0.75


def test_no_precision_costs_accuracy():
    accuracy = {run["precision"]: run["metric"][-1] for run in published(model="resnet18", epochs=30)}
    assert set(accuracy) == {"fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16"}
    assert min(accuracy.values()) >= 0.93
    perplexity = [run["metric"] for run in published(model="lstm", epochs=30)]
    assert len(perplexity) == 5
    assert max(curve[-1] for curve in perplexity) / min(curve[-1] for curve in perplexity) < 1.03
    assert all(len(curve) == 30 and curve[5] <= 153 for curve in perplexity)  # the public example's after six epochs
    wide = {run["precision"]: run["metric"] for run in published(model="wide_resnet28_10")}
    assert set(wide) == {"fp32", "amp_fp16", "o2_fp16", "o3_fp16"}
    assert min(curve[-1] for curve in wide.values()) > 0.8  # o3_fp16 converges, too
    for model in ("gru", "rnn_tanh", "transformer"):
        last = [run["metric"][-1] for run in published(model=model, epochs=30)]
        assert len(last) == len(published(model=model)) == 2 and max(last) / min(last) < 1.03
    hundred = [run["metric"] for run in published(dataset_used="cifar100", epochs=10)]
    assert len(hundred) == 3 and all(len(curve) == 10 for curve in hundred)
    assert max(curve[-1] for curve in hundred) - min(curve[-1] for curve in hundred) < 0.01


def test_its_table_has_every_run_and_how_it_ended():
    lines = [line for line in tables.runs_table(published()).splitlines() if line.startswith("| ")]
    assert sum(cell.strip() != "" for line in lines[1:] for cell in line.split("|")[3:-1]) == len(published())
    assert len({tuple(line.split("|")[1:3]) for line in lines}) == len(lines)  # no two trainings of one name and length
    assert lines[0] == "| training | epochs | `fp32` | `tf32` | `amp_fp16` | `amp_bf16` | `o2_fp16` | `o3_fp16` |"
    dpn = next(line for line in lines if line.startswith("| dpn92 on cifar10, batch 256, loss scale 128 |"))
    figures = ("38.9 s, 12.5 GiB, 38.3%", "18.8 s, 12.5 GiB, 36.2%", "12.9 s, 6.64 GiB, 35.7%")
    assert dpn.endswith(f"| 1 | {' | '.join(figures)} |  | 12.5 s, 6.74 GiB, 27.0% |  |")
    assert any(line.startswith("| dpn92") and "24 GiB at most | 1 | out of memory |" in line for line in lines)
    assert any(
        line.startswith("| resnet18") and "largest batch" in line and "| 8,160: 1.47 s, " in line for line in lines
    )
    assert sum("loss scale 1,048,576 |" in line for line in lines) == 1
    fp32, tf32 = (dict(only("resnet50", 512, mode, keep_batchnorm_fp32=False)) for mode in ("fp32", "tf32"))
    fp32 |= {"status": "oom", "batch_size": "max", "memory_limit_gib": 24.0}
    tf32 |= {"status": "diverged", "batch_size": "max", "memory_limit_gib": 24.0}
    name = "resnet50 on cifar10, largest batch, 24 GiB at most"
    assert f"| {name} | 3 | out of memory | diverged |" in tables.runs_table([fp32, tf32])


def test_perplexities_of_thousands_are_written_in_full():
    run = dict(only("lstm", "max", "tf32"))
    assert tables.run_figures(run).endswith(", 1,116")
    assert tables.run_figures(run | {"metric": [999.94]}).endswith(", 999.9")


def test_its_readme_says_what_the_records_say_of_images():
    text = in_one_line(PUBLISHED / "README.md")
    scale = {"loss_scale": 128.0, "memory_limit_gib": 0.0}
    dpn = [only("dpn92", batch, mode, **scale) for batch in (128, 256, 512, 640) for mode in ("fp32", "o2_fp16")]
    speedups = [speedup_of(half, full)["ratio"] for full, half in zip(dpn[::2], dpn[1::2], strict=True)]
    assert "{:.2f}, {:.2f}, {:.2f} and {:.2f} times as fast in half precision".format(*speedups) in text
    (full,), (half,) = ([entry[2:] for entry in one["training_log"] if entry[1] == 350] for one in dpn[:2])
    assert f"{full[0]:.3f} and {full[1]:.1%} in fp32, {half[0]:.3f} and {half[1]:.1%} in o2_fp16" in text
    idle = [1 - run["gpu_busy_fraction"] for run in dpn[:2]]
    assert f"waits for kernel launches {idle[1]:.0%} of the time in o2_fp16, {idle[0]:.0%} in fp32" in text
    pairs = [[only("dpn92", batch, mode, **scale) for mode in ("amp_fp16", "tf32")] for batch in (128, 256, 512, 640)]
    speedups = [speedup_of(*pair) for pair in pairs]
    assert "({ratio:.2f}, {low:.2f} to {high:.2f})".format(**speedups[0]) in text
    assert (
        "{:.2f}, {:.2f} and {:.2f} at the larger batches".format(*(speedup["ratio"] for speedup in speedups[1:]))
        in text
    )
    speedups = [
        speedup_of(*(only("dpn48b", batch, mode) for mode in ("amp_fp16", "fp32")))["ratio"] for batch in (128, 512)
    ]
    assert (
        f"is {speedups[0]:.2f} times as fast in amp_fp16" in text
        and f"and {speedups[1]:.2f} times at batch 512" in text
    )
    assert f"{dpn[4]['peak_allocated_mib'] / 1024:.1f} GiB of PyTorch's" in text
    within = only("dpn92", 640, "o2_fp16", memory_limit_gib=24.0)
    assert f"in half precision it trains there, in {within['peak_allocated_mib'] / 1024:.1f} GiB" in text
    scales = [
        statistics.median(run["epoch_seconds"])
        for run in published(model="dpn92", batch_size=512)
        if run["precision"] == "o2_fp16"
    ]
    assert f"{min(scales):.1f} to {max(scales):.1f} s at loss scales of 64, 128 and 256" in text
    fifty, base = (only("resnet50", 512, mode, keep_batchnorm_fp32=False) for mode in ("o2_fp16", "fp32"))
    less = 1 - fifty["peak_allocated_mib"] / base["peak_allocated_mib"]
    assert f"takes {less:.0%} less memory" in text and f"{speedup_of(fifty, base)['ratio']:.2f} times as fast" in text
    half, base = (only("tf_efficientnet_b0", 32, mode, epochs=1) for mode in ("amp_fp16", "fp32"))
    assert f"amp_fp16 takes {1 - half['device_used_mib'] / base['device_used_mib']:.0%} less of the card" in text
    speedup = speedup_of(half, base)
    assert (
        f"and is {speedup['ratio']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f}) times as fast in this one"
        in text
    )
    assert f"is idle {1 - half['gpu_busy_fraction']:.0%} of the time" in text
    for model, batch in (("resnet50", 512), ("resnet18", 128)):
        hand, base = (only(model, batch, mode, keep_batchnorm_fp32=True) for mode in ("o3_fp16", "fp32"))
        less = f"takes {1 - hand['peak_allocated_mib'] / base['peak_allocated_mib']:.0%} less"
        assert less in text and re.search(rf"is {speedup_of(hand, base)['ratio']:.2f} times as fast", text)
        assert f"{100 * base['metric'][-1]:.1f} and {100 * hand['metric'][-1]:.1f}%" in text
    half, base = (only("resnet18", 128, mode, epochs=6) for mode in ("amp_fp16", "tf32"))
    speedup = speedup_of(half, base)
    assert f"({speedup['ratio']:.2f}, {speedup['low']:.2f} to {speedup['high']:.2f})" in text
    modes = ("fp32", "amp_fp16", "o2_fp16", "o3_fp16")
    slow = [only("resnet18", 512, mode, loader="workers") for mode in modes]
    assert {run["host_cores"] for run in slow} == {2}
    medians = [statistics.median(run["epoch_seconds"]) for run in slow]
    said = ", ".join(f"{median:.2f} s in {mode}" for median, mode in zip(medians, modes, strict=True))
    assert " and ".join(said.rsplit(", ", 1)) in text
    waits = [f"{100 * run['data_wait_fraction']:.0f}" for run in slow]
    assert "waits for its data {}, {}, {} and {}% of".format(*waits) in text
    direct = [only("resnet18", 512, mode, loader="gpu", epochs=2) for mode in ("amp_fp16", "fp32")]
    assert "({:.2f} and {:.2f} s)".format(*(statistics.median(run["epoch_seconds"]) for run in direct)) in text


def test_its_readme_says_what_the_records_say_of_depth():
    text, depths = in_one_line(PUBLISHED / "README.md"), (18, 34, 50, 101, 152)
    runs = {
        (depth, mode): only(f"resnet{depth}", 128, mode, dataset_used="cifar100")
        for depth in depths
        for mode in ("fp32", "tf32", "amp_fp16")
    }
    graphs = {
        (depth, mode): only(f"resnet{depth}", 128, mode, "cuda_graph", dataset_used="cifar100") for depth, mode in runs
    }
    assert {(run["epochs"], run["steps_per_epoch"]) for run in graphs.values()} == {(3, 390)}  # whole epochs
    rows = (("eager, over fp32", runs, "fp32"), ("one graph, over fp32", graphs, "fp32"))
    for name, found, base in (*rows, ("one graph, over tf32", graphs, "tf32")):
        speedups = [speedup_of(found[depth, "amp_fp16"], found[depth, base]) for depth in depths]
        cells = ["{ratio:.2f} ({low:.2f} to {high:.2f})".format(**speedup) for speedup in speedups]
        assert f"| {name} | {' | '.join(cells)} |" in text
        assert all(speedup["low"] < 1.03 if found is runs else speedup["low"] > 1.18 for speedup in speedups)
    ratios = [speedup_of(graphs[depth, "amp_fp16"], graphs[depth, "fp32"])["ratio"] for depth in depths]
    assert f"CIFAR-100 it is {min(ratios):.2f} to {max(ratios):.2f} times" in in_one_line(ROOT / "README.md")
    for name, found in (("eager", runs), ("one graph", graphs)):
        busy = [[found[depth, mode]["gpu_busy_fraction"] for mode in ("fp32", "amp_fp16")] for depth in depths]
        cells = ["{:.0%}, {:.0%}".format(*pair) for pair in busy]
        assert f"| GPU busy, {name}: fp32, amp_fp16 | {' | '.join(cells)} |" in text
    times = [[run["epoch_seconds"] for run in found.values()] for found in (runs, graphs)]
    apart = [max((max(one) - min(one)) / statistics.median(one) for one in found) for found in times]
    words = "differ by up to {:.0%} of their median, those of the graphs by up to {:.1%}"
    assert words.format(*apart) in text
    alone = [speedup_of(graphs[depth, "tf32"], graphs[depth, "fp32"])["ratio"] for depth in depths]
    assert f"tf32 alone is {min(alone):.2f} to {max(alone):.2f} times as fast as fp32" in text
    ends = [[graphs[depth, mode]["metric"][-1] for mode in ("fp32", "tf32", "amp_fp16")] for depth in depths]
    apart = 100 * max(max(found) - min(found) for found in ends)
    assert f"differ by up to {apart:.1f} points of accuracy" in text
    assert all(runs[depth, "fp32"]["gpu_uuid"] != graphs[depth, "fp32"]["gpu_uuid"] for depth in depths)
    ends = [f"{100 * runs[18, mode]['metric'][-1]:.1f}" for mode in ("fp32", "tf32", "amp_fp16")]
    assert f"{ends[0]}, {ends[1]} and {ends[2]}% in fp32, tf32 and amp_fp16" in text


def test_its_readme_says_what_fifty_epochs_came_to():
    text = in_one_line(PUBLISHED / "README.md")
    modes = ("tf32", "amp_fp16", "o2_fp16")
    runs = [only("resnet50", 512, mode, "cuda_graph") for mode in modes]
    assert {run["epochs"] for run in runs} == {50} and published(model="resnet50", precision="fp32", epochs=50) == []
    ends = [f"{100 * run['metric'][-1]:.2f}" for run in runs]
    assert f"{ends[0]}, {ends[1]} and {ends[2]}% in tf32, amp_fp16 and o2_fp16" in text
    medians = [statistics.median(run["epoch_seconds"]) for run in runs]
    assert "The median epoch takes {:.2f}, {:.2f} and {:.2f} s".format(*medians) in text
    tf32, autocast, o2 = runs
    assert "({ratio:.2f}, {low:.2f} to {high:.2f})".format(**speedup_of(o2, autocast)) in text
    assert autocast["gpu_uuid"] == o2["gpu_uuid"] != tf32["gpu_uuid"]
    for name in ("train_loss", "metric"):
        assert [one == other for one, other in zip(autocast[name], o2[name], strict=True)][:21] == [True] * 20 + [False]
    doubled = [run["loss_scale_trace"][1] for run in (autocast, o2)]
    assert {step // run["steps_per_epoch"] for (step, _), run in zip(doubled, (autocast, o2), strict=True)} == {20}
    assert f"(steps {doubled[0][0]:,} and {doubled[1][0]:,})" in text


def test_its_readme_says_what_the_records_say_of_language():
    text = in_one_line(PUBLISHED / "README.md")
    for mode, words in (("fp32", " after epochs 1 to 6"), ("amp_fp16", "; the public example")):
        curve = [f"{value:.1f}" for value in only("lstm", 20, mode, "cuda_graph")["metric"][:6]]
        assert f"{', '.join(curve[:-1])} and {curve[-1]}{words}" in text
    ends = [run["metric"][-1] for run in published(model="lstm", epochs=30)]
    apart = f"{100 * (max(ends) / min(ends) - 1):.1f}%, at {min(ends):.1f} to {max(ends):.1f}"
    assert f"the five modes lie within {apart}" in text
    tests = [only("lstm", 20, mode, "cuda_graph")["test_metric"] for mode in ("tf32", "o2_fp16")]
    assert "tf32 and o2_fp16 come to {:.1f} and {:.1f}".format(*tests) in text
    speedups = []
    for model in ("gru", "rnn_tanh", "transformer"):
        half, base = (only(model, 20, mode, "cuda_graph") for mode in ("amp_fp16", "fp32"))
        speedups.append(speedup_of(half, base)["ratio"])
        assert f"{base['metric'][-1]:.1f} and {half['metric'][-1]:.1f}" in text
        assert f"{base['test_metric']:.1f} and {half['test_metric']:.1f}" in text
    relu, stuck = (only("rnn_relu", 20, mode, "cuda_graph") for mode in ("fp32", "amp_fp16"))
    assert relu["lr"] == stuck["lr"] == 1 and f"comes to {relu['metric'][-1]:.1f} in fp32" in text
    steps = 3 * stuck["steps_per_epoch"]
    carried = sorted(set(range(steps)) - set(stuck["overflow_steps"]))
    assert carried == [*range(7), stuck["steps_per_epoch"]]  # the first seven, and the first one of the second epoch
    assert len(carried) == steps - stuck["skipped_steps"]
    assert f"of the {steps:,} steps of three epochs {len(carried)} were carried out" in text
    assert stuck["metric"] == [None, None]  # not finite
    scales = [scale for _, scale in stuck["loss_scale_trace"]]
    assert (scales[0], scales[-1]) == (65536.0, 0.0)
    assert f"it takes {len(scales) - 1:,}" in text
    assert "{:.2f}, {:.2f} and {:.2f} times as fast".format(*speedups) in text


def test_its_readme_says_what_the_searches_found():
    text = in_one_line(PUBLISHED / "README.md")
    for model, limit in (("resnet18", 24.0), ("resnet50", 11.0), ("tf_efficientnet_b0", 24.0), ("lstm", 24.0)):
        data = {"resnet18": "cifar10", "resnet50": "cifar10", "lstm": "wikitext-2"}.get(model, "elpv")
        fields = {"memory_limit_gib": limit, "dataset_used": data}
        runs = {name: only(model, "max", name, **fields) for name in ("fp32", "tf32", "amp_fp16")}
        sizes = [f"{run['batch_size_used']:,}" for run in runs.values()]
        speedup = speedup_of(runs["amp_fp16"], runs["fp32"])["ratio"]
        assert f"| {' | '.join(sizes)} | {speedup:.2f} |" in text, (model, sizes, speedup)
    for depth in (18, 50, 101):
        runs = [only(f"resnet{depth}", "max", name, dataset_used="cifar100") for name in ("fp32", "amp_fp16")]
        sizes = " | | ".join(f"{run['batch_size_used']:,}" for run in runs)
        line = f"| ResNet-{depth}, CIFAR-100, within 11 GiB | {sizes} | {speedup_of(*runs[::-1])['ratio']:.2f} |"
        assert line in text
    fp32, tf32, half = (only("resnet18", "max", mode, memory_limit_gib=0.0) for mode in ("fp32", "tf32", "amp_fp16"))
    sizes = " | ".join(f"{run['batch_size_used']:,}" for run in (fp32, tf32, half))
    assert f"| ResNet-18 on the whole card | {sizes} | {speedup_of(half, fp32)['ratio']:.2f} |" in text
    largest = " and ".join(f"{run['batch_size_used']:,}" for run in (fp32, half))
    assert f"(on the whole card {largest})" in in_one_line(ROOT / "README.md")
    assert {run["steps_per_epoch"] for run in (fp32, tf32, half)} == {1} and half["train_samples"] == 50_000
    assert f"is {half['batch_size_used'] / fp32['batch_size_used']:.2f} times as large in amp_fp16" in text
    assert f"{half['batch_size_used']:,} fit into it in amp_fp16, {fp32['batch_size_used']:,} in fp32" in text
    times = [statistics.median(run["epoch_seconds"]) for run in (half, tf32, fp32)]
    assert "takes {:.2f} s in amp_fp16, {:.2f} in tf32 and {:.2f} in fp32".format(*times) in text
    rates = [f"{run['samples_per_second']:,.0f}" for run in (half, tf32, fp32)]
    assert f"{rates[0]}, {rates[1]} and {rates[2]} images a second" in text
    assert f"amp_fp16 is {speedup_of(half, tf32)['ratio']:.2f} times as fast as tf32" in text
    less = [only("resnet18", "max", mode, memory_limit_gib=24.0) for mode in ("amp_fp16", "fp32")]
    assert f"({less[0]['samples_per_second']:,.0f} images a second at {less[0]['batch_size_used']:,} within" in text
    assert f"({less[1]['samples_per_second']:,.0f} at {less[1]['batch_size_used']:,})" in text
    assert (fp32["search_limit_algorithms"], less[1]["search_limit_algorithms"]) == (2, 10)
    whole = [status for size, status, *_ in half["batch_probes"] if size == 50_000]
    assert whole == ["ok", "oom"]  # without the search, with it
    peaks = [run["peak_allocated_mib"] / 1024 for run in (fp32, tf32, half)]
    assert "peaks are {:.1f}, {:.1f} and {:.1f} GiB".format(*peaks) in text
    probes = [only("lstm", "max", mode)["batch_probes"] for mode in ("amp_fp16", "fp32")]
    peaks = [peak / 1024 for found in probes for size, _, peak, _ in found if size == 1024]
    assert "take {:.1f} GiB in amp_fp16 and {:.1f} in fp32".format(*peaks) in text


def test_its_readme_says_what_the_loss_scales_did():
    text = in_one_line(PUBLISHED / "README.md")
    fixed = {run["loss_scale"]: run for run in published(model="resnet18", epochs=2, batch_size=128)}
    assert set(fixed) == {1.0, 16.0, 32.0, 256.0, 1024.0, 4096.0, 32768.0, 65536.0, 1048576.0, "dynamic"}
    lost = {scale: run["gradient_flush_fraction_scaled"] for scale, run in fixed.items()}
    last = [fixed[scale]["metric"][-1] for scale in fixed if scale != 1048576.0]
    skipped = fixed[1048576.0]["skipped_steps"] / (2 * fixed[1048576.0]["steps_per_epoch"])
    assert f"end at {min(last):.1%} to {max(last):.1%}" in text and f"skips {skipped:.0%} of its steps" in text
    assert f"loses {lost[1.0]:.1%} of the gradients" in text and lost[32.0] < 0.0002


def test_the_start_takes_what_the_documentation_says():
    runs = [run for run in published(model="resnet18", execution="eager", status="ok") if run["startup_seconds"]]
    runs = [run for run in runs if run["batch_size"] != "max"]  # its search comes before
    parts = [f"startup_{part}seconds" for part in ("", "import_", "preflight_", "data_", "model_", "warmup_")]
    spans = [(min(run[part] for run in runs), max(run[part] for run in runs)) for part in parts]
    assert spans[0][1] <= 30  # the aim of an eager run on CIFAR
    text = in_one_line(ROOT / "docs" / "measurements.md")
    said = ["{:.1f} to {:.1f}".format(*span) for span in spans]
    words = "start in {} s: import {}, preflight {}, data from the cache {}, model {}, warm-up {}."
    assert len(runs) == 23 and words.format(*said) in text


def test_the_published_records_are_small_and_name_no_folder_of_a_machine():
    check_files(PUBLISHED, 5_500_000, {"summary.html", "summary.csv", "README.md"})
    assert not list(PUBLISHED.rglob("*.png"))


def test_the_readmes_gains_of_graphs_are_the_reports():
    text = in_one_line(ROOT / "README.md")
    for model in ("resnet18", "lstm"):
        batch = 128 if model == "resnet18" else 20
        speedup = speedup_of(*(only(model, batch, mode, "cuda_graph", epochs=30) for mode in ("amp_fp16", "fp32")))
        assert f"{speedup['ratio']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})" in text


def test_the_readmes_largest_batches_are_the_searches():
    text = in_one_line(ROOT / "README.md")
    own, base = (only("resnet18", "max", mode, memory_limit_gib=24.0) for mode in ("amp_fp16", "fp32"))
    sizes = f"{base['batch_size_used']:,} images of CIFAR-10 in fp32 and {own['batch_size_used']:,} in amp_fp16"
    assert f"{sizes}, which is then {speedup_of(own, base)['ratio']:.2f} times as fast per image" in text
    words = [only("lstm", "max", mode)["batch_size_used"] for mode in ("amp_fp16", "fp32")]
    assert words[0] <= words[1]


@functools.cache
def read_ladder():
    """Return {(model, batch size, precision, channels_last, execution): its runs} of the published ladders."""
    records, left_out = read_records(LADDER)
    assert left_out == []
    steps = {}
    for record in sorted(records, key=lambda record: (record["seed"], record["repeat"])):
        names = ("model", "batch_size", "precision", "channels_last", "execution")
        steps.setdefault(tuple(record.get(name, False) for name in names), []).append(record)
    return steps


def ladder_of(model, half, larger):
    """Return the runs of a ladder's steps, from below: seven, and six for the LSTM, which has no channels_last."""
    size, both = {"resnet18": 128, "tf_efficientnet_b0": 32, "lstm": 20}[model], "compile_cuda_graph"
    images = model != "lstm"
    ways = [(size, "fp32", False, "eager"), (size, "tf32", False, "eager"), (size, half, False, "eager")]
    ways += [(size, half, images, execution) for execution in (["eager"] if images else []) + ["compile", both]]
    return [read_ladder()[(model, *way)] for way in (*ways, (larger, half, images, both))]


def spread(numbers, form, unit=""):
    """Return "smallest to largest" as text, or the one number where they look alike."""
    return " to ".join(dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers)))) + unit


def in_cells(seconds):
    """Return the median of epochs, the shortest, the longest and their number, as a README's table has them."""
    return f"{statistics.median(seconds):.3f} ({spread(seconds, '{:.3f}')}, {len(seconds)})"


LADDERS = [("resnet18", "amp_bf16", 512), ("tf_efficientnet_b0", "amp_fp16", 128), ("lstm", "amp_bf16", 80)]


def test_the_published_ladders_are_whole_and_measured_on_one_gpu_each():
    ladders = [ladder_of(*ladder) for ladder in LADDERS]
    assert sum(len(runs) for steps in ladders for runs in steps) == sum(map(len, read_ladder().values())) == 58
    for steps in ladders:
        assert {len(runs) for runs in steps[:-1]} == {3}
        assert len({run["gpu_uuid"] for runs in steps for run in runs}) == 1
        for run in (run for runs in steps for run in runs):
            assert (run["status"], run["gpu_name"], run["synthetic"]) == ("ok", "NVIDIA H200", False)
            assert run["gpu_shared"] is False and len(run["epoch_seconds"]) == 6
            first = run["startup_reason"] is None  # of its kernel: the LSTM's three eager precisions share one
            assert first or (run["model"], run["execution"]) == ("lstm", "eager")
            reasons = [run[f"{name}_reason"] for name in ("profile", "ledger", "energy", "card", "inference")]
            assert reasons == [None] * 5
        assert not any(run["throttled"] for runs in steps[:-1] for run in runs)


@pytest.mark.parametrize("ladder", LADDERS)
def test_the_ladders_readme_has_the_records_figures(ladder):
    lines = [line for line in (LADDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    steps = ladder_of(*ladder)
    titles = ["fp32", "tf32", ladder[1], *["+ channels_last"] * (len(steps) == 7)]
    titles += ["+ compile", "+ CUDA graph", f"+ batch {ladder[2]}"]
    for title, runs in zip(titles, steps, strict=True):
        seconds = [time for run in runs for time in run["epoch_seconds"]]
        cells = [in_cells(seconds)]
        speedup = paired_ratio(paired_runs(runs, steps[0])) if runs is not steps[0] else None
        cells.append(f"{speedup['ratio']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup else "1")
        idle = [100 * (1 - run["gpu_busy_fraction"]) for run in runs]
        cells.append(spread(idle, "{:.0f}", "%"))
        ends = [run["metric"][-1] for run in runs]
        percent = runs[0]["metric_name"] == "accuracy"
        form = "{:.1f}" if runs[0]["metric_name"] == "perplexity" else "{:.3f}"
        cells.append(spread([100 * end for end in ends], "{:.1f}", "%") if percent else spread(ends, form))
        assert f"| {title} | {' | '.join(cells)} |" in lines


def test_the_ladders_readme_says_what_the_records_say():
    text = in_one_line(LADDER / "README.md")
    resnet, efficient, lstm = (ladder_of(*ladder) for ladder in LADDERS)
    busy = [runs[0]["gpu_busy_ms_per_step"] for runs in resnet]
    assert f"for a ResNet's step from {busy[0]:.1f} to {busy[4]:.1f} ms" in text
    ends = [[run["metric"][-1] for run in runs] for runs in resnet[:6]]
    apart = [statistics.median(found) for found in ends]
    apart, within = max(apart) - min(apart), max(max(found) - min(found) for found in ends)
    assert apart < within  # no step costs accuracy that three runs of one step do not
    assert (
        f"differ by {100 * apart:.1f} points between the steps, the runs of one step by up to {100 * within:.1f}"
        in text
    )
    over = [
        paired_ratio(paired_runs(steps[number], steps[1]))
        for steps, number in zip((resnet, efficient, lstm), (5, 5, 4), strict=True)
    ]
    said = ["{ratio:.2f} ({low:.2f} to {high:.2f})".format(**speedup) for speedup in over]
    assert f"{said[0]}, {said[1]} and {said[2]} times as fast" in text
    held = [share for runs in (resnet[6], efficient[6]) for run in runs for _, share in run["throttle_fractions"]]
    assert f"limit of 700 W in {100 * min(held):.0f} to {100 * max(held):.0f}% of the samples" in text
    assert f"an error of {efficient[0][0]['chance_metric']:.3f}" in text
    for steps, limited in ((resnet, (0, 5, 6)), (efficient, (0, 1, 5, 6)), (lstm, (4, 5))):
        for runs in (steps[number] for number in limited):
            medians = [statistics.median(run["epoch_seconds"]) for run in runs]
            assert max(medians) / min(medians) < 1.015


def test_a_graph_of_the_compiled_step_is_as_fast_as_the_documentation_says():
    text = in_one_line(ROOT / "docs" / "measurements.md")
    resnet, efficient, lstm = (ladder_of(*ladder) for ladder in LADDERS)
    rows = [(resnet[5], "ResNet-18, batch 128, s an epoch", ""), (resnet[6], "ResNet-18, batch 512, s an epoch", "")]
    rows += [
        (lstm[4], "LSTM 2 x 200, batch 20, ms a step", ""),
        (lstm[0], "the same in eager fp32", r"\*\*not reached\*\*: "),
    ]
    for runs, name, before in rows:
        seconds = [time for run in runs for time in run["epoch_seconds"]]
        words = f"{statistics.median(seconds):.3f} ({spread(seconds, '{:.3f}')}; n = {len(seconds)}, 3 kernels)"
        assert re.search(rf"\| {name} \|[^|]*\|[^|]*\| {before}{re.escape(words)}", text)
    assert {run["samples_per_epoch"] for runs in lstm[:5] for run in runs} == {1000 * 20 * 35}  # 1 s is 1 ms a step
    median = [statistics.median(time for run in runs for time in run["epoch_seconds"]) for runs in resnet]
    words = "{:.2f} s an epoch contiguous, {:.2f} s in channels_last, {:.2f} s compiled".format(*median[2:5])
    busy = [statistics.median(run["gpu_busy_ms_per_step"] for run in runs) for runs in resnet]
    assert f"{words}: the GPU's work falls from {busy[2]:.1f} to {busy[3]:.1f} and {busy[4]:.1f} ms a step" in text
    speeds = [run["samples_per_epoch"] / time for run in efficient[5] for time in run["epoch_seconds"]]
    words = f"{statistics.median(speeds):,.0f} ({spread(speeds, '{:,.0f}')}; n = {len(speeds)}, 3 kernels)"
    assert re.search(rf"EfficientNet-B0, 3 x 512 x 384, batch 32, images/s \|[^|]*\|[^|]*\| {re.escape(words)}", text)
    for runs, steps in ((resnet[5], resnet), (efficient[5], efficient), (lstm[4], lstm)):
        speedups = [paired_ratio(paired_runs(runs, base)) for base in steps[:2]]
        cells = [f"{speedup['ratio']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})" for speedup in speedups]
        assert f"| {cells[0]} | {cells[1]} |" in in_one_line(ROOT / "README.md")


def test_the_documentation_has_what_the_comparison_of_loops_printed():
    folder = ROOT / "outputs" / "loops-h200"
    check_files(folder, 10_000, {"README.md", "lstm.md", "efficientnet.md", "resnet.md"})
    printed = []
    for name in ("efficientnet", "lstm", "resnet"):
        lines = [line for line in (folder / f"{name}.md").read_text(encoding="utf-8").splitlines() if ", " in line]
        cells = [[cell.strip() for cell in line.split("|")] for line in lines if "x (" in line]
        assert len(cells) == 8 and {cell[3] for cell in cells} == {"3"}
        speedups = ["1", *(cell[4].replace("x", "") for cell in cells[1:])]
        printed.append([(cell[2], speedup) for cell, speedup in zip(cells, speedups, strict=True)])
    text = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    for images, words, resnet in zip(*printed, strict=True):
        assert f" | {' | '.join((*images, *words))} |\n" in text
        assert f" | {' | '.join(resnet)} |\n" in text


def test_the_published_ladder_is_small_and_names_no_folder_of_a_machine():
    check_files(LADDER, 3_000_000, {"summary.html", "ladder.png", "README.md"})


def read_folder(name):
    """Return the records of a folder in outputs, checked: a GPU's, real data, small, no machine's folder."""
    folder = ROOT / "outputs" / name
    records, left_out = read_records(folder)
    assert left_out == []
    for record in records:
        assert (record["status"], record["gpu_name"], record["synthetic"]) == ("ok", "NVIDIA H200", False)
    check_files(folder, 2_000_000, {"README.md"})
    return records


def test_the_readme_of_the_fastest_steps_has_the_records_figures():
    records, text = (
        read_folder("fastest-h200"),
        (ROOT / "outputs" / "fastest-h200" / "README.md").read_text(encoding="utf-8"),
    )
    assert len(records) == 27
    same = ("model", "execution", "compile_mode", "epochs", "precision", "channels_last", "batch_size", "units")
    ways, means, apart, found = ("compile_cuda_graph", "eager"), {}, {}, {}
    for record in records:
        seeds = [run for run in records if all(run.get(name) == record.get(name) for name in same)]
        seeds.sort(key=lambda run: run["seed"])
        if len(seeds) == 1:
            assert f" | {in_cells(record['epoch_seconds'])} |\n" in text
            continue
        assert [run["seed"] for run in seeds] == [0, 1, 2]
        ends = [100 * run["metric"][-1] if record["metric_name"] == "accuracy" else run["metric"][-1] for run in seeds]
        form = {"accuracy": "{:.2f}%", "perplexity": "{:.1f}"}.get(record["metric_name"], "{:.3f}")
        times = "; ".join(in_cells(run["epoch_seconds"]) for run in seeds)
        assert f" | {' | '.join(map(form.format, ends))} | {times} |\n" in text
        key = record["model"], record["execution"]
        means[key], apart[key], found[key] = sum(ends) / 3, max(ends) - min(ends), seeds
    text = in_one_line(ROOT / "outputs" / "fastest-h200" / "README.md")
    differ = {}
    for model in ("resnet18", "tf_efficientnet_b0", "lstm"):
        differ[model] = abs(means[model, "eager"] - means[model, "compile_cuda_graph"])
        assert differ[model] < max(apart[model, way] for way in ways)
    readme = in_one_line(ROOT / "README.md")
    ends = {key: [run["metric"][-1] for run in runs] for key, runs in found.items()}
    accuracy = [spread([100 * end for end in ends["resnet18", way]], "{:.2f}") for way in ways]
    assert "yes: {}% against {}% in eager mode, 30 epochs, three seeds".format(*accuracy) in readme
    perplexity = [spread(ends["lstm", way], "{:.1f}") for way in ways]
    assert "perplexities of {} against {} in eager mode, six epochs, three seeds".format(*perplexity) in readme
    errors = [end for way in ways for end in ends["tf_efficientnet_b0", way]]
    words = "errors of {:.2f}, {:.2f} and {:.2f} against {:.2f}, {:.2f} and {:.2f} in eager mode, 30 epochs"
    assert words.format(*errors) in readme
    assert f"up to {max(apart['tf_efficientnet_b0', way] for way in ways):.2f}: mean absolute" in readme
    spreads = [apart[model, way] for model in ("resnet18", "lstm") for way in reversed(ways)]
    words = "accuracies differ by {:.2f} points, those of the seeds of one way by {:.2f} and {:.2f}"
    assert words.format(differ["resnet18"], *spreads[:2]) in text
    words = "perplexities differ by {:.1f}, those of the seeds by {:.1f} and {:.1f}: no difference shows"
    assert words.format(differ["lstm"], *spreads[2:]) in text
    tests = [spread([run["test_metric"] for run in found["lstm", way]], "{:.1f}") for way in reversed(ways)]
    assert "({} and {})".format(*tests) in text
    assert f"errors differ by {differ['tf_efficientnet_b0']:.3f} between the means" in text
    wide = [apart["tf_efficientnet_b0", way] for way in ways]
    assert "its seeds differ by {:.3f}, those of eager mode by {:.3f}".format(*wide) in text
    tuned = {run["compile_mode"]: run for run in records if run["model"] == "resnet50"}
    tuned = [tuned[mode] for mode in ("coordinate-descent", "max-autotune-no-cudagraphs", "default")]
    words = (
        "took {:.0f} s to the first timed step, searching among kernels for convolutions as well {:.0f} s, without a"
    )
    assert words.format(*(run["startup_seconds"] for run in tuned[:2])) in text
    assert f"without a search {tuned[2]['startup_seconds']:.0f} s" in text
    held = [100 * dict(run["throttle_fractions"])["power cap"] for run in tuned]
    assert f"in {held[2]:.0f}% of the samples as torch.compile has it" in text
    assert f"in {held[0]:.0f} and {held[1]:.0f}% after the longer searches" in text
    graphs = {run["precision"]: run for run in records if run["model"] == "lstm" and run["execution"] == "cuda_graph"}
    (count,) = {run["steps_per_epoch"] for run in graphs.values()}
    steps = [1000 * statistics.median(graphs[name]["epoch_seconds"]) / count for name in ("amp_bf16", "amp_fp16")]
    assert f"{count:,} steps: {steps[0]:.3f} ms a step in amp_bf16, {steps[1]:.3f} in amp_fp16" in text


def test_the_readme_of_the_scaling_has_the_records_figures():
    records, text = read_folder("scaling-h200"), in_one_line(ROOT / "outputs" / "scaling-h200" / "README.md")
    runs = {(run["model"], run["batch_size"], run["precision"]): run for run in records}
    assert len(runs) == len(records) == 30
    speed = {key: run["samples_per_second"] for key, run in runs.items()}
    for size in (256, 4096):
        speedups = [speed["resnet18", size, mode] / speed["resnet18", size, "fp32"] for mode in ("tf32", "amp_bf16")]
        assert "{:.1f} and {:.1f} times".format(*speedups) in text
    idle = [100 * (1 - runs["resnet18", 16, mode]["gpu_busy_fraction"]) for mode in ("fp32", "tf32", "amp_bf16")]
    assert "idle {:.0f}% of the time in fp32, {:.0f}% in tf32 and {:.0f}% in amp_bf16".format(*idle) in text
    depths = [f"resnet{layers}" for layers in (18, 34, 50, 101, 152)]
    pairs = [(runs[name, 128, "amp_bf16"], runs[name, 128, "tf32"]) for name in depths]
    assert all(speedup_of(*pair)["low"] < 1 for pair in pairs)  # no faster at any depth
    times = {key: run["epoch_seconds"] for key, run in runs.items()}
    ups = {key: (max(found) - min(found)) / statistics.median(found) for key, found in times.items()}
    limited = [up for (_, size, mode), up in ups.items() if mode == "fp32" and size > 16]
    assert f"differ by up to {100 * max(ups.values()):.0f}% of their median" in text and max(limited) < 0.0025


def test_the_readme_of_the_models_in_use_has_the_records_figures():
    records, text = read_folder("inference-h200"), (ROOT / "outputs" / "inference-h200" / "README.md").read_text()
    runs = {(run["model"], run["execution"], run["precision"]): run for run in records}
    assert len(runs) == len(records) == 30
    for (_, execution, precision), run in runs.items():
        names = ("", "_p10", "_p90")
        latency = "{:.2f} ({:.2f} to {:.2f})".format(*(run[f"inference_latency_ms{name}"] for name in names))
        figures = f"{run['inference_samples_per_second']:,.0f} | {run['inference_memory_mib']:,.0f}"
        later = " *" * (run["commit"] == "a958360e3f0c")  # on other cards, as the README says
        off = f"{run['inference_difference_fraction']:.1g}"
        line = f"| {execution} | `{precision}`{later} | {latency} | {figures} | {off} |\n"
        assert line in text
        halves = "fp16" in precision or (precision == "amp_bf16" and run["model"] == "lstm")  # cuDNN's under autocast
        assert (run["fp16_kernel_fraction"] > 0) is halves, line
    rates = {key: run["inference_samples_per_second"] for key, run in runs.items()}
    models = ("resnet18", "tf_efficientnet_b0", "lstm")
    for execution in ("eager", "compile"):
        for mode in ("tf32", "amp_fp16"):
            speedups = [rates[model, execution, mode] / rates[model, execution, "fp32"] for model in models]
            assert "{:.1f}, {:.1f} and {:.1f} times".format(*speedups) in text
        used = [
            [runs[model, execution, mode]["inference_memory_mib"] for mode in ("amp_fp16", "fp32")] for model in models
        ]
        less = [f"{100 * (1 - half / full):.0f}" for half, full in used]
        assert f"{less[0]}, {less[1]} and {less[2]}%" in text
    off = [runs["tf_efficientnet_b0", way, "amp_bf16"]["inference_difference_fraction"] for way in ("compile", "eager")]
    assert "off by {:.0%} of its largest output, the eager one by {:.0%}".format(*off) in text
    over = [rates[model, "compile", "amp_bf16"] / rates[model, "compile", "amp_fp16"] for model in models[:2]]
    assert "ResNet comes to {:.2f} times and EfficientNet to {:.2f} times".format(*over) in " ".join(text.split())


def test_what_is_said_of_batches_on_several_gpus_is_in_their_logs():
    folder = ROOT / "outputs" / "batches-h200"
    here, docs = in_one_line(folder / "README.md"), in_one_line(ROOT / "docs" / "batches.md")
    check_files(folder, 500_000, {"README.md", "scale.yaml", "batch.json", "batch.log"})
    facts = {name: json.loads((folder / name / "logs" / "batch.json").read_text()) for name in ("one", "two", "four")}
    for count, found in zip((1, 2, 4), facts.values(), strict=True):
        assert len(found["devices"]) == count and found["runs_executed"] == 8
        share = found["ideal_seconds"] / found["makespan_seconds"]
        assert share > 0.97
        cells = f"{found['makespan_seconds']:.1f} s | {found['ideal_seconds']:.1f} s | {100 * share:.0f}% |"
        speedup = facts["one"]["makespan_seconds"] / found["makespan_seconds"]
        assert f"| {cells}" in here and f"| {count} | {cells} {speedup:.2f} |" in docs
    epochs, starts = {}, {}
    for name in ("alone", "one", "four"):
        for record in read_records(folder / name)[0]:
            assert record["status"] == "ok" and not record["gpu_shared"]
            epochs.setdefault((name, record["model"]), []).append(record["epoch_seconds"])
            starts.setdefault((name, record["model"]), []).append(record["startup_model_seconds"])
    for model in ("resnet18", "lstm"):
        (alone,), among = epochs["alone", model], epochs["four", model]
        assert len(among) == 4
        changes = sorted(100 * (statistics.median(times) / statistics.median(alone) - 1) for times in among)
        assert max(map(abs, changes)) < 3
        assert f"| {changes[0]:+.1f} to {changes[-1]:+.1f}% |" in here
        assert f"{-changes[-1]:.1f} to {-changes[0]:.1f}% shorter" in docs
        for times in (alone, [time for run in among for time in run]):
            assert f"| {statistics.median(times):.2f} ({spread(times, '{:.2f}')}) |" in here
    for model, words in (("resnet18", "{} s for the ResNet instead of {} s"), ("lstm", "{} s instead of {} s for the")):
        assert words.format(*(spread(starts[name, model], "{:.1f}") for name in ("four", "one"))) in here
    found = [starts["alone", model][0] for model in ("resnet18", "lstm")]
    assert "(alone on all 64 cores {:.1f} and {:.1f} s)".format(*found) in here
    records = {run["status"]: run for run in read_records(folder / "oom")[0]}
    assert set(records) == {"oom", "ok"} and "CUDA out of memory" in records["oom"]["reason"]
    assert f"{records['ok']['device_used_before_mib']} MiB of the card in use" in here
