"""The instruments: times, memory of the device, the loss scale step by step, progress, the guard around a run."""

import gc
import itertools
import json
import os
import random
import threading
import time
import types
import weakref
from pathlib import Path

import harness
import instruments
import pytest
import record as records
import torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def make_record(**facts):
    parameters = {"dataset": "d", "model": "m", "batch_size": 16, "seed": 0, "output_dir": "out", "data_dir": "data"}
    return records.new_record("n", parameters, "fp32", {"sample_unit": "images", "metric_name": "accuracy", **facts})


def test_on_the_cpu_device_memory_is_null_with_a_reason():
    record = make_record()
    instruments.read_device_memory(record, CPU)
    instruments.read_peaks(record, CPU)
    assert record.device_used_mib is None
    assert record.peak_allocated_mib is None
    assert record.device_memory_reason == "no GPU"
    instruments.read_context(record, CPU)
    assert record.ledger_context_mib is None


def pretend_device(monkeypatch, used, before, reason=None, reserved=400):
    """Let NVML and the allocator give these figures, MiB; returns the cards that were asked."""
    asked = []
    memory = {"used_mib": used, "total_mib": None if used is None else 8192.0, "reason": reason}
    monkeypatch.setattr(
        instruments, "Card", lambda uuid: asked.append(uuid) or types.SimpleNamespace(memory=lambda: memory)
    )
    monkeypatch.setattr(instruments, "card_before", lambda uuid: {"used_mib": before if uuid else None})
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * 2**20)
    return asked


def test_device_memory_is_noted_with_what_others_used_and_the_slack(monkeypatch):
    asked = pretend_device(monkeypatch, 1500.0, 300.0)
    record = make_record(gpu_uuid="ab", peak_reserved_mib=900.0, peak_allocated_mib=650.0)
    instruments.read_device_memory(record, GPU)
    assert (record.device_used_mib, record.device_used_before_mib) == (1500, 300)
    assert record.device_memory_reason is None
    assert record.ledger_slack_mib == 250
    assert asked == ["ab"]


def test_device_memory_without_nvml_is_null_with_a_reason_and_keeps_the_slack(monkeypatch):
    pretend_device(monkeypatch, None, None, "nvidia-ml-py is not installed")
    record = make_record(peak_reserved_mib=900.0, peak_allocated_mib=650.0)
    instruments.read_device_memory(record, GPU)
    instruments.read_context(record, GPU)
    assert record.device_used_mib is record.device_used_before_mib is record.ledger_context_mib is None
    assert record.device_memory_reason == "nvidia-ml-py is not installed"
    assert record.ledger_slack_mib == 250


@pytest.mark.parametrize(
    ("used", "before", "context"),
    [(1500.0, 300.0, 800.0), (1500.0, 0.0, 1100.0), (1500.0, None, None), (None, 3.0, None)],
)
def test_the_context_is_the_device_less_others_and_the_allocator(monkeypatch, used, before, context):
    pretend_device(monkeypatch, used, before)
    record = make_record(gpu_uuid="ab")
    instruments.read_context(record, GPU)
    assert record.ledger_context_mib == context


def test_peaks_are_the_highest_of_all_epochs_in_mib(monkeypatch):
    allocated, reserved = iter([3 * 2**20, 2**20]), iter([4 * 2**20, 8 * 2**20])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: next(reserved))
    record = make_record()
    for _ in range(2):
        instruments.read_peaks(record, GPU)
    assert (record.peak_allocated_mib, record.peak_reserved_mib) == (3, 8)
    assert (record.peak_allocated_with_warmup_mib, record.peak_reserved_with_warmup_mib) == (3, 8)  # never below


def test_peaks_of_warm_up_are_kept_apart(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 6 * 2**20)
    record = make_record()
    instruments.read_peaks(record, GPU, "_with_warmup")
    assert (record.peak_allocated_with_warmup_mib, record.peak_reserved_with_warmup_mib) == (5, 6)
    assert record.peak_allocated_mib is None


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
    record.data_wait_seconds_all = [0.5, 0.25, 1.0]
    instruments.summarise_times(record, samples_per_epoch=100)
    assert (record.step_ms_p10, record.step_ms_median, record.step_ms_p90) == (2, 6, 10)
    assert record.samples_per_second == 50  # of the median epoch
    assert record.data_wait_fraction == 0.25  # 1.75 s of 7 s


def test_waiting_for_batches_is_added_up_and_all_are_given(monkeypatch):
    now = iter([0.0, 0.25, 10.0, 10.5, 20.0, 21.0])
    monkeypatch.setattr(instruments.time, "perf_counter", lambda: next(now))
    waits = []
    assert list(instruments.waited_for(["a", "b"], waits)) == ["a", "b"]
    assert waits == [0.25, 0.5, 1.0]  # the last is what it took to learn that there are no more


def test_a_slow_loader_is_told_from_a_slow_step():
    def slowly():
        for number in range(4):
            time.sleep(0.05)
            yield number

    waits, began = [], time.perf_counter()
    for _ in instruments.waited_for(slowly(), waits):
        time.sleep(0.02)
    took = time.perf_counter() - began
    assert 0.2 <= sum(waits) <= took - 0.08
    waits.clear()
    assert list(instruments.waited_for(iter([]), waits)) == []
    assert len(waits) == 1


def test_tensors_are_no_end_of_the_batches():
    batches = [torch.zeros(2), torch.tensor(0), (torch.zeros(1), None)]  # false, as numbers go
    assert len(list(instruments.waited_for(batches, []))) == 3


@pytest.mark.parametrize(
    ("steps", "blocks", "sizes"),
    [
        (10, 10, [1] * 10),
        (20, 10, [2] * 10),
        (3, 10, [1] * 3),  # fewer steps than blocks
        (1, 10, [1]),
        (25, 10, [2, 3, 2, 3, 2, 3, 2, 3, 2, 3]),  # as even as can be
        (11, 4, [2, 3, 3, 3]),
    ],
)
def test_blocks_are_nearly_equal_parts_that_sum_to_the_epoch(steps, blocks, sizes):
    assert instruments.in_blocks([1000.0] * steps, blocks) == sizes
    step_ms = [1.5 * number for number in range(steps)]
    parts = instruments.in_blocks(step_ms, blocks)
    assert sum(parts) == pytest.approx(sum(step_ms) / 1000)
    edges = [0, *itertools.accumulate(sizes)]
    assert parts == [pytest.approx(sum(step_ms[a:b]) / 1000) for a, b in itertools.pairwise(edges)]


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


def test_progress_is_told_by_a_thread_and_never_by_a_step(tmp_path, monkeypatch):
    """What run_all.py shows of a training: written at once, every few seconds and at the end."""
    path, tellers, steps = tmp_path / "progress", [], threading.Event()
    replace = os.replace

    def noted(source, target):
        tellers.append(threading.current_thread())
        replace(source, target)
        if path.read_text().endswith("step 30/40"):
            steps.set()

    monkeypatch.setattr(instruments.os, "replace", noted)
    monkeypatch.setenv("MIXED_PRECISION_PROGRESS", str(path))
    with instruments.progress(40, "fp32, epoch 1/2", seconds=0.05) as bar:
        assert path.read_text() == "fp32, epoch 1/2, step 0/40"
        before = len(tellers)
        for _ in range(30):
            bar.advance()
        assert steps.wait(10)
        assert threading.main_thread() not in tellers[before:]
        bar.advance()
    assert path.read_text() == "fp32, epoch 1/2, step 31/40"
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]
    monkeypatch.setenv("MIXED_PRECISION_PROGRESS", str(tmp_path / "gone" / "progress"))
    with instruments.progress(1, "nowhere") as bar:  # ends nothing
        bar.advance()


def test_progress_is_told_to_nobody_where_nobody_asks(tmp_path, monkeypatch):
    """As on Colab: no thread, no file."""
    monkeypatch.setenv("TQDM_DISABLE", "1")  # the bar has a thread of its own
    threads = threading.active_count()
    with instruments.progress(1, "alone") as bar:
        bar.advance()
        assert threading.active_count() == threads
    assert not list(tmp_path.iterdir())


def test_the_environment_is_described():
    record = make_record()
    instruments.describe_environment(record, CPU)
    assert record.torch_version == torch.__version__
    assert record.device_type == "cpu"
    assert record.gpu_name is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such limit")
def test_the_hosts_cores_are_those_that_the_process_may_use():
    allowed, record = os.sched_getaffinity(0), make_record()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        instruments.describe_environment(record, CPU)
    finally:
        os.sched_setaffinity(0, allowed)
    assert record.host_cores == 1


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


def test_a_device_that_is_lost_costs_no_record(monkeypatch, tmp_path):
    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(instruments, "release_memory", lost)
    record = make_record()
    with instruments.guarded(record, tmp_path, torch.device("cpu")):
        record.epoch_seconds.append(1.5)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    written = json.loads((tmp_path / f"{record.run_id}.json").read_text())
    assert (written["status"], written["epoch_seconds"]) == ("failed", [1.5])
    assert "illegal memory access" in written["reason"]


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


def test_a_run_does_not_inherit_the_memory_peak_of_the_one_before(monkeypatch):
    calls = []
    monkeypatch.setattr(instruments, "reset_peaks", calls.append)
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    with instruments.guarded(record, "out", CPU):
        assert calls == [CPU]


@pytest.mark.parametrize(("device", "expected"), [(GPU, ["clear", "peaks"]), (CPU, ["peaks"])])
def test_a_run_on_a_gpu_begins_without_the_workspaces_that_the_one_before_left(monkeypatch, device, expected):
    calls = []
    monkeypatch.setattr(instruments, "clear_workspaces", lambda: calls.append("clear"))
    monkeypatch.setattr(instruments, "reset_peaks", lambda _: calls.append("peaks"))
    monkeypatch.setattr(instruments, "describe_environment", lambda *_: calls.append("described"))
    monkeypatch.setattr(instruments, "release_memory", lambda _: calls.append("released"))
    record = make_record(metric=[0.5], epoch_seconds=[1.0], samples_per_second=3.0)
    with instruments.guarded(record, "out", device):
        assert calls == [*expected, "described"]
    assert calls == [*expected, "described", "released"]


# The loss scale


def made_trainer(scaler, fixed_scale=None):
    return types.SimpleNamespace(scaler=scaler, fixed_scale=fixed_scale, steps=0)


class Steps:
    """Takes steps with a real GradScaler over one weight, with a gradient that overflows where it is told to."""

    def __init__(self, **options):
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", **options)

    def take(self, trainer, overflows):
        self.optimizer.zero_grad()
        self.scaler.scale(self.weight.sum() * (float("inf") if overflows else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update(trainer.fixed_scale)
        trainer.steps += 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("interval", "growth", "backoff"), [(3, 2.0, 0.5), (1, 2.0, 0.5), (7, 4.0, 0.25)])
def test_a_dynamic_scale_is_followed_without_asking(seed, interval, growth, backoff):
    options = {"growth_interval": interval, "growth_factor": growth, "backoff_factor": backoff, "init_scale": 1024.0}
    draw, steps, record = random.Random(seed), Steps(**options), make_record()
    trainer = made_trainer(steps.scaler)
    overflows = [draw.random() < 1 / (interval + 1) for _ in range(200)]  # about as often down as up
    expected, at = [[0, 1024.0]], iter(range(200))
    for _ in range(4):  # epochs, which go on counting
        trace = instruments.ScaleTrace(record, trainer)
        for step in itertools.islice(at, 50):
            steps.take(trainer, overflows[step])
            trace.step(skipped=overflows[step])
            assert trace.scale == steps.scaler.get_scale(), step
            if trace.scale != expected[-1][1]:
                expected.append([trainer.steps, trace.scale])
        trace.end()
    assert record.loss_scale_trace == expected
    assert len(expected) > 20
    assert record.overflow_steps == [step for step in range(200) if overflows[step]]


def test_a_scale_that_settled_in_warm_up_is_where_the_trace_begins():
    steps, record = Steps(growth_interval=4), make_record()
    trainer = made_trainer(steps.scaler)
    for overflows in (True, True, False, False, False):
        steps.take(trainer, overflows)
    trainer.steps = 0  # as after warm-up
    trace = instruments.ScaleTrace(record, trainer)
    steps.take(trainer, False)  # the fourth good one
    trace.step(skipped=False)
    assert trace.scale == steps.scaler.get_scale() == 32768
    assert record.loss_scale_trace == [[0, 16384.0], [1, 32768.0]]


def test_a_scale_that_only_falls_comes_to_0_when_the_scalers_own_does():
    steps, record = Steps(), make_record()
    trainer = made_trainer(steps.scaler)
    trace, seen = instruments.ScaleTrace(record, trainer), []
    for _ in range(180):
        steps.take(trainer, overflows=True)
        trace.step(skipped=True)
        seen.append(trace.scale)
        assert trace.scale == steps.scaler.get_scale()
    assert seen.index(0.0) == 165  # 65,536 halved 166 times: fp32 ends at 2^-149
    assert record.loss_scale_trace[-1] == [166, 0.0]


def test_a_fixed_scale_stays_and_skipped_steps_are_noted():
    steps, record = Steps(init_scale=128.0), make_record()
    trainer = made_trainer(steps.scaler, fixed_scale=128.0)
    trace = instruments.ScaleTrace(record, trainer)
    for overflows in (False, True, False, True):
        steps.take(trainer, overflows)
        trace.step(skipped=overflows)
        assert trace.scale == steps.scaler.get_scale() == 128
    trace.end()
    assert record.loss_scale_trace == [[0, 128.0]]
    assert record.overflow_steps == [1, 3]


def test_a_scale_of_fp16_weights_is_fixed_too():
    record, trainer = make_record(), made_trainer(harness.HalfScaler(64), fixed_scale=64.0)
    trace = instruments.ScaleTrace(record, trainer)
    trainer.steps = 1
    trace.step(skipped=True)
    trace.end()
    assert record.loss_scale_trace == [[0, 64.0]]
    assert record.overflow_steps == [0]


def test_without_scaling_there_is_no_trace():
    record, trainer = make_record(), made_trainer(torch.amp.GradScaler("cpu", enabled=False))
    trace = instruments.ScaleTrace(record, trainer)
    for _ in range(3):
        trainer.steps += 1
        trace.step(skipped=False)
    trace.end()
    assert record.loss_scale_trace == record.overflow_steps == []
    assert trace.scale is None


def test_each_repeat_is_counted_anew():
    record = make_record()
    for overflows in ((False, True), (True, False)):
        steps = Steps(init_scale=128.0)
        trainer = made_trainer(steps.scaler, fixed_scale=128.0)
        trace = instruments.ScaleTrace(record, trainer)
        for skipped in overflows:
            steps.take(trainer, skipped)
            trace.step(skipped)
        trace.end()
    assert record.overflow_steps == [1, 0]
    steps = Steps(init_scale=128.0)
    steps.take(made_trainer(steps.scaler), True)
    record, trainer = make_record(loss_scale_trace=[[0, 128.0], [5, 64.0]]), made_trainer(steps.scaler)
    instruments.ScaleTrace(record, trainer)
    assert record.loss_scale_trace == [[0, 128.0], [5, 64.0], [0, 64.0]]  # noted, although the scale is the same


def test_what_a_batch_waits_for_is_not_counted_as_the_steps(monkeypatch):
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    seen = []

    def batches():
        for number in range(3):
            seen.append(("batch", modes[-1]))
            yield number

    def step(batch, carry):
        seen.append(("step", modes[-1]))
        return None, carry

    trainer = types.SimpleNamespace(device=GPU, step=step)
    assert instruments.count_syncs(trainer, batches, None, steps=2) == 0
    assert seen[0] == ("batch", "default")  # an epoch's order may be waited for
    assert [mode for kind, mode in seen if kind == "step"] == ["warn"] * 2
    assert modes[-1] != "warn"


def test_an_error_becomes_a_line_that_ends_with_a_sentence():
    assert instruments.error_line(ValueError("a.\nb")) == "ValueError: a."
    memory = "CUDA out of memory. Tried to allocate 2 GiB. " + "Of it 1 GiB is free. " * 20 + "See the documentation"
    line = instruments.error_line(RuntimeError(memory))
    assert line.startswith("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB. Of it 1 GiB")
    assert 350 < len(line) <= 400
    assert line.endswith("1 GiB is free.")
    assert instruments.error_line(RuntimeError("x" * 500)) == "RuntimeError: " + "x" * 386
