"""Attention in a slow kernel, where a GPU may have a fast one."""

import torch
from torch._subclasses import FakeTensorMode

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
    event = next((one for one in events if one.name() in SLOW), None)
    if event is None or not any("16" in dtype for _, dtype in seen.flops):
        return
    shapes = event.shapes()
    kind = getattr(torch, dtype_of(event))
    with FakeTensorMode():  # PyTorch chooses by types and shapes alone
        inputs = [torch.empty(one, dtype=kind, device=seen.device) for one in shapes[:4] if one]
    reasons = refusals_of(*inputs)
    # groups of heads have rules of their own
    if shapes[0][:-2] == shapes[1][:-2] and reasons.keys() >= {"flash", "cudnn"}:
        seen.found["slow attention"] = {"kernel": SLOW[event.name()], **reasons}
