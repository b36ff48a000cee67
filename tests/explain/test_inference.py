"""The trained model in use: what is timed, how far outputs are from fp32's, and what happens
when it fails.
"""

import time
from unittest.mock import Mock

import pytest
import torch
from small_training import CPU, make_batch, make_record
from small_training import make_trainer as make_small_trainer

from mixed_precision_study.experiment import first_outputs as infer
from mixed_precision_study.explain.inference import (
    largest_difference,
    measure_inference,
    seconds_of,
)
from mixed_precision_study.train.precision import Precision, set_fp32_precision

PACKAGE = "mixed_precision_study.explain.inference"


def make_trainer(precision="fp32"):
    return make_small_trainer(precision, loss_scale="dynamic")


def one_call(call, device, **options):
    call()
    return 0.002, 0.001, 0.004


@pytest.mark.parametrize(
    "seconds, options, expected, calls",
    [
        ([9.0] * 3 + [0.25] * 10, {"at_least": 3}, (0.25, 0.25, 0.25), 6),
        # three to warm up
        ([9.0] * 3 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], {}, (0.55, 0.2, 0.9), 13),
        # until so many seconds have passed
        ([0.0625] * 99, {"seconds": 1.0}, (0.0625, 0.0625, 0.0625), 19),
    ],
)
def test_calls_are_timed_after_a_warm_up(monkeypatch, seconds, options, expected, calls):
    now, steps = [0.0], iter(seconds)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call():
        now[0] += next(steps)

    assert seconds_of(call, CPU, **options) == pytest.approx(expected)
    assert len(seconds) - len(list(steps)) == calls


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "o3_fp16"])
def test_fp32_differs_by_nothing_and_16_bits_by_little(monkeypatch, precision):
    seen, cudnn = [], torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)

    def watched(network, batch, count):
        seen.append((cudnn.benchmark, cudnn.deterministic))
        return infer(network, batch, count)

    trainer, (images, labels) = make_trainer(precision), make_batch()
    images = images.to(trainer.weights[0].dtype)
    found = largest_difference(trainer, watched, (images, labels), 4)
    assert found == 0 if precision == "fp32" else 0 < found < 0.1
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)
    # the key of a kept plan has `deterministic` in it
    assert seen == [(True, False), (False, True)]
    assert trainer.weights[0].dtype == images.dtype  # the model itself stays as it is


def test_a_record_gets_latency_throughput_and_difference(monkeypatch):
    # as torch.compile's: it calls the network, and rounds otherwise
    class Compiled(torch.nn.Module):
        def forward(self, images):
            sizes.append(len(images))
            return 1.5 * trainer.network(images)

    def seconds_of(call, device, **options):
        limits.append(torch.backends.cudnn.benchmark_limit)
        return one_call(call, device)

    sizes, limits, record, trainer = [], [], make_record(batch_size_used=4), make_trainer()
    trainer.model = Compiled()
    monkeypatch.setattr(f"{PACKAGE}.COMPARED", 3)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 7)
    monkeypatch.setattr(f"{PACKAGE}.seconds_of", seconds_of)
    measure_inference(record, trainer, iter([make_batch()]), infer)
    assert sizes == [1, 4, 1, 4, 3]  # warm-up; latency, throughput; difference
    assert (limits, torch.backends.cudnn.benchmark_limit) == ([3, 3], 7)
    latency = (
        record.inference_latency_ms,
        record.inference_latency_ms_p10,
        record.inference_latency_ms_p90,
    )
    assert (latency, record.inference_samples_per_second) == ((2, 1, 4), 4 / 0.002)
    assert record.inference_difference_fraction == pytest.approx(0.5)
    assert record.inference_memory_mib is None  # there is none on the CPU
    assert trainer.network.training


def test_a_failure_leaves_the_run_as_it_was(monkeypatch):
    record, trainer = make_record(batch_size_used=4), make_trainer()
    trainer.precision, trainer.device = "tf32", torch.device("cuda")
    set_fp32_precision("tf32")
    for name in ("release_memory", "reset_peaks"):
        monkeypatch.setattr(f"{PACKAGE}.{name}", lambda *_: None)
    weights = sum(weight.nbytes for weight in trainer.network.state_dict().values())
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: weights + 2 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    monkeypatch.setattr(f"{PACKAGE}.seconds_of", one_call)
    monkeypatch.setattr(f"{PACKAGE}.Precision", lambda name, device: Precision("fp32", CPU))
    monkeypatch.setattr(
        f"{PACKAGE}.in_fp32", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    )
    try:
        with pytest.raises(torch.OutOfMemoryError):
            measure_inference(record, trainer, iter([make_batch()]), infer)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        set_fp32_precision("fp32")
    assert record.inference_latency_ms == 2  # what was measured before it stays
    assert record.inference_memory_mib == 3  # without what training has left
    assert trainer.network.training
