"""Images with a number each: a CSV, the package of ELPV, wrong ones, what is kept, and the
batches.
"""

import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import CASES, refuses, settings_of
from made_up_data import assert_equal_batches, save_image, write_csv

from mixed_precision_study.tasks import elpv

CPU = torch.device("cpu")


def load(dataset="synthetic", **changes):
    given = {"dataset": dataset, "image_height": 32, "image_width": 48, "batch_size": 4, **changes}
    return elpv.load(settings_of("efficientnet_regression", given), CPU)


def read(path):
    return elpv.images_of_csv(path, (32, 48))


def test_a_csv_of_images_is_read_and_names_in_it_are_text(tmp_path):
    rows = [("007", "001", "True"), ("NA", "1e5", "False"), ("1.50", "nan", "0.5")]
    for number, (folder, name, _) in enumerate(rows):
        save_image(tmp_path / folder / "made.png", 80 * number, (20, 10), "L" if number else "RGB")
        (tmp_path / folder / "made.png").rename(tmp_path / folder / name)
    path = tmp_path / "mine.csv"
    # an empty last column
    path.write_text("\ufeffpath,image,label\n" + "".join(f"{','.join(row)},\n" for row in rows))
    (take, _, labels), source, _ = read(path)
    assert (source, labels.tolist(), labels.dtype) == ("csv", [1, 0, 0.5], torch.float32)
    pixels = [take(index) for index in range(3)]
    assert {(image.shape, image.dtype) for image in pixels} == {((3, 32, 48), torch.uint8)}
    assert [image[1].float().mean() for image in pixels] == [0, 80, 160]
    with refuses("csv_path"):
        load("csv")


@pytest.mark.parametrize(
    "text, problem",
    [*CASES["wrong csv"], (b"\xff\xfe\xff", "cannot be read")],
)
def test_a_wrong_csv_stops_with_its_name_and_the_place(tmp_path, text, problem):
    path = tmp_path / "mine.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with refuses(problem) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.slow  # the package decodes all of its images
def test_elpv_comes_from_its_package(tmp_path, capsys):
    pictures, probabilities, _ = pytest.importorskip("elpv_dataset.utils").load_dataset()
    (take, _, labels), *_ = elpv.elpv_images((300, 300))
    assert torch.equal(labels, torch.tensor(probabilities.tolist(), dtype=torch.float32))
    for place in (0, 1, 1300, 2623):
        assert np.array_equal(take(place)[0].numpy(), pictures[place])
    load().show()
    assert "CC BY" not in capsys.readouterr().out
    data = load("auto", loader="workers", num_workers=0, data_dir=str(tmp_path))
    assert (data.used, data.source, len(data.labels)) == ("elpv", "package", 2624)
    assert data.take(0).shape == (1, 32, 48)
    data.show()
    printed = capsys.readouterr().out
    assert (
        elpv.ATTRIBUTION in printed and "Buerhop-Lutz" in printed and "CC BY-NC-SA 4.0" in printed
    )


@pytest.mark.parametrize("left", ["nothing", "a folder", "the code alone"])
def test_an_incomplete_elpv_is_asked_for_or_made_up(monkeypatch, tmp_path, left):
    if left != "nothing":
        (tmp_path / "elpv_dataset").mkdir()
    if left == "the code alone":
        (tmp_path / "elpv_dataset/__init__.py").touch()
    # as on Colab, where a missing package is installed if there is a network
    if left != "a folder":
        monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
        monkeypatch.setattr(
            subprocess, "run", Mock(side_effect=subprocess.CalledProcessError(1, "pip"))
        )
    monkeypatch.delitem(sys.modules, "elpv_dataset", raising=False)
    monkeypatch.setattr(
        "sys.path", [str(tmp_path), *(p for p in sys.path if "site-packages" not in p)]
    )
    with refuses("--force-reinstall elpv-dataset"):
        load("elpv")
    assert load("auto").source == "synthetic"


@pytest.mark.parametrize("labels, problem", [((0, 5), '0 to 5.*"mse"'), ((1, 1, 1, 1), "4 images")])
def test_labels_that_do_not_fit_and_too_few_images_stop(tmp_path, labels, problem):
    path = write_csv(tmp_path / "mine.csv", [(".", "a.png", label) for label in labels])
    with refuses(problem):
        load("auto", csv_path=path, data_dir=str(tmp_path))


def test_the_held_out_images_are_a_fifth_of_every_seed():
    data = load()
    training, held_out = set(data.training.tolist()), set(data.held_out.tolist())
    assert not training & held_out
    assert len(held_out) == len(training | held_out) // 5 == data.eval_samples
    assert torch.equal(load(seed=5).held_out, data.held_out)
    median = data.labels[data.training].sort().values[(data.train_samples - 1) // 2]
    assert data.chance == pytest.approx((data.labels[data.held_out] - median).abs().mean().item())


def test_images_have_the_size_that_is_asked_for(tmp_path):
    for number in range(30):
        save_image(tmp_path / f"images/{number}.png", 8 * number, (60, 40))
    csv_path = write_csv(tmp_path / "mine.csv", [("images", f"{n}.png", n / 30) for n in range(30)])
    given = {"dataset": "csv", "csv_path": csv_path}
    data = load(**given)
    pixels = data.on_device[0]
    assert pixels.shape == (30, 3, 32, 48)
    assert all(torch.equal(pixels[number], data.take(number)) for number in (0, 7))
    save_image(tmp_path / "images/7.png", 3, (50, 50))
    changed = load(**given)
    assert not torch.equal(changed.on_device[0][7], pixels[7])
    assert torch.equal(changed.on_device[0][8], pixels[8])
    assert changed.fingerprint != data.fingerprint
    assert load(image_width=64, **given).on_device[0].shape == (30, 3, 32, 64)


def test_both_loaders_give_the_same_held_out_batches():
    data, workers = load(), load(loader="workers", num_workers=0)
    plain, held_out = (
        list(data.train_batches(1, torch.float32, 4)),
        list(data.eval_batches(torch.float32, 5)),
    )
    assert len(plain) == data.steps_per_epoch(4)
    # a smaller one would be searched anew
    assert {tuple(pixels.shape) for pixels, _ in plain} == {(4, 3, 32, 48)}
    assert_equal_batches(workers.eval_batches(torch.float32, 5), held_out)
    assert workers.fingerprint == data.fingerprint
    pixels, labels = next(workers.train_batches(0, torch.float16, 4))
    assert (pixels.shape, pixels.dtype, labels.shape) == ((4, 3, 32, 48), torch.float16, (4,))


def test_held_out_images_are_normalised_in_either_layout():
    data = load()
    held_out = data.eval_batches(torch.float32, 5)
    pixels, labels = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    assert torch.equal(labels, data.labels[data.held_out])
    for number, index in enumerate(data.held_out[:3].tolist()):
        assert torch.equal(pixels[number], data.normalise(data.take(index)[None], torch.float32)[0])
    for layout in (torch.contiguous_format, torch.channels_last):
        images = load(channels_last=layout == torch.channels_last).example(4)[0]
        assert images.is_contiguous(memory_format=layout)
