"""Which records are used, and why the others are left out."""

from pathlib import Path

from ..errors import UserError
from ..record import FIELDS, RunRecord, comparison_key, flaw, read_records

PLACE = ("device_type", "gpu_name")
LATE = (*PLACE, "dataset_used", "synthetic")  # what a run finds out only when it has started


def settings_of(record):
    """Return the comparison key without what a run finds out only when it has started, and the data asked for."""
    return (record.get("dataset"), *(item for item in comparison_key(record) if item[0] not in LATE))


def learn_place(records):
    """Give a run that ended before it knew its device or data those of the runs with equal settings, if they agree."""
    for record in records:
        known = {name: record[name] for name in (*LATE, "gpu_uuid") if record[name] is not None}
        if {"device_type", "dataset_used"} <= set(known):
            continue
        siblings = [other for other in records if other["device_type"] and other["dataset_used"]]
        siblings = [other for other in siblings if all(other[name] == known[name] for name in known)]
        siblings = [other for other in siblings if settings_of(other) == settings_of(record)]
        if len({tuple(other[name] for name in LATE) for other in siblings}) == 1:
            record.update({name: siblings[0][name] for name in LATE})


def copy_key(record, card):
    """Return what two files of one run share; on another card, which may be another machine's, it is another run."""
    return (record["run_id"], card, *map(record.get, LATE))


def why_not(record, newest, on_gpu, real):
    """Return why a sound record is not used, or None."""
    place = tuple(map(record.get, PLACE))
    kept = newest[copy_key(record, record["gpu_uuid"])]
    if kept is not record:
        return f"older copy of {kept['path']}"
    if on_gpu and record["device_type"] == "cpu":
        return "ran on the CPU, beside runs on a GPU"
    if record["synthetic"] and (settings_of(record), *place) in real:
        return "synthetic data, beside real data in the same comparison"
    return None


def sort_out(records):
    """Return (records to use, [(path, reason)] of the others)."""
    records = [{**{name: getattr(RunRecord, name, []) for name in FIELDS}, **record} for record in records]
    reasons = [(record, flaw(record)) for record in records]
    sound = [record for record, reason in reasons if not reason]
    learn_place(sound)
    in_order = sorted(sound, key=lambda record: record["finished_at"] or "")
    newest = {copy_key(record, card): record for record in in_order for card in (record["gpu_uuid"], None)}
    on_gpu = any(record["device_type"] == "cuda" for record in sound)
    real = {(settings_of(record), *map(record.get, PLACE)) for record in sound if record["synthetic"] is False}
    reasons = [(record, reason or why_not(record, newest, on_gpu, real)) for record, reason in reasons]
    used = [record for record, reason in reasons if not reason]
    return used, [(record["path"], reason) for record, reason in reasons if reason]


def find_records(folder):
    """Return (folder, records, [(path, reason) of what is no record]); "." without records gives way to ../outputs."""
    if not Path(folder).is_dir():
        raise UserError(f'there is no folder records_dir = "{folder}"; set it to the folder with the run records.')
    records, left_out = read_records(folder)
    if not records and Path(folder) == Path(".") and Path("../outputs").is_dir():
        folder = "../outputs"
        records, left_out = read_records(folder)
    return folder, records, left_out


def of_other_code(records):
    """Return the records measured by other code than the newest record of the same notebook; null is not known."""
    known = sorted((one for one in records if one["code_hash"]), key=lambda one: one["finished_at"] or "")
    newest = {one["notebook"]: one["code_hash"] for one in known}
    return [one for one in known if one["code_hash"] != newest[one["notebook"]]]
