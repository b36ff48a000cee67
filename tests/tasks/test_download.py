"""Downloads that are cut, garbled or late, and images that are decoded or cannot be."""

import io
import os
from http.client import BadStatusLine
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib import request

import PIL.Image
import pytest
import torch
from conftest import refuses, settings_of

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks import cifar, images, wikitext


@pytest.mark.parametrize("answer", [b"", b"another", TimeoutError(), BadStatusLine("\0")])
@pytest.mark.parametrize(
    "module, notebook, name",
    [(cifar, "cifar_resnet", "cifar10"), (wikitext, "lstm_language_model", "wikitext-2")],
)
def test_named_data_are_refused_and_others_made_up(
    monkeypatch, tmp_path, capsys, module, notebook, name, answer
):
    fails = isinstance(answer, Exception)
    monkeypatch.setattr(
        request,
        "urlopen",
        Mock(side_effect=answer if fails else lambda *_, **__: io.BytesIO(answer)),
    )
    kind = SimpleNamespace(base_folder="b", url="http://x/f", tgz_md5="0", filename="f")
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
    with refuses(str(tmp_path)):
        module.load(
            settings_of(notebook, {"data_dir": str(tmp_path), "dataset": name}), torch.device("cpu")
        )
    made_up = module.load(
        settings_of(notebook, {"data_dir": str(tmp_path), "dataset": "auto"}), torch.device("cpu")
    )
    assert made_up.source == "synthetic" and "MADE-UP" in capsys.readouterr().out
    assert request.urlopen.call_args.kwargs["timeout"]


# read by processes, and in this one
@pytest.mark.parametrize("per_process, count", [(150, 300), (250, 40)])
def test_images_come_in_order_and_a_broken_one_is_named(monkeypatch, capsys, per_process, count):
    monkeypatch.setattr(images, "IMAGES_PER_PROCESS", per_process)
    state = torch.get_rng_state()

    def read(index):
        return torch.full((1, 2, 3), index % 256, dtype=torch.uint8)

    found = images.decode_all(read, count)
    assert (found.shape, found.dtype) == ((count, 1, 2, 3), torch.uint8)
    assert found[:, 0, 0, 0].tolist() == [index % 256 for index in range(count)]
    assert torch.equal(torch.get_rng_state(), state)  # what is drawn next does not depend on it
    assert str(count) in capsys.readouterr().out  # of the bar

    def stumble(index):
        if index in (17, 30):
            raise UserError(f"image {index}")
        return read(index)

    with refuses(r"^image 17$"):
        images.decode_all(stumble, count)


def bomb(path):
    """Write a PNG of 20 kB and 13,000 x 13,000 pixels in one bit."""
    PIL.Image.new("1", (13_000, 13_000)).save(path)


ODD_IMAGES = {
    "eps": lambda path: path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    ),
    "pdf": lambda path: path.write_bytes(b"%PDF-1.4\n"),
    "bomb": bomb,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", ODD_IMAGES)
def test_no_image_starts_a_program_waits_or_takes_memory(tmp_path, monkeypatch, kind):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ODD_IMAGES[kind](tmp_path / "x.png")
    with refuses("be read"):
        images.decoded(tmp_path / "x.png")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "bmp", "tif", "gif", "ppm"])
def test_every_format_of_a_list_is_read(tmp_path, ending):
    PIL.Image.new("RGB", (4, 4), (200, 0, 0)).save(tmp_path / f"x.{ending}")
    (tmp_path / "link").symlink_to(tmp_path / f"x.{ending}")  # data sets are often made of links
    assert images.decoded(tmp_path / "link").getpixel((1, 1))[0] > 190
