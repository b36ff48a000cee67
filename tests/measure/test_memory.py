"""Memory: use of the device, and peaks of the allocator."""

import types

import pytest
import torch
from explained_training import MIB, make_record

from mixed_precision_study.measure.memory import (
    read_context,
    read_device_memory,
    read_peaks,
)

GPU = torch.device("cuda")


def pretend_device(monkeypatch, used, before, reason=None, reserved=400):
    """Let NVML and the allocator give these figures (MiB)."""
    gpus = {"ab": types.SimpleNamespace(used_mib=lambda: used, reason=reason)}
    monkeypatch.setattr("mixed_precision_study.measure.memory.NvmlGpu", gpus.__getitem__)
    monkeypatch.setattr(
        "mixed_precision_study.measure.memory.gpu_before_use", lambda uuid: {"used_mib": before}
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * MIB)


def pretend_peaks(monkeypatch, allocated, reserved):
    """Let the allocator give these peaks (MiB), one after the other."""
    for name, peaks in (
        ("max_memory_allocated", iter(allocated)),
        ("max_memory_reserved", iter(reserved)),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda device, peaks=peaks: next(peaks) * MIB)


@pytest.mark.parametrize(
    "used, before, context",
    [
        (1500.0, 300.0, 800.0),
        (1500.0, 0.0, 1100.0),
        (1500.0, None, None),
        (None, 3.0, None),
        (None, None, None),
    ],
)
def test_device_memory_is_noted_with_what_others_used(monkeypatch, used, before, context):
    reason = "nvidia-ml-py is not installed" if used is None else None
    pretend_device(monkeypatch, used, before, reason)
    record = make_record(gpu_uuid="ab", peak_reserved_mib=900.0, peak_allocated_mib=650.0)
    read_device_memory(record, GPU)
    read_context(record, GPU)
    assert (record.device_used_mib, record.device_used_before_mib) == (used, before)
    assert record.device_memory_reason == reason
    assert record.ledger_context_mib == context  # the device less others and the allocator
    assert record.ledger_slack_mib == 250


def test_peaks_are_the_highest_of_all_epochs(
    monkeypatch,
):
    record = make_record(gpu_uuid="ab")
    pretend_peaks(monkeypatch, [5], [6])
    read_peaks(record, GPU, "_with_warmup")
    assert (record.peak_allocated_with_warmup_mib, record.peak_reserved_with_warmup_mib) == (5, 6)
    assert record.peak_allocated_mib is record.peak_reserved_mib is record.device_used_mib is None
    names = [
        f"peak_{kind}{when}_mib"
        for when in ("", "_with_warmup")
        for kind in ("allocated", "reserved")
    ]
    pretend_peaks(monkeypatch, [3, 1, 2], [4, 8, 7])
    for used, unseen, highest in (
        (15.0, 0, (3, 4, 5, 6, 15)),
        (23.0, 0, (3, 8, 5, 8, 23)),
        (14.0, 7 * MIB, (9, 8, 9, 8, 23)),  # the bytes are of a graph
    ):
        pretend_device(monkeypatch, used, 3.0)
        read_peaks(record, GPU, unseen=unseen)
        if record.device_used_mib is None:  # as after the first epoch
            read_device_memory(record, GPU)
        assert tuple(getattr(record, name) for name in (*names, "device_used_mib")) == highest
    assert record.ledger_slack_mib == 8 - 9
