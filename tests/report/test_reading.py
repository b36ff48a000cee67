"""Which records are used: flaws, copies, records of the CPU, synthetic data, other code."""

import json
import shutil
import subprocess
import zipfile

import made_up_records as made_up
import pytest
from conftest import ROOT
from drawn_reports import flat, said_in, tables_of, write_all

from mixed_precision_study.errors import UserError
from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.environment import data_of
from mixed_precision_study.report.load import found, load
from mixed_precision_study.report.reading import sort_out
from mixed_precision_study.runner import estimates, notebook_file


def test_missing_folder_ends_in_one_line(tmp_path):
    with pytest.raises(UserError, match="records_dir") as caught:
        load(str(tmp_path / "gone"))
    assert "\n" not in str(caught.value)
    assert len(caught.value._render_traceback_()) == 1


def test_opened_by_hand_it_finds_the_outputs(tmp_path, monkeypatch):
    write_all(tmp_path / "outputs" / "quick", made_up.make("cifar_resnet", "fp32"))
    (tmp_path / "notebooks").mkdir()
    for name in ("published", "mine-h200", "repeatability"):
        write_all(tmp_path / "outputs" / name, made_up.make("cifar_resnet", "tf32"))
    monkeypatch.chdir(tmp_path / "notebooks")
    report = load("outputs")
    assert report.folder == "../outputs"
    assert found(report) == "1 record found below ../outputs: 1 used, 0 left out."
    write_all(tmp_path / "notebooks" / "outputs" / "your_model", made_up.make("cifar_resnet", "fp32"))
    assert load("outputs").folder == "outputs"
    assert len(load("../outputs/mine-h200").used) == 1
    shutil.rmtree(tmp_path / "notebooks" / "outputs")
    shutil.rmtree(tmp_path / "outputs" / "quick")
    assert load("outputs").used == []  # what is published alone is no answer
    write_all(tmp_path / "outputs" / "quick", made_up.make("cifar_resnet", "fp32"))
    monkeypatch.chdir(tmp_path / "outputs" / "quick")  # as where records were uploaded
    assert (load("outputs").folder, len(load("outputs").used)) == (".", 1)


def test_what_a_report_writes_beside_committed_records_is_ignored():
    names = ("speedup.png", "logs/summary.log", "summary.ipynb")
    paths = [f"outputs/{folder}/{name}" for folder in ("quick-h200", "published") for name in names]
    done = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == paths
    kept = ["outputs/quick-h200/README.md", "outputs/quick-h200/results.csv"]
    assert subprocess.run(["git", "check-ignore", *kept], cwd=ROOT, capture_output=True).returncode == 1


def test_files_that_are_no_records_are_named_in_one_line(tmp_path):
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32"))
    for number, value in enumerate([{"a": 1}, [1, 2], "text", 7, None]):
        (tmp_path / f"foreign-{number}.json").write_text(json.dumps(value))
    report = load(tmp_path)
    assert len(report.used) == 1
    assert dict(report.left_out).keys() == {f"foreign-{number}.json" for number in range(5)}
    assert found(report).startswith("1 record found") and "5 JSON files" in found(report)
    ((row,),) = tables_of("load", report)
    assert "foreign-0.json" in row["left out"] and "2 more" in row["left out"]


def test_files_that_the_suite_writes_beside_records_are_not_named(tmp_path):
    record = made_up.make("cifar_resnet", "fp32")
    quick = tmp_path / "quick"
    write_all(quick, record)
    (quick / "logs").mkdir()
    estimates.write_times(quick, {record.run_id: 9.0})
    notebook_file.keep_code(quick, {ROOT / "notebooks" / "cifar_resnet.ipynb"})
    shutil.make_archive(str(tmp_path / "uploaded"), "zip", quick)
    assert len([path for path in tmp_path.rglob("*") if path.suffix in (".json", ".zip")]) == 4
    assert [path for path, reason in load(tmp_path).left_out if "copy of" not in reason] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel_family_fractions", ["convolution"]),
        ("kernel_family_fractions", [["convolution", -1.0]]),
        ("throttle_fractions", [["power cap", None]]),
        ("throttle_fractions", [[0.5, "power cap"]]),
        ("loss_scale_trace", [[0]]),
        ("loss_scale_trace", [["first", 65536.0]]),
        ("overflow_steps", [[3]]),
        ("block_seconds", [1.0, None]),
        ("block_seconds", [1.0, 0.0]),
        ("block_seconds", {"first": 1.0}),
        ("metric", ["high"]),
        ("throttled", "yes"),
    ],
)
def test_a_record_with_a_nonsense_field_is_left_out(field, value):
    record = flat(made_up.make("cifar_resnet", "amp_fp16", **{field: value}))
    used, ((_, reason),) = sort_out([record])
    assert used == [] and field in reason


def test_figures_that_older_versions_got_wrong_are_corrected():
    limits = {"ceiling_matmul_tflop_per_second": 50.0, "ceiling_conv_tflop_per_second": 100.0}
    old = {**limits, "compute_limit_fraction": 0.25, "peak_reserved_mib": 15_244.0, "device_used_before_mib": 3.0}
    for context, whole in ((841.0, 16_088.0), (None, None)):
        memory = {"device_used_mib": 13_581.0, "ledger_context_mib": context}
        (one,), _ = sort_out([flat(made_up.make("cifar_resnet", "fp32", **old, **memory))])
        assert (one["compute_limit_fraction"], one["device_used_mib"]) == (0.5, whole)
        assert one["device_memory_reason"]
        assert sort_out([one])[0][0]["compute_limit_fraction"] == 0.5  # once
    (sound,), _ = sort_out([flat(made_up.make("cifar_resnet", "fp32", **old, device_used_mib=16_000.0))])
    assert (sound["device_used_mib"], sound["device_memory_reason"]) == (16_000.0, None)


@pytest.mark.parametrize("folder", ["quick-h200", "reference-h100"])
def test_no_committed_record_reaches_more_than_its_matmul_or_uses_less_than_its_reserve(folder):
    for record in load(ROOT / "outputs" / folder).used:
        if (fraction := record["compute_limit_fraction"]) is not None:
            reached = record["achieved_tflop_per_second"] / record["ceiling_matmul_tflop_per_second"]
            assert fraction == pytest.approx(reached, rel=1e-6)
        if None not in (record["device_used_mib"], record["peak_reserved_mib"]):
            assert record["device_used_mib"] >= record["peak_reserved_mib"]


def test_run_killed_early_joins_no_runs_on_images_of_another_folder():
    def of_folder(make, precision, *words, **facts):
        record = make("cifar_resnet", precision, *words, **facts)
        record.parameters |= {"dataset": "folder", "data_dir": f"data/{folder}"}
        return record

    folder = "cats"
    cats = of_folder(made_up.make, "fp32", dataset_used="cats")
    early = {**made_up.NOT_STARTED, "gpu_uuid": None}
    own = of_folder(made_up.make_failed, "tf32", "killed", "signal 9", **early)
    folder = "dogs"
    other = of_folder(made_up.make_failed, "tf32", "killed", "signal 9", **early)
    used, _ = sort_out([flat(cats, "a"), flat(own, "b")])
    assert len(group_runs(used)) == 1
    used, _ = sort_out([flat(cats, "a"), flat(other, "b")])
    assert [data_of(record) for record in used] == ["cats", "dogs"]
    assert len(group_runs(used)) == 2


def test_data_are_called_by_their_name_and_made_up_data_say_so():
    names = [("synthetic", True), ("my-synthetic-set", True), ("synthetic_faces", False), ("cats", False)]
    said = [data_of({"dataset_used": used, "synthetic": made_up}) for used, made_up in names]
    assert said == ["(synthetic)", "my-synthetic-set (synthetic)", "synthetic_faces", "cats"]


def test_run_killed_early_joins_its_comparison_only_where_that_is_certain():
    killed = made_up.make_failed("cifar_resnet", "tf32", "killed", "signal 9", **made_up.NOT_STARTED, gpu_uuid=None)
    one = made_up.make("cifar_resnet", "fp32")
    two = made_up.make("cifar_resnet", "fp32", device=made_up.TURING)
    used, left_out = sort_out([flat(killed, "a"), flat(one, "b")])
    assert left_out == [] and len(group_runs(used)) == 1
    used, _ = sort_out([flat(killed, "a"), flat(one, "b"), flat(two, "c")])
    assert len(group_runs(used)) == 3
    killed.gpu_uuid = "GPU-2"  # what run_all.py knows: the GPU, not yet the data
    used, _ = sort_out([flat(killed, "a"), flat(one, "b"), flat(two, "c")])
    assert [group["device"] for group in group_runs(used)] == ["H200", "RTX 2080 Ti"]


def test_real_data_is_kept_though_a_synthetic_copy_is_newer():
    real = made_up.make("lstm_language_model", "fp32")
    fake = made_up.make("lstm_language_model", "fp32", dataset_used="synthetic", synthetic=True)
    fake.finished_at = "2030-01-01T00:00:00+00:00"
    used, ((path, reason),) = sort_out([flat(fake, "fake"), flat(real, "real")])
    assert [record["path"] for record in used] == ["real"]
    assert path == "fake" and reason.startswith("synthetic data")


def test_records_of_other_code_are_named_and_left_out_where_they_were_set_aside(tmp_path):
    def write(folder, code, day, precision):
        finished = f"2026-01-0{day}T00:00:00+00:00"
        write_all(tmp_path / folder, made_up.make("cifar_resnet", precision, code_hash=code, finished_at=finished))

    write(".", "new", 3, "fp32")
    write("other_code-old", "old", 1, "tf32")  # not yet measured again
    write("elsewhere", "old", 2, "amp_fp16")
    write("elsewhere", None, 1, "amp_bf16")  # by hand, or before the hash was noted
    report = load(tmp_path)
    assert {one["precision"] for one in report.others} == {"tf32", "amp_fp16"}
    assert {one["precision"] for one in report.used} == {"fp32", "amp_fp16", "amp_bf16"}
    assert "1 record that run_all.py had set aside" in said_in("load", report)


def test_runs_of_one_name_on_two_machines_are_all_used_and_only_the_stuck_one_is_marked(tmp_path):
    for machine, metric in (("learned", [0.5, 0.9]), ("stuck", [0.1, 0.1])):
        gpu = {**made_up.H200, "gpu_uuid": machine}
        good = made_up.make("cifar_resnet", "fp32", device=gpu, metric=[0.5, 0.9])
        write_all(tmp_path / machine, good, made_up.make("cifar_resnet", "amp_fp16", device=gpu, metric=metric))
    report = load(tmp_path)
    ends = {(run["gpu_uuid"], run["precision"]): run["status"] for run in report.used}
    assert len(ends) == 4 and not report.left_out and len(report.every_group) == 1
    assert [key for key, status in ends.items() if status != "ok"] == [("stuck", "amp_fp16")]


@pytest.mark.parametrize("theirs", ["a", "a.zip", "../theirs"])
def test_a_later_date_from_elsewhere_replaces_no_record(tmp_path, theirs):
    """Of copies in one folder the newest stands; of others those in the folder that is read first."""
    mine = tmp_path / "mine"
    write_all(mine, made_up.make("cifar_resnet", "fp32"))
    (path,) = mine.glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    newer = {**record, "finished_at": "2999-01-01T00:00:00+00:00"}
    (mine / "newer.json").write_text(json.dumps(newer), encoding="utf-8")
    late = json.dumps({**record, "finished_at": "9999-01-01T00:00:00+00:00", "epoch_seconds": [0.001]})
    if theirs.endswith(".zip"):
        with zipfile.ZipFile(mine / theirs, "w") as archive:
            archive.writestr("x.json", late)
    else:
        (mine / theirs).mkdir()
        (mine / theirs / "x.json").write_text(late, encoding="utf-8")
    places = [str(mine), str(tmp_path / "theirs")] if theirs.startswith("..") else str(mine)
    report = load(places)
    assert [used["path"] for used in report.used] == ["newer.json"]
    reasons = dict(report.left_out)
    assert reasons[path.name] == "older copy of newer.json"
    assert reasons[f"{theirs}/x.json"].startswith("copy of newer.json")
