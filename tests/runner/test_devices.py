"""The devices of a machine: its GPUs, those that CUDA_VISIBLE_DEVICES leaves, or shares of its
CPU.
"""

import types

import pytest
from conftest import CASES, refuses
from made_up_nvml import fake_nvml

from mixed_precision_study.runner import batch, devices
from mixed_precision_study.runner.devices import Cards, cards_of, choose_devices, visible_gpus


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=[0, 1].__getitem__,
        nvmlDeviceGetName=lambda index: "Made-up",
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}{index}-abc",
    )


@pytest.mark.parametrize(
    "setting, seen",
    CASES["visible devices"],
)
def test_existing_visible_devices_are_honoured(monkeypatch, setting, seen):
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    expected = [one if isinstance(one, str) else f"GPU-{one}{one}-abc" for one in seen]
    assert [gpu.visible for gpu in visible_gpus()] == expected


@pytest.mark.parametrize(
    "gpus, jobs, named", [("2", None, "2"), ("0,5", None, "5"), ("all", 2, "--jobs")]
)
def test_a_choice_of_devices_that_is_not_possible_is_refused(monkeypatch, gpus, jobs, named):
    with refuses(named):
        choose_devices(gpus, jobs)
    assert [device.label for device in choose_devices("none", 3)] == ["cpu0", "cpu1", "cpu2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with refuses("no GPU 0"):
        choose_devices("0", None)


def test_runs_at_a_time_share_the_cores_and_one_alone_has_all(monkeypatch):
    monkeypatch.setattr(batch.os, "sched_getaffinity", lambda pid: range(8))
    assert [batch.share_of_cores(count) for count in (1, 2, 3, 100)] == [None, 4, 2, 1]


@pytest.mark.parametrize(
    "cuda, driver, usable",
    [("'12.6'", 12, True), ("'13.2'", 12, False), ("'13.2'", None, True), ("None", 13, False)],
)
def test_a_pytorch_that_cannot_use_the_gpu_is_refused(monkeypatch, tmp_path, cuda, driver, usable):
    monkeypatch.setattr(devices.nvml, "cuda_of_driver", lambda: driver)
    (tmp_path / "version.py").write_text(
        f"from typing import Optional\ncuda: Optional[str] = {cuda}\n"
    )
    found = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(devices, "find_spec", lambda name: found)
    if usable:
        assert [device.number for device in choose_devices("1,0,1", None)] == [1, 0]
        # not installed, which a run then says
        monkeypatch.setattr(devices, "find_spec", lambda name: None)
        assert [device.label for device in choose_devices("all", None)] == ["gpu0", "gpu1"]
    else:
        with refuses("CUDA"):
            choose_devices("all", None)


OLD = ("tf32", "amp_bf16")


@pytest.mark.parametrize(
    "gpus, expected",
    [
        ([([7, 5], 15)], Cards(OLD, True)),  # a T4
        ([([7, 0], 32)], Cards(OLD, False)),  # a V100
        ([([8, 0], 40)], Cards((), False)),
        ([([7, 5], 15), ([9, 0], 80)], Cards((), True)),  # its records say what the T4 cannot do
        ([(None, None)], Cards()),  # NVML does not tell
        ([], Cards()),
    ],
)
def test_what_the_cards_lack_is_known_without_pytorch(monkeypatch, gpus, expected):
    answers = dict(enumerate(gpus))
    found = [devices.Device(number, f"gpu{number}", f"GPU-{number}") for number in answers]

    def memory(number, version=None):
        return types.SimpleNamespace(total=answers[number][1] * 2**30)

    fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid[-1]),
        nvmlDeviceGetCudaComputeCapability=lambda number: answers[number][0],
        nvmlDeviceGetMemoryInfo=memory,
    )
    assert cards_of(found) == expected
    assert cards_of(choose_devices("none", 2)) == Cards()
