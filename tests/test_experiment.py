"""The guard around a run: whatever ends it becomes its record."""

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from small_training import CPU, make_record

from mixed_precision_study import record as records
from mixed_precision_study.errors import Diverged, Stop, Unsupported, error_line
from mixed_precision_study.experiment import guarded, settled

GPU = torch.device("cuda")


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def cublas_out_of_memory():
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")


def host_out_of_memory():
    torch.empty(2**60)


def broken():
    raise ValueError("wrong shape\nmore lines")


def not_learning():
    raise Diverged("the training loss is not finite")


def not_here():
    raise Unsupported("needs a GPU")


@pytest.mark.parametrize(
    ("action", "status", "reason"),
    [
        (out_of_memory, "oom", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB"),
        (cublas_out_of_memory, "oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        (host_out_of_memory, "oom", None),
        (broken, "failed", "ValueError: wrong shape"),
        (not_learning, "diverged", "the training loss is not finite"),
        (not_here, "unsupported", "needs a GPU"),
    ],
)
def test_the_guard_turns_an_end_into_a_record_and_goes_on(action, status, reason, capsys):
    record = make_record()
    with guarded(record, "out", CPU):
        action()
    written = json.loads((Path("out") / f"{record.run_id}.json").read_text())
    assert written["status"] == status
    assert written["reason"] == reason or (reason is None and written["reason"])
    assert written["started_at"] <= written["finished_at"]
    assert ("Traceback" in capsys.readouterr().out) is (status == "failed")


def test_a_device_that_is_lost_costs_no_record(monkeypatch, tmp_path):
    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("mixed_precision_study.experiment.release_memory", lost)
    record = make_record()
    with guarded(record, tmp_path, torch.device("cpu")):
        record.epoch_seconds.append(1.5)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    written = json.loads((tmp_path / f"{record.run_id}.json").read_text())
    assert (written["status"], written["epoch_seconds"]) == ("failed", [1.5])
    assert "illegal memory access" in written["reason"]


def test_the_guard_says_ok_only_at_the_end():
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    assert record.status == "failed"
    with guarded(record, "out", CPU):
        assert record.status == "failed"
    assert record.status == "ok"
    assert record.reason is None


@pytest.mark.parametrize("error", [Stop("say what to do"), KeyboardInterrupt()])
def test_a_users_mistake_or_interrupt_ends_the_notebook_without_a_record(error):
    with pytest.raises(type(error)), guarded(make_record(), "out", CPU):
        raise error
    assert not Path("out").exists()


def test_no_traceback_keeps_tensors_alive():
    alive = []

    def train():
        tensor = torch.zeros(1000)
        alive.append(weakref.ref(tensor))
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("CUDA out of memory") from None

    record = make_record()
    gc.disable()
    try:
        with guarded(record, "out", CPU):
            train()
        assert alive[0]() is None
    finally:
        gc.enable()


def test_settled_marks_the_run_that_learned_nothing():
    def run(precision, metric):
        facts = {"metric": [metric], "chance_metric": 0.1, "metric_better": "higher", "status": "ok"}
        parameters = {"dataset": "d", "model": "m", "batch_size": 1, "seed": 0}
        return records.RunRecord(precision, "n", precision, parameters, **facts)

    learned, stuck = run("fp32", 0.5), run("o3_fp16", 0.1)
    assert settled([learned, stuck], "out") == [learned, stuck]
    assert (learned.status, stuck.status) == ("ok", "diverged")
    assert json.loads((Path("out") / "o3_fp16.json").read_text())["status"] == "diverged"
    assert not (Path("out") / "fp32.json").exists()  # nothing to change there


def test_a_run_does_not_inherit_the_memory_peak_of_the_one_before(monkeypatch):
    calls = []
    monkeypatch.setattr("mixed_precision_study.experiment.reset_peaks", calls.append)
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    with guarded(record, "out", CPU):
        assert calls == [CPU]


@pytest.mark.parametrize(("device", "expected"), [(GPU, ["clear", "peaks"]), (CPU, ["peaks"])])
def test_a_run_on_a_gpu_begins_without_the_workspaces_that_the_one_before_left(monkeypatch, device, expected):
    calls = []
    monkeypatch.setattr("mixed_precision_study.experiment.clear_workspaces", lambda: calls.append("clear"))
    monkeypatch.setattr("mixed_precision_study.experiment.reset_peaks", lambda _: calls.append("peaks"))
    monkeypatch.setattr("mixed_precision_study.experiment.describe_environment", lambda *_: calls.append("described"))
    monkeypatch.setattr("mixed_precision_study.experiment.release_memory", lambda _: calls.append("released"))
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    with guarded(record, "out", device):
        assert calls == [*expected, "described"]
    assert calls == [*expected, "described", "released"]


def test_an_error_becomes_a_line_that_ends_with_a_sentence():
    assert error_line(ValueError("a.\nb")) == "ValueError: a."
    memory = "CUDA out of memory. Tried to allocate 2 GiB. " + "Of it 1 GiB is free. " * 20 + "See the documentation"
    line = error_line(RuntimeError(memory))
    assert line.startswith("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB. Of it 1 GiB")
    assert 350 < len(line) <= 400
    assert line.endswith("1 GiB is free.")
    assert error_line(RuntimeError("x" * 500)) == "RuntimeError: " + "x" * 386
