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
from ..store.record import NOT_YET_EXPLAINED, read_run
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


def state_of(run: Run, gpus: set[str], fresh: bool, retry_failed: bool) -> str:
    """Return "to do", "elsewhere" where a run is finished but not on one of these GPUs, or
    "finished".
    """
    records = [] if fresh else counting_records(run)
    retried = retry_failed and any(record["status"] in RETRIED for record in records)
    if retried or len(records) < len(run.trainings):
        return "to do"
    used = {record["gpu_uuid"] for record in records} - {None}
    return "elsewhere" if used and gpus and used != gpus else "finished"


def counting_records(run: Run) -> list[dict]:
    """Return the records of a run that count: they are explained, and code and data are those of
    now.
    """
    records = []
    for path in run.record_paths.values():
        record = read_run(path)
        if not record or outdated(run, record):
            continue
        if record["status"] != "ok" or record["profile_reason"] != NOT_YET_EXPLAINED:
            records.append(record)
    return records


def unfinished(
    comparison: Comparison,
    devices: Sequence[Device] = (),
    fresh: bool = False,
    retry_failed: bool = False,
) -> list[Run]:
    """Return the runs of a comparison that must be made: a run is made as a whole or not at all.

    A ratio compares runs of one GPU. So where a repetition has begun, all of it is made again
    unless the only GPU here is the one on which it began. `fresh` makes every run, `retry_failed`
    those of which a training failed.
    """
    gpus = {device.visible.removeprefix("GPU-") for device in devices if device.visible}
    states = [(run, state_of(run, gpus, fresh, retry_failed)) for run in comparison]
    begun = {run.parameters["repeat"] for run, state in states if state == "to do"}
    return [
        run
        for run, state in states
        if state == "to do" or (state == "elsewhere" and run.parameters["repeat"] in begun)
    ]


def set_aside_records(comparisons: list[Comparison]) -> None:
    """Move outdated records and their notebooks into a folder beside them, and say so. Nothing is
    deleted.

    Records of other code move even where their runs are not asked for: the report would compare
    them with the new ones.
    """
    files_now.cache_clear()
    planned = itertools.chain(*comparisons)
    runs = {path: run for run in planned for path in run.record_paths.values()}
    notebooks = {run.notebook.stem: run for run in runs.values()}
    moved: Counter[Path] = Counter()
    now, results = time.strftime("%Y%m%dT%H%M%S"), comparisons[0][0].folder
    while any(results.glob(f"*-{now}")):  # a clock may be set back, and no folder is used twice
        now += "b"
    for path in sorted(results.glob("*.json")):
        run = runs.get(path)
        reason = reason_to_move(path, run, notebooks)
        if reason:
            folder = results / f"{reason}-{now}"
            move(path, run, folder)
            moved[folder] += 1
    for folder, count in moved.items():
        reason = folder.name.partition("-")[0].replace("_", " ")
        say(
            f"{count} records of {reason} are kept in {shown(folder)}, "
            "so their trainings begin anew"
        )


def reason_to_move(path: Path, run: Run | None, notebooks: dict[str, Run]) -> str | None:
    """Return what is outdated about the record of a planned run, or only the code of another
    record whose notebook is planned; None where it stays.
    """
    record = read_run(path)
    alike = run or (notebooks.get(record["notebook"]) if record else None)
    reason = outdated(alike, record) if record and alike else None
    return reason if run or reason == "other_code" else None


def move(record: Path, run: Run | None, folder: Path) -> None:
    """Move a record into a folder, after the executed notebooks of its run."""
    folder.mkdir(exist_ok=True)
    paths = [record.with_suffix(".ipynb"), record]  # the record last: it is what counts
    if run:
        paths.insert(0, run.executed)
    for path in paths:
        if path.exists():
            path.replace(folder / path.name)
