"""Memory of the device and the peaks of the allocator."""

import types

import pytest
import torch
from small_training import CPU, make_record

from mixed_precision_study.memory import read_context, read_device_memory, read_peaks

GPU = torch.device("cuda")


def test_on_the_cpu_device_memory_is_null_with_a_reason():
    record = make_record()
    read_device_memory(record, CPU)
    read_peaks(record, CPU)
    assert record.device_used_mib is None
    assert record.peak_allocated_mib is None
    assert record.device_memory_reason == "no GPU"
    read_context(record, CPU)
    assert record.ledger_context_mib is None


def pretend_device(monkeypatch, used, before, reason=None, reserved=400):
    """Let NVML and the allocator give these figures, MiB; returns the cards that were asked."""
    asked = []
    memory = {"used_mib": used, "total_mib": None if used is None else 8192.0, "reason": reason}
    monkeypatch.setattr(
        "mixed_precision_study.memory.NvmlGpu",
        lambda uuid: asked.append(uuid) or types.SimpleNamespace(memory=lambda: memory),
    )
    monkeypatch.setattr(
        "mixed_precision_study.memory.gpu_before_use", lambda uuid: {"used_mib": before if uuid else None}
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * 2**20)
    return asked


def test_device_memory_is_noted_with_what_others_used_and_the_slack(monkeypatch):
    asked = pretend_device(monkeypatch, 1500.0, 300.0)
    record = make_record(gpu_uuid="ab", peak_reserved_mib=900.0, peak_allocated_mib=650.0)
    read_device_memory(record, GPU)
    assert (record.device_used_mib, record.device_used_before_mib) == (1500, 300)
    assert record.device_memory_reason is None
    assert record.ledger_slack_mib == 250
    assert asked == ["ab"]


def test_device_memory_without_nvml_is_null_with_a_reason_and_keeps_the_slack(monkeypatch):
    pretend_device(monkeypatch, None, None, "nvidia-ml-py is not installed")
    record = make_record(peak_reserved_mib=900.0, peak_allocated_mib=650.0)
    read_device_memory(record, GPU)
    read_context(record, GPU)
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
    read_context(record, GPU)
    assert record.ledger_context_mib == context


def test_peaks_are_the_highest_of_all_epochs_in_mib(monkeypatch):
    allocated, reserved = iter([3 * 2**20, 2**20]), iter([4 * 2**20, 8 * 2**20])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: next(reserved))
    record = make_record()
    for _ in range(2):
        read_peaks(record, GPU)
    assert (record.peak_allocated_mib, record.peak_reserved_mib) == (3, 8)
    assert (record.peak_allocated_with_warmup_mib, record.peak_reserved_with_warmup_mib) == (3, 8)  # never below


def test_peaks_of_warm_up_are_kept_apart(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 6 * 2**20)
    record = make_record()
    read_peaks(record, GPU, "_with_warmup")
    assert (record.peak_allocated_with_warmup_mib, record.peak_reserved_with_warmup_mib) == (5, 6)
    assert record.peak_allocated_mib is None
