"""Images with a number each: a CSV, the package of ELPV, wrong ones, what is kept, and the batches."""

import functools
import subprocess

import numpy as np
import pytest
import torch
from made_up_data import never, save_image, settings_of, write_csv

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


def test_wrong_csv_files_stop_with_one_sentence(tmp_path):
    save_image(tmp_path / "a.png")
    wrong = {
        "lacks the column 'label'": write_csv(tmp_path / "1.csv", [(".", "a.png", 1)], ("path", "image", "labels")),
        "has no rows": write_csv(tmp_path / "2.csv", []),
        "label 'high' in row 3 is not a number": write_csv(
            tmp_path / "3.csv", [(".", "a.png", 1), (".", "a.png", "high")]
        ),
        "cannot be read as a CSV": str(tmp_path / "none.csv"),
    }
    for sentence, path in wrong.items():
        with pytest.raises(UserError, match=sentence):
            read("csv", path)
    with pytest.raises(UserError, match="csv_path is empty"):
        read("csv")
    (tmp_path / "b.png").write_bytes(b"no image")
    data = read("csv", write_csv(tmp_path / "4.csv", [(".", "b.png", 1), (".", "c.png", 1)]))
    for index, name in enumerate(("b.png", "c.png")):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            data.read(index)


def test_elpv_comes_from_its_package_or_is_asked_for(monkeypatch, capsys):
    pytest.importorskip("elpv_dataset")
    data = read("auto")
    assert (data.used, data.source, len(data.labels)) == ("elpv", "package", 2624)
    assert sorted({round(label, 2) for label in data.labels.tolist()}) == [0, 0.33, 0.67, 1]
    assert data.read(0).shape == (1, 32, 48)
    missing = "mixed_precision_study.environment.missing_packages"
    monkeypatch.setattr(missing, lambda packages: list(packages.values()))
    with pytest.raises(UserError, match="pip install elpv-dataset"):
        read("elpv")
    assert read("auto").source == "synthetic"
    assert "MADE-UP IMAGES" in capsys.readouterr().out

    def offline(command, **_):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")  # there it is installed, if there is a network
    monkeypatch.setattr(subprocess, "run", offline)
    assert read("auto").source == "synthetic"
    with pytest.raises(UserError, match="pip install elpv-dataset"):
        read("elpv")


def test_elpvs_images_and_labels_are_those_of_its_own_loader():
    utils = pytest.importorskip("elpv_dataset.utils")
    pictures, probabilities, _ = utils.load_dataset()
    data = elpv.read("elpv", "", (300, 300), CPU)
    assert torch.equal(data.labels, torch.tensor(probabilities.tolist(), dtype=torch.float32))
    for place in (0, 1, 1300, 2623):
        assert np.array_equal(data.read(place)[0].numpy(), pictures[place])


def test_labels_beyond_0_to_1_ask_for_mse(tmp_path):
    save_image(tmp_path / "a.png")
    path = write_csv(tmp_path / "mine.csv", [(".", "a.png", value) for value in (0, 5)])
    with pytest.raises(UserError, match='reach from 0 to 5, beyond 0 to 1; set loss_function to "mse"'):
        load(csv_path=path, data_dir=str(tmp_path))


def test_too_few_images_stop(tmp_path):
    save_image(tmp_path / "a.png")
    path = write_csv(tmp_path / "mine.csv", [(".", "a.png", 1)] * 4)
    with pytest.raises(UserError, match="4 images are too few"):
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


def test_batches_are_the_same_wherever_the_images_lie():
    data = load(dataset="synthetic")
    assert data.stored_batches.func is device_batches
    plain = list(data.train_batches(1, torch.float32, 4))
    assert len(plain) == data.steps_per_epoch(4)
    assert {tuple(images.shape) for images, _ in plain} == {(4, 3, 32, 48)}  # a smaller one would be searched anew
    held_out = list(data.eval_batches(torch.float32, 5))
    data.stored_batches = functools.partial(host_batches, data.read_all(), data.labels)
    for before, after in (
        (plain, data.train_batches(1, torch.float32, 4)),
        (held_out, data.eval_batches(torch.float32, 5)),
    ):
        for (images_a, labels_a), (images_b, labels_b) in zip(before, after, strict=True):
            assert torch.equal(images_a, images_b)
            assert torch.equal(labels_a, labels_b)
    images, there = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    for number, place in enumerate(data.held_out[:3].tolist()):
        assert there[number] == data.labels[place]
        exact = data.normalise(data.images.read(place)[None], torch.float32)[0]
        assert torch.equal(images[number], exact)


def test_the_ordinary_loader_reads_the_files_and_holds_out_the_same_images():
    data, stored = load(dataset="synthetic", loader="workers", num_workers=0), load(dataset="synthetic")
    images, labels = next(data.train_batches(0, torch.float16, 4))
    assert images.shape == (4, 3, 32, 48)
    assert (images.dtype, labels.shape) == (torch.float16, (4,))
    for (a, labels_a), (b, labels_b) in zip(
        data.eval_batches(torch.float32, 5), stored.eval_batches(torch.float32, 5), strict=True
    ):
        assert torch.equal(a, b) and torch.equal(labels_a, labels_b)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_come_in_the_layout_that_is_asked_for(layout):
    data = load(dataset="synthetic", channels_last=layout == torch.channels_last)
    assert next(data.train_batches(0, torch.float32, 4))[0].is_contiguous(memory_format=layout)
