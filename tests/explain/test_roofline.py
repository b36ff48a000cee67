"""What a GPU was measured to do, and how near a run comes to it."""

import json
import time
import types

import pytest
import torch
from explained_training import MIB, make_record, make_trainer
from small_training import CPU, MODES

from mixed_precision_study import record as records
from mixed_precision_study.explain import roofline
from mixed_precision_study.explain.roofline import cached, measure_ceiling, measure_copy, measure_limits, rate_of
from mixed_precision_study.train.float8 import FORWARD


def pretend_events(monkeypatch, milliseconds):
    """Let CUDA events tell these times, one after the other; returns the times that are left."""
    left = list(milliseconds)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def elapsed_time(self, end):
            return left.pop(0)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return left


def test_a_rate_is_the_best_of_three_runs_or_more(monkeypatch):
    left, runs = pretend_events(monkeypatch, [4.0, 2.0, 5.0, 1.0]), []
    assert rate_of(lambda: runs.append(1), CPU, seconds=0) == 500
    assert left == [1.0]
    assert len(runs) == 6  # three to warm up


def test_ceilings_are_flops_and_bytes_by_the_measured_rate(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * MIB, 2**40))
    monkeypatch.setattr(roofline, "rate_of", lambda work, device: 1000.0)
    for dtype in (torch.bfloat16, FORWARD):
        assert measure_ceiling(dtype, CPU) == pytest.approx(2 * 4096**3 * 1000 / 1e12)
    assert measure_copy(CPU) == pytest.approx(2 * MIB * 1000 / 1e9)  # read and written


def measuring(value, times):
    """Return a measurement that gives `value` and counts in `times` how often it was taken."""

    def measure():
        times.append(1)
        return value

    return measure


def test_a_ceiling_is_measured_once_in_a_session(tmp_path):
    path, times = tmp_path / ".ceilings.json", []
    for _ in range(3):
        assert cached(path, "fp32", measuring({"matmul": 50.0}, times), shared=False) == {"matmul": 50.0}
    assert len(times) == 1
    assert cached(path, "copy", measuring(3.5, times), shared=False) == 3.5
    assert len(times) == 2
    assert cached(path, "fp32", measuring({}, times), shared=True) == {"matmul": 50.0}  # known, so no harm
    assert json.loads(path.read_text())["copy"] == 3.5
    for _ in range(2):  # without a place for the file it is measured each time
        assert cached(tmp_path / "none" / ".ceilings.json", "fp32", measuring(9.0, times), shared=False) == 9.0
    assert len(times) == 4
    with pytest.raises(RuntimeError, match="another process"):
        cached(tmp_path / "other.json", "fp32", measuring(9.0, times), shared=True)
    assert len(times) == 4 and [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("age", "measured"), [(11.9 * 3600, 0), (12.1 * 3600, 1), (-60, 1)])
def test_a_ceiling_is_believed_for_twelve_hours(tmp_path, age, measured):
    path, times = tmp_path / ".ceilings.json", []
    path.write_text(json.dumps({"time": time.time() - age, "fp32": 1.0, "copy": 2.0}))
    assert cached(path, "fp32", measuring(9.0, times), shared=False) == (9.0 if measured else 1.0)
    assert len(times) == measured
    assert ("copy" in json.loads(path.read_text())) is (not measured)  # nothing of the old session is kept


@pytest.mark.parametrize("text", ["", "[1]", '{"fp32": 1.0}'])
def test_a_broken_file_is_measured_again(tmp_path, text):
    path, times = tmp_path / ".ceilings.json", []
    path.write_text(text)
    for _ in range(2):
        assert cached(path, "fp32", measuring(9.0, times), shared=None) == 9.0
    assert len(times) == 1


def pretend_ceilings(monkeypatch):
    asked = []
    monkeypatch.setattr(roofline, "measure_ceiling", lambda dtype, device: asked.append(dtype) or 50.0)
    monkeypatch.setattr(roofline, "measure_copy", lambda device: asked.append("copy") or 4000.0)
    return asked


def test_a_run_is_set_against_the_measured_ceilings(monkeypatch, tmp_path):
    asked = pretend_ceilings(monkeypatch)
    figures = {"achieved_tflop_per_second": 10.0, "bytes_per_step": 4e9, "gpu_busy_ms_per_step": 2.0}
    record = make_record(gpu_uuid="ab", torch_version="2.9", **figures)
    measure_limits(record, make_trainer("amp_bf16"), tmp_path)
    assert (record.ceiling_matmul_tflop_per_second, record.ceiling_conv_tflop_per_second) == (50, None)
    assert record.ceiling_copy_gb_per_second == 4000
    assert record.compute_limit_fraction == pytest.approx(0.2)  # of the matmul
    assert record.bandwidth_limit_fraction == pytest.approx(0.5)  # 4 GB in 2 ms are 2000 GB/s
    assert asked == [torch.bfloat16, "copy"]
    assert [path.name for path in tmp_path.iterdir()] == [".ceilings-ab-torch2.9.json"]
    assert records.read_records(tmp_path) == ([], [])  # and it is not taken for a record


def test_each_arithmetic_has_its_own_ceiling_and_without_the_figures_of_a_run_fractions_are_null(monkeypatch, tmp_path):
    asked = pretend_ceilings(monkeypatch)
    for precision in (*MODES, "fp8"):
        record = make_record()
        measure_limits(record, types.SimpleNamespace(precision=precision, device=CPU), tmp_path)
        assert record.ceiling_matmul_tflop_per_second == 50
        assert record.compute_limit_fraction is record.bandwidth_limit_fraction is None
    assert asked == [torch.float32, "copy", torch.float32, torch.float16, torch.bfloat16, FORWARD]
    (path,) = tmp_path.iterdir()
    names = {f"matmul {name}" for name in ("float32", "tf32", "float16", "bfloat16", "float8_e4m3fn")}
    assert set(json.loads(path.read_text())) == {"time", *names, "copy"}
