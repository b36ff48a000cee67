"""Images that are decoded, and files that are none."""

import pytest
import torch

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks import images


@pytest.mark.parametrize(("per_process", "count"), [(150, 300), (250, 40)])  # read by processes, and in this one
def test_images_come_in_order_whoever_reads_them_and_a_broken_one_is_named(monkeypatch, capsys, per_process, count):
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

    with pytest.raises(UserError, match=r"^image 17$"):
        images.decode_all(stumble, count)
