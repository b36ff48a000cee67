"""Images with a number each: a CSV, the package of ELPV, wrong ones, what is kept, and the batches."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_data import make_odd_image, never, save_image, settings_of, write_csv

from mixed_precision_study.data import elpv
from mixed_precision_study.data.batches import device_batches, host_batches
from mixed_precision_study.errors import UserError

CPU = torch.device("cpu")
SMALL = {"image_height": 32, "image_width": 48, "batch_size": 4}
SIZE = (32, 48)


def load(**changes):
    return elpv.load(settings_of("efficientnet_regression", **SMALL, **changes), CPU)


def read(dataset, csv_path=""):
    return elpv.read(dataset, csv_path, SIZE, CPU)


def test_a_csv_of_images_is_read(tmp_path):
    for number in range(3):
        save_image(tmp_path / "pictures" / f"{number}.png", 80 * number, (20, 10), "L" if number else "RGB")
    path = write_csv(tmp_path / "mine.csv", [("pictures", f"{n}.png", n * 10) for n in range(3)])
    data = read("auto", path)
    assert (data.source, data.labels.tolist()) == ("csv", [0, 10, 20])
    image = data.read(2)
    assert image.shape == (3, 32, 48)
    assert image.dtype == torch.uint8
    assert image.float().mean() == 160


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("path;image;label", ".;0.png;0,5", ["';'", "'path;image;label'", "commas"]),
        ("path\timage\tlabel", ".\t0.png\t0.5", [r"'\t'", "commas"]),
        ("folder,file,label", ".,0.png,0.5", ["'path'", "'folder', 'file', 'label'"]),
        ("a;b", "1;2", ["';'"]),
    ],
)
def test_a_csv_without_the_columns_says_what_it_has(tmp_path, header, row, words):
    (tmp_path / "mine.csv").write_text(f"{header}\n{row}\n")
    with pytest.raises(UserError) as caught:
        read("csv", str(tmp_path / "mine.csv"))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("rows", "columns", "problem"),
    [
        ([(".", "a.png", 1)], ("path", "image", "labels"), "'label'"),
        ([], ("path", "image", "label"), "no rows"),
        ([(".", "a.png", 1), (".", "a.png", "high")], ("path", "image", "label"), "'high' in row 3"),
    ],
)
def test_a_wrong_csv_stops_with_the_place(tmp_path, rows, columns, problem):
    with pytest.raises(UserError, match=problem):
        read("csv", write_csv(tmp_path / "mine.csv", rows, columns))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["img,0.png,0.5,1,2,3", "img,1.png,0.5,1,2,3"], "more cells"),
        (["img,0.png,0.5,7"], "more cells"),
        (["img,0.png,0.5", "img,0.png,0.5,7"], "line 3"),
        (["img,0.png,0.5", ",0.png,0.5"], "path in row 3"),
        (["img,,0.5"], "image in row 2"),
        (["img"], "image in row 2"),
        (["img,0.png,inf"], "'inf' in row 2"),
        (["img,0.png,0", "img,0.png,1e400"], "in row 3 is not a finite"),
        (["img,0.png,1e39"], "in row 2 is not a finite"),  # no fp32 number
        (["img,0.png,nan"], "'nan' in row 2"),
        (["img,0.png,", "img,0.png,1"], "row 2 is missing"),
        (["img,0.png,1", "img,0.png"], "row 3 is missing"),
    ],
)
def test_a_wrong_cell_of_a_csv_is_named(tmp_path, lines, problem):
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["path,image,label", *lines, ""]))
    with pytest.raises(UserError, match=problem):
        read("csv", str(path))


def test_names_in_a_csv_are_text(tmp_path):
    rows = [("007", "001", 1), ("NA", "1e5", 0), ("1.50", "nan", 0.5)]
    for folder, name, _ in rows:
        save_image(tmp_path / folder / "made.png", 40)
        (tmp_path / folder / "made.png").rename(tmp_path / folder / name)
    data = read("csv", write_csv(tmp_path / "mine.csv", rows))
    assert [data.read(index)[0, 0, 0].item() for index in range(3)] == [40, 40, 40]


def test_true_and_false_are_labels_and_an_empty_last_column_is_none(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("path,image,label\n.,a.png,True,\n.,a.png,False,\n")
    assert read("csv", str(path)).labels.tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["bomb", "large", "pipe", "link to a device", "folder", "broken"])
def test_an_image_that_must_not_be_opened_is_named(tmp_path, kind):
    make_odd_image(tmp_path / "odd.png", kind)
    data = read("csv", write_csv(tmp_path / "mine.csv", [(".", "odd.png", 1)]))
    with pytest.raises(UserError, match=r"odd\.png"):
        data.read(0)


def test_a_pipe_in_place_of_the_csv_is_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.csv")
    with pytest.raises(UserError, match=r"mine\.csv"):
        read("csv", str(tmp_path / "mine.csv"))


def test_a_missing_csv_or_image_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv"):
        read("csv", str(tmp_path / "none.csv"))
    with pytest.raises(UserError, match="csv_path"):
        read("csv")
    (tmp_path / "b.png").write_bytes(b"no image")
    data = read("csv", write_csv(tmp_path / "mine.csv", [(".", "b.png", 1), (".", "c.png", 1)]))
    for index, name in enumerate(("b.png", "c.png")):
        with pytest.raises(UserError, match=name):
            data.read(index)


def test_elpv_comes_from_its_package_or_is_asked_for(monkeypatch, capsys):
    pytest.importorskip("elpv_dataset")
    data = read("auto")
    assert (data.used, data.source, len(data.labels)) == ("elpv", "package", 2624)
    assert sorted({round(label, 2) for label in data.labels.tolist()}) == [0, 0.33, 0.67, 1]
    assert data.read(0).shape == (1, 32, 48)
    missing = "mixed_precision_study.environment.missing_packages"
    monkeypatch.setattr(missing, lambda packages: list(packages.values()))
    with pytest.raises(UserError, match="elpv-dataset"):
        read("elpv")
    assert read("auto").source == "synthetic"
    assert "MADE-UP IMAGES" in capsys.readouterr().out

    def offline(command, **_):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")  # there it is installed, if there is a network
    monkeypatch.setattr(subprocess, "run", offline)
    assert read("auto").source == "synthetic"
    with pytest.raises(UserError, match="elpv-dataset"):
        read("elpv")


@pytest.mark.parametrize("left", ["nothing", "the code alone"])
def test_an_incomplete_elpv_is_asked_for_again(monkeypatch, tmp_path, left):
    (tmp_path / "elpv_dataset").mkdir()
    if left == "the code alone":
        (tmp_path / "elpv_dataset" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "elpv_dataset", raising=False)
    monkeypatch.setattr("sys.path", [str(tmp_path), *(p for p in sys.path if "site-packages" not in p)])
    with pytest.raises(UserError, match="--force-reinstall elpv-dataset"):
        read("elpv")
    assert read("auto").source == "synthetic"


def test_pictures_of_elpv_come_with_their_authors_and_licence(tmp_path, capsys):
    pytest.importorskip("elpv_dataset")
    load(dataset="synthetic").show()
    assert "CC BY" not in capsys.readouterr().out
    load(dataset="elpv", loader="workers", num_workers=0, data_dir=str(tmp_path)).show()
    printed = capsys.readouterr().out
    assert "Buerhop-Lutz" in printed and "CC BY-NC-SA 4.0" in printed


def test_elpvs_images_and_labels_are_those_of_its_own_loader(tmp_path):
    utils = pytest.importorskip("elpv_dataset.utils")
    folder = Path(utils.__file__).parent / "data"
    rows = (folder / "labels.csv").read_text().splitlines()
    places = [*range(0, len(rows), 40), len(rows) - 1]  # all take its loader 13 s
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / "labels.csv").write_text("\n".join(rows[place] for place in places))
    pictures, probabilities, _ = utils.load_dataset(str(tmp_path / "labels.csv"))
    data = elpv.read("elpv", "", (300, 300), CPU)
    assert len(data.labels) == len(rows) and data.labels[places].tolist() == pytest.approx(list(probabilities))
    for place, picture in zip(places, pictures, strict=True):
        assert np.array_equal(data.read(place)[0].numpy(), picture)


@pytest.mark.parametrize(("labels", "problem"), [((0, 5), '0 to 5.*"mse"'), ((1, 1, 1, 1), "4 images")])
def test_labels_that_do_not_fit_the_loss_and_too_few_images_stop(tmp_path, labels, problem):
    save_image(tmp_path / "a.png")
    path = write_csv(tmp_path / "mine.csv", [(".", "a.png", label) for label in labels])
    with pytest.raises(UserError, match=problem):
        load(csv_path=path, data_dir=str(tmp_path))


def test_the_held_out_images_are_a_fifth_never_trained_on_and_the_same_for_every_seed():
    data = load(dataset="synthetic")
    training, held_out = set(data.training.tolist()), set(data.held_out.tolist())
    assert not training & held_out
    assert len(held_out) == len(training | held_out) // 5 == data.eval_samples
    assert torch.equal(load(dataset="synthetic", seed=5).held_out, data.held_out)


def test_chance_is_the_error_of_the_median():
    data = load(dataset="synthetic")
    median = data.labels[data.training].sort().values[(data.train_samples - 1) // 2]
    assert data.chance == pytest.approx((data.labels[data.held_out] - median).abs().mean().item())


def test_resized_images_are_kept_by_size_and_files(tmp_path, monkeypatch):
    for number in range(30):
        save_image(tmp_path / "images" / f"{number}.png", 8 * number, (60, 40))
    csv_path = write_csv(tmp_path / "mine.csv", [("images", f"{n}.png", n / 30) for n in range(30)])
    given = {"csv_path": csv_path, "data_dir": str(tmp_path / "data")}
    data = load(**given)
    pictures = data.read_all()
    assert pictures.shape == (30, 3, 32, 48)
    for number in (0, 7):
        assert torch.equal(pictures[number], data.images.read(number))
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 1
    monkeypatch.setattr(elpv, "decode_all", never)
    assert torch.equal(load(**given).read_all(), pictures)
    monkeypatch.undo()
    save_image(tmp_path / "images" / "7.png", 3, (50, 50))
    changed = load(**given).read_all()
    assert not torch.equal(changed[7], pictures[7])
    assert torch.equal(changed[8], pictures[8])
    wide = settings_of("efficientnet_regression", **SMALL | {"image_width": 64}, **given)
    assert elpv.load(wide, CPU).read_all().shape == (30, 3, 32, 64)
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 3


def assert_equal_batches(first, second):
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(*parts) for parts in zip(a, b, strict=True))


def test_batches_are_the_same_wherever_the_images_are_stored():
    data = load(dataset="synthetic")
    assert data.stored_batches.func is device_batches
    plain = list(data.train_batches(1, torch.float32, 4))
    assert len(plain) == data.steps_per_epoch(4)
    assert {tuple(images.shape) for images, _ in plain} == {(4, 3, 32, 48)}  # a smaller one would be searched anew
    held_out = list(data.eval_batches(torch.float32, 5))
    data.stored_batches = functools.partial(host_batches, data.read_all(), data.labels)
    assert_equal_batches(plain, data.train_batches(1, torch.float32, 4))
    assert_equal_batches(held_out, data.eval_batches(torch.float32, 5))
    images, labels = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    for number, index in enumerate(data.held_out[:3].tolist()):
        assert labels[number] == data.labels[index]
        assert torch.equal(images[number], data.normalise(data.images.read(index)[None], torch.float32)[0])


def test_the_ordinary_loader_reads_the_files_and_holds_out_the_same_images():
    data, stored = load(dataset="synthetic", loader="workers", num_workers=0), load(dataset="synthetic")
    images, labels = next(data.train_batches(0, torch.float16, 4))
    assert (images.shape, images.dtype, labels.shape) == ((4, 3, 32, 48), torch.float16, (4,))
    assert_equal_batches(data.eval_batches(torch.float32, 5), stored.eval_batches(torch.float32, 5))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_come_in_the_layout_that_is_asked_for(layout):
    data = load(dataset="synthetic", channels_last=layout == torch.channels_last)
    assert next(data.train_batches(0, torch.float32, 4))[0].is_contiguous(memory_format=layout)
