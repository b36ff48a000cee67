"""Reading records: what cannot be used is left out by its name and costs no other."""

import json
import os
import tracemalloc
import zipfile

import pytest
from nested import changed, make, sound

from mixed_precision_study.store import files, reading
from mixed_precision_study.store import record as records


def test_reading_says_what_it_left_out(tmp_path):
    good = make(status="ok")
    records.write_record(good, tmp_path / "deep/er")
    (tmp_path / "cut.json").write_text('{"run_id": "x", "status"')
    (tmp_path / "strange.json").write_text(json.dumps(changed(good.model_dump(), status="fine")))
    (tmp_path / "short.json").write_text(
        '{"run": {"run_id": "x", "precision": "fp32"}, "settings": {}}'
    )
    (tmp_path / "other.json").write_text('{"cells": []}')
    hidden = tmp_path / ".ipynb_checkpoints"
    hidden.mkdir()
    (hidden / "x.json").write_text("{")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.write(tmp_path / f"deep/er/{good.run_id}.json", "inside/a.json")
    found, left_out = reading.read_records(tmp_path)
    assert sorted(item["path"] for item in found) == [
        f"deep/er/{good.run_id}.json",
        "more.zip/inside/a.json",
    ]
    reasons = dict(left_out)
    assert set(reasons) == {"cut.json", "strange.json", "short.json", "other.json"}
    assert "'fine'" in reasons["strange.json"] and "notebook" in reasons["short.json"]


DEEP = "[" * 100_000 + "]" * 100_000


ODD_FILES = {
    "deep": lambda path: path.write_text(DEEP),
    "deep in a record": lambda path: path.write_text(
        f'{json.dumps(sound())[:-1]}, "own": {DEEP}}}'
    ),
    # takes no room on the disk
    "large": lambda path: path.touch() or os.truncate(path, files.MAX_FILE_BYTES + 1),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "list": lambda path: path.write_text("[]"),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "long number": lambda path: path.write_text('{"run_id": ' + "9" * 10_000 + "}"),
}


@pytest.mark.parametrize("ending", ["json", "zip"])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_is_left_out_by_name_and_costs_no_record(tmp_path, kind, ending):
    ODD_FILES[kind](tmp_path / f"odd.{ending}")
    (tmp_path / "good.json").write_text(json.dumps(sound()))
    found, left_out = reading.read_records(tmp_path)  # which neither waits nor raises
    assert [item["path"] for item in found] == ["good.json"]
    assert [path for path, reason in left_out if reason] == [f"odd.{ending}"]
    assert records.read_run(tmp_path / f"odd.{ending}") is None


def test_an_archive_that_unpacks_to_too_much_is_left_out(tmp_path):
    large = b"{}" + b" " * (7 * 2**20)
    for name, count in (("bomb", 20), ("sound", 3)):
        with zipfile.ZipFile(
            tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as archive:
            archive.writestr("00.json", json.dumps(sound()))
            for number in range(1, count):
                archive.writestr(f"{number:02}.json", large)
    with zipfile.ZipFile(
        tmp_path / "large.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        archive.writestr("large.json", b"[" + large[2:] + b"]")
    tracemalloc.start()
    found, left_out = reading.read_records(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * 2**20
    assert [item["path"] for item in found] == ["sound.zip/00.json"]
    assert [path for path, reason in left_out if reason != reading.NO_RECORD] == [
        "bomb.zip",
        "large.zip/large.json",
    ]


def test_a_pack_of_records_is_read_as_files_of_their_names(tmp_path):
    pack = {"a.json": sound(), "b/c.json": sound(), "bad.json": {"run": {}}, "d.json": DEEP}
    with zipfile.ZipFile(tmp_path / "records.zip", "w") as archive:
        archive.writestr(reading.PACK, json.dumps(pack))
    found, left_out = reading.read_records(tmp_path)
    assert [item["path"] for item in found] == ["records.zip/a.json", "records.zip/b/c.json"]
    assert [path for path, _ in left_out] == ["records.zip/bad.json", "records.zip/d.json"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_costs_its_damaged_files(tmp_path, method):
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.json", json.dumps({"run_id": list(range(5_000))}))
        archive.writestr("b.json", json.dumps(sound()))
    whole = bytearray(path.read_bytes())
    whole[60:300] = bytes(240)
    path.write_bytes(whole)
    found, left_out = reading.read_records(tmp_path)
    assert [item["path"] for item in found] == ["damaged.zip/b.json"]
    assert [path for path, _ in left_out] == ["damaged.zip/a.json"]
