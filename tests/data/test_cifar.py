"""CIFAR's data: in its real formats, wrong ones, and the batches that are made of them."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_data import make_odd_image, make_tree, never, save_image, settings_of
from PIL import Image

from mixed_precision_study.data import cifar
from mixed_precision_study.errors import UserError
from mixed_precision_study.record import run_id_of

CPU = torch.device("cpu")


def load(**changes):
    return cifar.load(settings_of("cifar_resnet", **{"dataset": "synthetic", "batch_size": 4, **changes}), CPU)


def images_of(data):
    return (*data.train, data.test_images, data.test_labels)


def test_a_folder_tree_is_read_and_kept_in_the_cache_and_read_again_when_it_changes(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cifar10"
    make_tree(folder)
    data = load(dataset="auto", data_dir=str(tmp_path))
    assert (data.used, data.source, data.classes) == ("cifar10-like", "folder", cifar.CLASSES["cifar10"].split())
    assert (data.train_samples, data.eval_samples, data.largest_batch, data.chance) == (30, 30, 30, 0.1)
    assert "cifar10-like (folder): 30 training and 30 test images" in capsys.readouterr().out
    images, labels = data.train
    assert images.shape == (30, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [label for label in range(10) for _ in range(3)]
    assert images[4, :, 0, 0].tolist() == [101, 0, 154]  # the second automobile, channels first
    assert len(list((tmp_path / "cache").glob("cifar10-*.npz"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(cifar, "decode_all", never)
        again = load(dataset="cifar10", data_dir=str(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(images_of(again), images_of(data), strict=True))
    save_image(folder / "train" / "dog" / "7.png", 200)
    assert load(dataset="cifar10", data_dir=str(tmp_path)).train_samples == 31


def test_a_folder_of_other_images_is_never_taken_for_cifar(tmp_path):
    make_tree(tmp_path / "three" / "cifar10", classes=("cat", "dog", "frog"))
    make_tree(tmp_path / "large" / "cifar10", 1, (100, 150))
    make_tree(tmp_path / "ten" / "cifar100", 1, classes=cifar.CLASSES["cifar10"].split())
    for place, name in (("three", "cifar10"), ("three", "auto"), ("large", "auto"), ("ten", "cifar100")):
        with pytest.raises(UserError, match=r'is not cifar100?;.* data_dir .*"folder"'):
            load(dataset=name, data_dir=str(tmp_path / place))


def test_a_folder_is_called_cifar_only_if_it_has_as_many_images(tmp_path, monkeypatch):
    make_tree(tmp_path / "cifar100", 1)
    assert load(dataset="cifar100", data_dir=str(tmp_path)).used == "cifar100-like"
    monkeypatch.setattr(cifar, "CIFAR_COUNTS", (100, 100))
    assert load(dataset="cifar100", data_dir=str(tmp_path)).used == "cifar100"


def test_the_fingerprint_changes_with_an_image_a_label_or_a_class_and_not_with_a_copy(tmp_path):
    make_tree(tmp_path / "a" / "pets")
    first = load(dataset="folder", data_dir=str(tmp_path / "a" / "pets")).fingerprint
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("cache"))
    pets = tmp_path / "b" / "pets"

    def now():
        return load(dataset="folder", data_dir=str(pets)).fingerprint

    assert now() == first
    save_image(pets / "test" / "cat" / "0.png", 1)
    assert (changed := now()) != first
    (pets / "train" / "dog" / "2.png").rename(pets / "train" / "cat" / "3.png")
    assert (moved := now()) not in (first, changed)
    for part in ("train", "test"):
        (pets / part / "cat").rename(pets / part / "cow")
    assert now() not in (first, changed, moved)


def load_own(folder, **changes):
    return load(dataset="folder", data_dir=str(folder), **changes)


@pytest.mark.parametrize("loader", ["gpu", "workers"])
def test_images_of_ones_own_have_their_folders_name_and_the_size_that_is_asked_for(tmp_path, capsys, loader):
    make_tree(tmp_path / "flowers", size=(100, 150))
    data = load_own(tmp_path / "flowers", image_size=48, loader=loader, num_workers=0)
    assert (data.used, data.source, data.classes, data.train_samples) == ("flowers", "folder", ["cat", "dog"], 6)
    assert data.test_images.shape == (6, 3, 48, 48)
    assert "48 x 48" in capsys.readouterr().out
    (images, _), *_ = data.train_batches(0, torch.float32, 4)
    assert images.shape == (4, 3, 48, 48)
    assert next(data.eval_batches(torch.float32, 4))[0].shape == (4, 3, 48, 48)
    data.show()
    assert load_own(tmp_path / "flowers", image_size=32).test_images.shape == (6, 3, 32, 32)
    assert len(list((tmp_path / "flowers" / "cache").glob("flowers-*.npz"))) == 2
    assert data.classes == load_own(tmp_path / "flowers").classes  # the cache is no class


def test_images_of_ones_own_keep_their_details(tmp_path):
    """They are resized once, from the file, not squeezed to CIFAR's size and enlarged again."""
    for part in ("train", "test"):
        picture = Image.new("RGB", (64, 64))
        picture.paste((255, 255, 255), (0, 0, 1, 64))
        save_image(tmp_path / "lines" / part / "one" / "0.png")
        picture.save(tmp_path / "lines" / part / "one" / "0.png")
    image = load_own(tmp_path / "lines", image_size=64).train[0][0]
    assert image[0, 0, :2].tolist() == [255, 0]


def test_windows_of_ones_own_images_are_crops_of_the_padded_ones(tmp_path):
    make_tree(tmp_path / "squares", size=(16, 16))
    data = load_own(tmp_path / "squares", image_size=16)
    assert data.padded.shape == (6, 3, 20, 20)
    (images, labels), *_ = data.train_batches(0, torch.float32, 4)
    shown = (images * data.std + data.mean).round()
    assert {int(label) for label in labels} <= {0, 1}
    inside = shown[:, 0, 8, 8].tolist()  # the middle is never padding
    assert all(int(value) // 100 == label for value, label in zip(inside, labels.tolist(), strict=True))


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-100", "synthetic", "."])
def test_images_of_ones_own_never_have_the_name_of_known_data(tmp_path, name, monkeypatch):
    make_tree(tmp_path / name, classes=("cat", "dog"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="named after that folder"):
        load_own(name)


def test_a_folder_without_images_of_ones_own_says_how_they_must_lie(tmp_path):
    make_tree(tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "test")
    for name in ("half", "none"):
        with pytest.raises(UserError, match=r"train/<class>/\* and test/<class>/\*"):
            load_own(tmp_path / name)


def test_runs_on_other_images_of_ones_own_have_other_names():
    settings = vars(settings_of("cifar_resnet", dataset="folder"))
    first, again, other = (
        run_id_of("cifar_resnet", settings | {"data_dir": place}, "fp32")
        for place in ("data/flowers", "/mnt/flowers/", "data/cats")
    )
    assert first == again != other
    assert "flowers" in first and "cats" in other
    assert run_id_of("cifar_resnet", settings | {"dataset": "folder flowers"}, "fp32") != other


def test_an_unreadable_image_is_named_and_so_is_an_empty_folder(tmp_path):
    make_tree(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cat/1\.png"):
        load(dataset="auto", data_dir=str(tmp_path))
    (tmp_path / "empty" / "cifar10" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="empty/cifar10/train"):
        load(dataset="auto", data_dir=str(tmp_path / "empty"))
    for part in ("train", "test"):
        (tmp_path / "nothing" / part / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="nothing/train holds no images"):
        load_own(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["bomb", "large", "pipe", "link to a device", "folder", "broken"])
def test_an_image_that_must_not_be_opened_is_named(tmp_path, kind):
    make_tree(tmp_path / "mine")
    path = tmp_path / "mine" / "train" / "dog" / "odd.png"
    make_odd_image(path, kind)
    with pytest.raises(UserError, match=r"dog/odd\.png"):
        load_own(tmp_path / "mine")


def test_without_data_auto_is_synthetic_and_says_so_while_a_name_stops(tmp_path, monkeypatch, capsys):
    def offline(name, folder):
        raise OSError("no network")

    monkeypatch.setattr(cifar, "read_torchvision", offline)
    assert load(dataset="auto", data_dir=str(tmp_path)).source == "synthetic"
    assert "MADE-UP IMAGES" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no network.*train/<class>/"):
        load(dataset="cifar100", data_dir=str(tmp_path))


@pytest.mark.parametrize("another_is_faster", [False, True])
def test_a_download_is_moved_into_place_whole(tmp_path, monkeypatch, another_is_faster):
    class Made:
        base_folder = "made"
        classes = ("a", "b")
        url, filename, tgz_md5 = "https://example.org/made.tar", "made.tar", "9dd4e461268c8034f5c8564e155c67a6"

        def __init__(self, folder, train=True, download=False):
            if download:
                assert (Path(folder) / "made.tar").read_bytes() == b"x"
                (Path(folder) / "made").mkdir()
                (Path(folder) / "made" / "file").write_text("x")
                if another_is_faster:
                    shutil.copytree(Path(folder) / "made", tmp_path / "new" / "made", dirs_exist_ok=True)
            assert (Path(folder) / "made" / "file").exists()
            self.data, self.targets = np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 0, 1]

    monkeypatch.setitem(cifar.KINDS, "cifar10", Made)
    monkeypatch.setattr(cifar, "downloaded", lambda url, sum_of, wanted: b"x" if sum_of(b"x") == wanted else None)
    train, _, classes, source, used = cifar.read_torchvision("cifar10", tmp_path / "new")
    assert train[0].shape == (4, 3, 32, 32)
    assert (classes, source, used) == (("a", "b"), "download", "cifar10")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["made"]

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cifar.os, "replace", refuse)
    monkeypatch.setattr(Made, "base_folder", "elsewhere")
    with pytest.raises(OSError, match="Permission denied"):
        cifar.read_torchvision("cifar10", tmp_path / "other")


# Batches


def test_gpu_batches_crop_flip_and_repeat_with_the_seed():
    data = load()
    first, again = (list(itertools.islice(data.train_batches(0, torch.float32, 4), 3)) for _ in range(2))
    other = next(data.train_batches(1, torch.float32, 4))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0])
    assert not torch.equal(first[0][0], next(load(seed=1).train_batches(0, torch.float32, 4))[0])
    # Every image is a window of a padded one, or its mirror image.
    generator = torch.Generator(CPU).manual_seed(0)
    chosen = torch.randperm(len(data.padded), generator=generator)[0]
    windows = data.padded[chosen].unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).reshape(-1, 3, 32, 32)
    shown = (first[0][0][0] * data.std + data.mean).round().to(torch.uint8)
    assert any(torch.equal(shown, w) or torch.equal(shown, w.flip(2)) for w in windows)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_ordinary_loader_gives_batches_of_the_same_kind_in_the_same_order_again(workers):
    data = load(loader="workers", num_workers=workers, max_steps=3)
    batches, again = (list(data.train_batches(0, torch.float16, 4)) for _ in range(2))
    assert [(tuple(images.shape), images.dtype) for images, _ in batches] == [((4, 3, 32, 32), torch.float16)] * 3
    assert all(torch.equal(a[1], b[1]) for a, b in zip(batches, again, strict=True))
    assert abs(batches[0][0].float().mean()) < 1


@pytest.mark.parametrize("options", [{}, {"image_size": 48, "channels_last": True}])
def test_batches_made_together_are_those_made_one_by_one(options):
    data = load(batch_size=300, **options)
    padded, labels = data.padded, data.train_labels
    draw = {"generator": torch.Generator().manual_seed(3)}
    order = torch.randperm(len(padded), **draw)
    tops, lefts = (torch.randint(9, (len(padded), 1), **draw) for _ in range(2))
    mirrored = torch.rand(len(padded), 1, **draw) >= 0.5
    batches = list(data.train_batches(3, torch.float32, 300))
    assert [len(images) for images, _ in batches] == [300] * 6  # of 2,000 images; 16 MiB hold four batches of 32 x 32
    for number, (images, given) in enumerate(batches):
        places = order[300 * number : 300 * (number + 1)]
        assert torch.equal(given, labels[places])
        for place in (0, 299):
            at = 300 * number + place
            window = padded[places[place], :, tops[at] : tops[at] + 32, lefts[at] : lefts[at] + 32]
            window = window.flip(-1) if mirrored[at] else window
            torch.testing.assert_close(images[place], data.normalise(window[None], torch.float32)[0])
        assert images.is_contiguous(memory_format=torch.channels_last if options else torch.contiguous_format)


def test_enlarged_images_keep_their_mean():
    data = load(image_size=64)
    assert next(data.train_batches(0, torch.float32, 4))[0].shape == (4, 3, 64, 64)
    raw = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    plain = (raw - data.mean) / data.std
    assert data.normalise(raw, torch.float32).mean() == pytest.approx(plain.mean().item(), abs=1e-3)


def test_an_epoch_has_whole_batches_and_the_test_set_has_all():
    data = load()
    assert data.steps_per_epoch(128) == 15  # of 2,000 images
    assert load(max_steps=2).steps_per_epoch(128) == 2
    assert len(list(load(max_steps=2).train_batches(0, torch.float32, 128))) == 2
    with pytest.raises(UserError, match=r"batch_size 2001.* 2000"):
        data.steps_per_epoch(2001)
    sizes = [len(labels) for _, labels in data.eval_batches(torch.float32, 128)]
    assert sizes == [128, 128, 128, 116]
    assert len(list(load(max_steps=2).eval_batches(torch.float32, 128))) == 2
    assert data.test_batches(torch.float32, 128) is None


def test_a_part_of_the_test_set_has_images_of_every_class(tmp_path):
    make_tree(tmp_path / "cifar10")
    options = {"dataset": "cifar10", "data_dir": str(tmp_path), "batch_size": 6}
    in_order, parts = load(**options), [load(max_steps=3, **options) for _ in range(2)]
    assert in_order.test_labels.tolist() == sorted(in_order.test_labels.tolist())  # class by class
    first, again = ([*itertools.islice(part.eval_batches(torch.float32, 6), 9)] for part in parts)
    assert [len(labels) for _, labels in first] == [6, 6, 6]
    assert torch.cat([labels for _, labels in first]).unique().numel() >= 8
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert parts[0].fingerprint == in_order.fingerprint
    everything = load(max_steps=9, **options)
    assert sorted(everything.test_labels.tolist()) == in_order.test_labels.tolist()


@pytest.mark.parametrize("size", [4, "max"])
def test_the_picture_of_a_batch_is_shown(size, capsys):
    assert load(batch_size=size).show().width == (684 if size == "max" else 276)
    assert f"A batch: images ({128 if size == 'max' else size}, 3, 32, 32)" in capsys.readouterr().out
