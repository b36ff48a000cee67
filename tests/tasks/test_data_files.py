"""The hash of the files that a run reads, by which the runner knows other data under the same name."""

import os
import shutil

import pytest
from made_up_data import make_tree, save_image, write_csv, write_texts

from mixed_precision_study.tasks.data_files import data_files_hash


def hash_in(folder, notebook="cifar_resnet", **parameters):
    return data_files_hash(notebook, {"dataset": "folder", "data_dir": "pets", **parameters}, folder)


def test_a_copy_has_the_same_hash_and_another_image_another(tmp_path):
    make_tree(tmp_path / "pets")
    first = hash_in(tmp_path)
    shutil.copytree(tmp_path / "pets", tmp_path / "b" / "pets")
    os.utime(tmp_path / "b" / "pets" / "test" / "cat" / "0.png")
    assert hash_in(tmp_path / "b") == first
    (tmp_path / "pets" / "cache").mkdir()
    (tmp_path / "pets" / "cache" / "kept.npz").write_bytes(b"x")
    assert hash_in(tmp_path) == first
    save_image(tmp_path / "pets" / "test" / "cat" / "0.png", 77)
    assert hash_in(tmp_path) != first


def test_of_many_bytes_a_sample_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mixed_precision_study.tasks.data_files.WHOLE_BYTES", 1)
    make_tree(tmp_path / "pets")
    first = hash_in(tmp_path)
    save_image(tmp_path / "pets" / "train" / "cat" / "0.png", 77)
    assert first and hash_in(tmp_path) not in (None, first)


@pytest.mark.parametrize("dataset", ["auto", "wikitext-2"])
def test_texts_are_those_of_wikitexts_folder(tmp_path, dataset):
    write_texts(tmp_path / "wikitext-2")
    given = {"notebook": "lstm_language_model", "dataset": dataset, "data_dir": ""}
    first = hash_in(tmp_path, **given)
    write_texts(tmp_path / "wikitext-2", valid="b other\n")
    assert first and hash_in(tmp_path, **given) not in (None, first)


def test_the_images_that_a_csv_names_count(tmp_path):
    save_image(tmp_path / "a.png", 1)
    write_csv(tmp_path / "mine.csv", [(".", "a.png", 1), (".", "missing.png", 0)])
    given = {"dataset": "csv", "csv_path": "mine.csv"}
    first = hash_in(tmp_path, **given)
    save_image(tmp_path / "a.png", 2)
    assert first and hash_in(tmp_path, **given) not in (None, first)


@pytest.mark.parametrize("dataset", ["folder", "auto", "synthetic", "cifar10"])
def test_without_files_there_is_none(tmp_path, dataset):
    assert hash_in(tmp_path, dataset=dataset) is None


@pytest.mark.parametrize("text", ["", "path,image\n", "path,image,label\n.\n", "\0"])
def test_a_wrong_csv_is_for_the_notebook_to_name(tmp_path, text):
    (tmp_path / "mine.csv").write_text(text)
    found = hash_in(tmp_path, dataset="csv", csv_path="mine.csv")
    assert found is None or len(found) == 12
