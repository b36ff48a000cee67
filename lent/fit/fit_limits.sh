#!/usr/bin/env bash
# fit_limits.sh SECONDS CARD: budgets in force on the held-out GPT: what is predicted for 8 and 12 GiB is run under that limit. Records: /tmp/back/fit_limits.zip
# The prediction reads outputs/main/fit-h200/records.zip, which the working tree needs (.carry/fit_table holds a copy).
set -u
mkdir -p outputs/main/fit-h200 /tmp/back; cp -n .carry/fit_table/records.zip outputs/main/fit-h200/
for gib in 8 12; do
  timeout -k 8 $(( $1 / 2 - 5 )) python3 run_all.py fit/transformer -p memory_limit_gib $gib -p layers 24 -p width 1024 -p context 1024 -p batch_size 8 --output-dir /tmp/fit-limit$gib 2>&1 | grep -v Caution | tail -n 8 | cut -c1-220
done
python3 - <<'P'
import zipfile
from pathlib import Path
with zipfile.ZipFile("/tmp/back/fit_limits.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for gib in (8, 12):
        for path in sorted(Path(f"/tmp/fit-limit{gib}").glob("*.json")): archive.write(path, f"{gib}/{path.name}")
P
