"""Images with a number each: the solar cells of ELPV, your own by a CSV, or made-up ones.

ELPV holds 2,624 electroluminescence images with a defect probability of 0, 1/3, 2/3 or 1 (package elpv-dataset,
CC BY-NC-SA 4.0): https://github.com/zae-bayern/elpv-dataset
"""

import importlib.util
import itertools
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

from ..environment import require_packages
from ..errors import UserError
from ..timing import startup
from .batches import TrainingData, device_batches, host_batches, ordinary_loader, place_images, whole_batches
from .cache import cached_arrays, decode_all, file_stats


def load(settings, device):
    """Return the data that the settings name, as NumberedImages; print what they are.

    `settings` has dataset, csv_path, data_dir, image_height, image_width, batch_size, max_steps, channels_last, loader,
    num_workers, loss_function and seed. Raises UserError where data cannot be had or do not fit the loss.
    """
    size = (settings.image_height, settings.image_width)
    files = read(settings.dataset, settings.csv_path, size, device)
    low, high = files.labels.min().item(), files.labels.max().item()
    if settings.loss_function == "bce_with_logits" and not 0 <= low <= high <= 1:
        reach = f"the labels reach from {low:g} to {high:g}, beyond 0 to 1"
        raise UserError(f'{reach}; set loss_function to "mse" for such labels.')
    data = NumberedImages(settings, device, files)
    print(f"{data.used} ({data.source}): {data.train_samples:,} training and {data.eval_samples:,} held-out images")
    startup.lap("data")
    return data


class NumberedImages(TrainingData):
    """Images with one number each; a fifth of them is held out, the same for every seed."""

    sample_unit = "images"
    prefetch = True

    def __init__(self, settings, device, files):
        self.settings, self.device, self.files, self.labels = settings, device, files, files.labels
        self.source, self.used = files.source, files.used
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))
        self.held_out, self.training = order[: len(order) // 5], order[len(order) // 5 :]
        if len(self.held_out) == 0:
            raise UserError(f"{len(self.labels)} images are too few: a fifth of them is held out.")
        self.train_samples, self.eval_samples = len(self.training), len(self.held_out)
        self.largest_batch = self.train_samples
        if settings.loader == "gpu":
            pictures, labels = place_images(self.read_all(), device), self.labels.to(device)
            self.train_places, self.test_places = self.training.to(device), self.held_out.to(device)
            batches = device_batches if pictures.device == labels.device else host_batches
            self.stored_batches = partial(batches, pictures, labels)

    @property
    def chance(self):
        """The mean absolute error of always answering the median of the training labels."""
        return (self.labels[self.held_out] - self.labels[self.training].median()).abs().mean().item()

    def read_all(self):
        """Return all images, uint8 (N, C, height, width), from the cache if nothing they depend on has changed."""

        def decode():
            return {"images": decode_all(self.files.read, len(self.labels), "reading images")}

        if self.files.files is None:  # made-up ones
            return torch.from_numpy(decode()["images"])
        height, width = self.settings.image_height, self.settings.image_width
        key = (height, width, torchvision.__version__, file_stats(self.files.files))
        return torch.from_numpy(cached_arrays(self.settings.data_dir, self.used, key, decode)["images"])

    def normalise(self, images, dtype):
        """Return uint8 images as floats of about mean 0 and deviation 1, with three channels."""
        images = ((images - 127.5) / 64.0).to(dtype).expand(-1, 3, -1, -1)
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)

    def steps_per_epoch(self, size):
        return whole_batches(self.train_samples, size, self.settings.max_steps)

    def train_batches(self, epoch, dtype, size):
        """Yield an epoch's batches: images (size, 3, height, width) of `dtype`, labels (size,); only whole ones."""
        seed = 1000 * self.settings.seed + epoch
        if self.settings.loader == "gpu":
            generator = torch.Generator(self.device).manual_seed(seed)
            places = torch.randperm(self.train_samples, generator=generator, device=self.device)
            batches = self.stored_batches(self.train_places[places], size)
        else:
            generator = torch.Generator().manual_seed(seed)
            batches = self.worker_batches(self.training, size, shuffle=True, drop_last=True, generator=generator)
        chosen = itertools.islice(batches, self.steps_per_epoch(size))
        return ((self.normalise(images, dtype), labels) for images, labels in chosen)

    def eval_batches(self, dtype, size):
        """Yield the held-out images and labels; max_steps batches at most."""
        if self.settings.loader == "gpu":
            batches = self.stored_batches(self.test_places, size)
        else:
            batches = self.worker_batches(self.held_out, size)
        chosen = itertools.islice(batches, self.settings.max_steps or None)
        return ((self.normalise(images, dtype), labels) for images, labels in chosen)

    def worker_batches(self, indices, size, **options):
        """Yield (uint8 images, labels) from an ordinary DataLoader that reads the files."""
        pictures = Pictures(self.files.read, self.labels, indices)
        return ordinary_loader(pictures, size, self.device, self.settings.num_workers, **options)

    def example(self, count):
        """Return a training batch in fp32 of `count` images."""
        return next(self.train_batches(0, torch.float32, count))

    def show(self):
        """Return the first four images of a training batch as one picture, a quarter of their size."""
        size = 32 if self.settings.batch_size == "max" else self.settings.batch_size
        images, labels = self.example(size)
        print(f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch;", end=" ")
        print(f"labels {labels[:8].tolist()}")
        grid = torchvision.utils.make_grid(images[:4, :, ::4, ::4].float().cpu(), nrow=4, normalize=True)
        return torchvision.transforms.functional.to_pil_image(grid)


class Pictures(torch.utils.data.Dataset):
    """Images read from their files, one at a time, in a worker process."""

    def __init__(self, read, labels, indices):
        self.read, self.labels, self.indices = read, labels, indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, place):
        return self.read(int(self.indices[place])), self.labels[self.indices[place]]


def read(dataset, csv_path, size, device):
    """Return what can be read: `read(index)` gives a uint8 image (1 or 3, height, width); files, labels (N,), source.

    `size` is (height, width) in pixels.
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
            raise UserError("the ELPV images are missing; install them with: pip install elpv-dataset") from None
    print("NOTICE: ELPV is not installed (pip install elpv-dataset). MADE-UP IMAGES take its place.")
    return make_synthetic(size, device)


def read_image(path, size, mode="RGB"):
    """Return an image file as uint8 (3 or, in the mode "L", 1, height, width); stop and name a bad file."""
    try:
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image.convert(mode)))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"the image {path} cannot be read ({error}); mend it or take it out of the CSV.") from None
    pixels = pixels.permute(2, 0, 1) if mode == "RGB" else pixels[None]
    return v2.functional.resize(pixels, list(size), antialias=True)


def image_files(files, labels, size, mode, **facts):
    """Return data whose images are these files, each read when it is asked for."""
    labels = torch.tensor(labels.to_numpy(), dtype=torch.float32)
    return SimpleNamespace(read=lambda index: read_image(files[index], size, mode), files=files, labels=labels, **facts)


def read_csv(csv_path, size):
    """Return the images and labels that a CSV names; stop with one sentence at a missing column or a wrong label."""
    try:
        table = pd.read_csv(csv_path)
    except (OSError, ValueError) as error:
        raise UserError(f"csv_path {csv_path!r} cannot be read as a CSV ({error}).") from None
    missing = [name for name in ("path", "image", "label") if name not in table.columns]
    if missing or table.empty:
        wrong = f"lacks the column {missing[0]!r}" if missing else "has no rows"
        raise UserError(
            f"{csv_path} {wrong}; it needs the columns path (folder), image (file name) and label (number)."
        )
    labels = pd.to_numeric(table["label"], errors="coerce")
    if labels.isna().any():
        row = int(labels.isna().idxmax())
        raise UserError(f"{csv_path}: the label {table['label'][row]!r} in row {row + 2} is not a number.")
    places = zip(table["path"].astype(str), table["image"].astype(str), strict=True)
    files = [Path(csv_path).parent / folder / name for folder, name in places]
    return image_files(files, labels, size, "RGB", source="csv", used="csv")


def read_elpv(size):
    """Return the ELPV images (grey, 300 x 300) and their defect probabilities; its own loader would decode them all."""
    folder = Path(importlib.util.find_spec("elpv_dataset").origin).parent / "data"
    table = pd.read_csv(folder / "labels.csv", sep=r"\s+", names=["image", "probability", "kind"])
    files = [folder / name for name in table["image"]]
    return image_files(files, table["probability"], size, "L", source="package", used="elpv")


def make_synthetic(size, device):
    """Return made-up grey images whose mean brightness is their label, from 0 to 1; on the CPU only a few."""
    labels = torch.rand(2_624 if device.type == "cuda" else 160, generator=torch.Generator().manual_seed(0))

    def read(index):
        noise = torch.rand(1, *size, generator=torch.Generator().manual_seed(index))
        return ((0.5 * labels[index] + 0.5 * noise) * 255).to(torch.uint8)

    return SimpleNamespace(read=read, files=None, labels=labels, source="synthetic", used="synthetic")
