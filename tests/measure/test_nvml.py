"""NVML's answers through any binding, lost GPUs, and what others have on a GPU."""

import types

import pytest
from made_up_nvml import THIS, NvmlError, absent, fails, fake_nvml

from mixed_precision_study.measure import nvml
from mixed_precision_study.measure.nvml import GpuLost, NvmlGpu, gpu_before_use, gpu_state, others_of, read_gpus


def memory_of(used_mib, total_mib=8):
    return types.SimpleNamespace(used=used_mib * 2**20, total=total_mib * 2**20)


@pytest.mark.parametrize("uuid", ["ab-cd", "GPU-ab-cd"])
def test_a_gpu_is_found_by_its_uuid(monkeypatch, uuid):
    module = fake_nvml(monkeypatch, nvmlSystemGetCudaDriverVersion=lambda: 12080)
    gpu = NvmlGpu(uuid)
    assert gpu.memory() == {"used_mib": 3, "total_mib": 8, "reason": None}
    assert gpu.driver() == "580.1"
    assert gpu.reason is None
    assert module.asked == ["GPU-ab-cd"]
    assert (gpu_state(uuid), nvml.cuda_of_driver()) == ((3, 8, None), (12, 8))


def test_what_a_gpu_held_before_is_found_by_its_uuid_as_cuda_may_number_gpus_otherwise(monkeypatch):
    uuids = ["GPU-small", "GPU-large"]
    memory = [memory_of(700), memory_of(5)]
    running = [[types.SimpleNamespace(pid=8)], []]
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=uuids.__getitem__,
        nvmlDeviceGetMemoryInfo=lambda handle, version=None: memory[handle],
        nvmlDeviceGetComputeRunningProcesses=running.__getitem__,
    )
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {})
    nvml.remember_gpus()
    assert gpu_before_use("large") == {"used_mib": 5, "pids": []}
    assert gpu_before_use("small") == {"used_mib": 700, "pids": [8]}
    assert gpu_before_use("a part of one") == {"used_mib": None, "pids": None}
    module.nvmlDeviceGetComputeRunningProcesses = fails
    assert read_gpus()["small"] == {"used_mib": 700, "pids": None}  # no list is not an empty one
    absent(monkeypatch)
    assert read_gpus() == {}


def test_newer_calls_are_preferred_and_older_ones_are_the_way_out(monkeypatch):
    first, second = memory_of(5), memory_of(3)
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=lambda handle, version=None: second if version == 2 else first)
    assert NvmlGpu().memory()["used_mib"] == 3  # the first version counts the driver's own reserve as used

    def old_driver(handle, version=None):
        return fails() if version else first

    fake_nvml(
        monkeypatch, nvmlDeviceGetMemoryInfo=old_driver, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 4
    )
    assert (NvmlGpu().memory()["used_mib"], NvmlGpu().throttle_bits()) == (5, 4)


def raises(error):
    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        (None, "nvidia-ml-py is not installed"),
        ({"nvmlInit": raises(NvmlError("Driver Not Loaded"))}, "Driver Not Loaded"),
        ({"nvmlInit": raises(OSError("no libnvidia-ml.so.1")), "NVMLError": None}, "no libnvidia-ml.so.1"),
        ({"nvmlDeviceGetHandleByIndex": fails, "nvmlDeviceGetHandleByUUID": fails}, "Not Supported"),
    ],
    ids=["no binding", "no driver", "no library", "no such GPU"],
)
def test_a_gpu_that_cannot_be_asked_gives_a_reason_and_no_zero(monkeypatch, functions, reason):
    if functions is None:
        absent(monkeypatch)
    else:
        fake_nvml(monkeypatch, **functions)
    gpu = NvmlGpu()
    memory = gpu.memory()
    assert gpu.handle is gpu.driver() is gpu.ask("PowerUsage") is gpu.process_ids() is None
    assert (memory["used_mib"], memory["total_mib"]) == (None, None)
    assert reason in gpu.reason
    assert reason in memory["reason"]
    assert gpu_state("GPU-x") is None


def test_no_question_raises_whatever_the_binding_does(monkeypatch):
    fake_nvml(
        monkeypatch,
        nvmlSystemGetDriverVersion=fails,
        nvmlDeviceGetTemperature=raises(OSError("no right to ask")),
        nvmlDeviceGetMemoryInfo=fails,
        nvmlDeviceGetClockInfo=lambda handle, kind: (handle, kind),
    )
    gpu = NvmlGpu()
    assert gpu.ask("ClockInfo", 1) == ("handle", 1)
    for question in (("Temperature", 0), ("NoSuchThing",), ("ClockInfo",), ("ClockInfo", 1, 2)):
        assert gpu.ask(*question) is None
    memory = gpu.memory()
    assert gpu.driver() is memory["used_mib"] is memory["total_mib"] is None
    assert memory["reason"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize(("code", "lost"), [(6, True), (15, True), (16, True), (3, False)])
def test_a_gpu_that_nvml_calls_lost_raises(monkeypatch, function, code, lost):
    error = NvmlError("what NVML says")
    error.value = code
    fake_nvml(monkeypatch, **{function: raises(error)})
    if lost:
        with pytest.raises(GpuLost, match="what NVML says"):
            gpu_state("GPU-x")
    else:
        assert gpu_state("GPU-x") is None


@pytest.mark.parametrize(
    ("pids", "own_is_there", "others"),
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
