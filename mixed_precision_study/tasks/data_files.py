"""A hash of the files that a run reads. run_all.py needs it to know whether a record is of the
files that lie there.
"""

import csv
import hashlib
import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

WHOLE_BYTES = 2**26  # files that take no more together are read whole
SAMPLED_FILES = 64  # of others, spread over all
SAMPLED_BYTES = 2**16  # from the beginning of each


def data_files_hash(
    parameters: dict, auto: str | None = None, base: str | Path = "."
) -> str | None:
    """Return 12 hex digits for the files that a run's parameters name, or None where there are
    none.

    `auto` is the folder in data_dir that dataset="auto" stands for. `base` is the folder that
    relative paths begin in. The hash is of all sizes, and of the contents where the files are
    small. Of larger ones a sample is read. Names and
    times do not count: a copy elsewhere has the same hash.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, csv.Error):  # of a wrong CSV
        paths = data_files(parameters, auto, Path(base))
        return hash_of_files(paths) if paths else None
    return None


def data_files(parameters: dict, auto: str | None, base: Path) -> Sequence[str | Path]:
    """Return the files in the order in which they are read; none where the data are no files of
    the user's.
    """
    dataset = parameters["dataset"]
    if parameters.get("csv_path") and dataset in ("auto", "csv"):
        return files_of_csv(base / parameters["csv_path"])
    folder = base / parameters["data_dir"]
    if dataset != "folder":
        folder = folder / (auto if auto and dataset == "auto" else dataset)
    if folder.is_file():  # a text
        return [folder]
    if (folder / "train").is_dir():
        parts = [sorted((folder / part).rglob("*")) for part in ("train", "test")]
        return list(filter(Path.is_file, itertools.chain(*parts)))
    return sorted(folder.glob("*.txt"))


def files_of_csv(path: Path) -> list[Path]:
    """Return a CSV and the images that it names."""
    with path.open(encoding="utf-8-sig", newline="") as opened:
        images = [path.parent / row["path"] / row["image"] for row in csv.DictReader(opened)]
    return [path, *images]


def hash_of_files(paths: Sequence[str | Path]) -> str:
    """Return 12 hex digits for the sizes and contents of regular files.

    One that is missing counts as such.
    """
    sizes = [os.path.getsize(path) if os.path.isfile(path) else -1 for path in paths]
    digest = hashlib.sha256(repr(sizes).encode())
    whole = sum(sizes) <= WHOLE_BYTES
    for place in range(0, len(paths), 1 if whole else -(-len(paths) // SAMPLED_FILES)):
        if sizes[place] >= 0:
            with open(paths[place], "rb") as opened:
                digest.update(opened.read(WHOLE_BYTES if whole else SAMPLED_BYTES))
    return digest.hexdigest()[:12]
