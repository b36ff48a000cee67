"""Settings of an experiment, and made-up files in the formats that its data come in."""

import csv
from types import SimpleNamespace

from PIL import Image

from mixed_precision_study.parameters import EXPERIMENTS, check_values


def settings_of(name, **changes):
    """Return the settings of an experiment as its check cell does: the defaults with `changes`."""
    return SimpleNamespace(**check_values(name, {one.name: one.default for one in EXPERIMENTS[name]} | changes))


def save_image(path, value=0, size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, colour).save(path)


def make_tree(folder, per_class=3, size=(32, 32)):
    """Write images of two classes in the tree that the ResNet reads."""
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            for index in range(per_class):
                save_image(folder / part / name / f"{index}.png", 100 * number + index, size)


def write_csv(path, rows, columns=("path", "image", "label")):
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([columns, *rows])
    return str(path)


def write_texts(folder, train="a b <unk> a\nc d\n", **others):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"train": train, "valid": "b strange\n", **others}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def never(*_):
    raise AssertionError("what is kept must not be made again")
