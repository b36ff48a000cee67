"""Images that are decoded, and files in an image's place that must not be opened."""

import numpy as np
import pytest
import torch
from made_up_data import make_odd_image, save_image

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks import images


@pytest.mark.parametrize(("per_process", "count"), [(150, 300), (250, 40)])  # read by processes, and in this one
def test_images_come_in_order_whoever_reads_them_and_a_broken_one_is_named(monkeypatch, capsys, per_process, count):
    monkeypatch.setattr(images, "IMAGES_PER_PROCESS", per_process)
    state = torch.get_rng_state()

    def read(index):
        return torch.full((1, 2, 3), index % 256, dtype=torch.uint8)

    found = images.decode_all(read, count)
    assert (found.shape, found.dtype) == ((count, 1, 2, 3), np.uint8)
    assert found[:, 0, 0, 0].tolist() == [index % 256 for index in range(count)]
    assert torch.equal(torch.get_rng_state(), state)  # what is drawn next does not depend on it
    assert str(count) in capsys.readouterr().out  # of the bar

    def stumble(index):
        if index in (17, 30):
            raise UserError(f"image {index}")
        return read(index)

    with pytest.raises(UserError, match=r"^image 17$"):
        images.decode_all(stumble, count)


@pytest.mark.parametrize("kind", ["large", "pipe", "link to a device", "folder", "broken", "missing"])
def test_an_image_that_must_not_be_opened_is_named(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(images, "MAX_PIXELS", 32 * 32)
    if kind != "missing":
        make_odd_image(tmp_path / "odd.png", kind)
    with pytest.raises(UserError, match=r"odd\.png"):
        images.decoded(tmp_path / "odd.png")
    save_image(tmp_path / "even.png", size=(32, 32))
    assert images.decoded(tmp_path / "even.png").size == (32, 32)
