"""Attention in a slow kernel, where a GPU may have a fast one."""

import torch

from ..explain.attention import refusals_of
from .flops import dtype_of
from .mistakes import Diagnosis

SLOW = {
    "aten::_scaled_dot_product_efficient_attention": "memory-efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}


def read_attention(seen: Diagnosis, events: list) -> None:
    """Note the first call of attention that ran in a slow kernel because of how it is called, with
    PyTorch's reasons. Attention in fp32 counts only where the loop computes in 16 bits, too.
    """
    slow = [event for event in events if event.name() in SLOW]
    if not slow or not any("16" in dtype for _, dtype in seen.flops):
        return
    shapes, kind = slow[0].shapes(), getattr(torch, dtype_of(slow[0]))
    # a mask is as large as all scores, so only its shape is there
    mask = torch.empty((), dtype=kind, device=seen.device).expand(shapes[3]) if shapes[3] else None
    inputs = (torch.empty(shape, dtype=kind, device=seen.device) for shape in shapes[:3])
    reasons = refusals_of(*inputs, attn_mask=mask)
    # groups of heads have rules of their own
    if shapes[0][:-2] == shapes[1][:-2] and reasons.keys() >= {"flash", "cudnn"}:
        seen.found["slow attention"] = {"kernel": SLOW[slow[0].name()], **reasons}
