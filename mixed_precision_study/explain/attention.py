"""Which kernel computed attention, and why PyTorch took no other one.

PyTorch chooses among four for scaled_dot_product_attention. Its switches decide which of them may
run, and torch.compile reads them while it traces. A context around a compiled model changes nothing
where AOTAutograd has the model in its cache, whose key holds no switch.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn import functional

from ..parameters import Unsupported

SWITCHES = {
    "cudnn": cuda.enable_cudnn_sdp,
    "flash": cuda.enable_flash_sdp,
    "efficient": cuda.enable_mem_efficient_sdp,
    "math": cuda.enable_math_sdp,
}
# by the names of their kernels; math has ordinary ones
KERNELS = {"cudnn": r"cudnn\w*sdpa", "flash": r"flash_(fwd|bwd)|FlashAttn", "efficient": "fmha_cut"}
BACKWARD = r"_bprop|_bwd|Bwd|cutlassB"


def backends_in(kernels: Iterable[str], backward: bool) -> str | None:
    """Return the backends whose kernels ran, such as "flash", or None where no name tells one."""
    names = [name for name in kernels if bool(re.search(BACKWARD, name)) is backward]
    found = [one for one, words in KERNELS.items() if any(re.search(words, it) for it in names)]
    return " + ".join(found) or None


def refusal_of(can_use: Callable, call: Any) -> str | None:
    """Return PyTorch's reason why a backend cannot compute a call, or None where it can.

    These checks write their reasons to stderr, since they are bound without PyTorch's handler of
    warnings. A method of a tensor has that handler, so what it calls warns in Python.
    """
    with warnings.catch_warnings(record=True, action="always") as said:
        answer = torch.zeros(1, device="cpu").apply_(lambda _: can_use(call, True))
    reasons = [str(one.message).partition(" (Triggered")[0] for one in said]
    return None if answer else [*reasons, "PyTorch gives no reason."][0]


def refusals_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **_: Any,
) -> dict:
    """Return {backend: PyTorch's reason} of those that cannot compute a call of
    scaled_dot_product_attention, whose arguments these are.
    """
    if not torch.cuda.is_available():
        return dict.fromkeys(["cudnn", "efficient"], "It needs an NVIDIA GPU.")
    inputs = [query, key, value]
    if torch.is_autocast_enabled("cuda"):  # which casts them before the choice
        inputs = [one.to(torch.get_autocast_dtype("cuda")) for one in inputs]
    call = cuda.SDPAParams(*inputs, attn_mask, dropout_p, is_causal, enable_gqa)
    asked = {name: getattr(cuda, f"can_use_{name}_attention") for name in KERNELS}
    said = {name: refusal_of(can_use, call) for name, can_use in asked.items()}
    return {name: reason for name, reason in said.items() if reason}


def refusals_in(trainer: Any, batch: Any) -> dict | None:
    """Return refusals_of() the first attention of a forward pass, or None where there is none."""
    found: list = []
    attend = functional.scaled_dot_product_attention

    def noted(*inputs: Any, **options: Any) -> Tensor:
        if not found:
            found.append(refusals_of(*inputs, **options))
        return attend(*inputs, **options)

    patched = patch.object(functional, "scaled_dot_product_attention", noted)
    with patched, suppress(RuntimeError), trainer.mode.autocast():
        trainer.compute_loss(trainer.network, batch, None)
    return found[0] if found else None


def use_attention(asked: Any, trainer: Any, batches: Callable) -> None:
    """Have PyTorch compute attention by the one backend that is asked for from now on. Anything
    that is no backend, such as "auto", changes nothing.

    Raises Unsupported, with PyTorch's reason, where it cannot run on the first of batches().
    """
    if asked not in [*SWITCHES]:  # which may be a list
        return
    for name, switch in SWITCHES.items():
        switch(name == asked)
    if reason := (refusals_in(trainer, next(batches())) or {}).get(asked):
        raise Unsupported(f"attention {asked} cannot run here: {reason}")


def read_attention(record: Any, trainer: Any, batches: Iterator) -> None:
    """Note which backend computed attention, as the profile has seen it, and why no other did."""
    refusals = refusals_in(trainer, next(batches))
    if refusals is None or record.kernels_per_step is None:
        record.attention_reason = "no profile has seen scaled_dot_product_attention"
        return
    ran = [record.attention_forward or "math", record.attention_backward or "math"]
    record.attention_forward, record.attention_backward = ran
    others = [f"{name}: {reason}" for name, reason in refusals.items() if name not in ran]
    record.attention_reason = " ".join(others) or None
