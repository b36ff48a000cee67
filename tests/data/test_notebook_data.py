"""The notebooks' own data: kept, resized, numbered, and the same wherever they lie."""

import functools

import numpy as np
import pytest
import torch
from conftest import run_cells


def never():
    raise AssertionError("what is kept must not be made again")


def folder_of_images(folder, count=3):
    from test_notebooks import make_tree

    make_tree(folder / "cifar10", count)


def test_a_decoded_tree_is_kept_in_the_cache_of_its_data_folder(tmp_path, monkeypatch):
    folder_of_images(tmp_path)
    names = run_cells("cifar_resnet", "data-choice", dataset="cifar10", data_dir=str(tmp_path))
    (path,) = (tmp_path / "cache").glob("cifar10-*.npz")
    monkeypatch.setitem(names, "decode_all", lambda *_: never())
    again = names["load_data"]("cifar10", str(tmp_path))
    for part in ("train", "test"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(again, part), getattr(names["data"], part), strict=True))
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-100])
    assert torch.equal(names["load_data"]("cifar10", str(tmp_path)).train[0], again.train[0])


SMALL = {"image_height": 32, "image_width": 48, "batch_size": 4}


def test_resized_images_are_kept_by_size_and_files(tmp_path, monkeypatch):
    from test_notebooks import save_image, write_csv

    for number in range(30):
        save_image(tmp_path / "images" / f"{number}.png", 8 * number, (60, 40))
    csv_path = write_csv(tmp_path / "mine.csv", [("images", f"{n}.png", n / 30) for n in range(30)])
    names = run_cells("efficientnet_regression", "batches", csv_path=csv_path, data_dir=str(tmp_path / "data"), **SMALL)
    assert names["pictures"].shape == (30, 3, 32, 48)
    for number in (0, 7):
        assert torch.equal(names["pictures"][number], names["data"].read(number))
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 1
    decode = names["decode_all"]
    monkeypatch.setitem(names, "decode_all", lambda *_: never())
    assert torch.equal(names["read_all"](), names["pictures"])
    monkeypatch.setitem(names, "decode_all", decode)
    save_image(tmp_path / "images" / "7.png", 3, (50, 50))
    changed = names["read_all"]()
    assert not torch.equal(changed[7], names["pictures"][7])
    assert torch.equal(changed[8], names["pictures"][8])
    monkeypatch.setitem(names, "image_width", 64)
    assert names["read_all"]().shape == (30, 3, 32, 64)
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 3


def test_batches_are_the_same_wherever_the_images_lie(tmp_path, monkeypatch):
    names = run_cells("efficientnet_regression", "batches", dataset="synthetic", **SMALL)
    assert names["stored_batches"].func is names["device_batches"]
    plain = list(names["train_batches"](1, torch.float32, 4))
    assert len(plain) == names["steps_in_epoch"](4)
    assert {tuple(images.shape) for images, _ in plain} == {(4, 3, 32, 48)}  # a smaller one would be searched anew
    held_out = list(names["test_batches"](torch.float32, 5))
    host = functools.partial(names["host_batches"], names["pictures"], names["labels"])
    monkeypatch.setitem(names, "stored_batches", host)
    for before, after in (
        (plain, names["prepared_batches"](1, torch.float32, 4)),
        (held_out, names["test_batches"](torch.float32, 5)),
    ):
        for (images_a, labels_a), (images_b, labels_b) in zip(before, after, strict=True):
            assert torch.equal(images_a, images_b)
            assert torch.equal(labels_a, labels_b)
    images, there = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    for number, place in enumerate(names["held_out"][:3].tolist()):
        assert there[number] == names["data"].labels[place]
        exact = names["normalise"](names["data"].read(place)[None], torch.float32)[0]
        assert torch.equal(images[number], exact)


def test_elpvs_images_and_labels_are_those_of_its_own_loader():
    utils = pytest.importorskip("elpv_dataset.utils")
    pictures, probabilities, _ = utils.load_dataset()
    names = run_cells("efficientnet_regression", "data-choice", dataset="elpv", image_height=300, image_width=300)
    assert torch.equal(names["data"].labels, torch.tensor(probabilities.tolist(), dtype=torch.float32))
    for place in (0, 1, 1300, 2623):
        assert np.array_equal(names["data"].read(place)[0].numpy(), pictures[place])


def write_texts(folder, train="a b <unk> a\nc d\n", **others):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"train": train, "valid": "b strange\n", **others}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def test_numbered_words_are_kept_under_the_checksum_of_the_text(tmp_path, monkeypatch):
    names = run_cells("lstm_language_model", "data-choice", dataset="synthetic")
    folder = tmp_path / "wikitext-2"
    write_texts(folder)
    first = names["load_data"]("wikitext-2", str(tmp_path))
    vocabulary, (train, valid) = names["number_words"](
        *(names["read_words"](folder / f"{n}.txt") for n in ("train", "valid"))
    )
    assert first.vocabulary == list(vocabulary) == ["a", "b", "<unk>", "<eos>", "c", "d"]
    assert (first.train.tolist(), first.valid.tolist(), len(first.test)) == (train.tolist(), valid.tolist(), 0)
    assert first.train.dtype == first.test.dtype == torch.int64
    number_words = names["number_words"]
    monkeypatch.setitem(names, "number_words", lambda *_: never())
    again = names["load_data"]("wikitext-2", str(tmp_path))
    assert again.vocabulary == first.vocabulary
    assert torch.equal(again.train, first.train)
    stat = (folder / "train.txt").stat()
    write_texts(folder, train="a b <unk> a\nc e\n")  # as long as before
    names["os"].utime(folder / "train.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # and as old
    monkeypatch.setitem(names, "number_words", number_words)
    assert names["load_data"]("wikitext-2", str(tmp_path)).vocabulary[-1] == "e"
    write_texts(folder, test="d d\n")
    assert names["load_data"]("wikitext-2", str(tmp_path)).test.tolist() == [5, 5, 3]


def test_a_damaged_cache_of_words_is_made_anew(tmp_path):
    names = run_cells("lstm_language_model", "data-choice", dataset="synthetic")
    write_texts(tmp_path / "wikitext-2")
    first = names["load_data"]("wikitext-2", str(tmp_path))
    (path,) = (tmp_path / "cache").glob("wikitext-2-*.npz")
    path.write_bytes(b"PK" + path.read_bytes()[2:200])
    again = names["load_data"]("wikitext-2", str(tmp_path))
    assert (again.vocabulary, again.train.tolist()) == (first.vocabulary, first.train.tolist())


def test_an_epoch_of_text_has_pieces_of_one_shape():
    names = run_cells("lstm_language_model", "batches", dataset="synthetic", batch_size=7, bptt=6)
    shapes = {tuple(part.shape) for batch in names["train_batches"](names["train_rows"]) for part in batch}
    assert shapes == {(6, 7)}
