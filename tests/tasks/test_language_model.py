"""The language models one by one: each learns in both precisions of the CPU, sees nothing ahead, and writes text."""

import math
from types import SimpleNamespace

import pytest
import torch
from words_training import CPU, KINDS, WORDS, compute_loss, load, make, make_trainer

from mixed_precision_study.tasks.language_model import write_words
from mixed_precision_study.train.step import evaluating


@pytest.fixture(autouse=True)
def same_backend():
    """oneDNN is left as it was: training in bf16 on the CPU switches it off."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.set_flags(_enabled=before)


def batches():
    return load()[1].train_batches(0, torch.float32, 4)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns(kind, precision):
    trainer, batch, hidden = make_trainer(kind, precision), next(batches()), None
    losses = []
    for _ in range(8):
        loss, hidden = trainer.step(batch)
        losses.append(loss.item())
    assert loss.dtype == torch.float32
    assert abs(losses[0] - math.log(WORDS)) < 1  # it begins by guessing
    assert losses[-1] < losses[0] - 0.3
    assert (hidden is None) is (kind == "transformer")
    with evaluating(trainer) as network:
        assert network(batch[0], hidden)[0].shape == (5, 4, 1008)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_words_have_no_probability_and_learn_nothing(kind):
    network, text = make(kind), torch.randint(WORDS, (6, 3))
    logits = network(text[:5])[0]
    assert logits.softmax(-1)[..., WORDS:].max() == 0
    loss, _ = compute_loss(network, (text[:5], text[1:]), None)
    exact = torch.nn.functional.cross_entropy(logits[..., :WORDS].flatten(0, 1), text[1:].flatten())
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    loss.backward()
    for weight in (network.decoder.weight, network.decoder.bias, network.encoder.weight):
        assert weight.grad[WORDS:].abs().max() == 0
    assert network.decoder.weight.grad[:WORDS].abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_sees_later_words(kind):
    network, text = make(kind).eval(), torch.randint(WORDS, (5, 3))
    changed = text.clone()
    changed[3, 1] = (changed[3, 1] + 1) % WORDS
    with torch.no_grad():
        before, after = network(text)[0], network(changed)[0]
    assert before[:3].equal(after[:3])
    assert not before[3:, 1].allclose(after[3:, 1])  # but what comes then depends on it
    assert before[:, [0, 2]].allclose(after[:, [0, 2]])  # and other columns do not


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("words", [16, 33])
def test_every_recurrent_model_builds_for_any_vocabulary(kind, words):
    text = torch.randint(words, (6, 3))
    assert make(kind, words=words)(text)[0].shape == (6, 3, -(-words // 8) * 8)


# Writing


def writing(count, **changes):
    """Return a function that has a network write so many words."""
    settings, data = load(generate_words=count, **changes)
    return lambda network: write_words(network, data, settings, CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_writing_repeats_with_the_seed_and_never_writes_padding(kind):
    network, write = make(kind).eval(), writing(30)
    with torch.no_grad():
        network.decoder.bias[:WORDS] -= 5000  # as likely as before among themselves, and still never padding
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first, second = write(network), write(network)
        assert torch.get_rng_state().equal(state)  # a following repetition draws what it would have drawn
        other = writing(30, seed=1)(network)
        assert writing(0)(network) == []
    assert first == second
    assert first != other
    assert len(first) == len(other) == 30
    assert set(first + other) <= set(load()[1].vocabulary)
    assert len(set(first)) > 10


def test_a_low_temperature_writes_the_likeliest_words():
    network, written = make("transformer").eval(), [0]
    with torch.no_grad():
        for _ in range(8):  # more than bptt: the first words are forgotten
            known = torch.tensor(written[-5:])[:, None]
            written.append(network(known)[0][-1, 0, :WORDS].argmax().item())
        assert writing(8, temperature=1e-9)(network) == [f"word{number}" for number in written[1:]]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_model_that_is_not_finite_writes_no_more(kind):
    network = make(kind).eval()
    with torch.no_grad():
        network.decoder.bias[3] = math.nan
        assert writing(8)(network) == []


@pytest.mark.parametrize(("hidden", "lengths"), [(torch.zeros(1), [1, 1, 1, 1, 1]), (None, [1, 2, 3, 3, 3])])
@pytest.mark.parametrize(("vocabulary", "first"), [("a <eos> b c d e f g", 1), ("a b c d e f g h", 0)])
def test_writing_begins_after_a_line_and_reads_one_word_with_a_state_or_the_last_bptt_words(
    hidden, lengths, vocabulary, first
):
    seen = []

    def network(words, given):
        seen.append((words[:, 0].tolist(), given is not None))
        return torch.zeros(len(words), 1, 8), hidden

    settings = SimpleNamespace(seed=0, generate_words=5, bptt=3, temperature=1.0)
    assert len(write_words(network, SimpleNamespace(vocabulary=vocabulary.split()), settings, CPU)) == 5
    assert seen[0] == ([first], False)
    assert [len(words) for words, _ in seen] == lengths
    assert {carried for _, carried in seen[1:]} == {hidden is not None}
