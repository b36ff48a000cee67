"""Reading run records: every record below a folder, also in zips, and why other files are none."""

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath

from .files import MAX_FILE_BYTES, check_is_file, read_file
from .record import Runs, flat_record, record_of

MAX_ARCHIVE_BYTES = 2**25  # of all JSON files in an archive together, unpacked
NO_RECORD = "it is no record"
Readers = Iterator[tuple[str, Callable[[], bytes | str]]]  # (name of a file, what reads it)
LeftOut = list[tuple[str, str]]  # (path, reason) of what cannot be used
JSON = re.compile(r"(^|/)[^./][^/]*\.json$")  # an entry of a zip
# of a zip: {name: record}, which takes a quarter of the room of a file for each
PACK = "records.json"
HIDDEN = re.compile(r"(^|/)\.\w")  # in the name of a file, such as ._x.json of macOS
# files of run_all.py that are no records
BESIDE_RECORDS = ("batch.json", "code.json", "conf.json", "kernel.json")


def read_records(folder: str | Path) -> tuple[Runs, LeftOut]:
    """Return every record below a folder, also in zips, or in one zip, and (path, reason) of what
    cannot be used.

    A record is a dict of its fields, see flat_record(); its `path` is where it was found. The
    reason of other JSON files is NO_RECORD; those that run_all.py writes itself are ignored.
    """
    records = []
    left_out: list = []
    for name, read in json_files(Path(folder), left_out):
        try:
            value = json.loads(read())
            if isinstance(value, dict) and ("run" in value or "run_id" in value):
                records.append({**flat_record(record_of(value)), "path": name})
            elif PurePath(name).name not in BESIDE_RECORDS:
                left_out.append((name, NO_RECORD))
        except Exception as error:  # a broken archive raises whatever it likes
            left_out.append((name, f"not readable ({error})"))
    return records, left_out


def json_files(folder: Path, left_out: LeftOut) -> Readers:
    """Yield (name, what reads it) of every JSON file below `folder`, also in zips; add broken zips
    to `left_out`.

    Hidden files are ignored, because macOS adds them to zips. Higher files come first, and files
    before archives, because the order decides which of several copies of a record stands, see
    sort_out(). No link is followed.
    """
    paths = [*folder.rglob("*")] or [folder]
    for path in sorted(paths, key=lambda path: (len(path.parts), path.suffix == ".zip", path)):
        name = path.relative_to(folder).as_posix() if path != folder else folder.name
        if HIDDEN.search(name):
            continue
        if path.suffix == ".json":
            yield name, partial(read_file, path)
        elif path.suffix == ".zip":
            try:
                yield from json_entries(path, name)
            except Exception as error:  # a broken archive raises whatever it likes
                left_out.append((name, f"not readable ({error})"))


def json_entries(path: Path, name: str) -> Readers:
    """Yield (name, what reads it) of every JSON file in a zip while that is open.

    Raise ValueError where they are too large together.
    """
    check_is_file(path)
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if JSON.search(entry.filename)]
        if sum(entry.file_size for entry in entries) > MAX_ARCHIVE_BYTES:
            raise ValueError(f"its files have more than {MAX_ARCHIVE_BYTES // 2**20} MiB")
        for entry in entries:
            if entry.filename == PACK:
                for inside, value in json.loads(read_entry(archive, entry)).items():
                    yield f"{name}/{inside}", partial(json.dumps, value)
            else:
                yield f"{name}/{entry.filename}", partial(read_entry, archive, entry)


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the contents of a file in an archive up to MAX_FILE_BYTES, as read_file() does."""
    with archive.open(entry) as opened:
        return opened.read(MAX_FILE_BYTES)
