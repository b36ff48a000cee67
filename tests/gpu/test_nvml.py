"""NVML's answers through any binding, and what others have on a card."""

import sys
import types

import pytest
from made_up_nvml import THIS, NvmlError, absent, fails, fake_nvml

from mixed_precision_study.gpu import nvml
from mixed_precision_study.gpu.nvml import NvmlGpu, gpu_before_use, others_of, read_gpus


def test_memory_by_uuid_in_mib(monkeypatch):
    module = fake_nvml(monkeypatch)
    found = NvmlGpu("ab-cd")
    assert found.memory() == {"used_mib": 3, "total_mib": 8, "reason": None}
    assert found.driver() == "580.1"
    assert found.reason is None
    assert module.asked == [b"GPU-ab-cd"]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_a_card_held_before_is_found_by_its_uuid_as_cuda_may_number_cards_otherwise(monkeypatch, as_bytes):
    uuids = [uuid.encode() if as_bytes else uuid for uuid in ("GPU-small", "GPU-large")]
    memory = [types.SimpleNamespace(used=mib * 2**20, total=2**34) for mib in (700, 5)]
    running = [[types.SimpleNamespace(pid=8)], []]
    module = fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=lambda number: number)
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetUUID = uuids.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda handle, version=None: memory[handle]
    module.nvmlDeviceGetComputeRunningProcesses = running.__getitem__
    monkeypatch.setattr("mixed_precision_study.gpu.nvml.GPUS_BEFORE_USE", read_gpus())
    assert gpu_before_use("large") == {"used_mib": 5, "pids": []}
    assert gpu_before_use("small") == {"used_mib": 700, "pids": [8]}
    assert gpu_before_use("a part of one") == {"used_mib": None, "pids": None}
    module.nvmlDeviceGetComputeRunningProcesses = fails
    assert read_gpus()["small"] == {"used_mib": 700, "pids": None}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus() == {}


def test_the_second_version_of_the_memory_call_is_preferred_and_the_first_is_the_way_out(monkeypatch):
    first, second = (types.SimpleNamespace(used=used * 2**20, total=2**23) for used in (5, 3))
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=lambda handle, version=None: second if version == 2 else first)
    assert NvmlGpu().memory()["used_mib"] == 3  # the first version counts the driver's own reserve as used

    def old_driver(handle, version=None):
        return fails() if version else first

    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=old_driver)
    assert NvmlGpu().memory()["used_mib"] == 5


def test_the_old_binding_without_versions_and_with_bytes(monkeypatch):
    memory = types.SimpleNamespace(used=2**20, total=2**21)
    fake_nvml(
        monkeypatch,
        nvmlMemory_v2=None,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlSystemGetDriverVersion=lambda: b"430.5",
    )
    found = NvmlGpu("x")
    assert found.memory() == {"used_mib": 1, "total_mib": 2, "reason": None}
    assert found.driver() == "430.5"


def without_driver(monkeypatch):
    def not_loaded():
        raise NvmlError("Driver Not Loaded")

    fake_nvml(monkeypatch, nvmlInit=not_loaded)


def without_library(monkeypatch):
    def no_library():
        raise OSError("libnvidia-ml.so.1 not found")  # no error of the binding's own

    fake_nvml(monkeypatch, nvmlInit=no_library, NVMLError=None)


def without_such_a_card(monkeypatch):
    fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=fails, nvmlDeviceGetHandleByUUID=fails)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (absent, "nvidia-ml-py is not installed"),
        (without_driver, "NVML gave no figure (Driver Not Loaded)"),
        (without_library, "libnvidia-ml.so.1 not found"),
        (without_such_a_card, "Not Supported"),
    ],
)
def test_a_card_that_cannot_be_asked_gives_a_reason_and_no_zero(monkeypatch, state, reason):
    state(monkeypatch)
    found = NvmlGpu()
    assert found.handle is None
    assert reason in found.reason
    memory = found.memory()
    assert (memory["used_mib"], memory["total_mib"]) == (None, None)
    assert reason in memory["reason"]
    assert found.driver() is None
    assert found.ask("PowerUsage") is None


def test_no_question_raises_whatever_the_binding_does(monkeypatch):
    def leaves(*_):
        raise OSError("no right to ask")

    functions = {"nvmlDeviceGetPowerUsage": fails, "nvmlDeviceGetTemperature": leaves, "nvmlDeviceGetMemoryInfo": fails}
    functions["nvmlDeviceGetClockInfo"] = lambda handle, kind: (handle, kind)
    fake_nvml(monkeypatch, nvmlSystemGetDriverVersion=fails, **functions)
    found = NvmlGpu()
    assert found.ask("ClockInfo", 1) == ("handle", 1)
    for question in (("PowerUsage",), ("Temperature", 0), ("NoSuchThing",), ("ClockInfo",), ("ClockInfo", 1, 2)):
        assert found.ask(*question) is None
    assert found.driver() is None
    reason = "NVML gave no figure for the memory"
    assert found.memory() == {"used_mib": None, "total_mib": None, "reason": reason}


@pytest.mark.parametrize(
    ("pids", "own_is_there", "others"),
    [
        (None, False, None),  # NVML would not say
        (None, True, None),
        ([], False, 0),
        ([], True, None),  # this process uses the card and is not listed: the list is incomplete
        ([THIS], True, 0),
        ([THIS], False, 0),
        ([THIS, -5], True, 1),
        ([THIS, -5], False, 1),
        ([-5], True, 0),  # in a container: the host's number of this process
        ([-5], False, 1),
        ([-5, -6], True, 1),
        ([-5, -6], False, 2),
        ([-5, -5, THIS], True, 1),  # listed twice
    ],
)
def test_others_are_all_but_this_process(pids, own_is_there, others):
    assert others_of(pids, own_is_there) == others


def test_processes_that_nvml_does_not_list_are_unknown_at_the_start(monkeypatch):
    """Here there is no GPU: no list is no list, not an empty one."""
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {})
    nvml.remember_gpus()
    asked = NvmlGpu().ask("ComputeRunningProcesses")
    assert {before["pids"] is None for before in nvml.GPUS_BEFORE_USE.values()} <= {asked is None}
