"""The language models one by one: each sees nothing ahead and writes text."""

import pytest
import torch
from conftest import settings_of
from torch.nn import functional

from mixed_precision_study.tasks import wikitext
from mixed_precision_study.tasks.language_model import LanguageModel, write_words

CPU = torch.device("cpu")
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WORDS = 1001  # of the synthetic text on the CPU


def load(**changes):
    """Return (settings, data) of a small text."""
    given = {"dataset": "synthetic", "batch_size": 4, "bptt": 5, "units": 16}
    settings = settings_of("lstm_language_model", given | changes)
    return settings, wikitext.load(settings, CPU)


def make(kind, dropout=0.0, words=WORDS):
    torch.manual_seed(0)
    return LanguageModel(kind, words, 16, 2, dropout)


def compute_loss(network, words, following):
    return functional.cross_entropy(network(words)[0].flatten(0, 1).float(), following.flatten())


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_probability_and_learns_nothing(kind):
    network, text = make(kind).eval(), torch.randint(WORDS, (6, 3))
    before = network(text[:5])[0]
    assert before.softmax(-1)[..., WORDS:].max() == 0
    loss = compute_loss(network, text[:5], text[1:])
    exact = functional.cross_entropy(before[..., :WORDS].flatten(0, 1), text[1:].flatten())
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    loss.backward()
    for weight in (network.decoder.weight, network.decoder.bias, network.encoder.weight):
        assert weight.grad[WORDS:].abs().max() == 0
    assert network.decoder.weight.grad[:WORDS].abs().max() > 0
    for words in (16, 33):  # any vocabulary is padded
        assert make(kind, words=words)(text[:5] % 16)[0].shape == (5, 3, -(-words // 8) * 8)


def writing(count, **changes):
    """Return a function that has a network write so many words."""
    settings, data = load(generate_words=count, **changes)
    return lambda network: write_words(network, data, settings, CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_writing_repeats_with_the_seed_and_never_writes_padding(kind):
    network, write = make(kind).eval(), writing(30)
    with torch.no_grad():
        # as likely as before among themselves, and still never padding
        network.decoder.bias[:WORDS] -= 5000
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first, second = write(network), write(network)
        # a following repetition draws what it would have drawn
        assert torch.get_rng_state().equal(state)
        other = writing(30, seed=1)(network)
    assert first == second != other
    assert len(first) == len(other) == 30
    assert set(first + other) <= set(load()[1].vocabulary)
    assert len(set(first)) > 10
