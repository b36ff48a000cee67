"""The text as numbers: read, downloaded and checked, kept, made up, and cut into columns."""

import math

import pytest
import torch
from conftest import refuses, settings_of
from made_up_data import assert_equal_batches, write_texts

from mixed_precision_study.tasks import wikitext

CPU = torch.device("cpu")


def load(place=None, **changes):
    given = {"dataset": "auto", "data_dir": str(place)} if place else {"dataset": "synthetic"}
    return wikitext.load(
        settings_of("lstm_language_model", {"batch_size": 4, "bptt": 5, **given, **changes}), CPU
    )


@pytest.mark.parametrize("rows", [10, 11, 16])
def test_text_becomes_columns_and_segments_of_one_shape(rows):
    data = load()
    data.train = torch.arange(rows * 4 + 3)
    columns = data.in_columns(data.train, 4)
    assert columns.shape == (rows, 4)
    assert columns[:3, 1].tolist() == [rows, rows + 1, rows + 2]
    batches = list(data.segments(columns))
    assert len(batches) == data.steps_per_epoch(4) == (rows - 1) // 5
    assert {tuple(part.shape) for batch in batches for part in batch} == {(5, 4)}
    assert all(torch.equal(words + 1, following) for words, following in batches)


def test_an_epoch_has_the_segments_that_are_asked_for():
    data = load()
    with refuses(r"20 words.* 4 columns"):
        data.in_columns(torch.arange(20), 4)
    short = load(max_steps=3, bptt=6)
    assert [tuple(words.shape) for words, _ in short.train_batches(0, torch.float32, 7)] == [
        (6, 7)
    ] * 3
    assert (short.steps_per_epoch(7), short.samples_in(3, 7), set(short.train_columns)) == (
        3,
        3 * 6 * 7,
        {7},
    )


@pytest.mark.parametrize("max_steps", [0, 5])
def test_held_out_segments_are_joined(max_steps):
    data = load(max_steps=max_steps)
    alone = list(data.eval_batches(torch.float32, 4))
    joined = list(data.eval_batches(torch.float32, 25))  # two segments of 10 columns
    assert {len(words) for words, _ in alone} == {5}
    assert [len(words) for words, _ in joined[:-1]] == [10] * (len(joined) - 1) and len(
        joined[-1][0]
    ) in (5, 10)
    for part in (0, 1):
        assert torch.equal(
            torch.cat([one[part] for one in joined]), torch.cat([one[part] for one in alone])
        )
    assert len(alone) == (max_steps or len(list(data.segments(data.valid_columns))))


def test_guessing_by_frequency_has_its_perplexity():
    data = load()
    data.train, data.valid, data.vocabulary = torch.tensor([0, 0, 1]), torch.tensor([0, 1]), "ab"
    assert data.chance == pytest.approx(math.sqrt(5 / 3 * 5 / 2))
    # too large for a float
    assert (wikitext.perplexity(1.0), wikitext.perplexity(1e4)) == (math.e, math.inf)


def test_a_download_is_checked_before_it_is_kept(tmp_path, monkeypatch):
    # as git itself says
    assert wikitext.git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    contents = {
        name: f"a b {name}\n".encode() * 50 for name in ("train.txt", "valid.txt", "test.txt")
    }
    (tmp_path / "served").mkdir()
    for name, content in contents.items():
        (tmp_path / "served" / name).write_bytes(content)
    blobs = {name: wikitext.git_blob(content) for name, content in contents.items()}
    monkeypatch.setattr(wikitext, "WIKITEXT_URL", f"{(tmp_path / 'served').as_uri()}/")
    monkeypatch.setattr(wikitext, "WIKITEXT_BLOBS", {**blobs, "valid.txt": "0" * 40})
    place = tmp_path / "data"
    with refuses(r"valid\.txt.*checksum"):
        load(place, dataset="wikitext-2")
    assert [path.name for path in (place / "wikitext-2").iterdir()] == ["train.txt"]
    assert load(place).source == "synthetic"
    monkeypatch.setattr(wikitext, "WIKITEXT_BLOBS", blobs)
    assert load(place).source == "download"
    data = load(place, batch_size="max")
    assert (data.used, data.source, data.asked_size) == ("wikitext-2", "folder", 20)
    (place / "wikitext-2/valid.txt").write_bytes(contents["valid.txt"].replace(b"\n", b"\r\n"))
    windows = load(place)  # with Windows' ends of lines
    assert (windows.used, windows.fingerprint) == ("wikitext-2", data.fingerprint)


def test_lines_become_numbers(tmp_path):
    folder = tmp_path / "wikitext-2"
    write_texts(folder, train=" \n = Title = \n a b <unk> a\nc d\n")
    train, valid, test, vocabulary = wikitext.wikitext_in(folder)[0]
    assert vocabulary == ["<eos>", "=", "Title", "a", "b", "<unk>", "c", "d"]
    assert train.tolist() == [0, 1, 2, 1, 0, 3, 4, 5, 3, 0, 6, 7, 0]
    # "strange" is not in the training text
    assert (valid.tolist(), test.tolist()) == ([4, 5, 0], [])
    assert train.dtype == test.dtype == torch.int64
    write_texts(folder, test="d d\n")  # the default training text: a b <unk> a, c d
    assert wikitext.wikitext_in(folder)[0][2].tolist() == [5, 5, 3]
    (folder / "valid.txt").write_bytes(b"\xff\xfe\xff")
    with refuses(r"valid\.txt.*UTF-8"):
        wikitext.wikitext_in(folder)


def test_a_missing_or_short_test_text_gives_no_batches(tmp_path, capsys):
    lines = "the cat sat on the mat\n" * 60
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines)
    assert load().test_batches(torch.float32, 4) is None
    assert load(tmp_path).test_batches(torch.float32, 4) is None
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines, test="the cat\n")
    assert load(tmp_path).test_batches(torch.float32, 4) is None
    write_texts(tmp_path / "wikitext-2", train=lines, valid=lines, test=lines)
    data = load(tmp_path)
    # other texts never have its name
    assert (data.source, data.used) == ("folder", "wikitext-2-like")
    test, held_out = (
        list(batches(torch.float32, 4)) for batches in (data.test_batches, data.eval_batches)
    )
    assert [tuple(words.shape) for words, _ in test] == [(5, 10)] * 8
    assert_equal_batches(test, held_out)
    capsys.readouterr()
    data.show()
    assert " ".join(lines.split()[:5]) in capsys.readouterr().out


def test_a_text_of_ones_own_is_never_replaced_by_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr(wikitext, "downloaded", lambda *given: b"downloaded")
    folder = tmp_path / "wikitext-2"
    write_texts(folder, train="my words\n" * 99)
    (folder / "valid.txt").unlink()
    with refuses("lacks valid"):
        load(tmp_path)
    assert (folder / "train.txt").read_text() == "my words\n" * 99 and len(
        list(folder.iterdir())
    ) == 1
