"""Which records are used, and why the others are left out."""

import math
from pathlib import Path

from ..errors import UserError
from ..record import NOT_WRITTEN, RunRecord, comparison_key, read_records
from .style import PRECISIONS

FIELDS = {name: spec for name, spec in RunRecord.__dataclass_fields__.items() if name not in NOT_WRITTEN}
PLACE = ("device_type", "gpu_name")
LATE = (*PLACE, "dataset_used", "synthetic")  # what a run finds out only when it has started
NUMBER = int | float
ITEMS = {  # the type of a list's items, or the types of a pair
    **dict.fromkeys(("epoch_seconds", "train_loss", "metric"), (NUMBER | None,)),
    **dict.fromkeys(("block_seconds", "overflow_steps"), (NUMBER,)),
    **dict.fromkeys(("kernel_family_fractions", "throttle_fractions"), (str, NUMBER)),
    "loss_scale_trace": (NUMBER, NUMBER | None),
}


def wrong_item(items, types):
    """Return the first item that is not of the one type, or no list of the several types, as text; else None."""
    for item in items:
        parts = [item] if len(types) == 1 else item
        if not isinstance(parts, list) or len(parts) != len(types) or not all(map(isinstance, parts, types)):
            return repr(item)[:60]
    return None


def flaw(record):
    """Return why the record cannot be used, or None."""
    for name, spec in FIELDS.items():
        if not isinstance(record[name], spec.type | int if spec.type == float | None else spec.type):
            return f"{name} cannot be {str(record[name])[:60]!r}"
    if record["schema_version"] != RunRecord.schema_version:
        return f"schema version {record['schema_version']}; this notebook reads {RunRecord.schema_version}"
    if record["precision"] not in PRECISIONS:
        return f"unknown precision {record['precision']!r}"
    for name, types in ITEMS.items():
        if wrong := wrong_item(record[name], types):
            return f"{name} cannot hold {wrong}"
    for name in ("kernel_family_fractions", "throttle_fractions"):
        if not all(0 <= share < math.inf for _, share in record[name]):
            return f"{name} holds a share that is none"
    for name in ("epoch_seconds", "block_seconds") if record["status"] == "ok" else ():
        untimed = name == "epoch_seconds" and not record[name]
        if untimed or not all(0 < (seconds or 0) < math.inf for seconds in record[name]):
            return f"status ok, but no usable {name}"
    return None


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
