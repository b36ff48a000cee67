"""The checks of a GPU before a run."""

import math
import types
from unittest.mock import Mock

import pytest
import torch
from made_up_nvml import fake_nvml
from small_training import CPU
from torch.nn import functional

from mixed_precision_study.measure import nvml, preflight
from mixed_precision_study.measure.preflight import check_fp16, show_preflight
from mixed_precision_study.parameters import UserError
from mixed_precision_study.store.record import PLACES
from mixed_precision_study.train.precision import PRECISIONS, check_supported

GPU = torch.device("cuda")


@pytest.mark.parametrize("factor, error", [(1, None), (2, "by 1 "), (math.nan, "by nan ")])
def test_wrong_fp16_convolutions_are_named_with_their_error(monkeypatch, factor, error):
    exact = functional.conv2d

    def conv2d(image, *rest, **options):
        return exact(image, *rest, **options) * (factor if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(functional, "conv2d", conv2d)
    result = check_fp16(CPU)
    assert result == "passed" if error is None else "convolution" in result and error in result


def shown_by(capsys, device):
    """Return (what show_preflight returns, {what: text} of the lines that it prints, its
    cautions).
    """
    capsys.readouterr()
    fields = show_preflight(device, "eager", list(PRECISIONS), check_supported)
    lines = capsys.readouterr().out.splitlines()
    return (
        fields,
        {line[:18].strip(): line[19:] for line in lines},
        [line for line in lines if "Caution" in line],
    )


def test_the_preflight_on_the_cpu_says_what_needs_a_gpu(capsys):
    fields, said, cautions = shown_by(capsys, CPU)
    assert (fields, said["device"], cautions) == ({}, "CPU", [])
    assert [name for name in PRECISIONS if said[name] == "can run here"] == ["fp32", "amp_bf16"]


def pretend_gpu(
    monkeypatch, fp16="passed", native=True, pids=(), blocking="0", driver="580.1", **answers
):
    """Let show_preflight see a made-up RTX 3090; `answers` are what NVML says of it."""
    properties = types.SimpleNamespace(
        name="Made-up RTX", major=8, minor=6, total_memory=24 * 2**30, uuid="ab"
    )
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    monkeypatch.setattr(preflight, "check_fp16", lambda device: fp16)
    known = {
        "EnforcedPowerLimit": 350_000,
        "PowerManagementDefaultLimit": 350_000,
        "ClockInfo": 1395,
    }
    known |= {"MaxClockInfo": 2100, "CurrentClocksThrottleReasons": 0, **answers}
    functions = {
        f"nvmlDeviceGet{question}": lambda handle, answer=answer: answer
        for question, answer in known.items()
    }
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID={"GPU-ab": "handle"}.__getitem__,
        nvmlSystemGetDriverVersion=lambda: driver,
        **functions,
    )
    before = {
        "used_mib": None if pids is None else 1234.5,
        "pids": None if pids is None else list(pids),
    }
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {"ab": before})


def test_the_preflight_shows_the_gpu_and_returns_fields(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    fields, said, cautions = shown_by(capsys, GPU)
    assert (fields, cautions) == ({"native_bf16": True, "fp16_check": "passed"}, [])
    assert set(fields) <= set(PLACES)
    # it is an Ampere
    assert [name for name in PRECISIONS if said[name] != "can run here"] == ["fp8"]
    assert "Made-up RTX" in said["GPU"] and "8.6" in said["GPU"]
    figures = {"driver": "580.1", "free memory": "20,480 of 24,576 MiB", "power cap": "350 W"}
    figures |= {"SM clock": "1,395 MHz now, 2,100 MHz at most", "throttled now": "no"}
    assert said.items() >= figures.items()
    assert said["others on the GPU"] in ("0 processes, 1,234 MiB", "0 processes, 1,235 MiB")


@pytest.mark.parametrize(
    "message, kind", [("no kernel image is available", UserError), ("other", RuntimeError)]
)
def test_a_gpu_without_kernels_is_one_sentence(monkeypatch, message, kind):
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(preflight, "check_fp16", Mock(side_effect=RuntimeError(message)))
    with pytest.raises(kind, match=r"Made-up RTX.*cu126" if kind is UserError else message):
        show_preflight(GPU, "eager", [], check_supported)


def test_the_preflight_without_nvml_says_unknown_and_never_zero(monkeypatch, capsys):
    names = ("EnforcedPowerLimit", "PowerManagementDefaultLimit", "ClockInfo", "MaxClockInfo")
    unknown = dict.fromkeys((*names, "CurrentClocksThrottleReasons", "driver"))
    pretend_gpu(monkeypatch, pids=None, **unknown)
    _, said, cautions = shown_by(capsys, GPU)
    names = ("driver", "others on the GPU", "SM clock", "power cap", "throttled now")
    assert {said[what] for what in names} == {"unknown"} and not cautions


@pytest.mark.parametrize(
    "state, warning",
    [
        ({"pids": (-5,)}, "another process"),
        ({"EnforcedPowerLimit": 250_000}, "power cap"),
        ({"fp16": "a convolution is wrong"}, "a convolution is wrong"),
        ({"blocking": "1"}, "CUDA_LAUNCH_BLOCKING"),
    ],
)
def test_each_caution_is_given_alone(monkeypatch, capsys, state, warning):
    pretend_gpu(monkeypatch, **state)
    (line,) = shown_by(capsys, GPU)[2]
    assert warning in line


def test_a_throttled_gpu_and_refused_modes_are_said(monkeypatch, capsys):
    wrong = "a convolution is wrong"
    pretend_gpu(
        monkeypatch, CurrentClocksThrottleReasons=0x4 | 0x40 | 0x1, fp16=wrong, native=False
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    fields, said, _ = shown_by(capsys, GPU)
    assert fields == {"native_bf16": False, "fp16_check": wrong}
    assert said["throttled now"] == "power cap, thermal, hardware"
    assert [name for name in PRECISIONS if said[name] == "can run here"] == ["fp32"]
    assert sum(wrong in said[name] for name in PRECISIONS) == 3
