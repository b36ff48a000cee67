"""Data that are kept between kernels, and images read by every core."""

import random
import shutil
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_data import never

from mixed_precision_study.data.cache import cached_arrays, decode_all, file_stats
from mixed_precision_study.errors import UserError

# Kept data


def make_arrays():
    return {"images": np.arange(3000, dtype=np.uint8).reshape(10, 300), "numbers": np.arange(5)}


def same(first, second):
    return set(first) == set(second) and all(np.array_equal(first[name], second[name]) for name in first)


def test_arrays_are_made_once_for_each_key_and_kept_for_the_next_kernel(tmp_path):
    first = cached_arrays(tmp_path, "things", ("a", 1), make_arrays)
    assert same(first, make_arrays())
    again = cached_arrays(tmp_path, "things", ("a", 1), never)
    assert same(again, first)
    assert {name: array.dtype for name, array in again.items()} == {name: array.dtype for name, array in first.items()}
    (path,) = (tmp_path / "cache").iterdir()  # and no temporary file is left
    assert path.name.startswith("things-")
    other = {"n": np.array([2])}
    assert same(cached_arrays(tmp_path, "things", ("a", 2), lambda: other), other)
    assert same(cached_arrays(tmp_path, "things", ("a", 1), never), first)


def test_of_one_name_the_files_that_were_used_last_are_kept(tmp_path):
    def kept(name, number, make=make_arrays):
        return same(cached_arrays(tmp_path, name, number, make), make_arrays())

    assert kept("n", 0) and kept("n-0123456789abcdef", 0) and kept("[n]", 0)
    assert all(kept("n", number) for number in (1, 2)) and kept("n", 0, never)
    assert kept("n", 3)  # one too many: 1 was used longest ago
    assert all(kept("n", number, never) for number in (0, 2, 3))
    assert kept("n-0123456789abcdef", 0, never) and kept("[n]", 0, never)
    with pytest.raises(AssertionError):
        kept("n", 1, never)


@pytest.mark.parametrize("damage", [b"", b"nothing of the kind", "cut off", "end missing"])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    cached_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut off": whole[: len(whole) // 2], "end missing": whole[:-10]}.get(damage, damage))
    assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    assert same(cached_arrays(tmp_path, "n", 1, never), make_arrays())
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_any_flipped_bit_gives_the_right_arrays(tmp_path):
    cached_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(200):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :])
        assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays()), place


def test_what_was_pickled_is_never_loaded(tmp_path):
    cached_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    with path.open("wb") as opened:
        np.savez(opened, images=np.array([print], dtype=object), numbers=np.arange(5))
    assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())


def raises(error):
    def function(*_, **__):
        raise error

    return function


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way")
    assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    (tmp_path / "cache").unlink()
    monkeypatch.setattr(np, "savez", raises(OSError(28, "No space left on device")))
    assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(Path, "unlink", raises(OSError(30, "Read-only file system")))
    assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())


def test_half_of_the_disk_stays_free(tmp_path, monkeypatch):
    size = sum(array.nbytes for array in make_arrays().values())
    for free, kept in ((2 * size, 0), (2 * size + 2, 1)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        assert same(cached_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
        assert len(list((tmp_path / "cache").iterdir())) == kept


def test_stats_change_with_a_file_and_name_one_that_is_missing(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    before = file_stats([path])
    assert before == file_stats([path])
    path.write_bytes(b"abcd")
    assert file_stats([path]) != before
    with pytest.raises(UserError, match=r"b\.png"):
        file_stats([tmp_path / "b.png"])


# Decoding


def number_image(index):
    return torch.full((1, 2, 3), index % 256, dtype=torch.uint8)


@pytest.mark.parametrize(("processes", "count"), [(0, 40), (2, 300), (None, 40), (None, 600)])
def test_images_come_in_order_whoever_reads_them(processes, count):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    images = decode_all(number_image, count, "reading", processes)
    assert images.shape == (count, 1, 2, 3)
    assert images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [index % 256 for index in range(count)]
    assert torch.equal(torch.get_rng_state(), state)  # what is drawn next does not depend on it


@pytest.mark.parametrize("processes", [0, 2])
def test_an_image_that_cannot_be_read_is_named_by_every_reader(processes):
    def read(index):
        if index in (17, 30):
            raise UserError(f"the image {index} cannot be read")
        return number_image(index)

    with pytest.raises(UserError, match="17"):
        decode_all(read, 40, "reading", processes)


def test_decoding_shows_how_far_it_is(capsys):
    decode_all(number_image, 30, "reading images", 0)
    assert "reading images" in capsys.readouterr().out
