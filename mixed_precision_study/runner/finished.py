"""Which runs of a study are finished: those whose records count for the code, the data and the
GPUs of today.
"""

import functools
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..store.commit import ROOT, hash_of
from ..store.record import NOT_YET_EXPLAINED, Runs, read_run
from ..tasks.data_files import data_files_hash
from .devices import Device
from .plan import Comparison, Run
from .status import say, shown

RETRIED = ("failed", "timeout", "killed")  # statuses that are no result


@functools.cache
def files_now(parameters: str, folder: str | None) -> str | None:
    """Return the hash of the files that a run reads.

    `parameters` is JSON; set_aside_records() looks at them anew.
    """
    return data_files_hash(json.loads(parameters), folder, ROOT)


def outdated(run: Run, record: dict) -> str | None:
    """Return what a record of a run was measured with that is another now: code or data. None where
    it counts.

    A record without a hash of its code, or of its files, was made by hand or is older than that. It
    counts, unless its data were made up and there are files now.
    """
    known = record["code_hash"]
    if known and hash_of(run.notebook) not in (None, known):
        return "other_code"
    known = record["data_files_hash"]
    if known or record["synthetic"]:
        now = files_now(json.dumps(run.parameters, sort_keys=True), record["data_folder"])
        return "other_data" if now not in (None, known) else None
    return None


def counting_records(run: Run, again: str | None) -> Runs:
    """Return the records of a run that count: they are explained, code and data are those of now,
    and what they hold is not to be made `again`.
    """
    if again == "all":
        return []
    records = []
    for path in run.record_paths.values():
        record = read_run(path)
        if not record or outdated(run, record):
            continue
        unexplained = record["status"] == "ok" and record["profile_reason"] == NOT_YET_EXPLAINED
        if not unexplained and not (again == "failed" and record["status"] in RETRIED):
            records.append(record)
    return records


def unfinished(
    comparison: Comparison, devices: Sequence[Device] = (), again: str | None = None
) -> list[Run]:
    """Return the runs of a comparison that must be made: a run is made as a whole or not at all.

    A ratio compares runs of one GPU. So where a repetition has begun, all of it is made again
    unless the only GPU here is the one on which it began. `again` says what else is made: "all"
    runs, or those of which a training has "failed".
    """
    gpus = {device.visible.removeprefix("GPU-") for device in devices if device.visible}
    to_do = []
    elsewhere = []
    for run in comparison:
        records = counting_records(run, again)
        used = {record["gpu_uuid"] for record in records} - {None}
        if len(records) < len(run.trainings):
            to_do.append(run)
        elif used and gpus and used != gpus:
            elsewhere.append(run)
    begun = {run.parameters["repeat"] for run in to_do}
    to_do += [run for run in elsewhere if run.parameters["repeat"] in begun]
    return sorted(to_do, key=lambda run: run.order)


def set_aside_records(comparisons: list[Comparison]) -> None:
    """Move outdated records and their notebooks into a folder beside them, and say so. Nothing is
    deleted.

    Records of other code move even where their runs are not asked for: the report would compare
    them with the new ones.
    """
    files_now.cache_clear()
    runs = {
        path: run for run in itertools.chain(*comparisons) for path in run.record_paths.values()
    }
    notebooks = {run.notebook.stem: run for run in runs.values()}
    moved: Counter = Counter()
    now = time.strftime("%Y%m%dT%H%M%S")
    results = comparisons[0][0].folder
    while any(results.glob(f"*-{now}")):  # a clock may be set back, and no folder is used twice
        now += "b"
    for path in sorted(results.glob("*.json")):
        if not (record := read_run(path)):
            continue
        run = runs.get(path) or notebooks.get(record["notebook"])
        reason = outdated(run, record) if run else None
        if reason == "other_code" or (reason and path in runs):
            folder = results / f"{reason}-{now}"
            move(path, runs.get(path), folder)
            moved[folder] += 1
    for folder, count in moved.items():
        reason = folder.name.partition("-")[0].replace("_", " ")
        say(
            f"{count} records of {reason} are kept in {shown(folder)}, "
            "so their trainings begin anew"
        )


def move(record: Path, run: Run | None, folder: Path) -> None:
    """Move a record into a folder, after the executed notebooks of its run."""
    folder.mkdir(exist_ok=True)
    executed = [run.executed] if run else []
    # the record last: it is what counts
    for path in (*executed, record.with_suffix(".ipynb"), record):
        if path.exists():
            path.replace(folder / path.name)
