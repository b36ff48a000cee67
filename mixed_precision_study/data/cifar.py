"""CIFAR-10 and CIFAR-100: from a folder tree, from torchvision's copy, or downloaded; otherwise made-up images.

With dataset="folder" they are images of one's own.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import hashlib
import itertools
import os
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
from .cache import cached_arrays, decode_all, decoded, file_stats
from .download import downloaded
from .fingerprint import fingerprint_of

CLASSES = {  # as folders of images are named; CIFAR-100's in alphabetical order, too
    "cifar10": "airplane automobile bird cat deer dog frog horse ship truck",
    "cifar100": """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
        castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
        elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
        man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
        pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
        tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm""",
}
CIFAR_SIDE = 32  # pixels
CIFAR_COUNTS = (50_000, 10_000)  # training and test images, of both data sets
KINDS = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}
OWN = "folder"  # the data set of one's own images
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's channels, from 0 to 255
CROP_BYTES = 2**24  # of fp32 images cropped at once, so that few launches come between the steps


class CifarImages(NamedTuple):
    """Training and test data as (uint8 images (N, 3, side, side), labels (N,)), with class names and origin."""

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
    data = Cifar(settings, device, read(settings.dataset, settings.data_dir, device, settings.image_size))
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
        self.side: int = images.train[0].shape[-1]
        self.padding = padding_of(self.side)
        self.classes = images.classes
        self.source, self.used = images.source, images.used
        self.fingerprint = fingerprint_of(*images.train, *images.test, images.classes)
        self.train_samples: int = len(images.train[0])
        self.eval_samples: int = len(images.test[0])
        self.largest_batch = self.train_samples
        self.mean, self.std = torch.tensor([MEAN, STD], device=device).view(2, 3, 1, 1)
        if settings.loader == "gpu":
            self.padded = torch.nn.functional.pad(images.train[0].to(device), [self.padding] * 4)
            self.train_labels = images.train[1].to(device)
        test = images.test
        if settings.max_steps:  # in a folder the images lie class by class: the first would be of a few classes
            drawn = torch.randperm(self.eval_samples, generator=torch.Generator().manual_seed(0))
            test = test[0][drawn], test[1][drawn]
        self.test_images, self.test_labels = (part.to(device) for part in test)

    @property
    def chance(self) -> float:
        """The accuracy of always naming the most frequent class of the test images."""
        return self.test_labels.bincount().max().item() / self.eval_samples

    def normalise(self, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return uint8 images as floats of mean 0 and deviation 1, in the settings' size and memory layout."""
        images = (images - self.mean) / self.std
        size = self.settings.image_size
        if size != self.side:
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
        """Yield batches cropped on the device: random windows of padded images, half mirrored.

        Those of CIFAR are 32 x 32 windows of 40 x 40. As many batches as CROP_BYTES hold are cropped at once.
        """
        count = self.train_samples
        generator = torch.Generator(self.device).manual_seed(1000 * self.settings.seed + epoch)
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        order = torch.randperm(count, **draw)
        window = torch.arange(self.side, device=self.device)
        places = 2 * self.padding + 1
        tops = torch.randint(places, (count, 1), **draw)
        lefts = torch.randint(places, (count, 1), **draw)
        straight = torch.rand(count, 1, **draw) < 0.5
        channels = torch.arange(3, device=self.device)[None, :, None, None]
        together = max(1, CROP_BYTES // (size * 12 * self.settings.image_size**2)) * size
        parts = [part[: count // size * size].split(together) for part in (order, tops, lefts, straight)]
        for chosen, top, left, is_straight in zip(*parts, strict=True):
            rows = top + window
            columns = left + torch.where(is_straight, window, self.side - 1 - window)
            windows = (chosen[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :])
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
        """Yield the test images and labels, at most max_steps batches: then images drawn from the whole set."""
        pairs = zip(self.test_images.split(size), self.test_labels.split(size), strict=True)
        for images, labels in itertools.islice(pairs, self.settings.max_steps or None):
            yield self.normalise(images, dtype), labels

    def show(self) -> Image.Image:
        """Print the shape of a batch and return its first ten images as one picture, small ones enlarged."""
        size = 128 if self.settings.batch_size == "max" else self.settings.batch_size
        images, _ = self.example(size)
        print(f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch")
        grid = torchvision.utils.make_grid(images[:10].float().cpu(), nrow=10, normalize=True)
        picture = torchvision.transforms.functional.to_pil_image(grid)
        times = max(1, 2 * CIFAR_SIDE // self.side)
        return picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)


class AugmentedImages(torch.utils.data.Dataset):
    """Images and labels; each image is cropped and mirrored when it is taken, in a worker process."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        side = images.shape[-1]
        self.augment = v2.Compose([v2.RandomCrop(side, padding=padding_of(side)), v2.RandomHorizontalFlip()])
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.augment(self.images[index]), self.labels[index]


def padding_of(side: int) -> int:
    """Return by how many pixels images are padded before they are cropped: 4 for CIFAR."""
    return side // 8


def read(dataset: str, data_dir: str, device: torch.device, image_size: int = CIFAR_SIDE) -> CifarImages:
    """Return the images of `dataset`; those of "auto" are CIFAR-10, or made-up ones if it is not available.

    Only images of one's own are stored in `image_size`.
    """
    if dataset == "synthetic":
        return make_synthetic(device)
    if dataset == OWN:
        return read_own(Path(data_dir), image_size)
    name = "cifar10" if dataset == "auto" else dataset
    if (Path(data_dir) / name / "train").is_dir():
        return read_cifar_folder(Path(data_dir) / name)
    try:
        return read_torchvision(name, data_dir)
    except (OSError, RuntimeError) as error:
        problem = f"{name} could not be downloaded ({error})"
        advice = f"put it into {data_dir}/{name}/train/<class>/ and {data_dir}/{name}/test/<class>/"
        if dataset != "auto":
            raise UserError(f"{problem}; {advice}.") from None
        print(f"NOTICE: {problem}. MADE-UP IMAGES are used instead; to train on {name}, {advice}.")
        return make_synthetic(device)


def read_image(path: Path, side: int, resize: bool = True) -> np.ndarray:
    """Return an image file as a uint8 array (side, side, 3); raise UserError if it cannot be read or has another size.

    With `resize`, an image of another size is resized.
    """
    picture = decoded(path, "RGB", "repair or remove it")
    if not resize and picture.size != (side, side):
        raise UserError(
            f"the image {path} has {picture.width} x {picture.height} pixels, so {not_cifar(path.parents[2])}"
        )
    return np.asarray(picture.resize((side, side)))


def bare(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def not_cifar(folder: Path) -> str:
    """Return what to do with a folder that is named like CIFAR and holds other images."""
    advice = f'rename that folder, set data_dir to it and dataset to "{OWN}"'
    return f"{folder} is not {folder.name}; for your own images, {advice}."


def list_images(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """Return (path, label) of the images in `folder`/<class>, in the order of their names."""
    files = []
    for label, name in enumerate(classes):
        place = os.path.join(folder, name)
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        files += [(os.path.join(place, one), label) for one in names if os.path.splitext(one)[1].lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder} holds no images; it needs one folder for each class, with images in it.")
    return files


def read_cifar_folder(folder: Path) -> CifarImages:
    """Return CIFAR's images from the tree `folder`/train/<class>/* and `folder`/test/<class>/*.

    Where there are more or fewer than CIFAR's, as of one's own photos in such folders, they get a name of their own.
    """
    names = {bare(name) for name in classes_in(folder)}
    if names != {bare(name) for name in CLASSES[folder.name].split()}:
        raise UserError(f"{folder}/train has other classes, {len(names)} in all, so {not_cifar(folder)}")
    images = read_folder(folder, folder.parent, CIFAR_SIDE, resize=False)
    counts = (len(images.train[0]), len(images.test[0]))
    if counts == CIFAR_COUNTS:
        return images
    print(f"NOTICE: {folder} has {counts[0]:,} and {counts[1]:,} images, so it is not {folder.name}: named *-like.")
    return images._replace(used=f"{folder.name}-like")


def read_own(folder: Path, side: int) -> CifarImages:
    """Return one's own images from the tree `folder`/train/<class>/* and `folder`/test/<class>/*, resized.

    The data are named after the folder, so that runs on other images are never compared with them.
    """
    if bare(folder.name) in ("", "auto", "synthetic", *CLASSES):
        raise UserError(
            f'data_dir is "{folder}", and your images are named after that folder; give it a name that says what they'
            f" are, other than {', '.join(CLASSES)}."
        )
    for part in ("train", "test"):
        if not (folder / part).is_dir():
            raise UserError(
                f'there is no folder {folder / part}; for dataset "{OWN}", data_dir must hold your images as'
                " train/<class>/* and test/<class>/*."
            )
    images = read_folder(folder, folder, side)
    print(f"Your images are resized to {side} x {side} pixels (image_size).")
    return images


def classes_in(folder: Path) -> list[str]:
    """Return the names of the classes in a tree of images."""
    return sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())


def read_folder(folder: Path, data_dir: Path, side: int, resize: bool = True) -> CifarImages:
    """Return the images of the tree `folder`/train/<class>/* and `folder`/test/<class>/*, `side` pixels high and wide.

    They are kept in `data_dir`, and decoded again only if `side` or the name, size or time of a file has changed.
    """
    classes = classes_in(folder)
    train, test = (list_images(folder / part, classes) for part in ("train", "test"))
    paths = [path for path, _ in train + test]

    def decode():
        return {
            "images": decode_all(
                lambda index: read_image(Path(paths[index]), side, resize), len(paths), "decoding images"
            )
        }

    arrays = cached_arrays(data_dir, folder.name, (side, file_stats(paths)), decode)
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([label for _, label in train + test])
    count = len(train)
    return CifarImages(
        (images[:count], labels[:count]), (images[count:], labels[count:]), classes, "folder", folder.name
    )


def read_torchvision(name: str, folder: str | Path) -> CifarImages:
    """Return torchvision's copy in `folder`; if there is none, it is downloaded, and torchvision unpacks it."""
    kind = KINDS[name]
    place = Path(folder) / kind.base_folder
    if not place.exists():
        archive = downloaded(kind.url, md5_of, kind.tgz_md5)
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            (Path(temporary) / kind.filename).write_bytes(archive)
            kind(temporary, download=True)  # finds it there
            try:
                os.replace(Path(temporary) / kind.base_folder, place)
            except OSError:
                if not place.exists():  # otherwise another kernel was faster
                    raise
    train, test = (kind(folder, train=is_train) for is_train in (True, False))
    return CifarImages(as_tensors(train), as_tensors(test), train.classes, "download", name)


def md5_of(content: bytes) -> str:
    """Return the checksum by which torchvision knows an archive."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


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
