"""Write the committed records in their nested form, once, and say how long that takes and what it weighs.

    python benchmarks/migrate.py OLD [PLACE ...]

OLD is a clone of commit 09a237e, the last that reads the flat records of version 0.2, because what it completes and
corrects while it reads them is written down here for good. PLACES are zips or folders; by default all of outputs.
"""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_THE_RUN = ("fp8_scaling", "fp16_accumulation", "checkpoint_minutes", "more_seeds", "resumed_at_epochs")  # and alike
LATE = ("device_type", "gpu_name", "gpu_uuid", "dataset_used", "data_fingerprint", "synthetic")


def complete(place):
    """Return {path: flat record} of a zip as the old code reads it; this runs in a process of the old code."""
    import copy
    from statistics import median

    from mixed_precision_study.record import (
        FIELDS,
        NOT_COMPARED,
        OF_NO_RUN,
        RunRecord,
        comparison_key,
        contradiction,
        is_explanation,
        read_records,
    )

    from mixed_precision_study.judge.equivalence import MARGINS
    from mixed_precision_study.judge.explained import explain
    from mixed_precision_study.judge.time_to_target import DEFAULT_TARGETS
    from mixed_precision_study.report.names import DATA, ORDER, model_name
    from mixed_precision_study.report.selection import corrected, sort_out
    from mixed_precision_study.tasks.data_files import USUAL

    found, _ = read_records(place)
    defaults = {name: getattr(RunRecord, name, []) for name in FIELDS}
    whole = {one["path"]: defaults | one for one in found}
    whole = {path: one if contradiction(one) else corrected(one) for path, one in whole.items()}
    used, _ = sort_out(copy.deepcopy(found))
    groups = {}
    for one in used:
        groups.setdefault(comparison_key(one) if one.get("purpose") != "aa" else one["path"], []).append(one)
    for runs in groups.values():
        timed = [one for one in runs if not is_explanation(one)]
        for precision in ORDER:
            explaining = [one for one in runs if is_explanation(one) and one["precision"] == precision]
            explain([one for one in timed if one["precision"] == precision], explaining)
        for one in runs:
            whole[one["path"]] = one | {name: whole[one["path"]][name] for name in LATE}
    for one in whole.values():
        if one["status"] == "ok" and not one["samples_per_epoch"] and one["samples_per_second"]:
            samples = one["samples_per_second"] * median(one["epoch_seconds"])
            if abs(samples - round(samples)) > 1e-6 * samples:
                raise ValueError(f"{one['path']} has no whole number of samples in an epoch")
            one["samples_per_epoch"] = round(samples)
        key = str(one["dataset_used"] or one["dataset"])
        data = "made-up data" if key == "synthetic" else DATA.get(key, key)
        size = f", {one['image_height']} × {one['image_width']}" if one.get("image_height") else ""
        margin = MARGINS.get(one["metric_name"] or "")
        target = DEFAULT_TARGETS.get((one["notebook"], one["model"], one["dataset_used"] or ""))
        one["model_title"], one["data_title"] = model_name(one), data + size
        one["data_folder"] = USUAL.get(one["notebook"])
        one["metric_margin"] = margin.size if margin else None
        one["metric_margin_is_share"] = bool(margin and margin.is_ratio)
        one["metric_target"] = target if one["metric_better"] else None
        new = {"model_title", "data_title", "data_folder", "metric_margin", "metric_margin_is_share", "metric_target"}
        kept = {name for name in one if name not in FIELDS and not name.startswith(OF_NO_RUN)}
        kept -= {"path", "purpose", "graph_gain", *OF_THE_RUN, *new}
        kept |= {name for name in NOT_COMPARED & {"precisions", "seed", "repeat", "dataset"} if name in one}
        one["settings"] = sorted(kept)
    return whole


def nested(flat, places, version):
    """Return the nested form of a completed record."""
    order = list(flat)
    names = set(flat.pop("settings"))
    found = {"run": {}, "settings": {name: flat[name] for name in order if name in names}, "machine": {}}
    found |= {"measured": {}, "quality": {}}
    others = [name for name in order if name not in names and name not in places and name not in ("path", "settings")]
    for name in [*places, *others]:
        if name not in flat:
            continue
        way = places.get(name) or place_of_older(name)
        part = found
        for step in way:
            part = part.setdefault(step, {})
        part[name] = flat[name]
    found["run"]["schema_version"] = version
    return found


def place_of_older(name):
    """Return the section of a field that this version does not declare."""
    starts = {"ledger_": ("measured", "ledger"), "inference_": ("measured", "inference")}
    return next((place for start, place in starts.items() if name.startswith(start)), ("run",))


def migrate(path, old):
    """Rewrite the records of a zip; all else in it stays."""
    from mixed_precision_study.store.record import PLACES, SCHEMA_VERSION, record_of

    command = [sys.executable, str(Path(__file__).resolve()), "--complete", str(path.resolve())]
    environment = {"PYTHONPATH": str(old), "PATH": "/usr/bin:/bin"}
    whole = json.loads(subprocess.run(command, cwd=old, env=environment, capture_output=True, check=True).stdout)
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in entries:
            name = f"{path.name}/{info.filename}" if f"{path.name}/{info.filename}" in whole else info.filename
            if name in whole:
                value = nested(whole[name], PLACES, SCHEMA_VERSION)
                record_of(json.loads(json.dumps(value)))
                content = (json.dumps(value, indent=1) + "\n").encode()
            archive.writestr(zipfile.ZipInfo(info.filename), content, zipfile.ZIP_DEFLATED, 9)
    return len(whole)


def main():
    if sys.argv[1] == "--complete":
        print(json.dumps(complete(sys.argv[2])))
        return
    sys.path.insert(0, str(ROOT))
    began, count, before, after = time.perf_counter(), 0, 0, 0
    for path in [Path(one) for one in sys.argv[2:]] or sorted((ROOT / "outputs").rglob("*.zip")):
        before += path.stat().st_size
        count += migrate(path, Path(sys.argv[1]).resolve())
        after += path.stat().st_size
    print(f"{count} records in {time.perf_counter() - began:.0f} s, {before:,} bytes of zips before, {after:,} after")


if __name__ == "__main__":
    main()
