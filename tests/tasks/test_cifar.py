"""CIFAR's data: in its real formats, wrong ones, and the batches that are made of them."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import refuses, seeded, settings_of
from made_up_data import assert_equal_batches, make_tree, save_image
from PIL import Image

from mixed_precision_study.store.record import run_id_of
from mixed_precision_study.tasks import cifar

CPU = torch.device("cpu")


def load(place=".", dataset="synthetic", **changes):
    given = {"dataset": dataset, "data_dir": str(place), "batch_size": 4, **changes}
    return cifar.load(settings_of("cifar_resnet", given), CPU)


def test_a_folder_tree_is_read(tmp_path):
    make_tree(tmp_path / "cifar10")
    data = load(tmp_path, "auto")
    assert (data.used, data.source, data.classes) == (
        "cifar10-like",
        "folder",
        [f"class{n:02}" for n in range(10)],
    )
    assert (data.train_samples, data.eval_samples, data.largest_batch, data.chance) == (
        30,
        30,
        30,
        0.1,
    )
    pixels, labels = data.images, data.labels
    assert (pixels.shape, pixels.dtype) == ((30, 3, 32, 32), torch.uint8)
    assert labels.tolist() == [label for label in range(10) for _ in range(3)]
    # the second of the second class, channels first
    assert pixels[4, :, 0, 0].tolist() == [101, 0, 154]


def test_halves_share_no_class_and_number_theirs_from_0(tmp_path):
    make_tree(tmp_path / "cifar100")
    whole, *halves = (load(tmp_path, name) for name in ("cifar100", "cifar100-a", "cifar100-b"))
    assert [data.used for data in halves] == ["cifar100-like-a", "cifar100-like-b"]
    assert [*halves[0].classes, *halves[1].classes] == whole.classes
    assert torch.equal(torch.cat([data.images for data in halves]), whole.images)
    assert all(data.labels.unique().tolist() == [*range(50)] for data in halves)
    assert [data.chance for data in halves] == [0.02, 0.02]


def test_the_fingerprint_changes_with_the_data_alone(tmp_path):
    make_tree(tmp_path / "a/pets")
    pets = tmp_path / "b/pets"
    found = [load(tmp_path / "a/pets", "folder").fingerprint]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert load(pets, "folder").fingerprint == found[0]
    save_image(pets / "test/cat/0.png", 1)
    found.append(load(pets, "folder").fingerprint)
    (pets / "train/dog/2.png").rename(pets / "train/cat/3.png")
    found.append(load(pets, "folder").fingerprint)
    for part in ("train", "test"):
        (pets / part / "cat").rename(pets / part / "cow")
    found.append(load(pets, "folder").fingerprint)
    assert len(set(found)) == 4


@pytest.mark.parametrize("loader", ["gpu", "workers"])
def test_images_of_ones_own_have_the_size_that_is_asked_for(tmp_path, loader):
    make_tree(tmp_path / "flowers", size=(100, 150))
    picture = Image.new("RGB", (48, 48))
    picture.paste((255, 255, 255), (0, 0, 1, 48))  # a line that CIFAR's size would lose
    picture.save(tmp_path / "flowers/train/cat/0.png")
    data = load(tmp_path / "flowers", "folder", image_size=48, loader=loader, num_workers=0)
    assert (data.used, data.source, data.classes, data.train_samples) == (
        "flowers",
        "folder",
        ["cat", "dog"],
        6,
    )
    assert data.images[0, 0, 0, :2].tolist() == [255, 0]
    four = data.example(4)[0], next(data.eval_batches(torch.float32, 4))[0]
    assert [one.shape for one in (*four, data.test_images)] == [(n, 3, 48, 48) for n in (4, 4, 6)]
    assert data.show().height == 52
    assert loader == "workers" or data.padded.shape == (6, 3, 60, 60)
    smaller = load(tmp_path / "flowers", "folder", image_size=32)
    assert (smaller.test_images.shape, smaller.classes) == ((6, 3, 32, 32), data.classes)


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-100", "synthetic", "."])
def test_images_of_ones_own_never_have_the_name_of_known_data(tmp_path, name, monkeypatch):
    make_tree(tmp_path / name, classes=("cat", "dog"))
    monkeypatch.chdir(tmp_path)
    with refuses("data_dir"):
        load(name, "folder")


def test_runs_on_other_images_of_ones_own_have_other_names():
    settings = vars(settings_of("cifar_resnet", {"dataset": "folder"}))
    first, again, other = (
        run_id_of("cifar_resnet", {**settings, "data_dir": place}, "fp32")
        for place in ("data/flowers", "/mnt/flowers/", "data/cats")
    )
    assert first == again != other
    assert "flowers" in first and "cats" in other
    assert run_id_of("cifar_resnet", {**settings, "dataset": "folder flowers"}, "fp32") != other


def test_an_unreadable_image_is_named(tmp_path):
    make_tree(tmp_path / "cifar10")
    (tmp_path / "cifar10/test/class03/1.png").write_bytes(b"no image")
    with refuses(r"class03/1\.png"):
        load(tmp_path, "auto")
    (tmp_path / "empty/cifar10/train/cat").mkdir(parents=True)
    with refuses("empty/cifar10/train"):
        load(tmp_path / "empty", "auto")
    make_tree(tmp_path / "half")
    shutil.rmtree(tmp_path / "half/test")
    (tmp_path / "nothing/train/cat").mkdir(parents=True)
    for name, part in {"half": "test", "nothing": "train", "none": "train"}.items():
        with refuses(f"{name}/{part} .*train/<class>/"):
            load(tmp_path / name, "folder")


@pytest.mark.parametrize("another_is_faster", [False, True])
def test_a_download_is_moved_into_place_whole(tmp_path, monkeypatch, another_is_faster):
    class Made:
        base_folder = "made"
        classes = ("a", "b")
        url, filename, tgz_md5 = (
            "https://example.org/made.tar",
            "made.tar",
            "9dd4e461268c8034f5c8564e155c67a6",
        )

        def __init__(self, folder, train=True, download=False):
            if download:
                assert (Path(folder) / "made.tar").read_bytes() == b"x"
                (Path(folder) / "made").mkdir()
                (Path(folder) / "made/file").write_text("x")
                if another_is_faster:
                    shutil.copytree(
                        Path(folder) / "made", tmp_path / "new/made", dirs_exist_ok=True
                    )
            assert (Path(folder) / "made/file").exists()
            self.data, self.targets = np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 0, 1]

    monkeypatch.setitem(cifar.KINDS, "cifar10", Made)
    monkeypatch.setattr(
        cifar, "downloaded", lambda url, sum_of, wanted: b"x" if sum_of(b"x") == wanted else None
    )
    data = load(tmp_path / "new", "cifar10")
    assert (data.images.shape, data.used, data.source) == ((4, 3, 32, 32), "cifar10", "download")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["made"]

    monkeypatch.setattr(
        cifar.os, "replace", Mock(side_effect=PermissionError(13, "Permission denied"))
    )
    monkeypatch.setattr(Made, "base_folder", "elsewhere")
    with refuses(r"Permission denied.*train/<class>/"):
        load(tmp_path / "other", "cifar10")


@pytest.mark.parametrize(
    "options", [{"loader": "gpu"}, *({"loader": "workers", "num_workers": n} for n in (0, 2))]
)
def test_both_loaders_give_batches_of_one_kind(options):
    data = load(max_steps=3, **options)
    batches, again = (list(data.train_batches(0, torch.float16, 4)) for _ in range(2))
    assert [(tuple(pixels.shape), pixels.dtype) for pixels, _ in batches] == [
        ((4, 3, 32, 32), torch.float16)
    ] * 3
    assert all(torch.equal(a[1], b[1]) for a, b in zip(batches, again, strict=True))
    assert abs(batches[0][0].float().mean()) < 1
    if options["loader"] == "gpu":  # workers crop at random
        assert_equal_batches(batches, again)
    for others in (
        data.train_batches(1, torch.float16, 4),
        load(seed=1, **options).train_batches(0, torch.float16, 4),
    ):
        assert not torch.equal(batches[0][0], next(others)[0])


@pytest.mark.parametrize("options", [{}, {"image_size": 48, "channels_last": True}])
def test_batches_made_together_are_those_made_one_by_one(options):
    """Each image is a window of a padded one, or its mirror image."""
    data = load(batch_size=300, **options)
    draw = {"generator": seeded(3)}
    order = torch.randperm(len(data.padded), **draw)
    tops, lefts = (torch.randint(9, (len(data.padded), 1), **draw) for _ in range(2))
    mirrored = torch.rand(len(data.padded), 1, **draw) >= 0.5
    batches = list(data.train_batches(3, torch.float32, 300))
    # of 2,000; 16 MiB hold four batches of 32 x 32
    assert [len(pixels) for pixels, _ in batches] == [300] * 6
    for number, (pixels, given) in enumerate(batches):
        assert torch.equal(given, data.train_labels[order[300 * number : 300 * (number + 1)]])
        for place in (0, 299):
            at = 300 * number + place
            window = data.padded[order[at], :, tops[at] : tops[at] + 32, lefts[at] : lefts[at] + 32]
            window = window.flip(-1) if mirrored[at] else window
            torch.testing.assert_close(
                pixels[place], data.normalise(window[None], torch.float32)[0]
            )
        assert pixels.is_contiguous(
            memory_format=torch.channels_last if options else torch.contiguous_format
        )


def test_an_epoch_has_whole_batches_and_the_test_set_has_all():
    data, short = load(), load(max_steps=2)
    assert (data.steps_per_epoch(128), short.steps_per_epoch(128)) == (15, 2)  # of 2,000 images
    both = short.train_batches(0, torch.float32, 128), short.eval_batches(torch.float32, 128)
    assert [len(list(batches)) for batches in both] == [2, 2] and data.test_batches(
        torch.float32, 128
    ) is None
    with refuses(r"batch_size 2001.* 2000"):
        data.steps_per_epoch(2001)
    assert [len(labels) for _, labels in data.eval_batches(torch.float32, 128)] == [
        128,
        128,
        128,
        116,
    ]


def test_a_part_of_the_test_set_has_images_of_every_class(tmp_path):
    make_tree(tmp_path / "cifar10")
    in_order, *parts = (
        load(tmp_path, "cifar10", batch_size=6, max_steps=steps) for steps in (0, 3, 3, 9)
    )
    assert in_order.test_labels.tolist() == sorted(in_order.test_labels.tolist())  # class by class
    first, again = (list(part.eval_batches(torch.float32, 6)) for part in parts[:2])
    assert [len(labels) for _, labels in first] == [6, 6, 6]
    assert torch.cat([labels for _, labels in first]).unique().numel() >= 8
    assert_equal_batches(first, again)
    assert {part.fingerprint for part in parts} == {in_order.fingerprint}
    assert sorted(parts[2].test_labels.tolist()) == in_order.test_labels.tolist()


def test_hidden_folders_and_loops_of_links_hold_no_images(tmp_path, capsys):
    """Jupyter, macOS and git leave such folders and files; and copies are named."""
    make_tree(tmp_path / "pets")
    before = load(tmp_path / "pets", "folder")
    assert "6 held-out images" in capsys.readouterr().out  # the parts of this tree are made alike
    for name in (
        ".ipynb_checkpoints/1.png",
        "cat/.ipynb_checkpoints/0-checkpoint.png",
        "cat/._0.png",
    ):
        save_image(tmp_path / "pets/train" / name, 7)
    save_image(tmp_path / "pets/train/__MACOSX/0.png", 7)
    (tmp_path / "pets/train/cat/up").symlink_to("..")
    (tmp_path / "pets/train/cat/again").symlink_to(".")
    data = load(tmp_path / "pets", "folder")
    assert (data.classes, data.fingerprint) == (before.classes, before.fingerprint)
