"""Decoded data that are kept between kernels."""

import random
from pathlib import Path

import numpy as np
import pytest
from made_up_data import never

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks.cache import cached_arrays, file_stats


def make_arrays():
    return {"images": np.arange(3000, dtype=np.uint8).reshape(10, 300), "numbers": np.arange(5)}


def kept(folder, key=1, make=make_arrays, name="n"):
    """Return whether cached_arrays() gives what make_arrays() does, with the same types."""
    found, right = cached_arrays(folder, name, key, make), make_arrays()
    return set(found) == set(right) and all(
        np.array_equal(found[part], right[part]) and found[part].dtype == right[part].dtype for part in right
    )


def test_arrays_are_made_once_and_again_for_another_key(tmp_path):
    assert kept(tmp_path, ("a", 1)) and kept(tmp_path, ("a", 1), never) and kept(tmp_path, name="[n]")
    other = {"n": np.array([2])}
    assert cached_arrays(tmp_path, "n", ("a", 2), lambda: other) == other
    assert kept(tmp_path, ("a", 1)) and kept(tmp_path, ("a", 1), never) and kept(tmp_path, 1, never, "[n]")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["[n].npz", "n.npz"]  # nothing temporary


def test_a_damaged_file_is_made_again_and_what_was_pickled_is_never_loaded(tmp_path):
    kept(tmp_path)
    (path,) = (tmp_path / "cache").iterdir()
    whole, draw = path.read_bytes(), random.Random(0)
    for damaged in (b"", b"nothing of the kind", whole[: len(whole) // 2], whole[:-10]):
        path.write_bytes(damaged)
        assert kept(tmp_path) and kept(tmp_path, 1, never)
    for _ in range(40):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :])
        assert kept(tmp_path), place
    with np.load(path) as known:
        contents = dict(known)
    np.savez(path, **contents | {"images": np.array([print], dtype=object)})
    assert kept(tmp_path)


@pytest.mark.parametrize("function", [(np, "savez"), (Path, "unlink"), (Path, "mkdir")])
def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch, function):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*function, full)
        assert kept(tmp_path)
    assert function[1] == "mkdir" or list((tmp_path / "cache").iterdir()) == []
    assert kept(tmp_path) and kept(tmp_path, 1, never)


def test_stats_change_with_a_file_and_name_one_that_is_missing(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    before = file_stats([path])
    assert before == file_stats([path])
    path.write_bytes(b"abcd")
    assert file_stats([path]) != before
    with pytest.raises(UserError, match=r"b\.png"):
        file_stats([tmp_path / "b.png"])
