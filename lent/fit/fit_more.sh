#!/usr/bin/env bash
# fit_more.sh SECONDS CARD: a third pair of fit-time's GPT at 1,024 tokens for the two arms that have two: compiled, and every block again. About 110 s.
# Records: /tmp/back/fit_more.zip; fit_publish.py counts them beside the others.
set -u
python3 - <<'P'
import yaml
from pathlib import Path
study = yaml.safe_load(Path("notebooks/studies.yaml").read_text())["fit-time"]
entry = {**study["runs"][0], "ways": [{"precisions": ["amp_bf16"], "checkpointing": [0, 1]}, {"precisions": ["amp_bf16"], "execution": "compile"}]}
Path("/tmp/fit_more.yaml").write_text(yaml.safe_dump({"fit-time": {**study, "runs": [entry]}}, sort_keys=False))
P
timeout -s INT $1 python3 run_all.py fit-time --studies /tmp/fit_more.yaml -p repeat 2 --output-dir ${OUT_DIR:-/tmp/fit-more} >/tmp/fit-more.log 2>&1
echo "fit-more ended $?: $(ls ${OUT_DIR:-/tmp/fit-more}/*.json | wc -l) records of 3"; tail -n 3 /tmp/fit-more.log | cut -c1-170
python3 - <<'P'
import zipfile
from pathlib import Path
with zipfile.ZipFile("/tmp/back/fit_more.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(Path("/tmp/fit-more").glob("*.json")): archive.write(path, path.name)
P
