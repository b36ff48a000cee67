"""A word language model as in PyTorch's public example: an RNN or a causal Transformer, and the
text that it writes.

https://github.com/pytorch/examples/tree/main/word_language_model
"""

from typing import Any

import torch

NAMES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN (tanh)", "rnn_relu": "RNN (ReLU)"}
RNNS = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn_tanh": torch.nn.RNN,
    "rnn_relu": torch.nn.RNN,
}


def title_of(settings: Any) -> str:
    """Return the model's name for people, with its size."""
    if settings.model == "transformer":
        return f"Transformer, width {settings.units}"
    return f"{NAMES[settings.model]}, {settings.layers} × {settings.units} units"


class TransformerLayer(torch.nn.Module):
    """Attention to the words so far, then a feed-forward network; (T, B, units) -> (T, B, units).

    Each of the two is added to its input and normalised. The attention kernel applies the causal
    mask itself, so no mask has to be stored, cast or read. Initial weights are those of
    torch.nn.Transformer.
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
        seen = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        return self.outward(seen.permute(2, 0, 1, 3).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attend(x)))
        widened = self.dropout(self.wide(x).relu())
        return self.wide_norm(x + self.dropout(self.narrow(widened)))


def sinusoids(length: int, units: int) -> torch.Tensor:
    """Return position encodings (length, 1, units): sine and cosine at wavelengths from 2 pi to
    20,000 pi.
    """
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, units, 2) / units)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, None, :units]


class LanguageModel(torch.nn.Module):
    """Predicts the next word: (words (T, B), hidden or None) -> (logits (T, B, padded vocabulary),
    hidden).

    The vocabulary of `words` is padded to a multiple of 8 with words that have no probability.
    The hidden state goes on to the next step without its history, so no gradient does.
    `longest` is the Transformer's largest T; its hidden state is always None. As in the public
    example it has dropout on its word vectors, at most PyTorch's default of 0.1 within its layers,
    and none before the output.
    """

    def __init__(
        self,
        kind: str,
        words: int,
        units: int,
        layers: int,
        dropout: float,
        heads: int = 1,
        longest: int = 512,
    ):
        super().__init__()
        padded = (words + 7) // 8 * 8
        self.encoder = torch.nn.Embedding(padded, units)
        self.register_buffer("places", None, persistent=False)
        self.body: torch.nn.Module
        if kind == "transformer":
            # a buffer: it follows the weights to their device and type
            self.places = sinusoids(longest, units)
            parts = [TransformerLayer(units, heads, min(dropout, 0.1)) for _ in range(layers)]
            self.body = torch.nn.Sequential(*parts, torch.nn.LayerNorm(units))
        else:
            extra: dict[str, Any] = (
                {"nonlinearity": kind.removeprefix("rnn_")} if kind.startswith("rnn_") else {}
            )
            self.body = RNNS[kind](
                units, units, layers, dropout=dropout if layers > 1 else 0.0, **extra
            )
        self.decoder = torch.nn.Linear(units, padded)
        self.dropout = torch.nn.Dropout(dropout)
        self.last_dropout = torch.nn.Dropout(0.0 if kind == "transformer" else dropout)
        torch.nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        torch.nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        torch.nn.init.zeros_(self.decoder.bias)
        torch.nn.init.constant_(self.decoder.bias[words:], -1e4)

    def forward(self, words: torch.Tensor, hidden: Any = None) -> tuple[torch.Tensor, Any]:
        vectors = self.encoder(words)
        if self.places is not None:  # attention alone does not see the order of the words
            vectors = vectors * vectors.shape[-1] ** 0.5 + self.places[: len(words)]
            output = self.body(self.dropout(vectors))
        else:
            output, hidden = self.body(self.dropout(vectors), hidden)
            # an LSTM has two states
            hidden = (
                tuple(part.detach() for part in hidden)
                if isinstance(hidden, tuple)
                else hidden.detach()
            )
        return self.decoder(self.last_dropout(output)), hidden


def write_words(
    network: torch.nn.Module, data: Any, settings: Any, device: torch.device
) -> list[str]:
    """Return `settings.generate_words` words that a LanguageModel writes after a wikitext.Text,
    drawn with the seed.

    A recurrent network keeps its state from word to word, but the Transformer reads the last `bptt`
    words each time. The text ends early if a prediction is not finite.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    hidden = None
    # as at the start of a line
    written = [data.vocabulary.index("<eos>") if "<eos>" in data.vocabulary else 0]
    while len(written) <= settings.generate_words:
        known = torch.tensor(
            written[-settings.bptt :] if hidden is None else written[-1:], device=device
        )
        logits, hidden = network(known[:, None], hidden)
        scores = logits[-1, 0, : len(data.vocabulary)].double().cpu()  # without the padding words
        if not scores.isfinite().all():
            break
        chances = ((scores - scores.max()) / settings.temperature).softmax(0)
        written.append(int(torch.multinomial(chances, 1, generator=generator).item()))
    return [data.vocabulary[number] for number in written[1:]]
