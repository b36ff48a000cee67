"""NVML's answers, lost GPUs, and what others have on a GPU."""

import types
from unittest.mock import Mock

import pytest
from conftest import CASES
from made_up_nvml import THIS, NvmlError, absent, fails, fake_nvml

from mixed_precision_study.measure import nvml
from mixed_precision_study.measure.nvml import GpuLost, NvmlGpu, gpu_before_use, others_of, used_mib


def memory_of(mib):
    return types.SimpleNamespace(used=mib * 2**20)


@pytest.mark.parametrize("uuid", ["ab-cd", "GPU-ab-cd"])
def test_a_gpu_is_found_by_its_uuid(monkeypatch, uuid):
    module = fake_nvml(
        monkeypatch,
        nvmlSystemGetCudaDriverVersion=lambda: 12080,
        nvmlDeviceGetMemoryInfo=lambda handle, version=None: memory_of(3 if version == 2 else 5),
    )
    gpu = NvmlGpu(uuid)
    assert (gpu.used_mib(), gpu.reason, module.asked) == (3, None, ["GPU-ab-cd"])
    assert (used_mib(uuid), nvml.cuda_of_driver()) == (3, 12)


def test_what_a_gpu_held_before_is_found_by_its_uuid(monkeypatch):
    memory, running = [memory_of(700), memory_of(5)], [[types.SimpleNamespace(pid=8)], []]
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=[0, 1].__getitem__,
        nvmlDeviceGetUUID=["GPU-small", "GPU-large"].__getitem__,
        nvmlDeviceGetMemoryInfo=lambda handle, version=None: memory[handle],
        nvmlDeviceGetComputeRunningProcesses=running.__getitem__,
    )
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {})
    nvml.remember_gpus()
    assert gpu_before_use("large") == {"used_mib": 5, "pids": []}
    assert gpu_before_use("small") == {"used_mib": 700, "pids": [8]}
    assert gpu_before_use("a part of one") == {"used_mib": None, "pids": None}
    module.nvmlDeviceGetComputeRunningProcesses = fails
    nvml.remember_gpus()
    assert gpu_before_use("small") == {"used_mib": 700, "pids": None}  # no list is not an empty one
    absent(monkeypatch)
    assert nvml.listed_gpus() == []


@pytest.mark.parametrize(
    "functions, reason",
    [
        (None, "nvidia-ml-py is not installed"),
        ({"nvmlInit": Mock(side_effect=NvmlError("Driver Not Loaded"))}, "Driver Not Loaded"),
        ({"nvmlInit": Mock(side_effect=OSError("no libnvidia.so"))}, "no libnvidia.so"),
        (
            {"nvmlDeviceGetHandleByIndex": fails, "nvmlDeviceGetHandleByUUID": fails},
            "Not Supported",
        ),
    ],
    ids=["no binding", "no driver", "no library", "no such GPU"],
)
def test_a_gpu_that_cannot_be_asked_gives_a_reason_and_no_zero(monkeypatch, functions, reason):
    if functions is None:
        absent(monkeypatch)
    else:
        fake_nvml(monkeypatch, **functions)
    gpu = NvmlGpu()
    assert (
        gpu.handle
        is gpu.ask("PowerUsage")
        is gpu.process_ids()
        is gpu.answer("SystemGetDriverVersion")
        is None
    )
    assert gpu.used_mib() is used_mib("GPU-x") is None
    assert reason in gpu.reason


def test_no_question_raises_whatever_the_binding_does(monkeypatch):
    broken = Mock(side_effect=OSError("no right to ask"))
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetTemperature=broken,
        nvmlDeviceGetMemoryInfo=fails,
        nvmlDeviceGetClockInfo=lambda handle: 1500,
    )
    gpu = NvmlGpu()
    assert gpu.ask("ClockInfo", 1) == 1500
    for question in (("Temperature", 0), ("NoSuchThing",), ("ClockInfo",), ("ClockInfo", 1, 2)):
        assert gpu.ask(*question) is None
    assert gpu.used_mib() is None and gpu.reason


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("code, lost", {6: True, 15: True, 16: True, 3: False}.items())
def test_a_gpu_that_nvml_calls_lost_raises(monkeypatch, function, code, lost):
    fake_nvml(monkeypatch, **{function: Mock(side_effect=NvmlError("what NVML says", code))})
    if lost:
        with pytest.raises(GpuLost, match="what NVML says"):
            used_mib("GPU-x")
    else:
        assert used_mib("GPU-x") is None


@pytest.mark.parametrize(
    "pids, own_is_there, others",
    [
        (None, False, None),  # NVML would not say
        ([], False, 0),
        ([], True, None),  # this process uses the GPU and is not listed: the list is incomplete
        ([THIS], False, 0),
        ([THIS, -5], False, 1),
        ([-5], True, 0),  # in a container: the host's number of this process
        ([-5], False, 1),
        ([-5, -6], True, 1),
        ([-5, -5, THIS], True, 1),  # listed twice
    ],
)
def test_others_are_all_but_this_process(pids, own_is_there, others):
    assert others_of(pids, own_is_there) == others


def pretend_used(monkeypatch, state):
    """Let so many MiB of the only GPU be used, or NVML answer with the error of that number
    where it is negative.
    """
    answer = (
        {"side_effect": NvmlError("no answer", -state)}
        if state < 0
        else {"return_value": memory_of(state)}
    )
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=Mock(**answer))


@pytest.mark.parametrize(
    "state, text, answered, lost",
    CASES["failures on a gpu"],
)
def test_lost_gpu_is_known_from_other_failures(monkeypatch, state, text, answered, lost):
    pretend_used(monkeypatch, state)
    assert nvml.is_lost("GPU-0", text, answered) is lost


@pytest.mark.parametrize("state, free", {500: False, 120: True, -15: True, -999: True}.items())
def test_next_run_waits_until_the_memory_is_free(monkeypatch, state, free):
    pretend_used(monkeypatch, state)
    assert nvml.memory_is_free("GPU-0", 100) is free
    assert nvml.memory_is_free("GPU-0", None)
