"""Which records are used, and why the others are left out."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from ..parameters import UserError
from ..store.reading import read_records
from ..store.record import comparison_key, data_asked_for

OWN_RUNS = "outputs"
# folders of committed results, as in .gitignore
PUBLISHED = re.compile("(main|more|checks|archive)/")
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
    """Complete runs that ended before they knew their device or data, if all runs with equal settings agree on them."""
    late = [one for one in records if not (one["device_type"] and one["dataset_used"])]
    alike: dict[tuple, dict[tuple, dict]] = {}  # {settings: {place: the first run there}}
    for record in records if late else ():
        if record["device_type"] and record["dataset_used"]:
            place = (record["gpu_uuid"], known_late(record))
            alike.setdefault(settings_of(record), {}).setdefault(place, record)
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
    """Return why a sound record is not used, or None; `standing` has the copies that stand, by their key."""
    kept = standing[copy_key(record, record["gpu_uuid"])]
    if kept is not record and folder_of(kept) == folder_of(record):
        return f"older copy of {kept['path']}"
    if kept is not record:
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

    Of several copies of a run those in the folder that was read first stand, and of these the newest, because anybody
    can write a later date into a record.
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


def find_records(
    given: str | Path | Sequence[str], output: str | Path = ""
) -> tuple[str | Path, list[dict], list[tuple[str, str]]]:
    """Return (folder of the report, records, [(path, reason) of what is no record]).

    `given` is a folder or a zip, or a list of them, which are read where they lie; paths are relative to `output`, by
    default the first of them. The default "outputs" stands for one's own runs: beside the notebook, in the clone, or
    uploaded to the working folder; what the study publishes there is left out. Raise UserError where there is none.
    """
    places: list[str | Path] = [given] if isinstance(given, str | Path) else list(given)
    own = [Path(place) for place in places] == [Path(OWN_RUNS)]
    candidates = [*filter(os.path.isdir, (OWN_RUNS, f"../{OWN_RUNS}"))] or ["."]
    records: list[dict] = []
    left_out: list[tuple[str, str]] = []
    for place in map(Path, candidates if own else places):
        if not place.exists():
            raise UserError(
                f'there is no folder records_dir = "{place}"; set it to the folder with the run records.'
            )
        found, others = read_records(place)
        if own:
            places = [place]
            found = [record for record in found if not PUBLISHED.match(record["path"])]
            others = [(path, reason) for path, reason in others if not PUBLISHED.match(path)]
        way: PurePath = place if place.is_dir() else place.parent
        with suppress(ValueError):  # on another drive of Windows
            way = PurePath(os.path.relpath(way, output or places[0]))
        records += [{**record, "path": (way / record["path"]).as_posix()} for record in found]
        left_out += [((way / path).as_posix(), reason) for path, reason in others]
        if own and records:
            break
    return output or places[0], records, left_out


def of_other_code(records: list[dict]) -> list[dict]:
    """Return the records measured by other code than the newest of their notebook; those without a hash are not."""
    known = sorted(
        (one for one in records if one["code_hash"]), key=lambda one: one["finished_at"] or ""
    )
    newest = {one["notebook"]: one["code_hash"] for one in known}
    return [one for one in known if one["code_hash"] != newest[one["notebook"]]]
