"""Zip the records of folders and print a table: weights_collect.py ZIP FOLDER [FOLDER ...]"""

import json
import os
import statistics
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, os.getcwd())
from mixed_precision_study.store.record import read_run

target, *folders = map(Path, sys.argv[1:])
rows, reasons, seen, hashes = defaultdict(list), defaultdict(int), set(), set()
with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            run = read_run(path)
            run = run and {**run["settings"], **run}
            if run and path.name not in seen:
                seen.add(path.name)
                archive.write(path, path.name)
                recipe = (run["precision"], run.get("moments"), run.get("rounding"), run.get("execution"))
                rows[run["notebook"], run["lr"], recipe].append(run)
                hashes.add(f"{run['notebook']} {run.get('init_from')} {(run['identity'] or {}).get('weights')}")
                if run["status"] != "ok":
                    reasons[f"{run['status']}: {run['reason']}"] += 1
        for path in sorted(folder.rglob("*.log")):
            archive.writestr(f"logs/{path.relative_to(folder.parent)}", path.read_bytes()[-20000:])
mean = lambda values: statistics.fmean(values) if values else float("nan")
print(f"{'notebook':13}{'rate':>8} {'recipe':44}{'n':>3} {'metric':>8} {'sd':>7} {'kept':>7} {'s/epoch':>8} {'GiB':>6}")
for (notebook, rate, recipe), runs in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2]))):
    ends = [(run["metric"] or [None])[-1] for run in runs if run["status"] == "ok"]
    ends = [end for end in ends if end is not None]
    kept = [run["kept_update_fraction"] for run in runs if run.get("kept_update_fraction") is not None]
    seconds = [statistics.median(run["epoch_seconds"]) for run in runs if run.get("epoch_seconds")]
    memory = [run["peak_allocated_mib"] / 1024 for run in runs if run.get("peak_allocated_mib")]
    scatter = statistics.stdev(ends) if len(ends) > 1 else float("nan")
    print(f"{notebook:13}{rate:8.0e} {' '.join(map(str, recipe)):44}{len(ends):3} {mean(ends):8.4f} {scatter:7.4f} {mean(kept):7.3f} {mean(seconds):8.2f} {mean(memory):6.2f}")
for reason, count in reasons.items():
    print(f"{count} x {reason[:200]}")
print("bases:", *sorted(hashes), sep="\n  ")
print(f"{target}: {len(seen)} records, {target.stat().st_size / 2**20:.1f} MiB")
