"""Which runs of a study are finished: those whose records count for the code, the data and the
GPUs of today.
"""

import functools
import json
import os
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
    here = {device.visible.removeprefix("GPU-") for device in devices if device.visible}
    wanted, away = [], []
    for run in comparison:
        found = [record for path in run.record_paths.values() if (record := read_run(path))]
        explained = [
            one
            for one in found
            if one["status"] != "ok" or one["profile_reason"] != NOT_YET_EXPLAINED
        ]
        stand = [one for one in explained if not outdated(run, one)]
        if (
            fresh
            or len(stand) < len(run.trainings)
            or (retry_failed and any(one["status"] in RETRIED for one in stand))
        ):
            wanted.append(run)
        elif here and {one["gpu_uuid"] for one in stand} - {None} not in (set(), here):
            away.append(run)
    begun = {run.parameters.get("repeat") for run in wanted}
    return [
        run
        for run in comparison
        if run in wanted or (run in away and run.parameters.get("repeat") in begun)
    ]


def set_aside_records(comparisons: list[Comparison]) -> None:
    """Move outdated records and their notebooks into a folder beside them, and say so. Nothing is
    deleted.

    Records of other code move even where their runs are not asked for: the report would compare
    them with the new ones.
    """
    files_now.cache_clear()
    asked = {
        path: run for runs in comparisons for run in runs for path in run.record_paths.values()
    }
    notebooks = {run.notebook.stem: run for run in asked.values()}
    moved: Counter[Path] = Counter()
    now, results = time.strftime("%Y%m%dT%H%M%S"), comparisons[0][0].folder
    while any(results.glob(f"*-{now}")):  # a clock may be set back, and no folder is used twice
        now += "b"
    for path in sorted(results.glob("*.json")):
        record = read_run(path)
        run = asked.get(path) or (record and notebooks.get(record["notebook"]))
        reason = run and record and outdated(run, record)
        if not run or not reason or not (path in asked or reason == "other_code"):
            continue
        folder = results / f"{reason}-{now}"
        folder.mkdir(exist_ok=True)
        notebooks_of_it = [path.with_suffix(".ipynb"), *([run.executed] if path in asked else [])]
        # the record last: it is what counts
        for old in filter(os.path.exists, [*notebooks_of_it, path]):
            old.replace(folder / old.name)
        moved[folder] += 1
    for folder, count in moved.items():
        reason = folder.name.partition("-")[0].replace("_", " ")
        say(
            f"{count} records of {reason} are kept in {shown(folder)}, so their "
            "trainings begin anew"
        )
