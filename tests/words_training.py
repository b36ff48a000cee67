"""What the tests of the language models share: small models of every kind, their data, and trainers."""

import torch
from made_up_data import settings_of

from mixed_precision_study.tasks import wikitext
from mixed_precision_study.tasks.language_model import LanguageModel
from mixed_precision_study.train.step import Trainer

CPU = torch.device("cpu")
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu", "transformer")
TINY = {"dataset": "synthetic", "batch_size": 4, "bptt": 5, "units": 16, "max_steps": 2, "lr": 5.0}
WORDS = 1001  # of the synthetic text on the CPU


def load(**changes):
    """Return (settings, data) of a small text."""
    settings = settings_of("lstm_language_model", **TINY | changes)
    return settings, wikitext.load(settings, CPU)


def make(kind, dropout=0.0, words=WORDS, seed=0):
    torch.manual_seed(seed)
    return LanguageModel(kind, words, 16, 2, dropout, 2, 5)


def compute_loss(model, batch, hidden):
    words, following = batch
    logits, hidden = model(words, hidden)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())
    parts = hidden if isinstance(hidden, tuple) else (hidden,)
    parts = tuple(None if part is None else part.detach() for part in parts)
    return loss, parts if len(parts) > 1 else parts[0]


def make_trainer(kind, precision="fp32", dropout=0.0, **options):
    torch.backends.mkldnn.set_flags(_enabled=precision != "amp_bf16")  # as Experiment.make_trainer does
    options = {"device": CPU, "lr": 5.0, "clip": 0.25, **options}
    return Trainer(make(kind, dropout), precision, compute_loss, **options)
