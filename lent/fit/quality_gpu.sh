#!/usr/bin/env bash
# quality_gpu.sh SECONDS GPU: fit-quality on one card, its ways at once, since only their losses count; about 250 s. Records: /tmp/back/fit-quality.zip
set -u
export CUDA_VISIBLE_DEVICES=$2 OMP_NUM_THREADS=2
taskset -cp $(( 16 * $2 ))-$(( 16 * $2 + 15 )) $$ >/dev/null
python3 .carry/weights/weights_run.py fit-quality/transformer --work /tmp/fit-quality --seconds $1 --most 4 --split recipe
mkdir -p /tmp/back; python3 - <<'P'
import zipfile
from pathlib import Path
with zipfile.ZipFile("/tmp/back/fit-quality.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    paths = sorted(Path("/tmp/fit-quality").glob("*/*.json"))
    for path in paths:
        archive.write(path, path.name)
print("fit-quality:", len(paths), "records of 24")
P
