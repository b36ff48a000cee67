"""Which runs of a study are finished: those whose records count for the code, the data and the GPUs of today."""

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..measure.commit import MALFORMED, ROOT, hash_of
from ..record import NOT_YET_EXPLAINED, read_run
from ..tasks.data_files import data_files_hash
from .devices import Device
from .plan import Comparison, Run
from .status import say, shown

RETRIED = ("failed", "timeout", "killed")  # statuses that are no result
DATA_DIR_NON_DATA = ("cache", "published_results.csv")  # other things in a data_dir


def code_hash(notebook: Path) -> str | None:
    """Return the hash of a run's code, None where the notebook is broken or just being saved."""
    try:
        return hash_of(notebook)
    except (OSError, *MALFORMED):
        return None


@functools.cache
def files_now(notebook: str, parameters: str) -> str | None:
    """Return the hash of the files that a run reads. `parameters` is JSON; set_aside_records() looks at them anew."""
    return data_files_hash(notebook, json.loads(parameters), ROOT)


def outdated(run: Run, record: dict) -> tuple[str, str] | None:
    """Return (folder name, reason) where a record of a run no longer counts, else None.

    A record without a hash of its code, or of its files, was made by hand or is older than that. It counts.
    """
    known, now = record.get("code_hash"), code_hash(run.notebook)
    if known and now not in (None, known):
        return f"other_code-{known}", "were measured by other code"
    if record.get("synthetic") and replaces_made_up_data(run, record):
        return "made_up_data", "are of made-up data, and data_dir is another one now"
    known = record.get("data_files_hash")
    if known and files_now(run.notebook.stem, json.dumps(run.parameters, sort_keys=True)) not in (None, known):
        return f"other_data-{known}", "are of other data than the files hold now"
    return None


def replaces_made_up_data(run: Run, record: dict) -> bool:
    """Return whether data_dir is another one now and holds data. A failed download leaves an empty folder."""
    wanted = run.parameters
    place = ROOT / wanted["data_dir"]
    if wanted["dataset"] != "auto" or "csv_path" in wanted or record.get("data_dir") == wanted["data_dir"]:
        return False
    with suppress(OSError):  # as at a folder that only root may enter
        there = [path for path in place.iterdir() if path.name not in DATA_DIR_NON_DATA]
        return any(path.is_file() or any(path.iterdir()) for path in there)
    return False


def unfinished(
    comparison: Comparison, devices: Sequence[Device] = (), fresh: bool = False, retry_failed: bool = False
) -> list[Run]:
    """Return the runs of a comparison that must be made: a run is made as a whole or not at all.

    Where a repetition has begun on a GPU that is not here, all of it is made again, as a ratio compares runs of one
    GPU. `fresh` makes every run, `retry_failed` those of which a training failed.
    """
    home = home_of(comparison, devices)
    wanted, away = [], []
    for run in comparison:
        records = [read_run(path) for path in run.record_paths.values()]
        if fresh or not all(record and counts(run, record, retry_failed) for record in records):
            wanted.append(run)
        elif devices and devices[0].visible and (uuid := (records[0] or {}).get("gpu_uuid")):
            away += [run] if not (home and home.visible.endswith(uuid)) else []
    begun = {run.parameters.get("repeat") for run in wanted}
    return [run for run in comparison if run in wanted or (run in away and run.parameters.get("repeat") in begun)]


def counts(run: Run, record: dict, retry_failed: bool) -> bool:
    """Return whether a record of one of its trainings lets a run stand."""
    unexplained = record["status"] == "ok" and record.get("profile_reason") == NOT_YET_EXPLAINED
    return not (outdated(run, record) or unexplained or (retry_failed and record["status"] in RETRIED))


def home_of(comparison: Comparison, devices: Sequence[Device]) -> Device | None:
    """Return the GPU on which finished runs of the comparison ran, or None."""
    paths = [path for run in comparison for path in run.record_paths.values()]
    uuids = [(read_run(path) or {}).get("gpu_uuid") for path in paths]
    return next((device for device in devices for uuid in uuids if uuid and device.visible.endswith(uuid)), None)


def set_aside_records(comparisons: list[Comparison]) -> None:
    """Move outdated records and their notebooks into a folder beside them, and say so. Nothing is deleted.

    Records of other code move even where their runs are not asked for: the report would compare them with the new ones.
    """
    files_now.cache_clear()
    asked = {path: run for runs in comparisons for run in runs for path in run.record_paths.values()}
    notebooks = {run.notebook.stem: run for run in asked.values()}
    moved: Counter[tuple] = Counter()
    for path in sorted(comparisons[0][0].folder.glob("*.json")):
        record = read_run(path)
        run = asked.get(path) or (record and notebooks.get(record["notebook"]))
        aside = run and record and outdated(run, record)
        if not run or not aside or not (path in asked or aside[0].startswith("other_code")):
            continue
        name, reason = re.sub(r"[^\w-]", "_", aside[0])[:60], aside[1]  # a record may have come from anywhere
        names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        folder = next(run.folder / one for one in names if not (run.folder / one / path.name).exists())
        folder.mkdir(exist_ok=True)
        notebooks_of_it = {path.with_suffix(".ipynb"), *([run.executed] if path in asked else [])}
        for old in filter(os.path.exists, notebooks_of_it):
            old.replace(folder / old.name)
        path.replace(folder / path.name)  # the record last: it is what counts
        moved[folder, reason] += 1
    for (folder, reason), count in moved.items():
        say(f"{count} records {reason}; they are kept in {shown(folder)}")
