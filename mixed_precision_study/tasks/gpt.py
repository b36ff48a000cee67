"""A GPT with head size 64: normalisation before each part, and word vectors that also give the
logits.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

HEAD_SIZE = 64
ATTENTION_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def computed_again(function: Any, *inputs: Any) -> Any:
    """Return function(*inputs), and keep nothing of it for the backward pass, which computes it
    once more. It must draw no random numbers.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def attend(heads: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return causal attention in this type, or in that of the precision where it is None.

    heads: queries, keys and values, (3, B, heads, T, HEAD_SIZE).
    """
    if dtype is None:
        return nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    with torch.autocast(heads.device.type, enabled=False):
        seen = nn.functional.scaled_dot_product_attention(*heads.to(dtype), is_causal=True)
    return seen.to(heads.dtype)


class Layer(nn.Module):
    """Attention, then a feed-forward network four times as wide; (B, T, width) to the same."""

    def __init__(self, width: int, attention_dtype: torch.dtype | None):
        super().__init__()
        self.attention_dtype = attention_dtype
        self.before_attention = nn.LayerNorm(width, bias=False)
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        self.before_feed_forward = nn.LayerNorm(width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(self.before_attention(x)).unflatten(-1, (3, -1, HEAD_SIZE))
        seen = attend(parts.permute(2, 0, 3, 1, 4), self.attention_dtype)
        x = x + self.outward(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.before_feed_forward(x))))


class Gpt(nn.Module):
    """Tokens (B, T) to logits (B, T, vocabulary); T is at most `context`.

    width: a multiple of HEAD_SIZE. attention_dtype: auto (that of the precision), bf16 or fp32.
    checkpointing: compute each layer once more in the backward pass. Initial weights are GPT-2's,
    smaller where a layer adds to the residual stream.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        context: int,
        vocabulary: int,
        attention_dtype: str = "auto",
        checkpointing: bool = False,
    ):
        super().__init__()
        self.checkpointing = checkpointing
        dtype = ATTENTION_DTYPES.get(attention_dtype)
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, dtype) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                adds = name.endswith(("outward.weight", "narrow.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers if adds else 1))

    def features(self, tokens: Tensor) -> Tensor:
        """Return what the logits are computed from, (B, T, width)."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = computed_again(layer, x) if self.checkpointing else layer(x)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.words.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(tokens))
