"""The text as numbers: read, downloaded and checked, kept, made up, and cut into columns."""

import http.server
import math
import os
import threading

import pytest
import torch
from made_up_data import never, settings_of, write_texts

from mixed_precision_study.data import wikitext
from mixed_precision_study.errors import UserError

CPU = torch.device("cpu")


def load(**changes):
    options = {"dataset": "synthetic", "batch_size": 4, "bptt": 5, **changes}
    return wikitext.load(settings_of("lstm_language_model", **options), CPU)


def read(dataset, folder):
    return wikitext.read(dataset, str(folder), CPU)


def test_text_becomes_columns_and_steps():
    data = load()
    rows = data.in_columns(torch.arange(47), 4)
    assert rows.shape == (11, 4)
    assert rows[:3, 1].tolist() == [11, 12, 13]
    batches = list(data.segments(rows))  # bptt is 5
    assert len(batches) == 2
    assert all(torch.equal(words + 1, following) for words, following in batches)
    with pytest.raises(UserError, match=r"20 words.* 4 columns"):
        data.in_columns(torch.arange(20), 4)


def test_an_epoch_of_text_has_segments_of_one_shape_and_as_many_as_it_says():
    data = load(batch_size=7, bptt=6)
    batches = list(data.train_batches(0, torch.float32, 7))
    assert {tuple(part.shape) for batch in batches for part in batch} == {(6, 7)}
    assert len(batches) == data.steps_per_epoch(7)
    assert len(list(load(max_steps=3).train_batches(0, torch.float32, 4))) == 3


@pytest.mark.parametrize("rows", [10, 11, 12, 15, 16])
def test_the_steps_of_an_epoch_are_its_segments(rows):
    data = load()
    data.words.train = torch.arange(rows * 4 + 3)
    assert len(list(data.segments(data.in_columns(data.words.train, 4)))) == data.steps_per_epoch(4)


@pytest.mark.parametrize("max_steps", [0, 5])
def test_held_out_segments_are_joined_up_to_the_words_of_a_training_batch(max_steps):
    data = load(max_steps=max_steps)
    alone = list(data.eval_batches(torch.float32, 4))
    joined = list(data.eval_batches(torch.float32, 25))  # two segments of 10 columns
    assert {len(words) for words, _ in alone} == {5}
    assert [len(words) for words, _ in joined[:-1]] == [10] * (len(joined) - 1) and len(joined[-1][0]) in (5, 10)
    for part in (0, 1):
        assert torch.equal(torch.cat([one[part] for one in joined]), torch.cat([one[part] for one in alone]))
    assert len(alone) == (max_steps or len(list(data.segments(data.valid_columns))))


def test_held_out_segments_of_a_transformer_are_as_long_as_it_can_see():
    assert {len(words) for words, _ in load(model="transformer").eval_batches(torch.float32, 400)} == {5}


def test_the_columns_of_a_size_that_is_tried_out_are_not_kept_until_it_is_set():
    data = load()
    words, following = next(data.train_batches(0, torch.float32, 9))
    assert words.shape == following.shape == (5, 9)
    assert set(data.train_columns) == {4}
    data.set_batch_size(9)
    assert set(data.train_columns) == {4, 9}


def test_wikitext_lines_become_numbers(tmp_path):
    (tmp_path / "train.txt").write_text(" \n = Title = \n a b <unk> a\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("b strange\n", encoding="utf-8")
    train, valid = (wikitext.read_words(tmp_path / name) for name in ("train.txt", "valid.txt"))
    assert train == ["<eos>", "=", "Title", "=", "<eos>", "a", "b", "<unk>", "a", "<eos>"]
    vocabulary, (_, numbers) = wikitext.number_words(train, valid)
    assert numbers.tolist() == [vocabulary["b"], vocabulary["<unk>"], vocabulary["<eos>"]]
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match=r"bad\.txt.*UTF-8"):
        wikitext.read_words(tmp_path / "bad.txt")


def test_guessing_by_frequency_gives_the_perplexity_of_that_guess():
    data = load()
    data.words.train, data.words.valid, data.vocabulary = torch.tensor([0, 0, 1]), torch.tensor([0, 1]), "ab"
    assert data.chance == pytest.approx(math.sqrt(5 / 3 * 5 / 2))


def test_a_perplexity_too_large_for_a_float_is_infinite():
    assert wikitext.perplexity(1.0) == math.e
    assert wikitext.perplexity(1e4) == math.inf


def test_the_checksum_is_gits_own():
    assert wikitext.git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.fixture
def server(tmp_path):
    """A local server of the files in tmp_path / "served"; yields its address."""
    (tmp_path / "served").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()


def test_a_download_is_checked_before_it_is_kept(tmp_path, server, monkeypatch, capsys):
    contents = {name: f"a b {name}\n".encode() * 50 for name in ("train.txt", "valid.txt", "test.txt")}
    for name, content in contents.items():
        (tmp_path / "served" / name).write_bytes(content)
    blobs = {name: wikitext.git_blob(content) for name, content in contents.items()}
    monkeypatch.setattr(wikitext, "WIKITEXT_URL", server)
    monkeypatch.setattr(wikitext, "WIKITEXT_BLOBS", {**blobs, "valid.txt": "0" * 40})
    with pytest.raises(UserError, match=r"valid\.txt.*checksum"):
        read("wikitext-2", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data" / "wikitext-2").iterdir()] == ["train.txt"]
    assert read("auto", tmp_path / "data").source == "synthetic"
    assert "checksum" in capsys.readouterr().out
    monkeypatch.setattr(wikitext, "WIKITEXT_BLOBS", blobs)
    data = read("auto", tmp_path / "data")
    assert (data.source, data.used) == ("download", "wikitext-2")
    assert read("auto", tmp_path / "data").source == "folder"


def test_numbered_words_are_kept_under_the_checksum_of_the_text(tmp_path, monkeypatch):
    folder = tmp_path / "wikitext-2"
    write_texts(folder)
    first = read("wikitext-2", tmp_path)
    texts = (wikitext.read_words(folder / f"{name}.txt") for name in ("train", "valid"))
    vocabulary, (train, valid) = wikitext.number_words(*texts)
    assert first.vocabulary == list(vocabulary) == ["a", "b", "<unk>", "<eos>", "c", "d"]
    assert (first.train.tolist(), first.valid.tolist(), len(first.test)) == (train.tolist(), valid.tolist(), 0)
    assert first.train.dtype == first.test.dtype == torch.int64
    monkeypatch.setattr(wikitext, "number_words", never)
    again = read("wikitext-2", tmp_path)
    assert again.vocabulary == first.vocabulary
    assert torch.equal(again.train, first.train)
    stat = (folder / "train.txt").stat()
    write_texts(folder, train="a b <unk> a\nc e\n")  # as long as before
    os.utime(folder / "train.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # and as old
    monkeypatch.undo()
    assert read("wikitext-2", tmp_path).vocabulary[-1] == "e"
    write_texts(folder, test="d d\n")
    assert read("wikitext-2", tmp_path).test.tolist() == [5, 5, 3]


def test_a_test_text_that_is_not_there_or_too_short_is_none(tmp_path):
    lines = "the cat sat on the mat\n" * 60
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines)
    assert load().test_batches(torch.float32, 4) is None
    given = {"dataset": "wikitext-2", "data_dir": str(tmp_path)}
    assert load(**given).test_batches(torch.float32, 4) is None
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines, test="the cat\n")
    assert load(**given).test_batches(torch.float32, 4) is None
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines, test=lines)
    data = load(**given)
    assert (data.source, data.used) == ("folder", "wikitext-2-like")  # other texts never have its name
    assert [tuple(words.shape) for words, _ in data.test_batches(torch.float32, 4)] == [(5, 10)] * 8
    assert len(list(data.test_batches(torch.float32, 4))) == len(list(data.eval_batches(torch.float32, 4)))
    assert data.as_words(data.words.test[:3]) == ["the", "cat", "sat"]
