"""The instruments: memory through any NVML binding, times, progress, the guard around a run."""

import gc
import json
import sys
import types
import weakref
from pathlib import Path

import harness
import instruments
import pytest
import record as records
import torch

CPU = torch.device("cpu")


def make_record(**facts):
    parameters = {"dataset": "d", "model": "m", "batch_size": 16, "seed": 0, "output_dir": "out", "data_dir": "data"}
    return records.new_record("n", parameters, "fp32", {"sample_unit": "images", "metric_name": "accuracy", **facts})


class NvmlError(Exception):
    pass


def fake_nvml(monkeypatch, **functions):
    """Put a made-up pynvml in place; `functions` replace its parts."""
    memory = types.SimpleNamespace(used=3 * 2**20, total=8 * 2**20)
    module = types.ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.nvmlInit = lambda: None
    module.nvmlMemory_v2 = 2
    module.asked = []
    module.nvmlDeviceGetHandleByUUID = lambda uuid: module.asked.append(uuid) or "handle"
    module.nvmlDeviceGetHandleByIndex = lambda index: module.asked.append(index) or "handle"
    module.nvmlDeviceGetMemoryInfo = lambda handle, version=None: memory
    module.nvmlSystemGetDriverVersion = lambda: "580.1"
    for name, function in functions.items():
        if function is None:
            delattr(module, name)
        else:
            setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_memory_by_uuid_in_mib(monkeypatch):
    module = fake_nvml(monkeypatch)
    assert instruments.nvml_memory("ab-cd") == {"used_mib": 3, "total_mib": 8, "driver": "580.1", "reason": None}
    assert module.asked == [b"GPU-ab-cd"]


def test_memory_of_the_first_visible_gpu(monkeypatch):
    module = fake_nvml(monkeypatch)
    instruments.nvml_memory()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ff,GPU-00")
    instruments.nvml_memory()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    instruments.nvml_memory()
    assert module.asked == [0, b"GPU-ff", 3]


def test_the_old_binding_without_versions_and_with_bytes(monkeypatch):
    memory = types.SimpleNamespace(used=2**20, total=2**21)
    fake_nvml(
        monkeypatch,
        nvmlMemory_v2=None,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlSystemGetDriverVersion=lambda: b"430.5",
    )
    assert instruments.nvml_memory("x") == {"used_mib": 1, "total_mib": 2, "driver": "430.5", "reason": None}


def test_no_binding_and_no_driver_give_a_reason_and_no_zero(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    answer = instruments.nvml_memory()
    assert answer["used_mib"] is None
    assert answer["reason"] == "nvidia-ml-py is not installed"

    def no_driver():
        raise NvmlError("Driver Not Loaded")

    fake_nvml(monkeypatch, nvmlInit=no_driver)
    answer = instruments.nvml_memory()
    assert answer["used_mib"] is None
    assert "Driver Not Loaded" in answer["reason"]


def test_on_the_cpu_device_memory_is_null_with_a_reason():
    record = make_record()
    instruments.read_device_memory(record, CPU)
    instruments.read_peaks(record, CPU)
    assert record.device_used_mib is None
    assert record.peak_allocated_mib is None
    assert record.device_memory_reason == "no GPU"


def test_the_clock_gives_seconds_and_milliseconds(monkeypatch):
    now = iter([10.0, 10.0, 10.5, 11.5, 12.0])
    monkeypatch.setattr(instruments.time, "perf_counter", lambda: next(now))
    clock = instruments.StepClock(CPU)
    clock.start()
    clock.tick()
    clock.tick()
    assert clock.stop() == (2.0, [500.0, 1000.0])


def test_percentiles_and_throughput():
    record = make_record()
    record.step_ms_all, record.epoch_seconds = [float(n) for n in range(1, 12)], [2.0, 1.0, 4.0]
    instruments.summarise_times(record, samples_per_epoch=100)
    assert (record.step_ms_p10, record.step_ms_median, record.step_ms_p90) == (2, 6, 10)
    assert record.samples_per_second == 50  # of the median epoch


def test_progress_is_silent_when_asked(monkeypatch, capsys):
    with instruments.progress(3, "loud") as bar:
        bar.advance()
    assert "loud" in capsys.readouterr().out
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with instruments.progress(3, "quiet") as bar:
        bar.advance()
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("TQDM_DISABLE")
    parent = types.SimpleNamespace(cmdline=lambda: ["python", "-m", "papermill", "--no-progress-bar"])
    monkeypatch.setattr(instruments.psutil, "Process", lambda pid: parent)
    assert not instruments.progress_wanted()


def test_the_environment_is_described():
    record = make_record()
    instruments.describe_environment(record, CPU)
    assert record.torch_version == torch.__version__
    assert record.device_type == "cpu"
    assert record.host_cores > 0
    assert record.gpu_name is None


def test_the_commit_comes_from_the_runner(monkeypatch):
    assert instruments.suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")
    assert instruments.suite_commit() == "abc"


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def cublas_out_of_memory():
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")


def host_out_of_memory():
    torch.empty(2**60)


def broken():
    raise ValueError("wrong shape\nmore lines")


def not_learning():
    raise instruments.Diverged("the training loss is not finite")


def not_here():
    raise instruments.Unsupported("needs a GPU")


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
    with instruments.guarded(record, "out", CPU):
        action()
    written = json.loads((Path("out") / f"{record.run_id}.json").read_text())
    assert written["status"] == status
    assert written["reason"] == reason or (reason is None and written["reason"])
    assert written["started_at"] <= written["finished_at"]
    assert ("Traceback" in capsys.readouterr().out) is (status == "failed")


def test_the_guard_says_ok_only_at_the_end():
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    assert record.status == "failed"
    with instruments.guarded(record, "out", CPU):
        assert record.status == "failed"
    assert record.status == "ok"
    assert record.reason is None


@pytest.mark.parametrize("error", [instruments.Stop("say what to do"), KeyboardInterrupt()])
def test_a_users_mistake_or_interrupt_ends_the_notebook_without_a_record(error):
    with pytest.raises(type(error)), instruments.guarded(make_record(), "out", CPU):
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
        with instruments.guarded(record, "out", CPU):
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
    assert instruments.settled([learned, stuck], "out") == [learned, stuck]
    assert (learned.status, stuck.status) == ("ok", "diverged")
    assert json.loads((Path("out") / "o3_fp16.json").read_text())["status"] == "diverged"
    assert not (Path("out") / "fp32.json").exists()  # nothing to change there


def test_packages_missing_elsewhere_than_on_colab_stop_with_the_command(monkeypatch):
    with pytest.raises(instruments.Stop, match="pip install no-such-package"):
        instruments.require_packages({"no_such_module": "no-such-package", "torch": "torch"})
    called = []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(instruments.subprocess, "run", lambda command, check: called.append(command))
    instruments.require_packages({"no_such_module": "no-such-package"})
    assert called[0][-1] == "no-such-package"


def test_a_scale_is_noted_only_when_it_changes():
    record, trainer = make_record(), types.SimpleNamespace(steps=0, scaler=harness.HalfScaler(64))
    instruments.note_scale(record, trainer)
    trainer.steps = 5
    instruments.note_scale(record, trainer)
    trainer.scaler = harness.HalfScaler(32)
    instruments.note_scale(record, trainer)
    assert record.loss_scale_trace == [[0, 64.0], [5, 32.0]]


def test_a_run_does_not_inherit_the_memory_peak_of_the_one_before(monkeypatch):
    calls = []
    monkeypatch.setattr(instruments, "reset_peaks", calls.append)
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    with instruments.guarded(record, "out", CPU):
        assert calls == [CPU]
