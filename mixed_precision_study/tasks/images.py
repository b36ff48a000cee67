"""What the image data sets share: decoding by all cores, batches on the device, the picture of a
batch.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import make_grid

from ..measure.progress import progress
from ..parameters import UserError
from .batches import Batch, Batches, TrainingData
from .data_files import hash_of_files

MODELS = (  # pattern of a model's name in timm and what people call it
    (r"resnet(\d+)", r"ResNet-\1"),
    (r"wide_resnet(\d+)_(\d+)", r"WideResNet-\1-\2"),
    (r"(?:tf_)?efficientnet_b(\d)", r"EfficientNet-B\1"),
    (r"dpn(\w+)", r"DPN-\1"),
    (r"vit_(\w)(\w*)_patch(\d+)_\d+", lambda found: f"ViT-{found[1].upper()}{found[2]}/{found[3]}"),
)
SMALL, SMALL_PATCH = 32, 4  # pixels of an image, and of the patches that a ViT cuts it into
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")  # an EPS would start Ghostscript
# PIL refuses twice as many; a pixel takes up to 16 bytes while it is decoded, so 1 GiB a process.
Image.MAX_IMAGE_PIXELS = 2**25
IMAGES_PER_PROCESS = 250  # at least, or starting the process takes longer than it saves


def title_of(model: str, image_size: int = 0) -> str:
    """Return the name for people of a model of timm for images of this size."""
    if image_size == SMALL:
        model = re.sub(r"^(vit_\w+_patch)\d+", rf"\g<1>{SMALL_PATCH}", model)
    for pattern, name in MODELS:
        if re.fullmatch(pattern, model):
            return re.sub(pattern, name, model)  # type: ignore[arg-type]  # a text, or a function
    return model


def timm_model(name: str, image_size: int | tuple[int, int], **options: Any) -> nn.Module:
    """Return a model of timm with new weights, for images of this size: pixels, or (height, width).

    For 32 pixels ResNet-18 to 152 and DPNs begin with a 3 x 3 convolution of stride 1 and without
    pooling, because ImageNet's first layers would shrink such an image to 8 x 8. ViTs have patches
    of 4 x 4 then, because of larger ones an image would have a few alone.
    """
    import timm  # takes seconds, and data need none of it

    if image_size == SMALL and name.startswith("vit_"):
        options["patch_size"] = SMALL_PATCH
    try:
        network = timm.create_model(name, img_size=image_size, **options)
    except TypeError:  # convolutional networks take any size
        network = timm.create_model(name, **options)
    if image_size == SMALL and re.fullmatch("resnet(18|34|50|101|152)", name):
        network.conv1 = small_stem(64)
        network.maxpool = nn.Identity()
    elif image_size == SMALL and isinstance(network, timm.models.dpn.DPN):
        first = network.features.conv1_1
        first.conv = small_stem(first.conv.out_channels)
        network.features.conv1_pool = nn.Identity()
    return network


def small_stem(channels: int) -> nn.Conv2d:
    convolution = nn.Conv2d(3, channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def decoded(path: Path, mode: str = "RGB") -> Image.Image:
    """Return an image file as a picture in PIL's `mode`, its 16 bits scaled to 8.

    Raise UserError if it cannot be read, or holds numbers whose range its type does not tell.
    """
    try:
        if not path.is_file():  # a pipe would wait for ever
            raise OSError("it is no file")
        with Image.open(path, formats=FORMATS) as image:
            # which has 16 bits at most
            if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
                return Image.fromarray((np.asarray(image) // 256).astype(np.uint8)).convert(mode)
            if image.mode in ("I", "F"):
                raise ValueError(
                    "it holds numbers of 32 bits, whose range nobody knows; "
                    "save it with 8 or 16 bits"
                )
            return image.convert(mode)
    except Exception as error:  # a broken image raises whatever its format's decoder stumbles over
        raise UserError(
            f"the image {path} cannot be read ({error}); repair it or leave it out."
        ) from None


def images_in(folder: Path) -> list[Path]:
    """Return the images below a folder in order, without hidden ones, such as those in
    .ipynb_checkpoints.

    Links to files are followed, and links to folders are not, because they may lead round in a
    circle.
    """
    paths = sorted(folder.rglob("*"), key=lambda path: (str(path.parent), path.name))
    return [
        path
        for path in paths
        if path.suffix.lower() in SUFFIXES and all(map(is_usual, path.relative_to(folder).parts))
    ]


def is_usual(name: str) -> bool:
    """Return whether a person made a file or folder, and no program such as Jupyter or macOS."""
    return not name.startswith((".", "__"))


def say_copies(train: Iterable[Path], held_out: Iterable[Path]) -> None:
    """Print how many held-out files have the contents of a training file, because their metric
    flatters.
    """
    known = {hash_of_files([path]) for path in train}
    if copies := known.intersection(hash_of_files([path]) for path in held_out):
        print(
            f"NOTICE: {len(copies):,} held-out images are training images, too, "
            "so the metric flatters."
        )


def decode_all(read: Callable, count: int) -> Tensor:
    """Return the images read(0) to read(count - 1) as one tensor (count, ...), read under a
    progress bar.

    Forked processes read many images, because threads would wait for each other on small ones.
    """

    def decode(places: list[int]) -> np.ndarray | UserError:
        try:
            return np.stack([np.asarray(read(index)) for index in places])
        except UserError as error:
            # raised within a process, it would bring that process's traceback as its text
            return error

    processes = min(os.cpu_count() or 1, count // IMAGES_PER_PROCESS) if hasattr(os, "fork") else 0
    # the generator, because the loader would draw from the global one
    options = {"collate_fn": decode, "generator": torch.Generator()}
    if processes:
        options |= {"num_workers": processes, "multiprocessing_context": "fork"}
    images = None
    with progress(count, "decoding images") as bar:
        for chunk in DataLoader(range(count), 16, **options):
            if isinstance(chunk, UserError):
                raise chunk
            if images is None:
                images = np.empty((count, *chunk.shape[1:]), chunk.dtype)
            images[bar.n : bar.n + len(chunk)] = chunk
            bar.n += len(chunk)
    return torch.from_numpy(images)


class ImageData(TrainingData):
    """Batches of images (size, 3, height, width) and labels (size,), from the device or from an
    ordinary DataLoader.

    take(index) returns an image on the CPU, in a worker process; `labels` are those of all images.
    """

    sample_unit = "images"
    prefetch = True
    train_samples: int
    eval_samples: int
    image_size: tuple[int, int]  # (height, width) that the model gets
    mean: Any  # of the pixels, from 0 to 255
    std: Any
    gpu_batches: Callable  # (generator, type, size): of an epoch, normalised
    held_out_batches: Callable  # (size): of uint8 images
    take: Callable
    labels: Tensor
    training: Tensor  # indices of the images to train on

    def __init__(self, settings: Any, device: torch.device, source: str, used: str):
        self.settings = settings
        self.device = device
        self.source = source
        self.used = used

    def normalise(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uint8 images as floats of about mean 0 and deviation 1, with three channels, in
        size and layout.
        """
        images = (images - self.mean) / self.std
        if images.shape[-2:] != self.image_size:
            images = nn.functional.interpolate(images, size=self.image_size, mode="bilinear")
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return images.to(dtype).expand(-1, 3, -1, -1).contiguous(memory_format=layout)

    def normalised(self, batches: Iterable[Batch], dtype: torch.dtype) -> Batches:
        return ((self.normalise(images, dtype), labels) for images, labels in batches)

    def steps_per_epoch(self, size: int) -> int:
        steps = self.train_samples // size
        if steps == 0:
            raise UserError(
                f"batch_size {size} is larger than the training set of {self.train_samples} images."
            )
        return min(steps, self.settings.max_steps or steps)

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Batches:
        seed = 1000 * self.settings.seed + epoch
        if self.settings.loader == "gpu":
            batches = self.gpu_batches(torch.Generator(self.device).manual_seed(seed), dtype, size)
        else:
            generator = torch.Generator().manual_seed(seed)
            batches = self.worker_batches(
                self.training, size, shuffle=True, drop_last=True, generator=generator
            )
            batches = self.normalised(batches, dtype)
        return itertools.islice(batches, self.steps_per_epoch(size))

    def eval_batches(self, dtype: torch.dtype, size: int) -> Batches:
        """Return the held-out batches, at most max_steps of them."""
        batches = itertools.islice(self.held_out_batches(size), self.settings.max_steps or None)
        return self.normalised(batches, dtype)

    def worker_batches(self, indices: Tensor, size: int, **options: Any) -> Batches:
        """Yield the uint8 batches of an ordinary DataLoader.

        Its workers are forked; without fork there are none.
        """

        def collate(chosen: list[int]) -> list[Tensor]:
            return default_collate([(self.take(index), self.labels[index]) for index in chosen])

        if self.settings.num_workers and hasattr(os, "fork"):
            options |= {"num_workers": self.settings.num_workers, "multiprocessing_context": "fork"}
        pinned = self.device.type == "cuda"
        for batch in DataLoader(
            indices.tolist(), size, collate_fn=collate, pin_memory=pinned, **options
        ):
            yield tuple(part.to(self.device, non_blocking=True) for part in batch)

    def picture(self, count: int, step: int = 1) -> Image.Image:
        """Describe a batch and return its first `count` images side by side, every `step`-th
        pixel of them.
        """
        size = 32 if self.settings.batch_size == "max" else self.settings.batch_size
        images, labels = self.example(size)
        print(
            f"A batch: images {tuple(images.shape)}, {self.steps_per_epoch(size)} steps per epoch;",
            end=" ",
        )
        print(f"labels {labels[:8].tolist()}")
        grid = make_grid(
            images[:count, :, ::step, ::step].float().cpu(), nrow=count, normalize=True
        )
        return to_pil_image(grid)
