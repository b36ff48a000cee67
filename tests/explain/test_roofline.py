"""What a GPU was measured to do, and how near a run comes to it."""

import types

import pytest
import torch
from explained_training import MIB, make_record, make_trainer
from small_training import CPU, MODES

from mixed_precision_study.explain import roofline
from mixed_precision_study.explain.roofline import (
    measure_ceiling,
    measure_copy,
    measure_limits,
    rate_of,
)
from mixed_precision_study.train.float8 import FORWARD


def test_a_rate_is_the_best_of_three_runs_or_more(monkeypatch):
    left, runs = [4.0, 2.0, 5.0, 1.0], []
    # milliseconds
    event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda end: left.pop(0))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    assert rate_of(lambda: runs.append(1), CPU, seconds=0) == 500
    assert (left, len(runs)) == ([1.0], 6)  # three to warm up


def test_ceilings_are_flops_and_bytes_by_the_measured_rate(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * MIB, 2**40))
    monkeypatch.setattr(roofline, "rate_of", lambda work, device: 1000.0)
    for dtype in (torch.bfloat16, FORWARD):
        assert measure_ceiling(dtype, CPU) == pytest.approx(2 * 4096**3 * 1000 / 1e12)
    assert measure_copy(CPU) == pytest.approx(2 * MIB * 1000 / 1e9)  # read and written


@pytest.fixture
def asked(monkeypatch):
    """Let every ceiling be 50 TFLOP/s and 4,000 GB/s, and return the types that were asked for."""
    asked = []
    monkeypatch.setattr(
        roofline, "measure_ceiling", lambda dtype, device: asked.append(dtype) or 50.0
    )
    monkeypatch.setattr(roofline, "measure_copy", lambda device: 4000.0)
    return asked


def test_a_run_is_set_against_the_measured_ceilings(asked):
    figures = {
        "achieved_tflop_per_second": 10.0,
        "bytes_per_step": 4e9,
        "gpu_busy_ms_per_step": 2.0,
    }
    record = make_record(**figures)
    measure_limits(record, make_trainer("amp_bf16"), iter([]))
    assert record.ceiling_matmul_tflop_per_second == 50
    assert record.ceiling_copy_gb_per_second == 4000
    assert record.compute_limit_fraction == pytest.approx(0.2)  # of the matmul
    assert record.bandwidth_limit_fraction == pytest.approx(0.5)  # 4 GB in 2 ms are 2000 GB/s
    shared = make_record(gpu_shared=True, **figures)
    with pytest.raises(RuntimeError, match="another process"):
        measure_limits(shared, make_trainer("amp_bf16"))
    assert asked == [torch.bfloat16] and shared.ceiling_matmul_tflop_per_second is None


def test_each_arithmetic_has_its_own_ceiling(
    asked,
):
    for precision in (*MODES, "fp8"):
        record = make_record()
        measure_limits(record, types.SimpleNamespace(precision=precision, device=CPU))
        assert record.ceiling_matmul_tflop_per_second == 50
        assert record.compute_limit_fraction is record.bandwidth_limit_fraction is None
    float16, bfloat16 = torch.float16, torch.bfloat16
    assert asked == [
        torch.float32,
        torch.float32,
        float16,
        bfloat16,
        float16,
        float16,
        bfloat16,
        FORWARD,
    ]
