"""The language models one by one: each learns in both precisions of the CPU, sees nothing ahead, and writes text."""

import itertools
import math

import pytest
import torch
from conftest import run_cells
from torch.nn import functional

from mixed_precision_study.precision import cast_model

CPU = torch.device("cpu")
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu", "transformer")
TINY = {"dataset": "synthetic", "batch_size": 4, "bptt": 5, "units": 16, "max_steps": 2, "lr": 5.0}
WORDS = 1001  # of the synthetic text on the CPU


@pytest.fixture(scope="module")
def names():
    return run_cells("lstm_language_model", "train", model="transformer", generate_words=12, **TINY)


@pytest.fixture(autouse=True)
def same_backend():
    """oneDNN is left as it was: training in bf16 on the CPU switches it off."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.set_flags(_enabled=before)


def make(names, kind, dropout=0.0, words=WORDS, seed=0):
    torch.manual_seed(seed)
    return names["LanguageModel"](kind, words, 16, 2, dropout, 2, 5)


def make_trainer(names, kind, precision="fp32", dropout=0.0, **options):
    torch.backends.mkldnn.set_flags(_enabled=precision != "amp_bf16")  # as train_and_evaluate does
    options = {"device": CPU, "lr": 5.0, "clip": 0.25, **options}
    return names["Trainer"](make(names, kind, dropout), precision, names["compute_loss"], **options)


# Models


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_steps_and_gives_the_same_shape(names, kind, precision):
    trainer, carry = make_trainer(names, kind, precision, dropout=0.2), None
    before = [weight.detach().clone() for weight in trainer.weights]
    for batch in itertools.islice(names["text_batches"](names["train_rows"]), 2):
        loss, carry = trainer.step(batch, carry)
        assert loss.dtype == torch.float32
        assert abs(loss.item() - math.log(WORDS)) < 1  # it begins by guessing
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))
    assert (carry is None) is (kind == "transformer")
    with names["evaluating"](trainer) as network:
        assert network(batch[0])[0].shape == (5, 4, 1008)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_words_have_no_probability_and_learn_nothing(names, kind):
    network, text = make(names, kind), torch.randint(WORDS, (6, 3))
    chances = network(text[:5])[0].softmax(-1)
    assert chances[..., WORDS:].max() == 0
    assert chances[..., :WORDS].sum(-1).allclose(torch.ones(5, 3))
    loss, _ = names["compute_loss"](network, (text[:5], text[1:]), None)
    loss.backward()
    assert network.decoder.weight.grad[WORDS:].abs().max() == 0
    assert network.encoder.weight.grad[WORDS:].abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_sees_later_words(names, kind):
    network, text = make(names, kind).eval(), torch.randint(WORDS, (5, 3))
    changed = text.clone()
    changed[3, 1] = (changed[3, 1] + 1) % WORDS
    with torch.no_grad():
        before, after = network(text)[0], network(changed)[0]
    assert before[:3].equal(after[:3])
    assert not before[3:, 1].allclose(after[3:, 1])  # but what comes then depends on it
    assert before[:, [0, 2]].allclose(after[:, [0, 2]])  # and other columns do not


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_the_loss_falls_within_a_few_steps(names, kind, precision):
    trainer, batch = make_trainer(names, kind, precision), next(names["text_batches"](names["train_rows"]))
    losses = [trainer.step(batch)[0].item() for _ in range(8)]
    assert losses[-1] < losses[0] - 0.3


# The Transformer


def test_the_transformer_is_that_of_torch_with_a_causal_mask(names):
    own = make(names, "transformer")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0)
    other = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(16), enable_nested_tensor=False)
    with torch.no_grad():
        for mine, theirs in zip(own.body.layers, other.layers, strict=True):
            pairs = (
                (mine.inward.weight, theirs.self_attn.in_proj_weight),
                (mine.inward.bias, theirs.self_attn.in_proj_bias),
                (mine.outward.weight, theirs.self_attn.out_proj.weight),
                (mine.outward.bias, theirs.self_attn.out_proj.bias),
                (mine.wide.weight, theirs.linear1.weight),
                (mine.wide.bias, theirs.linear1.bias),
                (mine.narrow.weight, theirs.linear2.weight),
                (mine.narrow.bias, theirs.linear2.bias),
            )
            for weight, target in pairs:
                target.copy_(weight)
    text = torch.randint(WORDS, (5, 3))
    places = torch.zeros(5, 1, 16)
    for place, index in itertools.product(range(5), range(8)):
        angle = place / 10_000 ** (2 * index / 16)
        places[place, 0, 2 * index], places[place, 0, 2 * index + 1] = math.sin(angle), math.cos(angle)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    vectors = other(functional.embedding(text, own.encoder.weight) * 4 + places, mask=mask)
    assert own(text)[0].allclose(own.decoder(vectors), atol=1e-5)


def test_the_transformer_knows_the_order_and_carries_nothing(names):
    network = make(names, "transformer").eval()
    text = torch.tensor([[1, 2], [2, 1], [3, 3]])  # the last word comes after the same words in another order
    logits, hidden = network(text)
    assert hidden is None
    assert not logits[2, 0].allclose(logits[2, 1])
    assert network.places.shape == (5, 1, 16)
    assert "places" not in network.state_dict()


def test_an_odd_number_of_units_has_places_too(names):
    places = names["sinusoids"](5, 15)
    assert places.shape == (5, 1, 15)
    assert places[0, 0].tolist() == [0, 1] * 7 + [0]
    network = names["LanguageModel"]("transformer", 16, 15, 1, 0.0, 3, 5)
    assert network(torch.zeros(5, 2, dtype=torch.long))[0].shape == (5, 2, 16)


@pytest.mark.parametrize("precision", ["o2_fp16", "o3_fp16"])
def test_the_transformer_follows_fp16_weights(names, precision):
    """What o2_fp16 and o3_fp16 do on a GPU, as far as a CPU can show it: a pass forward and back in fp16."""
    network = make(names, "transformer", dropout=0.2)
    masters = cast_model(network, precision)
    assert {master.dtype for master in masters} == {torch.float32 if precision == "o2_fp16" else torch.float16}
    text = torch.randint(WORDS, (6, 3))
    assert network.places.dtype == network(text[:5])[0].dtype == torch.float16
    loss, _ = names["compute_loss"](network, (text[:5], text[1:]), None)
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())


def test_the_transformer_is_one_graph_without_a_look_at_the_data(names):
    network = make(names, "transformer", dropout=0.2)
    compiled = torch.compile(network, backend="eager", fullgraph=True)  # a break would raise
    text = torch.randint(WORDS, (5, 3))
    torch.manual_seed(1)
    expected = network(text)[0]
    torch.manual_seed(1)
    assert compiled(text)[0].allclose(expected, atol=1e-6)


def test_dropout_is_off_where_it_is_asked_to_be(names):
    text = torch.randint(WORDS, (5, 3))
    for dropout, same in ((0.0, True), (0.2, False)):
        network = make(names, "transformer", dropout)
        assert network(text)[0].equal(network(text)[0]) is same
        assert {layer.dropout.p for layer in network.body.layers} == {min(dropout, 0.1)}


# Writing


@pytest.mark.parametrize("kind", KINDS)
def test_writing_repeats_with_the_seed_and_never_writes_padding(names, kind, monkeypatch):
    network = make(names, kind).eval()
    with torch.no_grad():
        network.decoder.bias[:WORDS] -= 5000  # as likely as before among themselves, and still never padding
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first, second = (names["write_words"](network, 30) for _ in range(2))
        assert torch.get_rng_state().equal(state)  # a following repetition draws what it would have drawn
        monkeypatch.setitem(names, "seed", 1)
        other = names["write_words"](network, 30)
    assert first == second
    assert first != other
    assert len(first) == len(other) == 30
    assert set(first + other) <= set(names["data"].vocabulary)
    assert len(set(first)) > 10
    assert names["write_words"](network, 0) == []


def test_a_low_temperature_writes_the_likeliest_words(names, monkeypatch):
    monkeypatch.setitem(names, "temperature", 1e-9)
    network, written = make(names, "transformer").eval(), [0]
    with torch.no_grad():
        for _ in range(8):  # more than bptt: the first words are forgotten
            known = torch.tensor(written[-5:])[:, None]
            written.append(network(known)[0][-1, 0, :WORDS].argmax().item())
        assert names["write_words"](network, 8) == [f"word{number}" for number in written[1:]]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_model_that_is_not_finite_writes_no_more(names, kind):
    network = make(names, kind).eval()
    with torch.no_grad():
        network.decoder.bias[3] = math.nan
        assert names["write_words"](network, 8) == []


def test_trying_out_changes_no_weight_and_no_random_state(names):
    trainer = make_trainer(names, "transformer", dropout=0.2)
    before, state = {k: v.clone() for k, v in trainer.network.state_dict().items()}, torch.get_rng_state()
    written, test_perplexity = names["try_out"](trainer)
    assert len(written) == 12
    assert test_perplexity is None  # the synthetic data have no test text
    assert all(value.equal(before[name]) for name, value in trainer.network.state_dict().items())
    assert torch.get_rng_state().equal(state)
    assert trainer.network.training
    assert trainer.steps == 0


# The notebook


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"model": "transformer", "heads": 3}, r"^heads is 3, which does not divide units \(16\): each head"),
        ({"heads": 0}, "^heads is 0; it must be a whole number of 1 or more"),
        ({"heads": 2.0}, "^heads is 2.0; it must be a whole number"),
        ({"generate_words": -1}, "^generate_words is -1; it must be a whole number of 0 or more"),
        ({"generate_words": True}, "^generate_words is True; it must be a whole number"),
        ({"temperature": 0}, "^temperature is 0; it must be a number above 0"),
        ({"temperature": "hot"}, "^temperature is 'hot'; it must be a number"),
        ({"model": "bert"}, "^model is 'bert'; possible are lstm, gru, rnn_tanh, rnn_relu, transformer"),
    ],
)
def test_a_wrong_value_stops_with_one_sentence(wrong, sentence):
    with pytest.raises(Exception, match=sentence) as stopped:
        run_cells("lstm_language_model", "check", **{**TINY, **wrong})
    assert type(stopped.value).__name__ == "Stop"


def test_heads_do_not_matter_to_recurrent_networks():
    run_cells("lstm_language_model", "check", **TINY, heads=3)


def make_files(folder, names=("train", "valid", "test")):
    """Write a small text in WikiText's form; a third of the lines are empty."""
    folder.mkdir(parents=True)
    for name in names:
        lines = [f" the cat {number % 7} sat on mat {number % 3} \n" for number in range(60)]
        (folder / f"{name}.txt").write_text(" \n".join(lines), encoding="utf-8")


def run_notebook(**parameters):
    options = {**TINY, "model": "transformer", "epochs": 2, "precisions": ["fp32"], **parameters}
    return run_cells("lstm_language_model", "generated", **options)


def test_a_whole_run_of_the_transformer_is_ok_and_shows_its_text(capsys):
    names = run_notebook(precisions=["fp32", "amp_bf16", "o3_fp16"], generate_words=9, repeats=2)
    statuses = {record.precision: record.status for record in names["records"]}
    assert statuses == {"fp32": "ok", "amp_bf16": "ok", "o3_fp16": "unsupported"}
    for record in names["records"][:2]:
        assert len(record.metric) == 4  # two epochs, twice
        assert record.metric[:2] == pytest.approx(record.metric[2:], rel=1e-3)  # writing shifts no later random draw
    shown = capsys.readouterr().out.split("--- ")[1:]
    assert [text.split()[0] for text in shown] == ["fp32,", "amp_bf16,"]
    for text, record in zip(shown, names["records"][:2], strict=True):
        head, _, body = text.partition("\n")
        assert head == f"{record.precision}, epoch 2: perplexity on validation text {record.metric[-1]:.5g}"
        assert len(body.split()) == 9
        assert set(body.split()) <= set(names["data"].vocabulary)


def test_nothing_is_written_where_no_words_are_asked_for(capsys):
    names = run_notebook(generate_words=0, epochs=1)
    assert names["records"][0].status == "ok"
    assert "---" not in capsys.readouterr().out


def test_the_text_is_that_of_the_model_as_the_last_epoch_left_it(monkeypatch):
    """explain() trains on, so the words must have been written before it."""
    names = run_cells("lstm_language_model", "train", model="transformer", generate_words=9, **{**TINY, "epochs": 1})
    order = []
    write, explain = names["write_words"], names["explain"]
    monkeypatch.setitem(names, "write_words", lambda *given: order.append("write") or write(*given))
    monkeypatch.setitem(names, "explain", lambda *given: order.append("explain") or explain(*given))
    monkeypatch.setitem(names, "timed_epoch", lambda *given, **named: order.append("epoch"))
    for name in ("summarise_times", "summarise_card"):
        monkeypatch.setitem(names, name, lambda *given, name=name: order.append(name))
    record = names["new_record"]("n", names["parameters"], "fp32", {"steps_per_epoch": 2})
    names["train_and_evaluate"](record, "fp32")
    assert order == ["epoch", "summarise_times", "summarise_card", "write", "explain"]


def test_the_test_text_is_read_where_it_is_there_and_printed_with_line_breaks(tmp_path, capsys):
    make_files(tmp_path / "data" / "wikitext-2")
    names = run_notebook(
        dataset="auto", data_dir=str(tmp_path / "data"), bptt=3, generate_words=60, epochs=1, max_steps=30
    )
    data, written, test_perplexity = names["data"], names["tried_out"]["fp32"], names["records"][0].test_metric
    assert (data.source, len(data.test), data.vocabulary[data.test[0]]) == ("folder", 60 * 8 + 59, "the")
    assert 1 < test_perplexity < 20  # of 15 words
    assert test_perplexity == pytest.approx(names["records"][0].metric[-1])  # of the same text
    assert len(written) == 60
    assert "<eos>" in written
    head, _, body = capsys.readouterr().out.split("--- ")[1].partition("\n")
    assert head.endswith(f", test {test_perplexity:.5g}")
    assert "<eos>" not in body
    assert body.split() == [word for word in written if word != "<eos>"]
    assert names["as_lines"](["<eos>", "a", "b", "<eos>", "<eos>", "c"]) == "a b\n\nc"


def test_without_a_test_text_training_goes_on(tmp_path, capsys):
    make_files(tmp_path / "data" / "wikitext-2", ("train", "valid"))
    names = run_notebook(dataset="wikitext-2", data_dir=str(tmp_path / "data"), bptt=3, generate_words=3, epochs=1)
    assert (names["data"].source, len(names["data"].test)) == ("folder", 0)
    assert names["records"][0].status == "ok"
    assert names["records"][0].test_metric is None
    assert ", test" not in capsys.readouterr().out.split("--- ")[1].partition("\n")[0]
