"""The Transformer: that of torch, causal, one graph, and in every precision."""

import itertools
import math

import pytest
import torch
from torch.nn import functional
from words_training import WORDS, compute_loss, make

from mixed_precision_study.tasks.language_model import LanguageModel
from mixed_precision_study.tasks.transformer import sinusoids
from mixed_precision_study.train.precision import cast_model


def test_the_transformer_is_that_of_torch_with_a_causal_mask():
    own = make("transformer")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0)
    other = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(16), enable_nested_tensor=False)
    with torch.no_grad():
        for weight, target in zip(own.body.parameters(), other.parameters(), strict=True):  # of one order
            target.copy_(weight)
    text = torch.randint(WORDS, (5, 3))
    places = torch.zeros(5, 1, 16)
    for place, index in itertools.product(range(5), range(8)):
        angle = place / 10_000 ** (2 * index / 16)
        places[place, 0, 2 * index], places[place, 0, 2 * index + 1] = math.sin(angle), math.cos(angle)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    vectors = other(functional.embedding(text, own.encoder.weight) * 4 + places, mask=mask)
    assert own(text)[0].allclose(own.decoder(vectors), atol=1e-5)


def test_the_transformer_knows_the_order_and_has_no_hidden_state():
    network = make("transformer").eval()
    text = torch.tensor([[1, 2], [2, 1], [3, 3]])  # the last word comes after the same words in another order
    logits, hidden = network(text)
    assert hidden is None
    assert not logits[2, 0].allclose(logits[2, 1])
    assert network.places.shape == (5, 1, 16)
    assert "places" not in network.state_dict()


def test_an_odd_number_of_units_has_places_too():
    assert sinusoids(5, 15)[0].tolist() == [[0, 1] * 7 + [0]]
    network = LanguageModel("transformer", 16, 15, 1, 0.0, 3, 5)
    assert network(torch.zeros(5, 2, dtype=torch.long))[0].shape == (5, 2, 16)


@pytest.mark.parametrize("precision", ["o2_fp16", "o3_fp16"])
def test_the_transformer_follows_fp16_weights(precision):
    """What o2_fp16 and o3_fp16 do on a GPU, as far as a CPU can show it: a pass forward and back in fp16."""
    network = make("transformer", dropout=0.2)
    masters = cast_model(network, precision)
    assert {master.dtype for master in masters} == {torch.float32 if precision == "o2_fp16" else torch.float16}
    text = torch.randint(WORDS, (6, 3))
    assert network.places.dtype == network(text[:5])[0].dtype == torch.float16
    loss, _ = compute_loss(network, (text[:5], text[1:]), None)
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_transformer_is_one_graph_and_its_layers_have_at_most_the_dropout_of_torch(dropout):
    network, text = make("transformer", dropout), torch.randint(WORDS, (5, 3))
    compiled = torch.compile(network, backend="eager", fullgraph=True)  # a break would raise
    torch.manual_seed(1)
    expected = network(text)[0]
    assert network(text)[0].equal(expected) is (dropout == 0)
    torch.manual_seed(1)
    assert compiled(text)[0].allclose(expected, atol=1e-6)
    assert {layer.dropout.p for layer in network.body.layers} == {min(dropout, 0.1)}
