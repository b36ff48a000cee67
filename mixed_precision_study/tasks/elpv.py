"""Images with one number each: the solar cells of ELPV, your own from a CSV, or made-up ones.

ELPV holds 2,624 electroluminescence images with a defect probability of 0, 1/3, 2/3 or 1 (package
elpv-dataset,
CC BY-NC-SA 4.0): https://github.com/zae-bayern/elpv-dataset
"""

import csv
import importlib.resources
import reprlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from ..measure.packages import require_packages
from ..parameters import UserError
from .batches import Batches, fingerprint_of
from .data_files import hash_of_files
from .download import announced, found_or_made_up
from .images import ImageData, decode_all, decoded, say_copies

ATTRIBUTION = """\
Pictures, made smaller: ELPV by Buerhop-Lutz et al., 2018, CC BY-NC-SA 4.0
https://github.com/zae-bayern/elpv-dataset"""
CSV_FORM = (
    'it needs the columns path (folder, such as "."), image (file name) and label (number), '
    "separated by commas"
)
TITLES = {"elpv": "ELPV", "synthetic": "made-up data"}
MAX_LABEL = float(np.finfo(np.float32).max)


def load(settings: Any, device: torch.device) -> "NumberedImages":
    """Return the data that the settings name: for "auto" the CSV's, else ELPV, or made-up ones
    if it is missing.
    """
    size = (settings.image_height, settings.image_width)
    if settings.dataset == "csv" or (settings.csv_path and settings.dataset == "auto"):
        images = images_of_csv(Path(settings.csv_path), size)
    else:
        advice = "install it with: pip install --force-reinstall elpv-dataset"
        make_up = partial(made_up_cells, size, device)
        images = found_or_made_up(
            settings.dataset, "ELPV", partial(elpv_images, size), make_up, advice
        )
    return announced(NumberedImages(settings, device, *images))


class NumberedImages(ImageData):
    """Batches of images with one number each. A fifth of the images is held out, the same for every
    seed.

    take(index) returns a uint8 image (1 or 3, height, width), `paths` are the files, or None for
    made-up images, and `labels` is float32 (N,). `training` and `held_out` are indices.
    """

    mean = 127.5
    std = 64.0

    def __init__(self, settings: Any, device: torch.device, images: tuple, source: str, used: str):
        super().__init__(settings, device, source, used)
        self.take, self.paths, self.labels = images
        low, high = self.labels.aminmax()
        if settings.loss_function == "bce_with_logits" and not 0 <= low <= high <= 1:
            raise UserError(
                f"the labels reach from {low:g} to {high:g}, beyond 0 to 1; set "
                'loss_function to "mse" for such labels.'
            )
        self.image_size = (settings.image_height, settings.image_width)
        self.title = f"{TITLES.get(used, used)}, {settings.image_height} × {settings.image_width}"
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))
        self.held_out = order[: len(order) // 5]
        self.training = order[len(order) // 5 :]
        if len(self.held_out) == 0:
            raise UserError(f"{len(self.labels)} images are too few: a fifth of them is held out.")
        self.train_samples = self.largest_batch = len(self.training)
        self.eval_samples = len(self.held_out)
        split = (self.train_samples, self.eval_samples)
        if self.paths is None:
            self.fingerprint = fingerprint_of("made up", self.labels, split, *self.image_size)
        else:  # of the files, so that it is the same for both loaders
            self.fingerprint = fingerprint_of(hash_of_files(self.paths), self.labels, split)
            say_copies(
                [self.paths[index] for index in self.training],
                [self.paths[index] for index in self.held_out],
            )
        if settings.loader == "gpu":
            pixels = decode_all(self.take, len(self.labels))
            self.on_device = [
                part.to(device) for part in (pixels, self.labels, self.training, self.held_out)
            ]

    @property
    def chance(self) -> float:
        """The mean absolute error of always answering the median of the training labels."""
        return (
            (self.labels[self.held_out] - self.labels[self.training].median()).abs().mean().item()
        )

    def stored_batches(self, places: Tensor, size: int) -> Batches:
        pixels, labels, *_ = self.on_device
        return ((pixels[chosen], labels[chosen]) for chosen in places.split(size))

    def gpu_batches(self, generator: torch.Generator, dtype: torch.dtype, size: int) -> Batches:
        order = torch.randperm(self.train_samples, generator=generator, device=self.device)
        return self.normalised(self.stored_batches(self.on_device[2][order], size), dtype)

    def held_out_batches(self, size: int) -> Batches:
        if self.settings.loader == "gpu":
            return self.stored_batches(self.on_device[3], size)
        return self.worker_batches(self.held_out, size)

    def show(self) -> Image.Image:
        """Describe a batch and return its first four images as one picture, a quarter as large."""
        picture = self.picture(4, step=4)
        if self.source == "package":
            print(ATTRIBUTION)
        return picture


def images_of_csv(path: Path, size: tuple[int, int]) -> tuple:
    """Return the images and labels that a CSV names; raise UserError for a missing column or a
    wrong cell.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"csv_path {str(path)!r} cannot be read as a CSV ({error}).") from None
    if not rows:
        raise UserError(f"{path} has no rows; {CSV_FORM}.")
    paths = []
    labels = []
    for line, row in rows:
        try:
            labels.append(float({"True": 1, "False": 0}.get(row["label"], row["label"])))
            paths.append(path.parent / row["path"] / row["image"])
            sound = (
                row["path"]
                and row["image"]
                and abs(labels[-1]) <= MAX_LABEL
                and not any(row.get(None, ()))
            )
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise UserError(f"line {line} of {path} holds {reprlib.repr(row)}; {CSV_FORM}.")
    return image_files(paths, labels, size, "RGB", "csv", "csv")


def elpv_images(size: tuple[int, int]) -> tuple:
    """Return the ELPV images (grey, 300 x 300) and their defect probabilities, without decoding
    all at once.
    """
    with suppress(UserError):
        require_packages(["elpv_dataset"])
    folder = Path(str(importlib.resources.files("elpv_dataset") / "data"))
    rows = [line.split() for line in (folder / "labels.csv").read_text().splitlines()]
    return image_files(
        [folder / row[0] for row in rows],
        [float(row[1]) for row in rows],
        size,
        "L",
        "package",
        "elpv",
    )


def image_files(
    paths: list[Path], labels: list[float], size: tuple[int, int], mode: str, *origin: str
) -> tuple:
    """Return what NumberedImages takes, of image files with 3 channels for mode "RGB" or 1 for
    "L".
    """

    def read(index: int) -> Tensor:
        pixels = torch.from_numpy(np.array(decoded(paths[index], mode)))
        pixels = pixels.permute(2, 0, 1) if mode == "RGB" else pixels[None]
        return v2.functional.resize(pixels, list(size), antialias=True)

    return (read, paths, torch.tensor(labels, dtype=torch.float32)), *origin


def made_up_cells(size: tuple[int, int], device: torch.device) -> tuple:
    """Return made-up grey images whose mean brightness is their label, from 0 to 1; on the CPU
    only a few.
    """
    labels = torch.rand(
        2_624 if device.type == "cuda" else 160, generator=torch.Generator().manual_seed(0)
    )

    def read(index: int) -> Tensor:
        noise = torch.rand(1, *size, generator=torch.Generator().manual_seed(index))
        return ((0.5 * labels[index] + 0.5 * noise) * 255).to(torch.uint8)

    return (read, None, labels), "synthetic", "synthetic"
