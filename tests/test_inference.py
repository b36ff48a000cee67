"""The trained model in use: what is timed, how far outputs are from fp32's, and what happens when it fails."""

import time

import pytest
import torch
from small_training import CPU, compute_loss, make_batch, small_network

from mixed_precision_study.inference import largest_difference, measure_inference, read_inference, seconds_of
from mixed_precision_study.precision import autocast, set_fp32_precision
from mixed_precision_study.record import new_record
from mixed_precision_study.training import Trainer


def make_trainer(precision="fp32"):
    return Trainer(small_network(), precision, compute_loss, device=CPU, lr=0.1)


def make_record(batch_size=4):
    parameters = {"dataset": "d", "model": "m", "batch_size": batch_size, "seed": 0}
    return new_record("n", parameters, "fp32", {"batch_size_used": batch_size})


def infer(network, batch, count):
    return network(batch[0][:count])


def one_call(call, device, **options):
    """Stands in for seconds_of()."""
    call()
    return 0.002, 0.001, 0.004


def test_the_median_leaves_the_warm_up_out(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call():
        calls.append(1)
        now[0] += 9.0 if len(calls) <= 3 else 0.25

    assert seconds_of(call, CPU) == (0.25, 0.25, 0.25)
    assert len(calls) == 13
    assert seconds_of(call, CPU, at_least=3) == (0.25, 0.25, 0.25)
    assert len(calls) == 13 + 3 + 3  # three to warm up


def test_slow_and_fast_passes_are_told(monkeypatch):
    now, steps = [0.0], iter([9.0] * 3 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call():
        now[0] += next(steps)

    assert seconds_of(call, CPU) == pytest.approx((0.55, 0.2, 0.9))


def test_ten_calls_or_half_a_second_whichever_is_longer(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call():
        calls.append(1)
        now[0] += 0.01

    assert seconds_of(call, CPU) == pytest.approx((0.01, 0.01, 0.01))
    assert 50 <= len(calls) - 3 <= 52


def test_fp32_differs_from_itself_by_nothing_and_bf16_by_little():
    batch = make_batch()
    assert largest_difference(make_trainer(), infer, batch, 4) == 0
    assert 0 < largest_difference(make_trainer("amp_bf16"), infer, batch, 4) < 0.1


def test_the_fp32_copy_is_run_without_a_search_and_leaves_no_plan_to_a_training():
    seen = []

    def watched(network, batch, count):
        seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
        return infer(network, batch, count)

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        largest_difference(make_trainer(), watched, make_batch(), 4)
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (True, False)
    finally:
        torch.backends.cudnn.benchmark = before
    assert seen == [(True, False), (False, True)]  # the key of a kept plan has `deterministic` in it


def test_half_weights_are_set_beside_an_fp32_copy():
    images, labels = make_batch()
    trainer = make_trainer("o3_fp16")
    assert 0 < largest_difference(trainer, infer, (images.half(), labels), 4) < 0.1
    assert trainer.weights[0].dtype == torch.float16  # the model itself stays as it is


def test_the_precision_switches_are_put_back():
    before = set_fp32_precision("fp32")
    largest_difference(make_trainer(), infer, make_batch(), 4)
    assert torch.backends.cuda.matmul.fp32_precision == before["matmul"]


def test_a_record_gets_latency_and_throughput(monkeypatch):
    sizes, limits = [], []

    def seconds_of(call, device, **options):
        limits.append(torch.backends.cudnn.benchmark_limit)
        return one_call(call, device)

    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 7)
    monkeypatch.setattr("mixed_precision_study.inference.seconds_of", seconds_of)
    record, trainer = make_record(), make_trainer()
    read_inference(record, trainer, make_batch(), lambda *given: [sizes.append(given[2]), infer(*given)][1])
    assert sizes[:2] == [1, 4]
    assert (limits, torch.backends.cudnn.benchmark_limit) == ([3, 3], 7)
    latency = (record.inference_latency_ms, record.inference_latency_ms_p10, record.inference_latency_ms_p90)
    assert latency == (2, 1, 4)
    assert record.inference_samples_per_second == 4 / 0.002
    assert record.inference_difference_fraction == 0
    assert record.inference_memory_mib is None  # there is none on the CPU
    assert trainer.network.training


def test_no_more_outputs_are_compared_than_memory_has_room_for(monkeypatch):
    sizes, record, trainer = [], make_record(), make_trainer()
    monkeypatch.setattr("mixed_precision_study.inference.COMPARED", 3)
    monkeypatch.setattr("mixed_precision_study.inference.seconds_of", one_call)
    read_inference(record, trainer, make_batch(), lambda *given: [sizes.append(given[2]), infer(*given)][1])
    assert sizes == [1, 4, 1, 4, 3, 3]  # to warm up; latency, throughput; the run's own precision and fp32


def test_a_compiled_model_is_the_one_that_is_timed_and_set_beside_fp32(monkeypatch):
    class Compiled(torch.nn.Module):  # as torch.compile's: it calls the network, and rounds otherwise
        def forward(self, images):
            calls.append(len(images))
            return 1.5 * trainer.network(images)

    calls, record, trainer = [], make_record(), make_trainer()
    monkeypatch.setattr("mixed_precision_study.inference.seconds_of", one_call)
    trainer.model = Compiled()
    read_inference(record, trainer, make_batch(), infer)
    assert calls == [1, 4, 1, 4, 4]  # to warm up; latency, throughput, difference
    assert record.inference_difference_fraction == pytest.approx(0.5)


def test_on_the_cpu_there_is_a_reason_and_no_figure():
    record = make_record()
    measure_inference(record, make_trainer(), iter([]), infer)
    assert record.inference_reason == "no GPU"
    assert record.inference_latency_ms is None


def test_what_fails_leaves_its_reason(monkeypatch):
    record, trainer = make_record(), make_trainer()
    trainer.device = torch.device("cuda")
    for name in ("release_memory", "reset_peaks"):
        monkeypatch.setattr(f"mixed_precision_study.inference.{name}", lambda device: None)

    def broken(*_):
        raise RuntimeError("no such kernel\nmore")

    monkeypatch.setattr("mixed_precision_study.inference.read_inference", broken)
    measure_inference(record, trainer, iter([make_batch()]), infer)
    assert record.inference_reason == "RuntimeError: no such kernel"


def test_a_failure_leaves_the_run_in_its_own_arithmetic_and_in_training(monkeypatch):
    record, trainer = make_record(), make_trainer()
    trainer.precision, trainer.device = "tf32", torch.device("cuda")
    set_fp32_precision("tf32")
    for name in ("release_memory", "reset_peaks", "synchronize"):
        monkeypatch.setattr(f"mixed_precision_study.inference.{name}", lambda device: None)
    monkeypatch.setattr(
        "mixed_precision_study.inference.seconds_of", lambda call, device, **options: (0.002, 0.001, 0.004)
    )
    monkeypatch.setattr("mixed_precision_study.inference.autocast", lambda precision, device: autocast("fp32", CPU))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**20)

    def no_memory(network, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("mixed_precision_study.inference.in_fp32", no_memory)
    try:
        measure_inference(record, trainer, iter([make_batch()]), infer)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        set_fp32_precision("fp32")
    assert record.inference_reason.endswith("CUDA out of memory")
    assert record.inference_latency_ms == 2  # what was measured before it stays
    assert trainer.network.training
