"""The hash of the files that a run reads, by which the runner knows other data under the same
name.
"""

import os
import shutil

import pytest
from made_up_data import make_tree, save_image, write_csv, write_texts

from mixed_precision_study.tasks.data_files import data_files_hash

# what the data of these declare
AUTO = {"cifar_resnet": "cifar10", "lstm_language_model": "wikitext-2"}


def hash_in(folder, notebook="cifar_resnet", **parameters):
    return data_files_hash(
        {"dataset": "folder", "data_dir": "pets", **parameters}, AUTO.get(notebook), folder
    )


def test_a_copy_has_the_same_hash(tmp_path):
    make_tree(tmp_path / "pets")
    first = hash_in(tmp_path)
    shutil.copytree(tmp_path / "pets", tmp_path / "b/pets")
    os.utime(tmp_path / "b/pets/test/cat/0.png")
    assert hash_in(tmp_path / "b") == first


def texts(folder, other):
    write_texts(folder / "wikitext-2", valid=f"b {other}\n")


def listed(folder, other):
    save_image(folder / "a.png", 1 + other)
    write_csv(folder / "mine.csv", [(".", "a.png", 1), (".", "missing.png", 0)])


def pictures(folder, other):
    make_tree(folder / "pets")
    save_image(folder / "pets/train/cat/0.png", 77 + other)


@pytest.mark.parametrize(
    "write, given",
    [
        *(
            (texts, {"notebook": "lstm_language_model", "dataset": name, "data_dir": ""})
            for name in ("auto", "wikitext-2")
        ),
        (listed, {"dataset": "csv", "csv_path": "mine.csv"}),
        (pictures, {}),
    ],
)
@pytest.mark.parametrize("most", [1, 2**26])  # of many bytes a sample is read
def test_other_contents_have_another_hash(tmp_path, monkeypatch, write, given, most):
    monkeypatch.setattr("mixed_precision_study.tasks.data_files.WHOLE_BYTES", most)
    found = []
    for other in (0, 1):
        write(tmp_path, other)
        found.append(hash_in(tmp_path, **given))
    assert None not in found and found[0] != found[1]


@pytest.mark.parametrize("dataset", ["folder", "auto", "synthetic", "cifar10"])
def test_without_files_there_is_none(tmp_path, dataset):
    assert hash_in(tmp_path, dataset=dataset) is None


@pytest.mark.parametrize("text", ["", "path,image\n", "path,image,label\n.\n", "\0"])
def test_a_wrong_csv_is_for_the_notebook_to_name(tmp_path, text):
    (tmp_path / "mine.csv").write_text(text)
    found = hash_in(tmp_path, dataset="csv", csv_path="mine.csv")
    assert found is None or len(found) == 12
