"""Which kernel computed attention: told by names, forced by switches, and why no other one ran."""

import csv
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import run_cells
from explained_training import make_record
from torch.nn import functional
from torch.profiler import profile

from mixed_precision_study.explain.attention import (
    SWITCHES,
    backends_in,
    read_attention,
    refusals_in,
    refusals_of,
    use_attention,
)
from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.store.record import load, write_record
from mixed_precision_study.train.precision import backends_as_found, compiled

with Path(__file__).with_name("kernel_names.csv").open(newline="") as lines:
    ORDINARY = {row["name"] for row in csv.DictReader(lines) if row["family"] != "attention"}
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0"
FLASH = "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>"
EFFICIENT = "fmha_cutlass{}_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
RAN = [
    ([CUDNN.format("fprop"), CUDNN.format("bprop")], ("cudnn", "cudnn")),
    ([FLASH.format("fwd"), FLASH.format("bwd_dq_dk_dv_loop_seqk_parallel")], ("flash", "flash")),
    ([EFFICIENT.format("F"), EFFICIENT.format("B")], ("efficient", "efficient")),
    ([EFFICIENT.format("F"), FLASH.format("fwd")], ("flash + efficient", None)),
    (["void flash_bwd_convert_dq_kernel<x>", CUDNN.format("fprop")], ("cudnn", "flash")),
    (["cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>"], ("flash", None)),
    ([], (None, None)),
]


@pytest.mark.parametrize(("kernels", "ran"), RAN)
def test_a_backend_is_told_by_the_names_of_its_kernels(kernels, ran):
    names = {*kernels, *ORDINARY}
    assert (backends_in(names, backward=False), backends_in(names, backward=True)) == ran


def attend(dtype=torch.float32, size=16):
    """Return what attention gives of inputs that need gradients."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 4, 16, size, generator=generator).to(dtype) for _ in range(3)]
    return functional.scaled_dot_product_attention(
        *(one.requires_grad_() for one in inputs), is_causal=True
    )


def operations(function):
    """Return whether the CPU's flash attention ran, forward and backward, in a second call."""
    function().sum().backward()
    with profile() as profiler:
        function().sum().backward()
    names = {event.name for event in profiler.events()}
    return "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in names


@pytest.fixture(autouse=True)
def switches():
    with backends_as_found():
        yield


def trainer_of(step=attend):
    """Return what read_attention() needs of a Trainer, whose loss is that of a step."""
    mode = SimpleNamespace(autocast=lambda: torch.autocast("cpu", enabled=False))
    return SimpleNamespace(compute_loss=lambda *_: step(), network=None, mode=mode)


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_switches_force_a_backend_in_eager_mode_and_compiled(compiles):
    found = {}
    for asked in ("flash", "math", "flash"):
        torch._dynamo.reset()
        use_attention(asked, trainer_of(), lambda: iter([None]))
        found[asked] = operations(compiled(attend) if compiles else attend)
        assert {name for name in SWITCHES if enabled(name)} == {asked}
    assert found == {"flash": True, "math": False}


def enabled(name):
    word = "mem_efficient" if name == "efficient" else name
    return getattr(torch.backends.cuda, f"{word}_sdp_enabled")()


def test_what_names_no_backend_changes_no_switch():
    for asked in (None, "auto", "se", True, 3):
        use_attention(asked, None, None)
    assert all(enabled(name) for name in SWITCHES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there they may run")
@pytest.mark.parametrize("asked", ["cudnn", "efficient"])
def test_a_backend_that_cannot_run_is_unsupported(asked):
    says = pytest.raises(Unsupported, match=f"{asked} cannot run here: It needs an NVIDIA GPU")
    with says, backends_as_found():
        use_attention(asked, trainer_of(), lambda: iter([None]))
    given = {"dataset": "synthetic", "precisions": ["fp32"], "max_steps": 1, "attention": asked}
    given |= {"width": 64, "layers": 1, "context": 16}
    (record,) = run_cells("transformer", "run", **given)["records"]
    assert (record.status, record.attention_forward) == ("unsupported", None)
    assert all(enabled(name) for name in SWITCHES)


@pytest.fixture
def with_gpu(monkeypatch):
    """Pretend that there is a GPU whose flash attention takes 16 bits alone and cuDNN none."""

    def can_use(name):
        def checked(call, debug):
            assert debug
            if name == "cudnn" or (name == "flash" and call.query.dtype == torch.float32):
                warnings.warn(
                    f"{name} wants half (Triggered internally at /x.cpp:1.)", stacklevel=2
                )
                warnings.warn("another one", stacklevel=2)
                return False
            return True

        return checked

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    for name in ("cudnn", "flash", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", can_use(name))


@pytest.mark.parametrize("autocast", [False, True])
def test_reasons_are_of_the_types_that_autocast_gives(autocast, with_gpu, monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: autocast)
    refusals = refusals_in(trainer_of(), None)
    assert refusals["cudnn"] == "cudnn wants half"
    assert ("flash" in refusals) is not autocast and "efficient" not in refusals
    query = torch.zeros(1, 4, 8, 16, dtype=torch.half)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    given = {"attn_mask": mask, "dropout_p": 0.1, "scale": 2.0, "enable_gqa": True}
    assert {*refusals_of(query, query[:, :2], query[:, :2], **given)} == {"cudnn"}
    in_order = trainer_of(lambda: functional.scaled_dot_product_attention(*[query] * 3, mask, 0.1))
    assert {*refusals_in(in_order, None)} >= {"cudnn"}


def test_attention_is_found_in_modules_of_pytorch():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    assert refusals_in(trainer_of(lambda: layer(torch.zeros(1, 4, 16))), None) is not None
    assert refusals_in(trainer_of(lambda: functional.softmax(torch.zeros(3), 0)), None) is None
    assert functional.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"


def record_of(kernels=(), asked="auto"):
    """Return a record whose profile has seen these kernels."""
    record = make_record(kernels_per_step=9.0)
    record.settings["attention"] = asked
    record.attention_forward = backends_in(kernels, backward=False)
    record.attention_backward = backends_in(kernels, backward=True)
    return record


def test_a_record_says_what_ran_and_why_no_other_did(with_gpu):
    record = record_of(RAN[2][0])
    read_attention(record, trainer_of(), iter([None]))
    assert (record.attention_forward, record.attention_backward) == ("efficient", "efficient")
    assert record.attention_reason == "cudnn: cudnn wants half flash: flash wants half"
    record = record_of()
    read_attention(record, trainer_of(), iter([None]))
    assert record.attention_forward == record.attention_backward == "math"


def test_without_a_profile_or_call_nothing_is_said_of_a_kernel(with_gpu):
    record = make_record()
    read_attention(record, trainer_of(), iter([None]))
    assert record.attention_forward is None and "profile" in record.attention_reason
    record = record_of()
    read_attention(record, trainer_of(lambda: None), iter([None]))
    assert record.attention_forward is None and "profile" in record.attention_reason


@pytest.mark.parametrize("asked", ["cudnn", "flash", "math", "efficient", "auto", "se", None])
def test_a_training_with_another_backend_than_asked_has_failed(asked, tmp_path):
    record = record_of(RAN[2][0], asked)
    record.status, record.batch_size_used, record.epoch_seconds = "ok", 8, [1.0]
    written = load(write_record(record, tmp_path))
    wrong = asked in SWITCHES and asked != "efficient"
    assert (written.status, written.epoch_seconds) == (("failed", []) if wrong else ("ok", [1.0]))
    assert not wrong or f"{asked} was asked for, but efficient ran" in written.reason


GPU_CASES = [
    (torch.bfloat16, 64, {"cudnn": "", "flash": "", "efficient": ""}),
    (torch.float32, 64, {"cudnn": "type", "flash": "type"}),
    (torch.bfloat16, 320, {"flash": "256"}),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "size", "refused"), GPU_CASES)
def test_a_gpus_reasons_are_of_type_and_head_size(dtype, size, refused, capfd):
    inputs = [torch.randn(2, 4, 128, size, device="cuda", dtype=dtype, requires_grad=True)] * 3
    found = refusals_of(*inputs, is_causal=True)
    wanted = {name for name, word in refused.items() if word}
    assert wanted <= found.keys() and all(refused[name] in found[name] for name in wanted)
    assert all(len(reason) > 20 for reason in found.values())
    assert capfd.readouterr().err == ""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "compile", "compile_cuda_graph"])
@pytest.mark.parametrize("asked", ["cudnn", "flash", "efficient", "math"])
def test_the_backend_that_is_asked_for_runs_on_a_gpu(asked, execution):
    given = {"dataset": "synthetic", "width": 128, "layers": 2, "context": 128, "max_steps": 10}
    given |= {"epochs": 1, "precisions": ["amp_bf16"], "execution": execution}
    (record,) = run_cells("transformer", "run", **given, attention=asked)["records"]
    print(asked, execution, record.status, record.reason, record.attention_reason)
    assert record.status == "ok" and record.profile_reason is None
    assert (record.attention_forward, record.attention_backward) == (asked, asked)


@pytest.mark.gpu
@pytest.mark.parametrize("asked", ["cudnn", "flash"])
def test_tf32_is_unsupported_where_a_kernel_takes_16_bits_alone(asked):
    given = {
        "dataset": "synthetic",
        "width": 64,
        "layers": 1,
        "context": 64,
        "max_steps": 3,
        "precisions": ["tf32"],
        "attention": asked,
    }
    (record,) = run_cells("transformer", "run", **given)["records"]
    assert record.status == "unsupported" and asked in record.reason
    cast = run_cells("transformer", "run", **given, attention_dtype="bf16")
    assert cast["records"][0].attention_forward == asked, cast["records"][0].reason
