"""diagnose() and attention: a slow kernel is named with PyTorch's reasons, and only where a fast
one would run.
"""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensor
from torch.nn import functional

from mixed_precision_study import diagnose
from mixed_precision_study.diagnosis import attention
from mixed_precision_study.diagnosis.mistakes import Diagnosis, find_mistakes
from mixed_precision_study.train.precision import backends_as_found, set_fp32_precision

EFFICIENT, MATH = attention.SLOW
BOTH = {"flash": "No mask.", "cudnn": "No mask, either."}
FOUND = [
    (EFFICIENT, "c10::BFloat16", BOTH, "memory-efficient"),
    (MATH, "c10::Half", {**BOTH, "efficient": "No mask."}, "math"),
    (EFFICIENT, "float", BOTH, "memory-efficient"),
    (EFFICIENT, "c10::BFloat16", {"cudnn": "Too old."}, None),  # FlashAttention would run
    ("aten::_scaled_dot_product_flash_attention", "c10::Half", BOTH, None),
    ("aten::mm", "c10::Half", BOTH, None),
]


def event_of(name, kind, shapes):
    return SimpleNamespace(
        name=lambda: name, shapes=lambda: shapes, dtypes=lambda: [kind] * len(shapes)
    )


def read(event, reasons, monkeypatch, types=("bfloat16",)):
    """Return (what was found of a call, what PyTorch was asked of)."""
    asked = []

    def refusals_of(*inputs):
        asked.append(inputs)
        return reasons

    monkeypatch.setattr(attention, "refusals_of", refusals_of)
    seen = Diagnosis(matmul_switch="tf32")
    seen.flops.update({("mm", dtype): 9.0 for dtype in types})
    attention.read_attention(seen, [event])
    return dict(find_mistakes(seen)).get("slow attention"), asked


@pytest.mark.parametrize(("name", "kind", "reasons", "kernel"), FOUND)
def test_a_slow_kernel_is_named_where_fast_ones_are_refused(
    name, kind, reasons, kernel, monkeypatch
):
    event = event_of(name, kind, [[2, 4, 8, 16], [2, 4, 9, 16], [2, 4, 9, 16], [2, 4, 8, 9]])
    found, asked = read(event, reasons, monkeypatch)
    assert (found or {}).get("kernel") == kernel
    if kernel:
        query, key, _, mask = asked[0]
        assert found.items() >= reasons.items()
        assert (query.shape, key.shape, mask.shape) == ((2, 4, 8, 16), (2, 4, 9, 16), (2, 4, 8, 9))
        assert isinstance(mask, FakeTensor)  # which takes no memory
        assert query.dtype == getattr(torch, kind.removeprefix("c10::").lower())


@pytest.mark.parametrize(
    ("types", "heads"), [(("float32",), 4), (("float32", "float64"), 4), (("bfloat16",), 2)]
)
def test_a_loop_in_fp32_and_groups_of_heads_are_left_alone(types, heads, monkeypatch):
    """Nothing better exists in fp32, and groups of heads have rules of their own."""
    shapes = [[2, 4, 8, 16], *[[2, heads, 8, 16]] * 2, []]
    found, _ = read(event_of(EFFICIENT, "float", shapes), BOTH, monkeypatch, types)
    assert found is None


def loop_of(kind):
    """Return a step of a small attention: `kind` says what keeps it from a fast kernel."""
    torch.manual_seed(0)
    size = 320 if kind == "head size" else 64
    inward, outward = (torch.nn.Linear(4 * size, count * 4 * size).cuda() for count in (3, 1))
    optimizer = torch.optim.AdamW([*inward.parameters(), *outward.parameters()], fused=True)
    text = torch.randn(4, 256, 4 * size, device="cuda")
    mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=kind != "TF32"):
            heads = inward(text).view(4, 256, 3, 4, size).permute(2, 0, 3, 1, 4)
            if kind == "mask":
                seen = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
            elif kind == "fp32":
                with torch.autocast("cuda", enabled=False):
                    seen = functional.scaled_dot_product_attention(*heads.float(), is_causal=True)
            else:
                seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
            loss = outward(seen.transpose(1, 2).flatten(2)).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


FAULTY = {"mask": "mask", "head size": "256", "fp32": "type", "switched off": "disabled"}


@pytest.fixture
def switches():
    with backends_as_found():
        set_fp32_precision("tf32")
        yield


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*FAULTY, "sound", "TF32"])
def test_on_a_gpu_faults_are_named_and_sound_loops_are_not(kind, switches):
    if kind in ("mask", "head size", "switched off"):
        torch.backends.cuda.enable_cudnn_sdp(False)  # which takes masks and large heads on some
    if kind == "switched off":
        torch.backends.cuda.enable_flash_sdp(False)
    report = diagnose(loop_of(kind), steps=5)
    print(report)
    found = {mistake.rule: mistake for mistake in report.mistakes}
    assert [*found] == ["slow attention"] * (kind in FAULTY)
    if kind in FAULTY:
        assert FAULTY[kind] in found["slow attention"].figures["flash"]
