"""A recurrent word language model as in PyTorch's public example, and the text that it writes.

https://github.com/pytorch/examples/tree/main/word_language_model
"""

from typing import Any

import torch
from torch import Tensor, nn

NAMES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN (tanh)", "rnn_relu": "RNN (ReLU)"}
RNNS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": nn.RNN,
}


def title_of(settings: Any) -> str:
    """Return the model's name for people, with its size."""
    return f"{NAMES[settings.model]}, {settings.layers} × {settings.units} units"


class LanguageModel(nn.Module):
    """Predicts the next word: (words (T, B), hidden or None) -> (logits (T, B, padded vocabulary),
    hidden).

    The vocabulary of `words` is padded to a multiple of 8 with words that have no probability.
    The hidden state goes on to the next step without its history, so no gradient does.
    """

    def __init__(self, kind: str, words: int, units: int, layers: int, dropout: float):
        super().__init__()
        padded = (words + 7) // 8 * 8
        self.encoder = nn.Embedding(padded, units)
        extra = {"nonlinearity": kind.removeprefix("rnn_")} if kind.startswith("rnn_") else {}
        self.body = RNNS[kind](
            units, units, layers, dropout=dropout if layers > 1 else 0.0, **extra
        )
        self.decoder = nn.Linear(units, padded)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.constant_(self.decoder.bias[words:], -1e4)

    def forward(self, words: Tensor, hidden: Any = None) -> tuple[Tensor, Any]:
        output, hidden = self.body(self.dropout(self.encoder(words)), hidden)
        # an LSTM has two states
        kept = (
            tuple(part.detach() for part in hidden)
            if isinstance(hidden, tuple)
            else hidden.detach()
        )
        return self.decoder(self.dropout(output)), kept


def write_words(network: nn.Module, data: Any, settings: Any, device: torch.device) -> list[str]:
    """Return `settings.generate_words` words that a LanguageModel writes after a wikitext.Text,
    drawn with the seed.

    The network keeps its state from word to word. The text ends early if a prediction is not
    finite.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    hidden = None
    # as at the start of a line
    written = [data.vocabulary.index("<eos>") if "<eos>" in data.vocabulary else 0]
    while len(written) <= settings.generate_words:
        logits, hidden = network(torch.tensor([[written[-1]]], device=device), hidden)
        scores = logits[-1, 0, : len(data.vocabulary)].double().cpu()  # without the padding words
        if not scores.isfinite().all():
            break
        chances = ((scores - scores.max()) / settings.temperature).softmax(0)
        written.append(int(torch.multinomial(chances, 1, generator=generator).item()))
    return [data.vocabulary[number] for number in written[1:]]
