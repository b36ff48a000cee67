"""Which records are used, and why the others are left out."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from ..parameters import UserError
from ..store.reading import read_records
from ..store.record import comparison_key, data_asked_for

OWN_RUNS = "outputs"
RECORDS = (".json", ".zip")
# folders of committed results, as in .gitignore
PUBLISHED = ("main", "more", "checks", "archive")
PLACE = ("device_type", "gpu_name")
# What a run finds out only when it has started.
KNOWN_LATE = (*PLACE, "dataset_used", "data_fingerprint", "identity", "synthetic")


def settings_of(record: dict) -> tuple:
    """Return the comparison key without KNOWN_LATE, and the data that were asked for."""
    return (
        data_asked_for(record),
        *(item for item in comparison_key(record) if item[0].partition(" ")[0] not in KNOWN_LATE),
    )


def learn_place(records: list[dict]) -> None:
    """Complete runs that ended before they knew their device or data, if all runs with equal
    settings agree on them.
    """
    late = []
    alike: dict[tuple, dict[tuple, dict]] = {}  # {settings: {place: the first run there}}
    for record in records:
        if record["device_type"] and record["dataset_used"]:
            place = (record["gpu_uuid"], known_late(record))
            alike.setdefault(settings_of(record), {}).setdefault(place, record)
        else:
            late.append(record)
    for record in late:
        known = {
            name: record[name] for name in (*KNOWN_LATE, "gpu_uuid") if record[name] is not None
        }
        there = [
            one
            for one in alike.get(settings_of(record), {}).values()
            if known.items() <= one.items()
        ]
        if len(set(map(known_late, there))) == 1:
            record.update(
                {name: there[0][name] for name in (*KNOWN_LATE, "model_title", "data_title")}
            )


def known_late(record: dict) -> tuple:
    return tuple(json.dumps(record[name]) for name in KNOWN_LATE)


def copy_key(record: dict, gpu_uuid: str | None) -> tuple:
    """Return what two files of one run share. The same run id on another GPU is another run."""
    return (record["run_id"], gpu_uuid, *known_late(record))


def why_not(record: dict, standing: dict, on_gpu: bool, real: set[tuple]) -> str | None:
    """Return why a sound record is not used, or None;

    `standing` has the copies that stand, by their key.
    """
    kept = standing[copy_key(record, record["gpu_uuid"])]
    if kept is not record:
        if folder_of(kept) == folder_of(record):
            return f"older copy of {kept['path']}"
        return f"copy of {kept['path']}, which stands because its folder comes first"
    if on_gpu and record["device_type"] == "cpu":
        return "ran on the CPU, beside runs on a GPU"
    if record["synthetic"] and (settings_of(record), *map(record.get, PLACE)) in real:
        return "synthetic data, beside real data in the same comparison"
    return None


def folder_of(record: dict) -> PurePath:
    """Return the folder or archive that a record was read from."""
    return PurePath(record["path"]).parent


def sort_out(records: list[dict]) -> tuple[list[dict], list[tuple[str, str]]]:
    """Return (records to use, [(path, reason)] of the others).

    Of several copies of a run those in the folder that was read first stand, and of these the
    newest, because anybody can write a later date into a record.
    """
    learn_place(records)
    places = {place: number for number, place in enumerate(dict.fromkeys(map(folder_of, records)))}
    in_order = sorted(
        records, key=lambda record: (-places[folder_of(record)], record["finished_at"] or "")
    )
    standing = {
        copy_key(record, uuid): record for record in in_order for uuid in (record["gpu_uuid"], None)
    }
    on_gpu = any(record["device_type"] == "cuda" for record in records)
    asked = {data_asked_for(record) for record in records if record["synthetic"]}
    others = [
        record
        for record in records
        if record["synthetic"] is False and data_asked_for(record) in asked
    ]
    real = {(settings_of(record), *map(record.get, PLACE)) for record in others}
    reasons = [(record, why_not(record, standing, on_gpu, real)) for record in records]
    used = [record for record, reason in reasons if not reason]
    return used, [(record["path"], reason) for record, reason in reasons if reason]


def own_runs(folder: Path) -> list[Path]:
    """Return what may hold one's own records in `outputs`: all that the study does not publish."""
    found = [path for path in folder.glob("[!.]*") if path.is_dir() or path.suffix in RECORDS]
    return sorted(path for path in found if path.name not in PUBLISHED)


def find_records(
    given: str | Path | Sequence[str], output: str | Path = ""
) -> tuple[Path, list[dict], list[tuple[str, str]]]:
    """Return (folder of the report, records, [(path, reason) of what is no record]).

    `given` is a folder or a zip, or a list of them, which are read where they lie; paths are
    relative to `output`, by default the first of them. The default "outputs" stands for one's own
    runs: beside the notebook, in the clone, or uploaded to the working folder; what the study
    publishes there is left out. Raise UserError where there is none.
    """
    places = [*map(Path, [given] if isinstance(given, str | Path) else given)]
    first = places[0]
    if places == [Path(OWN_RUNS)]:
        folders = [*filter(Path.is_dir, (Path(OWN_RUNS), Path("..", OWN_RUNS)))] or [Path()]
        first = next(filter(own_runs, folders), folders[-1])
        places = own_runs(first)
    output = Path(output or first)
    records: list[dict] = []
    left_out: list[tuple[str, str]] = []
    for place in places:
        if not place.exists():
            raise UserError(
                f'there is no folder records_dir = "{place}"; set it to the folder with '
                "the run records."
            )
        found, others = read_records(place)
        way: PurePath = place if place.is_dir() else place.parent
        with suppress(ValueError):  # on another drive of Windows
            way = PurePath(os.path.relpath(way, output))
        records += [{**record, "path": (way / record["path"]).as_posix()} for record in found]
        left_out += [((way / path).as_posix(), reason) for path, reason in others]
    return output, records, left_out


def of_other_code(records: list[dict]) -> list[dict]:
    """Return the records measured by other code than the newest of their notebook; those without
    a hash are not.
    """
    known = sorted(
        (one for one in records if one["code_hash"]), key=lambda one: one["finished_at"] or ""
    )
    newest = {one["notebook"]: one["code_hash"] for one in known}
    return [one for one in known if one["code_hash"] != newest[one["notebook"]]]
