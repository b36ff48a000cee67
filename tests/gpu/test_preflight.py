"""The checks of a card before a run."""

import math
import types

import pytest
import torch
from small_training import CPU

from mixed_precision_study import record as records
from mixed_precision_study.errors import Unsupported, UserError
from mixed_precision_study.gpu.preflight import check_fp16, missing_kernels, show_preflight
from mixed_precision_study.precision import PRECISIONS, check_supported

GPU = torch.device("cuda")


NEW = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU126 = "https://download.pytorch.org/whl/cu126"


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((6, 0), OLD),  # P100
        ((6, 1), OLD),
        ((7, 0), OLD),  # V100
        ((7, 5), NEW),  # T4
        ((7, 5), OLD),
        ((8, 0), NEW),  # A100
        ((8, 6), ["sm_80"]),  # kernels serve later cards of the same generation
        ((8, 9), NEW),
        ((9, 0), NEW),
        ((9, 0), ["sm_90a"]),
        ((10, 0), NEW),
        ((12, 0), NEW),
        ((12, 0), ["sm_80", "compute_120"]),
        ((12, 0), ["sm_90", "compute_90"]),  # compiled by the driver when it is first used
        ((12, 1), ["sm_120f"]),
    ],
)
def test_a_pytorch_with_kernels_for_the_card_passes(capability, architectures):
    assert missing_kernels(capability, architectures) is None


@pytest.mark.parametrize(
    ("capability", "architectures", "advice"),
    [
        ((6, 0), NEW, CU126),
        ((7, 0), NEW, CU126),
        ((5, 2), NEW, CU126),
        ((3, 7), OLD, "use a GPU of compute capability 5.0 or newer"),  # K80
        ((3, 7), NEW, "use a GPU of compute capability 5.0 or newer"),
        ((8, 0), ["sm_86", "sm_90"], "install the newest"),  # kernels do not serve earlier cards
        ((12, 0), OLD, "install the newest: pip install -U torch torchvision"),
        ((9, 0), ["sm_80", "compute_100"], "install the newest"),
        ((7, 5), ["sm_80"], "install the newest"),
        ((8, 0), [], "install the newest"),
    ],
)
def test_a_pytorch_without_kernels_for_the_card_says_which_wheel_has_them(capability, architectures, advice):
    reason = missing_kernels(capability, architectures)
    assert reason.startswith(f"this PyTorch has no kernels for compute capability {capability[0]}.{capability[1]}; ")
    assert advice in reason
    assert (CU126 in reason) is (advice == CU126)


def test_fp16_on_the_cpu_is_right():
    assert check_fp16(CPU) == "passed"


def test_a_convolution_that_gives_nan_in_fp16_is_named(monkeypatch):
    exact = torch.nn.functional.conv2d

    def broken(image, *rest, **options):
        return exact(image, *rest, **options) * (math.nan if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(torch.nn.functional, "conv2d", broken)
    assert check_fp16(CPU) == "a convolution in fp16 differs from fp32 by nan of its norm"


def test_a_convolution_that_is_wrong_in_fp16_is_named_with_its_error(monkeypatch):
    exact = torch.nn.functional.conv2d

    def doubled(image, *rest, **options):
        return exact(image, *rest, **options) * (2 if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(torch.nn.functional, "conv2d", doubled)
    assert check_fp16(CPU) == "a convolution in fp16 differs from fp32 by 1 of its norm"


def shown_by(monkeypatch, device, **options):
    """Return (what show_preflight returns, the HTML it displays)."""
    shown = []
    monkeypatch.setattr("mixed_precision_study.gpu.preflight.display", shown.append)
    check = options.pop("check_supported", check_supported)
    fields = show_preflight(device, options.pop("execution", "eager"), list(PRECISIONS), check)
    assert len(shown) == 1
    return fields, shown[0].data


def test_the_preflight_on_the_cpu_greys_out_what_needs_a_gpu(monkeypatch, capsys):
    fields, table = shown_by(monkeypatch, CPU)
    assert fields == {}
    rows = [row for row in table.split("<tr")[1:] if "<td>" in row]
    assert len(rows) == len(PRECISIONS)
    for name, row in zip(PRECISIONS, rows, strict=True):
        can_run = name in ("fp32", "amp_bf16")
        assert f"<td>{name}</td>" in row
        assert ("#999999" not in row) is can_run
        assert ("can run here" if can_run else f"{name} needs an NVIDIA GPU; this run is on the CPU") in row
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["device", "CPU"]
    assert lines[-1].startswith("The checks took 0.")
    assert not any("WARNING" in line for line in lines)


def test_reasons_are_escaped_in_the_table(monkeypatch):
    def refuse(name, execution, device, fp16_check):
        raise Unsupported(f'execution="{execution}" < none')

    _, table = shown_by(monkeypatch, CPU, check_supported=refuse)
    assert table.count("execution=&quot;eager&quot; &lt; none") == len(PRECISIONS)
    assert "can run here" not in table


def pretend_gpu(monkeypatch, fp16="passed", events=1.0, launch=0.01, native=True, pids=(), architectures=NEW, **nvml):
    """Let show_preflight see a made-up RTX 3090; `nvml` has the answers of its driver."""
    properties = types.SimpleNamespace(name="Made-up RTX", major=8, minor=6, total_memory=24 * 2**30, uuid="ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    monkeypatch.setattr("mixed_precision_study.gpu.preflight.check_fp16", lambda device: fp16)
    monkeypatch.setattr(
        "mixed_precision_study.gpu.preflight.check_clock",
        lambda device: {"events_per_wall": events, "launch_per_wall": launch},
    )
    answers = {"EnforcedPowerLimit": 350_000, "PowerManagementDefaultLimit": 350_000, "ClockInfo": 1395}
    answers |= {"MaxClockInfo": 2100, "CurrentClocksEventReasons": 0, **nvml}
    asked = types.SimpleNamespace(ask=lambda question, *_: answers.get(question), driver=lambda: "580.1")
    monkeypatch.setattr("mixed_precision_study.gpu.preflight.NvmlGpu", {"ab": asked}.__getitem__)
    monkeypatch.setattr(
        "mixed_precision_study.gpu.nvml.GPUS_BEFORE_USE", {"ab": {"used_mib": 1234.5, "pids": pids and list(pids)}}
    )
    return asked


def test_the_preflight_shows_the_card_and_returns_what_goes_into_the_records(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    fields, table = shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    assert fields == {"native_bf16": True, "fp16_check": "passed"}
    assert set(fields) <= set(records.RunRecord.__dataclass_fields__)
    assert table.count("can run here") == len(PRECISIONS)
    for words in (
        "Made-up RTX, compute capability 8.6",
        "580.1",
        "native",
        "20,480 of 24,576 MiB",
        "0 processes, 1,23",
        "1,395 MHz now, 2,100 MHz at most",
        "350 W",
        "CUDA events        show 100.0% of the wall time",
        "launching          takes 1% of the time",
    ):
        assert words in text
    assert "throttled now      no\n" in text
    assert "WARNING" not in text


def test_the_preflight_without_nvml_says_unknown_and_never_zero(monkeypatch, capsys):
    asked = pretend_gpu(monkeypatch, pids=None)
    asked.ask, asked.driver = lambda question, *_: None, lambda: None
    monkeypatch.setattr("mixed_precision_study.gpu.nvml.GPUS_BEFORE_USE", {})
    shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    for what in ("driver", "others on the GPU", "SM clock", "power cap", "throttled now"):
        assert f"{what:<18} unknown\n" in text
    assert "WARNING" not in text


@pytest.mark.parametrize(
    ("state", "warning"),
    [
        ({"pids": (-5,)}, "another process is on this GPU"),
        ({"EnforcedPowerLimit": 250_000}, "the power cap is below the card's default"),
        ({"fp16": "a convolution is wrong"}, "fp16 arithmetic is wrong on this GPU: a convolution is wrong"),
        ({"launch": 0.6}, "every launch waits for the GPU (is CUDA_LAUNCH_BLOCKING set?)"),
        ({"events": 0.94}, "CUDA events and the wall clock disagree"),
        ({"events": 1.06}, "CUDA events and the wall clock disagree"),
    ],
)
def test_each_warning_is_given_alone(monkeypatch, capsys, state, warning):
    pretend_gpu(monkeypatch, **state)
    shown_by(monkeypatch, GPU)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert warning in warnings[0]


def test_a_throttled_card_is_told_why_before_the_run(monkeypatch, capsys):
    pretend_gpu(monkeypatch, CurrentClocksEventReasons=0x4 | 0x40 | 0x1)
    shown_by(monkeypatch, GPU)
    assert "throttled now      power cap, thermal, hardware\n" in capsys.readouterr().out


def test_modes_that_the_card_cannot_run_are_greyed_out_with_the_reason(monkeypatch):
    pretend_gpu(monkeypatch, fp16="a convolution is wrong", native=False)
    fields, table = shown_by(monkeypatch, GPU)
    assert fields == {"native_bf16": False, "fp16_check": "a convolution is wrong"}
    assert table.count("#999999") == 4  # three modes with fp16, and bf16
    assert table.count("fp16 arithmetic is wrong on this GPU: a convolution is wrong") == 3
    assert "would only emulate bfloat16" in table


def test_a_pytorch_without_kernels_stops_the_notebook_with_one_sentence(monkeypatch):
    pretend_gpu(monkeypatch, architectures=["sm_90"])
    with pytest.raises(UserError, match=r"Made-up RTX: this PyTorch has no kernels for compute capability 8\.6"):
        show_preflight(GPU, "eager", ["fp32"], check_supported)
