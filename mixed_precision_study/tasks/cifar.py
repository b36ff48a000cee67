"""CIFAR-10 and CIFAR-100: from a folder tree, from torchvision's copy, or downloaded; otherwise
made-up images.

With dataset="folder" they are images of one's own.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import hashlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image, ImageOps
from torch import nn
from torchvision.transforms import v2

from ..parameters import UserError
from .batches import Batches, fingerprint_of
from .download import announced, downloaded, found_or_made_up
from .images import ImageData, decode_all, decoded, images_in, is_usual, say_copies

CIFAR_COUNTS = (50_000, 10_000)  # training and test images, of both data sets
CLASS_COUNTS = {"cifar10": 10, "cifar100": 100}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "synthetic": "made-up data"}
TITLES |= {"cifar100-a": "50 classes of CIFAR-100", "cifar100-b": "the other 50 of CIFAR-100"}
KINDS = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's channels, from 0 to 255
CROP_BYTES = 2**24  # of fp32 images cropped at once, so that few launches come between the steps


def load(settings: Any, device: torch.device) -> "Cifar":
    """Return the data that the settings name: for "auto" CIFAR-10, or made-up images if it is
    not available. cifar100-a has the first half of the classes, and cifar100-b the other half.
    """
    place = Path(settings.data_dir)
    side = settings.image_size
    name, _, half = settings.dataset.partition("-")
    name = "cifar10" if name == "auto" else name
    if name == "folder":
        bare = "".join(filter(str.isalnum, place.name.lower()))
        # runs on other images must never be compared with them
        if bare in ("", "auto", "synthetic", *CLASS_COUNTS):
            raise UserError(
                "your images get the name of their folder, so data_dir cannot be "
                f'"{place}"; rename it.'
            )
        print(f"Your images are resized to {side} x {side} pixels (image_size).")
        images = images_in_tree(place, side, is_own=True)
    elif name in KINDS and (place / name / "train").is_dir():
        images = images_in_tree(place / name, 32, is_own=False)
    else:
        advice = f"put it into {place / name}/train/<class>/ and {place / name}/test/<class>/"
        find = partial(torchvision_copy, name, place)
        make_up = partial(made_up_images, device)
        images = found_or_made_up(settings.dataset, name, find, make_up, advice)
    if half:
        images = half_of(half, *images)
    return announced(Cifar(settings, device, *images))


class Cifar(ImageData):
    """Batches of images and labels; the test set is the held-out data.

    `train` and `test` are (uint8 images (N, 3, side, side), labels (N,)), and `classes` the names
    of the labels.
    """

    folder = "cifar10"

    def __init__(self, settings: Any, device: torch.device, images: tuple, source: str, used: str):
        super().__init__(settings, device, source, used)
        train, test, self.classes = images
        self.title = TITLES.get(used)
        self.images, self.labels = train
        self.side = self.images.shape[-1]
        self.image_size = (settings.image_size, settings.image_size)
        self.padding = self.side // 8  # 4 pixels for CIFAR
        self.fingerprint = fingerprint_of(*train, *test, self.classes)
        self.train_samples = self.largest_batch = len(self.images)
        self.eval_samples = len(test[0])
        self.mean, self.std = torch.tensor([MEAN, STD], device=device).view(2, 3, 1, 1)
        if settings.loader == "gpu":
            self.padded = nn.functional.pad(self.images.to(device), [self.padding] * 4)
            self.train_labels = self.labels.to(device)
        self.augment = v2.Compose(
            [v2.RandomCrop(self.side, padding=self.padding), v2.RandomHorizontalFlip()]
        )
        self.training = torch.arange(self.train_samples)
        # in a folder the images lie class by class: the first would be of a few classes
        if settings.max_steps:
            drawn = torch.randperm(self.eval_samples, generator=torch.Generator().manual_seed(0))
            test = test[0][drawn], test[1][drawn]
        self.test_images, self.test_labels = (part.to(device) for part in test)

    @property
    def chance(self) -> float:
        """The accuracy of always naming the most frequent class of the test images."""
        return self.test_labels.bincount().max().item() / self.eval_samples

    def gpu_batches(self, generator: torch.Generator, dtype: torch.dtype, size: int) -> Batches:
        """Yield random windows of padded images, half mirrored.

        As many batches as CROP_BYTES hold are made at once.
        """
        count = self.train_samples
        draw = {"generator": generator, "device": self.device}
        order = torch.randperm(count, **draw)
        window = torch.arange(self.side, device=self.device)
        places = 2 * self.padding + 1
        tops = torch.randint(places, (count, 1), **draw)
        lefts = torch.randint(places, (count, 1), **draw)
        straight = torch.rand(count, 1, **draw) < 0.5
        channels = torch.arange(3, device=self.device)[None, :, None, None]
        together = max(1, CROP_BYTES // (size * 12 * self.settings.image_size**2)) * size
        parts = [
            part[: count // size * size].split(together) for part in (order, tops, lefts, straight)
        ]
        for chosen, top, left, is_straight in zip(*parts, strict=True):
            rows = top + window
            columns = left + torch.where(is_straight, window, self.side - 1 - window)
            windows = (
                chosen[:, None, None, None],
                channels,
                rows[:, None, :, None],
                columns[:, None, None, :],
            )
            images = self.normalise(self.padded[windows], dtype)
            labels = self.train_labels[chosen]
            yield from zip(images.split(size), labels.split(size), strict=True)

    def take(self, index: int) -> torch.Tensor:
        return self.augment(self.images[index])

    def held_out_batches(self, size: int) -> Batches:
        return zip(self.test_images.split(size), self.test_labels.split(size), strict=True)

    def show(self) -> Image.Image:
        """Describe a batch and return its first ten images as one picture, small ones enlarged."""
        return ImageOps.scale(self.picture(10), max(1, 64 // self.side), Image.Resampling.NEAREST)


def half_of(half: str, images: tuple, source: str, used: str) -> tuple:
    """Return what Cifar takes, of the first half "a" of the classes or the other half."""
    *parts, classes = images
    count = len(classes) // 2
    first = 0 if half == "a" else count
    chosen = []
    for pixels, labels in parts:
        own = (labels >= first) & (labels < first + count)
        chosen.append((pixels[own], labels[own] - first))
    return (*chosen, classes[first : first + count]), source, f"{used}-{half}"


def images_in_tree(folder: Path, side: int, is_own: bool) -> tuple:
    """Return what Cifar takes, of images below `folder`/train/<class> and `folder`/test/<class>,
    `side` pixels wide.

    Those that are not one's own get another name unless there are as many as CIFAR's, in as many
    classes.
    """
    classes = sorted(
        path.name for path in folder.glob("train/*") if path.is_dir() and is_usual(path.name)
    )
    samples = []  # with their labels
    counts = []
    for part in ("train", "test"):
        labelled = [
            (path, label)
            for label, name in enumerate(classes)
            for path in images_in(folder / part / name)
        ]
        samples += labelled
        counts.append(len(labelled))
        if not labelled:
            raise UserError(
                f"{folder / part} holds no images; put them into {folder}/train/<class>/* "
                "and test/<class>/*."
            )
    paths, labels = zip(*samples, strict=True)
    say_copies(paths[: counts[0]], paths[counts[0] :])

    def read(index: int) -> np.ndarray:
        return np.asarray(decoded(paths[index]).resize((side, side)))

    pixels = decode_all(read, len(paths)).permute(0, 3, 1, 2).contiguous()
    train, test = zip(pixels.split(counts), torch.tensor(labels).split(counts), strict=True)
    used = folder.name
    if not is_own and (*counts, len(classes)) != (*CIFAR_COUNTS, CLASS_COUNTS[used]):
        print(
            f"NOTICE: {folder} has {counts[0]:,} and {counts[1]:,} images of "
            f"{len(classes)} classes, so it is named"
            f' {used}-like; for your own images, rename the folder and set dataset to "folder".'
        )
        used += "-like"
    return (train, test, classes), "folder", used


def torchvision_copy(name: str, folder: Path) -> tuple:
    """Return torchvision's copy in `folder`; if there is none, it is downloaded, and torchvision
    unpacks it.
    """
    kind = KINDS[name]
    place = folder / kind.base_folder
    if not place.exists():
        md5 = partial(hashlib.md5, usedforsecurity=False)
        archive = downloaded(kind.url, lambda content: md5(content).hexdigest(), kind.tgz_md5)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            (Path(temporary) / kind.filename).write_bytes(archive)
            kind(temporary, download=True)  # finds it there
            try:
                os.replace(Path(temporary) / kind.base_folder, place)
            except OSError:
                if not place.exists():  # otherwise another kernel was faster
                    raise
    parts = [kind(folder, train=is_train) for is_train in (True, False)]
    train, test = (
        (torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets))
        for part in parts
    )
    return (train, test, parts[0].classes), "download", name


def made_up_images(device: torch.device) -> tuple:
    """Return data of CIFAR-10's shape, each image its class's pattern under much noise; on the
    CPU only a few.
    """
    patterns = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    patterns = nn.functional.interpolate(patterns, size=(32, 32), mode="bilinear")
    generator = torch.Generator().manual_seed(0)
    parts = []
    for count in CIFAR_COUNTS if device.type == "cuda" else (2_000, 500):
        labels = torch.randint(10, (count,), generator=generator)
        images = torch.empty(count, 3, 32, 32, dtype=torch.uint8)
        for some, chosen in zip(images.split(4096), labels.split(4096), strict=True):
            some.copy_(
                (patterns[chosen] * 0.4 + torch.rand(some.shape, generator=generator) * 0.6) * 255
            )
        parts.append((images, labels))
    return (*parts, [f"class {number}" for number in range(10)]), "synthetic", "synthetic"
