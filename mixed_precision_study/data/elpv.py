"""Images with one number each: the solar cells of ELPV, your own from a CSV, or made-up ones.

ELPV holds 2,624 electroluminescence images with a defect probability of 0, 1/3, 2/3 or 1 (package elpv-dataset,
CC BY-NC-SA 4.0): https://github.com/zae-bayern/elpv-dataset
"""

import importlib.util
import itertools
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

from ..environment import require_packages
from ..errors import UserError
from ..files import check_is_file
from ..timing import startup
from .batches import Batch, TrainingData, device_batches, host_batches, ordinary_loader, place_images, whole_batches
from .cache import cached_arrays, decode_all, decoded, file_stats
from .fingerprint import fingerprint_of, fingerprint_of_files

ATTRIBUTION = """\
Pictures, made smaller: ELPV by Buerhop-Lutz et al., 2018, CC BY-NC-SA 4.0
https://github.com/zae-bayern/elpv-dataset"""
NEEDED = "it needs the columns path (folder), image (file name) and label (number)"
MAX_LABEL = float(np.finfo(np.float32).max)


@dataclass
class ImageSource:
    """Where images and their labels come from."""

    read: Callable[[int], torch.Tensor]  # read(index) returns a uint8 image (1 or 3, height, width)
    paths: list[Path] | None  # of the image files; None for made-up images
    labels: torch.Tensor  # (N,), float32
    source: str  # "package", "csv" or "synthetic"
    used: str  # name of the data set


def load(settings: SimpleNamespace, device: torch.device) -> "NumberedImages":
    """Return the data that the settings name and print what they are.

    `settings` has dataset, csv_path, data_dir, image_height, image_width, batch_size, max_steps, channels_last, loader,
    num_workers, loss_function and seed. Raises UserError if data are not available or do not fit the loss.
    """
    size = (settings.image_height, settings.image_width)
    images = read(settings.dataset, settings.csv_path, size, device)
    low, high = images.labels.min().item(), images.labels.max().item()
    if settings.loss_function == "bce_with_logits" and not 0 <= low <= high <= 1:
        raise UserError(
            f'the labels reach from {low:g} to {high:g}, beyond 0 to 1; set loss_function to "mse" for such labels.'
        )
    data = NumberedImages(settings, device, images)
    print(f"{data.title}: {data.train_samples:,} training and {data.eval_samples:,} held-out images")
    startup.lap("data")
    return data


class NumberedImages(TrainingData):
    """Batches of images with one number each. A fifth of the images is held out, the same for every seed.

    `training` and `held_out` are the indices of the images in `images`.
    """

    sample_unit = "images"
    prefetch = True

    def __init__(self, settings: SimpleNamespace, device: torch.device, images: ImageSource):
        self.settings = settings
        self.device = device
        self.images = images
        self.labels = images.labels
        self.source, self.used = images.source, images.used
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))
        self.held_out, self.training = order[: len(order) // 5], order[len(order) // 5 :]
        if len(self.held_out) == 0:
            raise UserError(f"{len(self.labels)} images are too few: a fifth of them is held out.")
        self.train_samples: int = len(self.training)
        self.eval_samples: int = len(self.held_out)
        self.largest_batch = self.train_samples
        self.fingerprint = self.identify()
        if settings.loader == "gpu":
            pixels = place_images(self.read_all(), device)
            labels = self.labels.to(device)
            self.training_on_device = self.training.to(device)
            self.held_out_on_device = self.held_out.to(device)
            batches = device_batches if pixels.device == labels.device else host_batches
            self.stored_batches = partial(batches, pixels, labels)

    @property
    def chance(self) -> float:
        """The mean absolute error of always answering the median of the training labels."""
        return (self.labels[self.held_out] - self.labels[self.training].median()).abs().mean().item()

    def identify(self) -> str:
        """Return the fingerprint of files and labels, the same for both loaders, or of what makes made-up images."""
        split = (self.train_samples, self.eval_samples)
        if self.images.paths is None:
            return fingerprint_of("made up", self.labels, split, self.settings.image_height, self.settings.image_width)
        return fingerprint_of_files(self.images.paths, self.labels, split)

    def read_all(self) -> torch.Tensor:
        """Return all images, uint8 (N, C, height, width), from the cache if nothing they depend on has changed."""

        def decode():
            return {"images": decode_all(self.images.read, len(self.labels), "reading images")}

        if self.images.paths is None:
            return torch.from_numpy(decode()["images"])
        height, width = self.settings.image_height, self.settings.image_width
        key = (height, width, torchvision.__version__, file_stats(self.images.paths))
        return torch.from_numpy(cached_arrays(self.settings.data_dir, self.used, key, decode)["images"])

    def normalise(self, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return uint8 images as floats of about mean 0 and deviation 1, with three channels."""
        images = ((images - 127.5) / 64.0).to(dtype).expand(-1, 3, -1, -1)
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)

    def steps_per_epoch(self, size: int) -> int:
        return whole_batches(self.train_samples, size, self.settings.max_steps)

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Return the batches of an epoch: images (size, 3, height, width) of `dtype`, labels (size,)."""
        seed = 1000 * self.settings.seed + epoch
        if self.settings.loader == "gpu":
            generator = torch.Generator(self.device).manual_seed(seed)
            order = torch.randperm(self.train_samples, generator=generator, device=self.device)
            batches = self.stored_batches(self.training_on_device[order], size)
        else:
            generator = torch.Generator().manual_seed(seed)
            batches = self.worker_batches(self.training, size, shuffle=True, drop_last=True, generator=generator)
        chosen = itertools.islice(batches, self.steps_per_epoch(size))
        return ((self.normalise(images, dtype), labels) for images, labels in chosen)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Return the held-out images and labels, at most max_steps batches."""
        if self.settings.loader == "gpu":
            batches = self.stored_batches(self.held_out_on_device, size)
        else:
            batches = self.worker_batches(self.held_out, size)
        chosen = itertools.islice(batches, self.settings.max_steps or None)
        return ((self.normalise(images, dtype), labels) for images, labels in chosen)

    def worker_batches(self, indices: torch.Tensor, size: int, **options: Any) -> Iterator[Batch]:
        """Return the uint8 images and labels of an ordinary DataLoader, whose workers read the files."""
        dataset = ImageFiles(self.images.read, self.labels, indices)
        return ordinary_loader(dataset, size, self.device, self.settings.num_workers, **options)

    def show(self) -> Image.Image:
        """Print the shape and labels of a batch and return its first four images as one picture, a quarter as large."""
        size = 32 if self.settings.batch_size == "max" else self.settings.batch_size
        images, labels = self.example(size)
        print(f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch;", end=" ")
        print(f"labels {labels[:8].tolist()}")
        if self.source == "package":
            print(ATTRIBUTION)
        grid = torchvision.utils.make_grid(images[:4, :, ::4, ::4].float().cpu(), nrow=4, normalize=True)
        return torchvision.transforms.functional.to_pil_image(grid)


class ImageFiles(torch.utils.data.Dataset):
    """Images and labels of the given indices; each image is read when it is taken, in a worker process."""

    def __init__(self, read: Callable[[int], torch.Tensor], labels: torch.Tensor, indices: torch.Tensor):
        self.read = read
        self.labels = labels
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.read(int(self.indices[number])), self.labels[self.indices[number]]


def read(dataset: str, csv_path: str, size: tuple[int, int], device: torch.device) -> ImageSource:
    """Return the images of `dataset`, (height, width) `size` in pixels.

    Those of "auto" are from the CSV if there is one, else ELPV, or made-up ones if that is not installed.
    """
    if dataset == "csv" and not csv_path:
        raise UserError('dataset is "csv" but csv_path is empty; give it the CSV that names your images.')
    if csv_path and dataset in ("auto", "csv"):
        return read_csv(csv_path, size)
    if dataset == "synthetic":
        return make_synthetic(size, device)
    try:
        require_packages({"elpv_dataset": "elpv-dataset"})
        return read_elpv(size)
    except (UserError, subprocess.CalledProcessError):
        if dataset == "elpv":
            raise UserError(
                "the ELPV images are missing or incomplete; install them with:"
                " pip install --force-reinstall elpv-dataset"
            ) from None
    print("NOTICE: ELPV is not installed (pip install elpv-dataset). MADE-UP IMAGES are used instead.")
    return make_synthetic(size, device)


def read_image(path: Path, size: tuple[int, int], mode: str = "RGB") -> torch.Tensor:
    """Return an image file as uint8 (3, height, width), or (1, height, width) for mode "L".

    Raises UserError if it cannot be read.
    """
    picture = decoded(path, mode, "repair it or remove it from the CSV")
    pixels = torch.from_numpy(np.array(picture))
    pixels = pixels.permute(2, 0, 1) if mode == "RGB" else pixels[None]
    return v2.functional.resize(pixels, list(size), antialias=True)


def read_csv(csv_path: str, size: tuple[int, int]) -> ImageSource:
    """Return the images and labels that a CSV names; raise UserError for a missing column or a wrong cell."""
    try:
        check_is_file(Path(csv_path))
        check_columns(csv_path, [str(name) for name in pd.read_csv(csv_path, nrows=0, index_col=False).columns])
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of cells that the header does not name
            names = {"path": str, "image": str}  # they stay as they are, such as 007 and NA
            table = pd.read_csv(csv_path, dtype=names, index_col=False, keep_default_na=False)
    except pd.errors.ParserWarning:
        raise UserError(f"{csv_path} has rows with more cells than its header; name every column.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"csv_path {csv_path!r} cannot be read as a CSV ({error}).") from None
    if table.empty:
        raise UserError(f"{csv_path} has no rows; {NEEDED}.")
    for name in ("path", "image"):
        if (table[name] == "").any():
            row = first_row(table[name] == "")
            raise UserError(f'{csv_path}: the {name} in row {row} is empty; "." is the folder of the CSV.')
    labels = pd.to_numeric(table["label"], errors="coerce")
    wrong = ~(labels.abs() <= MAX_LABEL)  # NaN is not
    if wrong.any():
        label = str(table["label"][wrong.idxmax()])
        problem = f"the label {label!r} in row {first_row(wrong)} is not a finite number"
        raise UserError(f"{csv_path}: {problem if label else f'the label in row {first_row(wrong)} is missing'}.")
    folders_and_names = zip(table["path"], table["image"], strict=True)
    paths = [Path(csv_path).parent / folder / name for folder, name in folders_and_names]
    return source_of_files(paths, labels, size, "RGB", "csv", "csv")


def check_columns(csv_path: str, found: list[str]) -> None:
    """Raise UserError where a CSV lacks a column, with those that it has, or with what separates them."""
    missing = [name for name in ("path", "image", "label") if name not in found]
    if not missing:
        return
    other = next((sign for sign in (";", "\t", "|") if len(found) == 1 and sign in found[0]), None)
    problem = f"lacks the column {missing[0]!r} and has {', '.join(map(repr, found))}"
    if other:
        problem = f"separates its columns by {other!r}, as {found[0]!r} shows; separate them by commas"
    raise UserError(f"{csv_path} {problem}; {NEEDED}.")


def first_row(chosen: pd.Series) -> int:
    """Return the number of the first chosen row in the CSV, whose header is row 1."""
    return int(chosen.idxmax()) + 2


def read_elpv(size: tuple[int, int]) -> ImageSource:
    """Return the ELPV images (grey, 300 x 300) and their defect probabilities.

    The package's own loader is not used because it decodes all images at once.
    """
    spec: Any = importlib.util.find_spec("elpv_dataset")
    folder = Path(spec.origin or "").parent / "data"  # what an incomplete removal leaves has no origin
    if not (spec.origin and (folder / "labels.csv").is_file()):
        raise UserError("the package elpv-dataset is incomplete")
    table = pd.read_csv(folder / "labels.csv", sep=r"\s+", names=["image", "probability", "kind"])
    paths = [folder / name for name in table["image"]]
    return source_of_files(paths, table["probability"], size, "L", "package", "elpv")


def source_of_files(
    paths: list[Path], labels: pd.Series, size: tuple[int, int], mode: str, source: str, used: str
) -> ImageSource:
    """Return the ImageSource of image files, which are read one by one."""
    labels = torch.tensor(labels.to_numpy(), dtype=torch.float32)
    return ImageSource(lambda index: read_image(paths[index], size, mode), paths, labels, source, used)


def make_synthetic(size: tuple[int, int], device: torch.device) -> ImageSource:
    """Return made-up grey images whose mean brightness is their label, from 0 to 1; on the CPU only a few."""
    labels = torch.rand(2_624 if device.type == "cuda" else 160, generator=torch.Generator().manual_seed(0))

    def read_one(index):
        noise = torch.rand(1, *size, generator=torch.Generator().manual_seed(index))
        return ((0.5 * labels[index] + 0.5 * noise) * 255).to(torch.uint8)

    return ImageSource(read_one, None, labels, "synthetic", "synthetic")
