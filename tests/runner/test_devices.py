"""The devices of a machine: its GPUs, those that CUDA_VISIBLE_DEVICES leaves, or shares of its CPU."""

import sys
import types

import pytest

from mixed_precision_study.parameters import UserError
from mixed_precision_study.runner import devices
from mixed_precision_study.runner.devices import choose_devices, visible_gpus


def fake_nvml():
    """Return a stand-in for pynvml with two GPUs; nvidia-ml-py3 7.352.0 answers in bytes."""
    return types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}{index}{index}-abc",
        nvmlDeviceGetName=lambda index: "NVIDIA Made-up",
    )


@pytest.mark.parametrize(
    "setting, seen",
    [
        *((None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-111", [1]), ("", []), ("-1", []), ("0,7,1", [0])),
        ("MIG-x/1/0", ["MIG-x/1/0"]),
    ],
)
def test_existing_visible_devices_are_honoured(monkeypatch, setting, seen):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    expected = [one if isinstance(one, str) else f"GPU-{one}{one}{one}-abc" for one in seen]
    assert [gpu.visible for gpu in visible_gpus()] == expected


def test_a_choice_of_devices_that_is_not_possible_is_refused(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.setattr(devices, "cuda_of_pytorch", lambda: "")
    for gpus, jobs in (("1", None), ("0,5", None), ("all", 2)):
        with pytest.raises(UserError):
            choose_devices(gpus, jobs)
    assert [device.label for device in choose_devices("none", 3)] == ["cpu0", "cpu1", "cpu2"]
    builds = {("13.2", (12, 8)): True, ("12.6", (13, 0)): False, ("", (13, 0)): True, (None, None): False}
    assert {pair: bool(devices.reason_against(*pair)) for pair in builds} == builds


@pytest.mark.parametrize(("line", "cuda"), [("'12.6'", "12.6"), ("None", ""), (None, None)])
def test_cuda_of_pytorch_is_read_and_not_loaded(monkeypatch, tmp_path, line, cuda):
    if line:
        (tmp_path / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {line}\n")
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(devices, "find_spec", lambda name: found)
    assert devices.cuda_of_pytorch() == cuda
