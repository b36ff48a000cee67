"""Images that are decoded and kept between kernels, and files that are none."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from made_up_data import never

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


def read_made_up(index):
    return np.arange(3000, dtype=np.uint8).reshape(2, 1500)[index]


@pytest.fixture
def kept(tmp_path):
    """Return a function that says whether cached_images() gives what read_made_up() does."""
    (tmp_path / "a.png").write_bytes(b"abc")

    def is_kept(key=1, read=read_made_up, name="n"):
        found = images.cached_images(tmp_path, name, key, [tmp_path / "a.png"] * 2, read)
        return torch.equal(found, torch.from_numpy(np.stack([read_made_up(0), read_made_up(1)])))

    return is_kept


def test_images_are_decoded_once_and_again_for_another_key_or_file(tmp_path, kept):
    assert kept() and kept(read=never) and kept(2, name="[n]")
    assert not kept(2, lambda index: np.zeros(1500, np.uint8))
    assert kept() and kept(read=never) and kept(2, never, "[n]")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["[n].npz", "n.npz"]  # nothing temporary
    (tmp_path / "a.png").write_bytes(b"abcd")
    with pytest.raises(AssertionError):
        kept(read=never)
    with pytest.raises(UserError, match=r"b\.png"):
        images.cached_images(tmp_path, "n", 1, [tmp_path / "b.png"], never)


def test_a_damaged_cache_is_made_again_and_what_was_pickled_is_never_loaded(tmp_path, kept):
    kept()
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", b"nothing of the kind", whole[: len(whole) // 2], whole[:-10]):
        path.write_bytes(damaged)
        assert kept() and kept(read=never)
    with np.load(path) as known:
        contents = dict(known)
    np.savez(path, **contents | {"images": np.array([print], dtype=object)})
    assert kept()


@pytest.mark.parametrize("function", [(np, "savez"), (Path, "unlink"), (Path, "mkdir")])
def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch, kept, function):
    with monkeypatch.context() as patch:
        patch.setattr(*function, Mock(side_effect=OSError(28, "No space left on device")))
        assert kept()
    assert function[1] == "mkdir" or list((tmp_path / "cache").iterdir()) == []
    assert kept() and kept(read=never)
