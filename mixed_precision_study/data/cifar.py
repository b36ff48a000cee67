"""CIFAR-10 and CIFAR-100: read from a folder tree, from torchvision's copy, or downloaded; else made-up images.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import itertools
import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

from ..errors import UserError
from ..timing import startup
from .batches import TrainingData, ordinary_loader, whole_batches
from .cache import cached_arrays, decode_all, file_stats

KINDS = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's channels, from 0 to 255
EPOCH_BYTES = 2**24  # of fp32 images that are cropped together, so that few launches come between the steps


def load(settings, device):
    """Return the data that the settings name, as Cifar; print what they are.

    `settings` has dataset, data_dir, batch_size, max_steps, image_size, channels_last, loader, num_workers and seed.
    Raises UserError where data that were asked for by name cannot be had.
    """
    data = Cifar(settings, device, *read(settings.dataset, settings.data_dir, device))
    print(f"{data.used} ({data.source}): {data.train_samples:,} training and {data.eval_samples:,} test images")
    startup.lap("data")
    return data


class Cifar(TrainingData):
    """Images and labels on the device: `classes` are the names; images are uint8 (N, 3, 32, 32)."""

    sample_unit = "images"
    prefetch = True

    def __init__(self, settings, device, train, test, classes, source, used):
        self.settings, self.device, self.train = settings, device, train
        self.classes, self.source, self.used = classes, source, used
        self.train_samples, self.eval_samples = len(train[0]), len(test[0])
        self.largest_batch = self.train_samples
        self.mean, self.std = torch.tensor([MEAN, STD], device=device).view(2, 3, 1, 1)
        if settings.loader == "gpu":
            self.padded = torch.nn.functional.pad(train[0].to(device), (4, 4, 4, 4))
            self.train_labels = train[1].to(device)
        self.test_images, self.test_labels = (part.to(device) for part in test)

    @property
    def chance(self):
        """The accuracy of always naming the commonest class of the test images."""
        return self.test_labels.bincount().max().item() / self.eval_samples

    def normalise(self, images, dtype):
        """Return uint8 images as floats of mean 0 and deviation 1, in the size and memory layout asked for."""
        images = (images - self.mean) / self.std
        size = self.settings.image_size
        if size != 32:
            images = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear")
        images = images.to(dtype)
        return images.contiguous(memory_format=torch.channels_last) if self.settings.channels_last else images

    def steps_per_epoch(self, size):
        return whole_batches(self.train_samples, size, self.settings.max_steps)

    def train_batches(self, epoch, dtype, size):
        """Yield an epoch's batches: images (size, 3, height, width) of `dtype`, labels (size,); only whole ones."""
        batches = self.gpu_batches if self.settings.loader == "gpu" else self.worker_batches
        return itertools.islice(batches(epoch, dtype, size), self.steps_per_epoch(size))

    def gpu_batches(self, epoch, dtype, size):
        """Yield batches cropped on the device: random 32 x 32 windows of images padded to 40 x 40, half mirrored."""
        count = self.train_samples
        generator = torch.Generator(self.device).manual_seed(1000 * self.settings.seed + epoch)
        draw = {"generator": generator, "device": self.device}
        order, span = torch.randperm(count, **draw), torch.arange(32, device=self.device)
        rows = torch.randint(9, (count, 1), **draw) + span
        columns = torch.randint(9, (count, 1), **draw)
        columns = columns + torch.where(torch.rand(count, 1, **draw) < 0.5, span, 31 - span)
        channels = torch.arange(3, device=self.device)[None, :, None, None]
        together = max(1, EPOCH_BYTES // (size * 12 * self.settings.image_size**2)) * size
        pieces = [part[: count // size * size].split(together) for part in (order, rows, columns)]
        for chosen, row, column in zip(*pieces, strict=True):
            windows = (chosen[:, None, None, None], channels, row[:, None, :, None], column[:, None, None, :])
            images, labels = self.normalise(self.padded[windows], dtype), self.train_labels[chosen]
            yield from zip(images.split(size), labels.split(size), strict=True)

    def worker_batches(self, epoch, dtype, size):
        """Yield the same from an ordinary DataLoader, which crops one image after the other."""
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + epoch)
        options = {"shuffle": True, "drop_last": True, "generator": generator}
        pictures = Pictures(*self.train)
        for images, labels in ordinary_loader(pictures, size, self.device, self.settings.num_workers, **options):
            yield self.normalise(images, dtype), labels

    def eval_batches(self, dtype, size):
        """Yield the test images and labels, the last batch smaller; max_steps batches at most."""
        pairs = zip(self.test_images.split(size), self.test_labels.split(size), strict=True)
        for images, labels in itertools.islice(pairs, self.settings.max_steps or None):
            yield self.normalise(images, dtype), labels

    def example(self, count):
        """Return a training batch in fp32 of `count` images."""
        return next(self.train_batches(0, torch.float32, count))

    def show(self):
        """Return the first ten images of a training batch as one picture, twice their size."""
        size = 128 if self.settings.batch_size == "max" else self.settings.batch_size
        images, _ = self.example(size)
        print(f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch")
        grid = torchvision.utils.make_grid(images[:10].float().cpu(), nrow=10, normalize=True)
        picture = torchvision.transforms.functional.to_pil_image(grid)
        return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


class Pictures(torch.utils.data.Dataset):
    """Images and labels with the same crop and flip, done one image at a time in a worker process."""

    augment = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.augment(self.images[index]), self.labels[index]


def read(dataset, data_dir, device):
    """Return (train, test, classes, source, used); train and test are (uint8 images (N, 3, 32, 32), labels (N,))."""
    if dataset == "synthetic":
        return make_synthetic(device)
    name = "cifar10" if dataset == "auto" else dataset
    if (Path(data_dir) / name / "train").is_dir():
        return read_folder(Path(data_dir) / name)
    try:
        return read_torchvision(name, data_dir)
    except (OSError, RuntimeError) as error:
        advice = f"put it into {data_dir}/{name}/train/<class>/ and {data_dir}/{name}/test/<class>/"
        if dataset != "auto":
            raise UserError(f"{name} could not be downloaded ({error}); {advice}.") from None
        print(f"NOTICE: {name} could not be downloaded ({error}). MADE-UP IMAGES take its place; to use it, {advice}.")
        return make_synthetic(device)


def read_image(path):
    """Return an image file as a uint8 array (32, 32, 3); stop and name the file when it cannot be read."""
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((32, 32)))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"the image {path} cannot be read ({error}); mend or remove it.") from None


def list_images(folder, classes):
    """Return [(path, label)] of `folder`/<class>/*, in the order of the names."""
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*"))]
    files = [(path, label) for path, label in files if path.suffix.lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder} holds no images; it needs one folder for each class, with images in it.")
    return files


def read_folder(folder):
    """Return what read() does from the tree `folder`/train/<class>/* and `folder`/test/<class>/*.

    The images are decoded once and then kept; a tree in which a file's name, size or time has changed is decoded anew.
    """
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train, test = (list_images(folder / part, classes) for part in ("train", "test"))
    paths = [path for path, _ in train + test]

    def decode():
        return {"images": decode_all(lambda index: read_image(paths[index]), len(paths), "decoding images")}

    images = cached_arrays(folder.parent, folder.name, file_stats(paths), decode)["images"]
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([label for _, label in train + test])
    train, test = zip(*(part.split((len(train), len(test))) for part in (images, labels)), strict=True)
    return train, test, classes, "folder", folder.name


def read_torchvision(name, folder):
    """Return what read() does from torchvision's copy in `folder`; if there is none, download and check it first."""
    kind = KINDS[name]
    if not (Path(folder) / kind.base_folder).exists():
        socket.setdefaulttimeout(30)  # seconds; a silent server must not hold the notebook for ever
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            kind(temporary, download=True)
            try:
                os.replace(Path(temporary) / kind.base_folder, Path(folder) / kind.base_folder)
            except OSError:
                if not (Path(folder) / kind.base_folder).exists():  # else another kernel was faster
                    raise
    parts = [kind(folder, train=train) for train in (True, False)]
    train, test = [(torch.from_numpy(p.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(p.targets)) for p in parts]
    return train, test, parts[0].classes, "download", name


def make_images(count, classes, generator):
    """Return made-up (images, labels): a random pattern for each class under much noise, so that it can be learned."""
    patterns = torch.rand(classes, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    patterns = torch.nn.functional.interpolate(patterns, size=(32, 32), mode="bilinear")
    labels = torch.randint(classes, (count,), generator=generator)
    images = torch.empty(count, 3, 32, 32, dtype=torch.uint8)
    for part, chosen in zip(images.split(4096), labels.split(4096), strict=True):
        noise = torch.rand(part.shape, generator=generator)
        part.copy_((patterns[chosen] * 0.4 + noise * 0.6) * 255)
    return images, labels


def make_synthetic(device):
    """Return made-up data of CIFAR-10's shape and size; on the CPU a small part of it."""
    generator, classes = torch.Generator().manual_seed(0), [f"class {number}" for number in range(10)]
    counts = (50_000, 10_000) if device.type == "cuda" else (2_000, 500)
    train, test = (make_images(count, len(classes), generator) for count in counts)
    return train, test, classes, "synthetic", "synthetic"
