"""The checks of a GPU before a run."""

import math
import types

import pytest
import torch
from small_training import CPU

from mixed_precision_study.errors import Unsupported, UserError
from mixed_precision_study.gpu import nvml, preflight
from mixed_precision_study.gpu.preflight import check_fp16, missing_kernels, show_preflight
from mixed_precision_study.precision import PRECISIONS, check_supported
from mixed_precision_study.record import RunRecord

GPU = torch.device("cuda")
NEW = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((6, 1), OLD),
        ((7, 5), NEW),  # T4
        ((8, 6), ["sm_80"]),  # kernels serve later GPUs of the same generation
        ((8, 9), NEW),
        ((9, 0), ["sm_90a"]),
        ((12, 0), ["sm_80", "compute_120"]),
        ((12, 0), ["sm_90", "compute_90"]),  # compiled by the driver when it is first used
        ((12, 1), ["sm_120f"]),
    ],
)
def test_a_pytorch_with_kernels_for_the_gpu_passes(capability, architectures):
    assert missing_kernels(capability, architectures) is None


@pytest.mark.parametrize(
    ("capability", "architectures", "advice"),
    [
        ((7, 0), NEW, "whl/cu126"),  # V100
        ((5, 2), NEW, "whl/cu126"),
        ((3, 7), OLD, "5.0 or newer"),  # K80
        ((8, 0), ["sm_86", "sm_90"], "newest"),  # kernels do not serve earlier GPUs
        ((12, 0), OLD, "newest"),
        ((9, 0), ["sm_80", "compute_100"], "newest"),
        ((7, 5), ["sm_80"], "newest"),
        ((8, 0), [], "newest"),
    ],
)
def test_a_pytorch_without_kernels_for_the_gpu_says_which_wheel_has_them(capability, architectures, advice):
    reason = missing_kernels(capability, architectures)
    assert f"{capability[0]}.{capability[1]}" in reason
    assert [other for other in ("whl/cu126", "newest", "5.0 or newer") if other in reason] == [advice]


@pytest.mark.parametrize(("factor", "error"), [(1, None), (2, "by 1 "), (math.nan, "by nan ")])
def test_wrong_fp16_convolutions_are_named_with_their_error(monkeypatch, factor, error):
    exact = torch.nn.functional.conv2d

    def conv2d(image, *rest, **options):
        return exact(image, *rest, **options) * (factor if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    result = check_fp16(CPU)
    if error is None:
        assert result == "passed"
    else:
        assert "convolution" in result and error in result


def shown_by(monkeypatch, device, check=check_supported):
    """Return (what show_preflight returns, the HTML it displays)."""
    shown = []
    monkeypatch.setattr(preflight, "display", shown.append)
    fields = show_preflight(device, "eager", list(PRECISIONS), check)
    (table,) = shown
    return fields, table.data


def test_the_preflight_on_the_cpu_greys_out_what_needs_a_gpu(monkeypatch, capsys):
    fields, table = shown_by(monkeypatch, CPU)
    assert fields == {}
    rows = [row for row in table.split("<tr")[1:] if "<td>" in row]
    for name, row in zip(PRECISIONS, rows, strict=True):
        can_run = name in ("fp32", "amp_bf16")
        assert f"<td>{name}</td>" in row
        assert ("#999999" not in row) is ("can run here" in row) is can_run
    text = capsys.readouterr().out
    assert text.split()[:2] == ["device", "CPU"]
    assert "WARNING" not in text


def test_reasons_are_escaped_in_the_table(monkeypatch):
    def refuse(name, execution, device, fp16_check):
        raise Unsupported(f'execution="{execution}" < none')

    _, table = shown_by(monkeypatch, CPU, refuse)
    assert table.count("execution=&quot;eager&quot; &lt; none") == len(PRECISIONS)


def pretend_gpu(
    monkeypatch, fp16="passed", events=1.0, launch=0.01, native=True, pids=(), architectures=NEW, **answers
):
    """Let show_preflight see a made-up RTX 3090; `answers` are what NVML says of it."""
    properties = types.SimpleNamespace(name="Made-up RTX", major=8, minor=6, total_memory=24 * 2**30, uuid="ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    clock = {"events_per_wall": events, "launch_per_wall": launch}
    monkeypatch.setattr(preflight, "check_fp16", lambda device: fp16)
    monkeypatch.setattr(preflight, "check_clock", lambda device: clock)
    known = {"EnforcedPowerLimit": 350_000, "PowerManagementDefaultLimit": 350_000, "ClockInfo": 1395}
    known |= {"MaxClockInfo": 2100, "throttle_bits": 0, "driver": "580.1", **answers}
    gpu = types.SimpleNamespace(
        ask=lambda question, *_: known[question],
        throttle_bits=lambda: known["throttle_bits"],
        driver=lambda: known["driver"],
    )
    monkeypatch.setattr(preflight, "NvmlGpu", {"ab": gpu}.__getitem__)
    before = {"used_mib": None if pids is None else 1234.5, "pids": None if pids is None else list(pids)}
    monkeypatch.setattr(nvml, "GPUS_BEFORE_USE", {"ab": before})


def test_the_preflight_shows_the_gpu_and_returns_fields_of_the_record(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    fields, table = shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    assert fields == {"native_bf16": True, "fp16_check": "passed"}
    assert set(fields) <= set(RunRecord.__dataclass_fields__)
    assert table.count("can run here") == len(PRECISIONS) - 1  # it is an Ampere, which has no fp8
    for figure in (
        "Made-up RTX",
        "8.6",
        "580.1",
        "20,480 of 24,576 MiB",
        "0 processes",
        "1,23",
        "1,395 MHz",
        "2,100 MHz",
    ):
        assert figure in text
    for figure in ("350 W", "100.0%", "1%", "throttled now      no\n"):
        assert figure in text
    assert "WARNING" not in text


def test_the_preflight_without_nvml_says_unknown_and_never_zero(monkeypatch, capsys):
    names = (
        "EnforcedPowerLimit",
        "PowerManagementDefaultLimit",
        "ClockInfo",
        "MaxClockInfo",
        "throttle_bits",
        "driver",
    )
    pretend_gpu(monkeypatch, pids=None, **dict.fromkeys(names))
    shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    for what in ("driver", "others on the GPU", "SM clock", "power cap", "throttled now"):
        assert f"{what:<18} unknown\n" in text
    assert "WARNING" not in text


@pytest.mark.parametrize(
    ("state", "warning"),
    [
        ({"pids": (-5,)}, "another process"),
        ({"EnforcedPowerLimit": 250_000}, "power cap"),
        ({"fp16": "a convolution is wrong"}, "a convolution is wrong"),
        ({"launch": 0.6}, "CUDA_LAUNCH_BLOCKING"),
        ({"events": 0.94}, "CUDA events"),
        ({"events": 1.06}, "CUDA events"),
    ],
)
def test_each_warning_is_given_alone(monkeypatch, capsys, state, warning):
    pretend_gpu(monkeypatch, **state)
    shown_by(monkeypatch, GPU)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert warning in line


def test_a_throttled_gpu_is_told_why_before_the_run(monkeypatch, capsys):
    pretend_gpu(monkeypatch, throttle_bits=0x4 | 0x40 | 0x1)
    shown_by(monkeypatch, GPU)
    assert "throttled now      power cap, thermal, hardware\n" in capsys.readouterr().out


def test_modes_that_the_gpu_cannot_run_are_greyed_out_with_the_reason(monkeypatch):
    pretend_gpu(monkeypatch, fp16="a convolution is wrong", native=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    fields, table = shown_by(monkeypatch, GPU)
    assert fields == {"native_bf16": False, "fp16_check": "a convolution is wrong"}
    assert table.count("#999999") == 7  # three modes with fp16, tf32, two with bf16, and fp8
    assert table.count("a convolution is wrong") == 3


def test_a_pytorch_without_kernels_stops_the_notebook(monkeypatch):
    pretend_gpu(monkeypatch, architectures=["sm_90"])
    with pytest.raises(UserError, match=r"Made-up RTX.*8\.6"):
        show_preflight(GPU, "eager", ["fp32"], check_supported)
