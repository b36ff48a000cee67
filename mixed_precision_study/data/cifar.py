"""CIFAR-10 and CIFAR-100: from a folder tree, from torchvision's copy, or downloaded; otherwise made-up images.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

from ..errors import UserError
from ..timing import startup
from .batches import Batch, TrainingData, ordinary_loader, whole_batches
from .cache import cached_arrays, decode_all, file_stats

KINDS = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's channels, from 0 to 255
CROP_BYTES = 2**24  # of fp32 images cropped at once, so that few launches come between the steps
DOWNLOAD_SECONDS = 30  # without an answer


class CifarImages(NamedTuple):
    """Training and test data as (uint8 images (N, 3, 32, 32), labels (N,)), with class names and origin."""

    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    classes: list[str]
    source: str
    used: str


def load(settings: SimpleNamespace, device: torch.device) -> "Cifar":
    """Return the data that the settings name and print what they are.

    `settings` has dataset, data_dir, batch_size, max_steps, image_size, channels_last, loader, num_workers and seed.
    Raises UserError if data that were asked for by name are not available.
    """
    data = Cifar(settings, device, read(settings.dataset, settings.data_dir, device))
    print(f"{data.title}: {data.train_samples:,} training and {data.eval_samples:,} test images")
    startup.lap("data")
    return data


class Cifar(TrainingData):
    """Batches of images and labels. `classes` are the names of the labels; the test set is the held-out data."""

    sample_unit = "images"
    prefetch = True

    def __init__(self, settings: SimpleNamespace, device: torch.device, images: CifarImages):
        self.settings = settings
        self.device = device
        self.train = images.train
        self.classes = images.classes
        self.source, self.used = images.source, images.used
        self.train_samples: int = len(images.train[0])
        self.eval_samples: int = len(images.test[0])
        self.largest_batch = self.train_samples
        self.mean, self.std = torch.tensor([MEAN, STD], device=device).view(2, 3, 1, 1)
        if settings.loader == "gpu":
            self.padded = torch.nn.functional.pad(images.train[0].to(device), (4, 4, 4, 4))
            self.train_labels = images.train[1].to(device)
        self.test_images, self.test_labels = (part.to(device) for part in images.test)

    @property
    def chance(self) -> float:
        """The accuracy of always naming the most frequent class of the test images."""
        return self.test_labels.bincount().max().item() / self.eval_samples

    def normalise(self, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return uint8 images as floats of mean 0 and deviation 1, in the settings' size and memory layout."""
        images = (images - self.mean) / self.std
        size = self.settings.image_size
        if size != 32:
            images = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear")
        images = images.to(dtype)
        return images.contiguous(memory_format=torch.channels_last) if self.settings.channels_last else images

    def steps_per_epoch(self, size: int) -> int:
        return whole_batches(self.train_samples, size, self.settings.max_steps)

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Return the batches of an epoch: images (size, 3, height, width) of `dtype`, labels (size,)."""
        batches = self.gpu_batches if self.settings.loader == "gpu" else self.worker_batches
        return itertools.islice(batches(epoch, dtype, size), self.steps_per_epoch(size))

    def gpu_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Yield batches cropped on the device: random 32 x 32 windows of images padded to 40 x 40, half mirrored.

        As many batches as CROP_BYTES hold are cropped at once.
        """
        count = self.train_samples
        generator = torch.Generator(self.device).manual_seed(1000 * self.settings.seed + epoch)
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        order = torch.randperm(count, **draw)
        window = torch.arange(32, device=self.device)
        rows = torch.randint(9, (count, 1), **draw) + window
        lefts = torch.randint(9, (count, 1), **draw)
        columns = lefts + torch.where(torch.rand(count, 1, **draw) < 0.5, window, 31 - window)
        channels = torch.arange(3, device=self.device)[None, :, None, None]
        together = max(1, CROP_BYTES // (size * 12 * self.settings.image_size**2)) * size
        parts = [part[: count // size * size].split(together) for part in (order, rows, columns)]
        for chosen, row, column in zip(*parts, strict=True):
            windows = (chosen[:, None, None, None], channels, row[:, None, :, None], column[:, None, None, :])
            images = self.normalise(self.padded[windows], dtype)
            labels = self.train_labels[chosen]
            yield from zip(images.split(size), labels.split(size), strict=True)

    def worker_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Yield batches from an ordinary DataLoader, whose workers crop one image after the other."""
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + epoch)
        options = {"shuffle": True, "drop_last": True, "generator": generator}
        dataset = AugmentedImages(*self.train)
        for images, labels in ordinary_loader(dataset, size, self.device, self.settings.num_workers, **options):
            yield self.normalise(images, dtype), labels

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Yield the test images and labels, at most max_steps batches."""
        pairs = zip(self.test_images.split(size), self.test_labels.split(size), strict=True)
        for images, labels in itertools.islice(pairs, self.settings.max_steps or None):
            yield self.normalise(images, dtype), labels

    def show(self) -> Image.Image:
        """Print the shape of a batch and return its first ten images as one picture, twice their size."""
        size = 128 if self.settings.batch_size == "max" else self.settings.batch_size
        images, _ = self.example(size)
        print(f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch")
        grid = torchvision.utils.make_grid(images[:10].float().cpu(), nrow=10, normalize=True)
        picture = torchvision.transforms.functional.to_pil_image(grid)
        return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


class AugmentedImages(torch.utils.data.Dataset):
    """Images and labels; each image is cropped and mirrored when it is taken, in a worker process."""

    augment = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])

    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.augment(self.images[index]), self.labels[index]


def read(dataset: str, data_dir: str, device: torch.device) -> CifarImages:
    """Return the images of `dataset`; those of "auto" are CIFAR-10, or made-up ones if it is not available."""
    if dataset == "synthetic":
        return make_synthetic(device)
    name = "cifar10" if dataset == "auto" else dataset
    if (Path(data_dir) / name / "train").is_dir():
        return read_folder(Path(data_dir) / name)
    try:
        return read_torchvision(name, data_dir)
    except (OSError, RuntimeError) as error:
        problem = f"{name} could not be downloaded ({error})"
        advice = f"put it into {data_dir}/{name}/train/<class>/ and {data_dir}/{name}/test/<class>/"
        if dataset != "auto":
            raise UserError(f"{problem}; {advice}.") from None
        print(f"NOTICE: {problem}. MADE-UP IMAGES are used instead; to train on {name}, {advice}.")
        return make_synthetic(device)


def read_image(path: Path) -> np.ndarray:
    """Return an image file as a uint8 array (32, 32, 3); raise UserError if it cannot be read."""
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((32, 32)))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"the image {path} cannot be read ({error}); repair or remove it.") from None


def list_images(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """Return (path, label) of the images in `folder`/<class>, in the order of their names."""
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*"))]
    files = [(path, label) for path, label in files if path.suffix.lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder} holds no images; it needs one folder for each class, with images in it.")
    return files


def read_folder(folder: Path) -> CifarImages:
    """Return the images of the tree `folder`/train/<class>/* and `folder`/test/<class>/*.

    They are decoded again only if the name, size or time of a file has changed.
    """
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train, test = (list_images(folder / part, classes) for part in ("train", "test"))
    paths = [path for path, _ in train + test]

    def decode():
        return {"images": decode_all(lambda index: read_image(paths[index]), len(paths), "decoding images")}

    arrays = cached_arrays(folder.parent, folder.name, file_stats(paths), decode)
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([label for _, label in train + test])
    count = len(train)
    return CifarImages(
        (images[:count], labels[:count]), (images[count:], labels[count:]), classes, "folder", folder.name
    )


def read_torchvision(name: str, folder: str | Path) -> CifarImages:
    """Return torchvision's copy in `folder`; if there is none, torchvision downloads and checks it first."""
    kind = KINDS[name]
    place = Path(folder) / kind.base_folder
    if not place.exists():
        socket.setdefaulttimeout(DOWNLOAD_SECONDS)
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            kind(temporary, download=True)
            try:
                os.replace(Path(temporary) / kind.base_folder, place)
            except OSError:
                if not place.exists():  # otherwise another kernel was faster
                    raise
    train, test = (kind(folder, train=is_train) for is_train in (True, False))
    return CifarImages(as_tensors(train), as_tensors(test), train.classes, "download", name)


def as_tensors(dataset: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images (N, 3, 32, 32) and labels of one of torchvision's data sets."""
    return torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(dataset.targets)


def make_images(count: int, classes: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return made-up images and labels that can be learned: a pattern for each class under much noise."""
    patterns = torch.rand(classes, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    patterns = torch.nn.functional.interpolate(patterns, size=(32, 32), mode="bilinear")
    labels = torch.randint(classes, (count,), generator=generator)
    images = torch.empty(count, 3, 32, 32, dtype=torch.uint8)
    for part, chosen in zip(images.split(4096), labels.split(4096), strict=True):
        noise = torch.rand(part.shape, generator=generator)
        part.copy_((patterns[chosen] * 0.4 + noise * 0.6) * 255)
    return images, labels


def make_synthetic(device: torch.device) -> CifarImages:
    """Return made-up data of CIFAR-10's shape and size; on the CPU a small part of it."""
    generator = torch.Generator().manual_seed(0)
    classes = [f"class {number}" for number in range(10)]
    counts = (50_000, 10_000) if device.type == "cuda" else (2_000, 500)
    train, test = (make_images(count, len(classes), generator) for count in counts)
    return CifarImages(train, test, classes, "synthetic", "synthetic")
