"""The checks of a GPU before a run."""

import math
import types
from unittest.mock import Mock

import pytest
import torch
from conftest import CASES
from made_up_nvml import fake_nvml
from small_training import CPU
from torch.nn import functional

from mixed_precision_study import experiment
from mixed_precision_study.measure import nvml, preflight
from mixed_precision_study.measure.preflight import check_fp16, show_preflight
from mixed_precision_study.parameters import UserError
from mixed_precision_study.store.record import PLACES
from mixed_precision_study.store.variables import RUNNER_ENV
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


def shown_by(capsys, device, **options):
    """Return (what show_preflight returns, {what: text} of its lines, its cautions)."""
    capsys.readouterr()
    returned = show_preflight(device, "eager", check_supported, **options)
    lines = capsys.readouterr().out.splitlines()
    facts = {line[:10].strip(): line[11:] for line in lines if "Caution" not in line}
    return returned, facts, [line for line in lines if "Caution" in line]


def test_the_preflight_on_the_cpu_says_what_needs_a_gpu(capsys):
    (fields, refused), said, cautions = shown_by(capsys, CPU, minutes=3)
    assert (fields, cautions) == ({}, [])
    assert set(PRECISIONS) - set(refused) == {"fp32", "amp_bf16"}
    assert (said["it can"], said["it cannot"]) == ("fp32, bf16", "TF32, fp16, fp8")
    assert set(said) == {"GPU", "it can", "it cannot"}  # no minutes of a GPU


def pretend_gpu(monkeypatch, fp16="passed", capability=(8, 6), pids=(), blocking="0", **answers):
    """Let show_preflight see a made-up RTX 3090; `answers` are what NVML says of it."""
    major, minor = capability
    native = major >= 8
    properties = types.SimpleNamespace(
        name="Made-up RTX", major=major, minor=minor, total_memory=24 * 2**30, uuid="ab"
    )
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    monkeypatch.setattr(preflight, "check_fp16", lambda device: fp16)
    known = {
        "EnforcedPowerLimit": 350_000,
        "PowerManagementDefaultLimit": 350_000,
        "ClockInfo": 1395,
        "MaxClockInfo": 2100,
        "CurrentClocksThrottleReasons": 0,
        **answers,
    }
    functions = {
        f"nvmlDeviceGet{question}": lambda handle, answer=answer: answer
        for question, answer in known.items()
    }
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID={"GPU-ab": "handle"}.__getitem__,
        **functions,
    )
    before = {
        "used_mib": None if pids is None else 1234.5,
        "pids": None if pids is None else list(pids),
    }
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {"ab": before})


def test_the_preflight_says_what_an_ampere_can(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    (fields, refused), said, cautions = shown_by(capsys, GPU, minutes=3)
    assert (set(refused), cautions) == ({"fp8"}, [])
    assert fields == {"native_bf16": True, "fp16_check": "passed"} and set(fields) <= set(PLACES)
    assert "Made-up RTX" in said["GPU"] and "8.6" in said["GPU"]
    assert said["memory"].startswith("20.0 of 24.0 GiB")
    assert (said["it can"], said["it cannot"]) == ("fp32, TF32, fp16, bf16", "fp8")
    assert "3 " in said["minutes"] and len(said) == 5


@pytest.mark.parametrize(
    "message, kind", [("no kernel image is available", UserError), ("other", RuntimeError)]
)
def test_a_gpu_without_kernels_is_one_sentence(monkeypatch, message, kind):
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(preflight, "check_fp16", Mock(side_effect=RuntimeError(message)))
    with pytest.raises(kind, match=r"Made-up RTX.*cu126" if kind is UserError else message):
        show_preflight(GPU, "eager", check_supported)


def test_what_nvml_does_not_tell_is_no_caution(monkeypatch, capsys):
    names = ("EnforcedPowerLimit", "PowerManagementDefaultLimit", "CurrentClocksThrottleReasons")
    pretend_gpu(monkeypatch, pids=None, **dict.fromkeys(names))
    assert shown_by(capsys, GPU)[2] == []


@pytest.mark.parametrize(
    "state, warning",
    CASES["cautions"],
)
def test_each_caution_is_given_alone(monkeypatch, capsys, state, warning):
    pretend_gpu(monkeypatch, **state)
    (line,) = shown_by(capsys, GPU)[2]
    assert warning in line


@pytest.mark.parametrize("capability", [(7, 5), (7, 0), (6, 1)])
@pytest.mark.parametrize(
    "fp16, able", [("passed", "fp32, fp16"), ("a convolution is wrong", "fp32")]
)
def test_an_old_card_can_fp16_where_it_is_right(monkeypatch, capsys, fp16, able, capability):
    """As a T4, a V100 or a Pascal card."""
    pretend_gpu(monkeypatch, fp16=fp16, capability=capability)
    (fields, refused), said, _ = shown_by(capsys, GPU)
    assert fields == {"native_bf16": False, "fp16_check": fp16}
    assert said["it can"] == able and {"tf32", "amp_bf16", "bf16_true", "fp8"} <= set(refused)
    number = ".".join(map(str, capability))
    assert all(number in refused[name] for name in ("tf32", "amp_bf16", "fp8"))
    assert sum(fp16 in reason for reason in refused.values()) == 3 * (fp16 != "passed")


@pytest.mark.parametrize(
    "asked, runner, left",
    CASES["precisions on a t4"],
)
def test_a_t4_is_asked_for_neither_tf32_nor_bf16(monkeypatch, capsys, asked, runner, left):
    """But run_all.py, which plans a record of each, leaves out what the card lacks by itself."""
    pretend_gpu(monkeypatch, capability=(7, 5))
    monkeypatch.setenv(RUNNER_ENV, runner)
    for name in ("choose_device", "limit_memory"):
        monkeypatch.setattr(experiment, name, lambda *_: GPU)
    settings = types.SimpleNamespace(precisions=asked, execution="eager", memory_limit_gib=0.0)
    experiment.preflight(settings)
    assert settings.precisions == left
    said = capsys.readouterr().out.splitlines()
    assert sum("is left out" in line for line in said) == len(asked) - len(left)
