"""The records in outputs/: complete, measured on a GPU on real data, small, and without folders of a machine."""

import functools
import itertools
import json
import os
import re
import statistics
import subprocess
import zipfile

import figures
import pytest
from conftest import EXPERIMENTS, ROOT, results
from equal_runs import equal_runs, false_positive_rate

import outputs
from mixed_precision_study.judge.ratios import block_ratios, paired_ratio, paired_runs
from mixed_precision_study.judge.verdict import DIFFERENT, NOT_TRAINED, OTHER_CONDITIONS, TOO_SHORT, judge
from mixed_precision_study.record import comparison_key, is_explanation, read_records
from mixed_precision_study.report.growth import families_of, judge_loss, pairs_of
from mixed_precision_study.report.tables import group, read_tables
from mixed_precision_study.train.precision import PRECISIONS

OUTPUTS = ROOT / "outputs"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine
NO_OUTCOME = {NOT_TRAINED, OTHER_CONDITIONS, TOO_SHORT}
# What explains a run: the fields that the rules of a verdict read.
EXPLANATION = {"gpu_busy_fraction", "kernel_family_fractions", "tensor_core_fraction", "misaligned_flops_fraction"}
EXPLANATION |= {"compute_limit_fraction", "bandwidth_limit_fraction", "throttle_fractions", "throttled", "gpu_shared"}
EXPLANATION |= {"ledger_activations_mib", "energy_joules", "profile_reason", "limit_reason", "ledger_reason"}
LADDERS = [("resnet18", "amp_bf16", 512), ("tf_efficientnet_b0", "amp_fp16", 128), ("lstm", "amp_bf16", 80)]


@functools.cache
def read_folder(name):
    """Return the records of committed results, all of which must be readable."""
    records, left_out = read_records(results(name))
    assert left_out == []
    return records


def batch(name, part):
    """Return the records of one of several batches of the same study."""
    return [record for record in read_folder(name) if record["path"].startswith(f"{name}.zip/{part}/")]


def published(**fields):
    """Return the records of the published experiments that have these values."""
    return [record for record in read_folder("published") if all(record[name] == fields[name] for name in fields)]


def only(model, batch_size, precision, execution="eager", **fields):
    """Return the one record of the published experiments that has these values."""
    (record,) = published(model=model, batch_size=batch_size, precision=precision, execution=execution, **fields)
    return record


def test_there_are_few_files_and_each_folder_has_a_report_and_a_short_readme():
    assert len([path for path in OUTPUTS.rglob("*") if path.is_file()]) <= 150
    folders = [path.parent for path in OUTPUTS.glob("*/*/README.md")]
    assert 10 < len(folders) < 15  # and checks
    for folder in folders:
        needed = {"records.zip", "notes.md", "study.yaml", "summary.ipynb", "summary.html", "trainings.csv"}
        assert needed <= {path.name for path in folder.iterdir()}
    for folder in (*folders, OUTPUTS / "checks"):
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert len(re.findall(r"[^\s|]+", text)) <= 150
        assert re.findall(r"!\[.+\]\((.+)\)", text) == ["picture.png"] and text.count("\n|---") == 1
    assert sum(path.stat().st_size for path in OUTPUTS.rglob("*") if path.is_file()) < 15_000_000


def texts():
    """Yield (name, text) of every committed file of results, also in zips, but for pictures."""
    for path in OUTPUTS.rglob("*.*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
                assert [one.filename for one in entries] == sorted(one.filename for one in entries)
                assert {one.date_time for one in entries} == {outputs.DATE}
                yield from ((f"{path}/{one.filename}", archive.read(one)) for one in entries)
        else:
            yield str(path), path.read_bytes()


def test_no_file_names_a_folder_of_a_machine_and_zips_are_sorted_and_have_one_date():
    found = {name: re.search(FOREIGN, text.decode()) for name, text in texts() if not name.endswith(".png")}
    assert len(found) > 1000
    assert {name: match[0] for name, match in found.items() if match} == {}


@pytest.mark.parametrize(
    ("name", "number", "gpu"),
    [
        ("first-h200", 12, "NVIDIA H200"),
        ("ladder-h200", 58, "NVIDIA H200"),
        ("fastest-h200", 32, "NVIDIA H200"),
        ("fastest-h100", 37, "NVIDIA H100 80GB HBM3"),
        ("modern-h100", 22, "NVIDIA H100 80GB HBM3"),
        ("quality-h100", 134, "NVIDIA H100 80GB HBM3"),
        ("aa-h100", 72, "NVIDIA H100 80GB HBM3"),
        ("scaling-h200", 30, "NVIDIA H200"),
        ("order-h200", 10, "NVIDIA H200"),
        ("inference-h200", 30, "NVIDIA H200"),
        ("quick-h100", 12, "NVIDIA H100 80GB HBM3"),
        ("quick-earlier-h100", 12, "NVIDIA H100 80GB HBM3"),
        ("reference-h100", 117, "NVIDIA H100 80GB HBM3"),
        ("reference-h200", 96, "NVIDIA H200"),
        ("quick-h200", 12, "NVIDIA H200"),
        ("graph-quality-h200", 27, "NVIDIA H200"),
        ("neighbour-h200", 11, "NVIDIA H200"),
        ("executed-h100", 12, "NVIDIA H100 80GB HBM3"),
    ],
)
def test_every_run_ended_well_on_an_undisturbed_gpu_and_real_data(name, number, gpu):
    records = read_folder(name)
    assert len(records) == number
    for record in records:
        assert (record["status"], record["gpu_name"], record["synthetic"]) == ("ok", gpu, False)
        assert record["gpu_shared"] is False
    for record in (one for one in records if not is_explanation(one)):
        assert len(record["epoch_seconds"]) == record["epochs"] * record["repeats"]


@pytest.mark.parametrize(("name", "epochs"), [("crossover-h100", 4), ("crossover-h200", 9)])
def test_of_the_transformer_at_six_widths_only_fp8_at_200_units_did_not_run(name, epochs):
    records = [record for record in read_folder(name) if record["model"] == "transformer" and record["max_steps"]]
    assert len(records) == 90 and {record["epochs"] for record in records} == {epochs}
    for units in (200, 256, 512, 1024, 2048, 4096):
        of_width = [record for record in records if record["units"] == units]
        assert len(of_width) == 15 and len({record["gpu_uuid"] for record in of_width}) == 1
    others = [record for record in records if record["status"] != "ok"]
    assert {(record["units"], record["precision"], record["status"]) for record in others} == {
        (200, "fp8", "unsupported")
    }
    assert len(others) == 3 and all("not multiples of 16" in record["reason"] for record in others)
    assert not any(record["synthetic"] or record["gpu_shared"] for record in records)


def test_on_the_whole_text_fp8_is_faster_at_2048_and_its_loss_within_the_bar():
    whole = [record for record in read_folder("crossover-h200") if record["max_steps"] == 0]
    assert len(whole) == 36 and {(record["status"], record["epochs"]) for record in whole} == {("ok", 4)}
    for units in (1024, 2048, 4096):
        of_width = [record for record in whole if record["units"] == units]
        assert len(of_width) == 12 and len({record["gpu_uuid"] for record in of_width}) == 1
        assert all(after < before for record in of_width for before, after in itertools.pairwise(record["metric"]))
    tables = read_tables(results("crossover-h200"))
    (family,) = (one for one in families_of(tables) if one.model.iloc[0] == "transformer")
    fp8 = pairs_of(tables, family).set_index(["precision", "size"]).loc[("fp8", 2048)]
    runs = {name: tables.runs(fp8.loss_comparison, name) for name in ("fp8", "amp_bf16", "bf16_true")}
    assert {len(run["epoch_seconds"]) for run in runs["fp8"]} == {4}
    assert tables.between(runs["fp8"], runs["amp_bf16"])["outcome"] == "faster"
    assert fp8.loss_outcome == "within"
    assert judge_loss(runs["bf16_true"], runs["amp_bf16"])["loss_outcome"] == "outside"


def test_each_width_of_the_vit_ran_on_one_gpu_and_fp8_took_all_but_its_last_layer():
    records = [record for record in read_folder("crossover-h200") if record["notebook"] == "cifar_resnet"]
    assert len(records) == 60 and {record["status"] for record in records} == {"ok"}
    for model in {record["model"] for record in records}:
        of_model = [record for record in records if record["model"] == model]
        assert len(of_model) == 15 and len({record["gpu_uuid"] for record in of_model}) == 1
        assert {record["precision"] for record in of_model} == {"fp32", "tf32", "amp_bf16", "bf16_true", "fp8"}
    assert all(record["joules_per_1000_samples"] and not record["gpu_shared"] for record in records)
    assert all(0.999 < record["fp8_linear_fraction"] < 1 for record in records if record["precision"] == "fp8")


def same_runs():
    """Return lists of ok runs on a GPU that differ in seed, repetition and process alone, in the order of their start.

    The study of several GPUs has most of them: the same LSTM again and again.
    """
    alike = {}
    for name in ("first-h200", "ladder-h200", "graph-quality-h200", "published", "batches-h200"):
        for record in read_folder(name):
            if record["status"] == "ok" and record["batch_size"] != "max":
                key = (name, record["precision"], record["commit"], comparison_key(record))
                alike.setdefault(key, []).append(record)
    return [sorted(runs, key=lambda run: run["started_at"]) for runs in alike.values() if len(runs) > 1]


def test_no_stored_run_is_called_faster_than_another_process_of_the_same():
    pairs = [pair for runs in same_runs() for pair in itertools.combinations(runs, 2)]
    assert len(pairs) > 70
    assert {judge(paired_ratio([pair])) for pair in pairs} <= {"one process", *NO_OUTCOME}


def test_three_stored_runs_are_seldom_called_faster_than_three_others_of_the_same():
    words = []
    for runs in (runs for runs in same_runs() if len(runs) >= 6):
        for chosen in itertools.combinations(range(6), 3):
            others = sorted(set(range(6)) - set(chosen))
            pairs = [(runs[a], runs[b]) for a, b in zip(chosen, others, strict=True)]
            words.append(judge(paired_ratio(pairs)))
    assert len(words) >= 20
    assert sum(word in DIFFERENT for word in words) <= 0.1 * len(words)


def test_what_a_report_writes_beside_committed_records_is_ignored():
    names = ("main/quick-h100/time_and_memory.png", "main/quick-h100/logs/summary.log", "checks/logs/summary.log")
    paths = [f"outputs/{name}" for name in names]
    done = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == paths
    kept = [f"outputs/more/modern-h100/{name}" for name in ("records.zip", "summary.ipynb", "picture.png")]
    assert subprocess.run(["git", "check-ignore", *kept], cwd=ROOT, capture_output=True).returncode == 1


@pytest.mark.parametrize("folder", ["quick-h200", "reference-h100"])
def test_no_committed_record_reaches_more_than_its_matmul_or_uses_less_than_its_reserve(folder):
    for record in read_tables(results(folder)).trainings.record:
        if (fraction := record["compute_limit_fraction"]) is not None:
            reached = record["achieved_tflop_per_second"] / record["ceiling_matmul_tflop_per_second"]
            assert fraction == pytest.approx(reached, rel=1e-6)
        if None not in (record["device_used_mib"], record["peak_reserved_mib"]):
            assert record["device_used_mib"] >= record["peak_reserved_mib"]


def test_a_zip_is_written_only_where_a_file_has_changed(tmp_path):
    archive, record = tmp_path / "records.zip", tmp_path / "b" / "one.json"
    record.parent.mkdir()
    written = []
    for text in ("1", "1", "2"):
        record.write_text(text)
        outputs.zip_files(archive, [record])
        written.append(archive.stat().st_mtime > 1)
        os.utime(archive, (1, 1))
    assert written == [True, False, True] and not record.exists()
    (tmp_path / "a.json").write_text("3")
    outputs.zip_files(archive, [tmp_path / "a.json"])
    with zipfile.ZipFile(archive) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == {"a.json": b"3", "b/one.json": b"2"}


def test_pages_are_copied_with_an_index_that_has_their_titles(tmp_path, monkeypatch):
    folder = tmp_path / "outputs" / "main" / "quick"
    folder.mkdir(parents=True)
    for name, text in (("summary.ipynb", "{}"), ("summary.html", "<h1>Faster</h1>"), ("ratios.csv", "a")):
        (folder / name).write_text(text)
    monkeypatch.setattr(outputs, "OUTPUTS", tmp_path / "outputs")
    outputs.main(["--pages", str(tmp_path / "site")])
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert '<a href="main/quick/summary.html">Faster</a>' in index
    assert (tmp_path / "site" / "main" / "quick" / "ratios.csv").read_text() == "a"


# outputs/archive/first-h200.zip


def test_the_reference_has_every_precision_of_every_experiment():
    records = read_folder("first-h200")
    assert all(set(record) >= EXPLANATION for record in records)
    quick = {(r["notebook"], r["precision"]) for r in records if not r.get("channels_last")}
    assert quick == {(name, precision) for name in EXPERIMENTS for precision in list(PRECISIONS)[:4]}


def test_every_reference_record_explains_itself():
    for record in read_folder("first-h200"):
        reasons = {name: value for name, value in record.items() if name.endswith("_reason") and value}
        assert reasons == {}, record["run_id"]
        assert record["host_syncs_per_step"] == (1 if record["precision"] == "amp_fp16" else 0)
        assert abs(record["ledger_error_fraction"]) < 0.02  # against NVML
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02  # events against the wall
        assert record["throttled"] is False
        assert record["energy_source"] == "counter"
        assert record["joules_per_1000_samples"] > 0
        assert sum(share for _, share in record["kernel_family_fractions"]) == pytest.approx(1)
        assert (record["tensor_core_fraction"] > 0) is (record["precision"] != "fp32")
        assert 0 < record["compute_limit_fraction"] < 1
        assert (record["gradient_flush_fraction_scale_1"] is None) is (record["precision"] != "amp_fp16")


def test_what_a_process_of_its_own_explained_reaches_the_timed_runs():
    records = [dict(record) for record in read_folder("reference-h100")]
    explained = {}
    for run, _ in group(records, {}):  # it fills records in
        if not is_explanation(run):
            key = (run["model"], run["execution"])
            known = bool(run["kernel_family_fractions"] and run["ledger_activations_mib"])
            explained[key] = explained.get(key, 0) + known
    assert explained == {
        (model, way): 12 for model in ("resnet18", "tf_efficientnet_b0") for way in ("eager", "cuda_graph")
    } | {
        ("lstm", "eager"): 24,
        ("lstm", "cuda_graph"): 21,
    }


@pytest.mark.parametrize("folder", figures.CARDS)
def test_cuda_graphs_repeat_within_two_percent_and_amp_gains_over_tf32(folder):
    """On a card they repeat within 1.2%; EfficientNet ran on two cards of the H200's folder."""
    graphs = figures.bars(OUTPUTS, (folder,), "CUDA graph")
    assert (graphs.runs >= 3).all() and ((graphs.seconds_high / graphs.seconds_low).astype(float) < 1.021).all()
    best = graphs[graphs.precision.isin(figures.AMP)].sort_values("ratio").groupby("model").tail(1)
    assert len(best) == 3 and (best.low > 1.25).all() and (best.high < 1.55).all()


def test_runs_under_ray_are_those_without_it():
    local, ray = ({one["run_id"]: one for one in batch("batches-h100", name)} for name in ("local", "ray"))
    assert len(local) == 4 and set(local) == set(ray)
    for run_id, own in local.items():
        assert set(own) == set(ray[run_id])
        assert own["status"] == ray[run_id]["status"] == "ok"
        assert own["code_hash"] == ray[run_id]["code_hash"]
        assert own["device_used_before_mib"] == ray[run_id]["device_used_before_mib"] == 0  # the card was free again


def test_the_same_comparison_three_times_agrees_within_a_percent():
    base, own = sorted(read_folder("repeatability"), key=lambda record: record["precision"])
    assert (base["precision"], own["precision"], base["repeats"]) == ("fp32", "tf32", 3)
    assert base["gpu_uuid"] == own["gpu_uuid"]
    for record in (base, own):
        runs = [record["epoch_seconds"][6 * number : 6 * number + 6] for number in range(3)]
        assert min(map(sum, runs)) >= 20
        assert (record["throttled"], record["gpu_shared"]) == (False, False)
    ratios = [statistics.median(repeat.flat) for repeat in block_ratios(own, base).reshape(3, 6, -1)]
    assert max(ratios) / min(ratios) - 1 < 0.01


# outputs/main/published


def test_the_published_experiments_are_measured_on_a_gpu_undisturbed_and_explained():
    (too_large,) = published(status="oom")
    assert (too_large["model"], too_large["batch_size"], too_large["memory_limit_gib"]) == ("dpn92", 640, 24.0)
    (stuck,) = published(status="diverged")
    assert (stuck["model"], stuck["precision"]) == ("rnn_relu", "amp_fp16")
    assert len(published(status="ok")) == len(published()) - 2 == 151
    for record in published(throttled=True):
        ((why, _),) = record["throttle_fractions"]
        assert (why, record["batch_size"]) == ("power cap", "max")
    for record in published(status="ok"):
        assert (record["gpu_name"], record["synthetic"], record["gpu_shared"]) == ("NVIDIA H200", False, False)
        assert len(record["epoch_seconds"]) == record["epochs"]
        assert [record[f"{name}_reason"] for name in ("profile", "limit", "ledger", "energy", "card")] == [None] * 5
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02
        most = 0.001
        if record["execution"] == "cuda_graph" and record["commit"] == "a2eb8491a1fa":  # before a fix of the breakdown
            most = 0.025
        elif (record["model"], record["batch_size"], record["dataset_used"]) == ("resnet18", "max", "cifar100"):
            most = 0.033
        assert abs(record["ledger_error_fraction"]) < most


def test_no_published_run_waited_for_launches_that_an_earlier_profile_had_slowed():
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
    assert set(wide) == {"fp32", "tf32", "amp_fp16", "o2_fp16", "o3_fp16"}
    assert min(curve[-1] for curve in wide.values()) > 0.9  # o3_fp16 converges, too
    for model in ("gru", "rnn_tanh", "transformer"):
        last = [run["metric"][-1] for run in published(model=model, epochs=30)]
        assert len(last) == len(published(model=model)) == 2 and max(last) / min(last) < 1.03
    hundred = [run["metric"] for run in published(dataset_used="cifar100", epochs=10)]
    assert len(hundred) == 3 and all(len(curve) == 10 for curve in hundred)
    assert max(curve[-1] for curve in hundred) - min(curve[-1] for curve in hundred) < 0.01


def test_16_bits_take_less_time_at_every_depth_as_a_graph():
    """One process each, so these are numbers without an interval."""
    for depth in (18, 34, 50, 101, 152):
        eager, graphs = (
            {mode: only(f"resnet{depth}", 128, mode, way, dataset_used="cifar100") for mode in ("fp32", "amp_fp16")}
            for way in ("eager", "cuda_graph")
        )
        assert {(run["epochs"], run["steps_per_epoch"]) for run in graphs.values()} == {(3, 390)}  # whole epochs
        speedups = [paired_ratio([(runs["amp_fp16"], runs["fp32"])]) for runs in (eager, graphs)]
        assert speedups[0]["ratio"] < 1.1 < 1.18 < speedups[1]["ratio"]
        assert {judge(speedup) for speedup in speedups} == {"one process"}


def test_autocast_and_o2_begin_alike_and_end_within_half_a_point():
    autocast, o2 = (only("resnet50", 512, mode, "cuda_graph") for mode in ("amp_fp16", "o2_fp16"))
    assert autocast["epochs"] == o2["epochs"] == 50
    assert autocast["gpu_uuid"] == o2["gpu_uuid"]
    first = [abs(a - b) for a, b in zip(autocast["train_loss"], o2["train_loss"], strict=True)][:2]
    assert max(first) < 1e-4  # then they part: cuDNN may take other algorithms in another process
    assert abs(autocast["metric"][-1] - o2["metric"][-1]) < 0.005
    for run in (autocast, o2):
        step, _ = run["loss_scale_trace"][1]
        assert step // run["steps_per_epoch"] == 20


def test_the_diverged_run_skipped_all_but_its_first_steps():
    relu, stuck = (only("rnn_relu", 20, mode, "cuda_graph") for mode in ("fp32", "amp_fp16"))
    assert relu["lr"] == stuck["lr"] == 1
    steps = set(range(3 * stuck["steps_per_epoch"])) - set(stuck["overflow_steps"])
    assert steps == {*range(7), stuck["steps_per_epoch"]}  # the first seven, and the first one of the second epoch
    assert len(steps) == 3 * stuck["steps_per_epoch"] - stuck["skipped_steps"]
    assert stuck["metric"] == [None, None]  # not finite
    scales = [scale for _, scale in stuck["loss_scale_trace"]]
    assert (scales[0], scales[-1]) == (65536.0, 0.0)


def test_searches_for_the_largest_batch_end_where_cudnns_search_fits():
    fp32, tf32, half = (only("resnet18", "max", mode, memory_limit_gib=0.0) for mode in ("fp32", "tf32", "amp_fp16"))
    assert {run["steps_per_epoch"] for run in (fp32, tf32, half)} == {1} and half["train_samples"] == 50_000
    limited = only("resnet18", "max", "fp32", memory_limit_gib=24.0)
    assert (fp32["search_limit_algorithms"], limited["search_limit_algorithms"]) == (2, 10)
    whole = [status for size, status, *_ in half["batch_probes"] if size == 50_000]
    assert whole == ["ok", "oom"]  # without the search, with it
    assert only("lstm", "max", "amp_fp16")["batch_size_used"] <= only("lstm", "max", "fp32")["batch_size_used"]


def test_loss_scales_that_are_too_small_lose_gradients():
    fixed = {run["loss_scale"]: run for run in published(model="resnet18", epochs=2, batch_size=128)}
    assert set(fixed) == {1.0, 16.0, 32.0, 256.0, 1024.0, 4096.0, 32768.0, 65536.0, 1048576.0, "dynamic"}
    lost = {scale: run["gradient_flush_fraction_scaled"] for scale, run in fixed.items()}
    assert lost[1.0] > 10 * lost[32.0] and lost[32.0] < 0.0002


def test_an_eager_run_on_cifar_starts_within_30_seconds():
    runs = [run for run in published(model="resnet18", execution="eager", status="ok") if run["startup_seconds"]]
    seconds = [run["startup_seconds"] for run in runs if run["batch_size"] != "max"]  # its search comes before
    assert len(seconds) == 23 and max(seconds) <= 30


# outputs/main/ladder-h200 and the other folders


def ladder_of(model, half, larger):
    """Return the runs of a ladder's steps, from below: seven, and six for the LSTM, which has no channels_last."""
    size = {"resnet18": 128, "tf_efficientnet_b0": 32, "lstm": 20}[model]
    both = "compile_cuda_graph"
    images = model != "lstm"
    ways = [(size, "fp32", False, "eager"), (size, "tf32", False, "eager"), (size, half, False, "eager")]
    if images:
        ways.append((size, half, True, "eager"))
    ways += [(size, half, images, "compile"), (size, half, images, both), (larger, half, images, both)]
    steps = {way: [] for way in ways}
    for record in read_folder("ladder-h200"):
        names = ("batch_size", "precision", "channels_last", "execution")
        way = tuple(record.get(name, False) for name in names)
        if record["model"] == model:
            steps[way].append(record)
    return list(steps.values())


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_published_ladder_is_whole_and_measured_on_one_gpu(ladder):
    steps = ladder_of(*ladder)
    assert {len(runs) for runs in steps[:-1]} == {3}
    assert len({run["gpu_uuid"] for runs in steps for run in runs}) == 1
    for run in (run for runs in steps for run in runs):
        first = run["startup_reason"] is None  # of its kernel: the LSTM's three eager precisions share one
        assert first or (run["model"], run["execution"]) == ("lstm", "eager")
        reasons = [run[f"{name}_reason"] for name in ("profile", "ledger", "energy", "card", "inference")]
        assert reasons == [None] * 5
    assert not any(run["throttled"] for runs in steps[:-1] for run in runs)
    assert paired_ratio(paired_runs(steps[-2], steps[1]))["low"] > 1  # compiled as a graph, against tf32
    limited_by_gpu = steps[-2:] if ladder[0] == "lstm" else [steps[0], *steps[-2:]]
    for runs in limited_by_gpu:
        medians = [statistics.median(run["epoch_seconds"]) for run in runs]
        assert max(medians) / min(medians) < 1.015


def test_scaling_has_a_run_for_every_setting_and_of_one_process_nothing_is_told():
    records = read_folder("scaling-h200")
    runs = {(run["model"], run["batch_size"], run["precision"]): run for run in records}
    assert len(runs) == len(records)
    for depth in (18, 34, 50, 101, 152):
        pair = tuple(runs[f"resnet{depth}", 128, mode] for mode in ("amp_bf16", "tf32"))
        assert judge(paired_ratio([pair])) == "one process"


def test_inference_ran_in_the_16_bit_type_of_its_mode():
    records = read_folder("inference-h200")
    assert len({(run["model"], run["execution"], run["precision"]) for run in records}) == len(records)
    for run in records:
        halves = "fp16" in run["precision"]
        halves = halves or (run["precision"], run["model"]) == ("amp_bf16", "lstm")  # cuDNN's RNNs under autocast
        assert (run["fp16_kernel_fraction"] > 0) is halves
        assert run["inference_latency_ms_p10"] <= run["inference_latency_ms"] <= run["inference_latency_ms_p90"]


def test_studies_on_several_gpus_ran_near_the_ideal_and_did_not_slow_each_other():
    archive = zipfile.ZipFile(results("batches-h200"))
    for count, name in ((1, "one"), (2, "two"), (4, "four")):
        facts = json.loads(archive.read(f"{name}/logs/batch.json"))
        assert len(facts["devices"]) == count and facts["runs_executed"] == 8
        assert facts["ideal_seconds"] / facts["makespan_seconds"] > 0.97
    times = {}
    for name in ("alone", "four"):
        for record in batch("batches-h200", name):
            assert record["status"] == "ok" and not record["gpu_shared"]
            times.setdefault((name, record["model"]), []).append(statistics.median(record["epoch_seconds"]))
    for model in ("resnet18", "lstm"):
        ((alone,), among) = times["alone", model], times["four", model]
        assert len(among) == 4
        assert max(abs(seconds / alone - 1) for seconds in among) < 0.03
    records = {run["status"]: run for run in batch("batches-h200", "oom")}
    assert set(records) == {"oom", "ok"} and "CUDA out of memory" in records["oom"]["reason"]


def test_equal_runs_are_told_apart_no_more_often_than_the_rules_allow():
    groups = equal_runs(read_folder("aa-h100"))
    assert [len(runs) for runs in groups] == [24, 24, 24]
    for runs in groups:
        found = false_positive_rate(runs)
        assert found["splits"] == 2000 and found["rate"] <= 0.05 + found["error"]
