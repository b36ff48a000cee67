"""The encoder layers of a causal Transformer, as in PyTorch's public word language model.

https://github.com/pytorch/examples/tree/main/word_language_model
"""

import torch


class TransformerLayer(torch.nn.Module):
    """Attention to the words so far, then a feed-forward network; (T, B, units) -> (T, B, units).

    Each of the two is added to its input and normalised. The attention kernel applies the causal mask itself, so no
    mask has to be stored, cast or read. Initial weights are those of torch.nn.Transformer.
    """

    def __init__(self, units: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = torch.nn.Dropout(dropout)
        self.inward = torch.nn.Linear(units, 3 * units)
        self.outward = torch.nn.Linear(units, units)
        self.wide = torch.nn.Linear(units, units)
        self.narrow = torch.nn.Linear(units, units)
        self.attention_norm = torch.nn.LayerNorm(units)
        self.wide_norm = torch.nn.LayerNorm(units)
        for linear in (self.inward, self.outward, self.wide, self.narrow):
            torch.nn.init.xavier_uniform_(linear.weight)
        torch.nn.init.zeros_(self.inward.bias)
        torch.nn.init.zeros_(self.outward.bias)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inward(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 1, 3, 0, 4)  # each (B, heads, T, units of a head)
        dropout = self.dropout.p if self.training else 0.0
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.outward(seen.permute(2, 0, 1, 3).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attend(x)))
        widened = self.dropout(self.wide(x).relu())
        return self.wide_norm(x + self.dropout(self.narrow(widened)))


class Transformer(torch.nn.Module):
    """Transformer layers with the interface of a recurrent network: word vectors (T, B, units) -> (the same, None)."""

    def __init__(self, units: int, heads: int, layers: int, dropout: float):
        super().__init__()
        self.layers = torch.nn.Sequential(*(TransformerLayer(units, heads, dropout) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(units)

    def forward(self, vectors: torch.Tensor, hidden: None = None) -> tuple[torch.Tensor, None]:
        return self.norm(self.layers(vectors)), None


def sinusoids(length: int, units: int) -> torch.Tensor:
    """Return position encodings (length, 1, units): sine and cosine at wavelengths from 2 pi to 20,000 pi."""
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, units, 2) / units)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, None, :units]
