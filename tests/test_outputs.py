"""docs/outputs.py: the committed reports are drawn anew, and their zips only where needed."""

import os
import zipfile

import outputs


def test_a_zip_is_written_only_where_a_file_has_changed(tmp_path):
    archive, record = tmp_path / "records.zip", tmp_path / "b/one.json"
    record.parent.mkdir()
    written = []
    for text in ("1", "1", "2"):
        record.write_text(text)
        outputs.zip_files(archive, [record])
        written.append(archive.stat().st_mtime > 1)
        os.utime(archive, (1, 1))
    assert written == [True, False, True] and not record.exists()
    with zipfile.ZipFile(archive) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == {"b/one.json": b"2"}
