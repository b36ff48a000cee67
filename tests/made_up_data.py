"""Made-up files in the formats that the data of the experiments come in."""

import csv

import torch
from PIL import Image

from mixed_precision_study.tasks.cifar import CLASS_COUNTS


def save_image(path, value=0, size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, colour).save(path)


def make_tree(folder, per_class=3, size=(32, 32), classes=None):
    """Write images in the tree that the ResNet reads: as many classes as CIFAR if it is named
    so, else two.
    """
    counted = [f"class{number:02}" for number in range(CLASS_COUNTS.get(folder.name, 0))]
    for part in ("train", "test"):
        for number, name in enumerate(classes or counted or ("cat", "dog")):
            for index in range(per_class):
                save_image(
                    folder / part / name / f"{index}.png", (100 * number + index) % 256, size
                )


def write_csv(path, rows, columns=("path", "image", "label")):
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([columns, *rows])
    return str(path)


def write_texts(folder, train="a b <unk> a\nc d\n", **others):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"train": train, "valid": "b strange\n", **others}.items():
        (folder / f"{name}.txt").write_text(text)


def assert_equal_batches(first, second):
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(*parts) for parts in zip(a, b, strict=True))
