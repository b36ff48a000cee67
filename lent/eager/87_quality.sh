#!/usr/bin/env bash
# 87_quality.sh SECONDS CARD NOTEBOOK: every second seed of quality-compiled in one process (card 0 the even ones). Data below /tmp/data.
# Ended early it goes on at the next call to the same warm machine. Records: /tmp/back/quality<CARD>.zip. LSTM about 100 s a seed, ResNet-18 180 to 200 s.
set -u
end=$(( $(date +%s) + $1 - 14 )); mkdir -p /tmp/back /tmp/split
[ -f /tmp/split/part-$2.yaml ] || python3 .carry/87_split.py . /tmp/split 2
timeout -s INT $(( end - $(date +%s) )) python3 run_all.py --studies /tmp/split/part-$2.yaml quality-compiled/$3 -p data_dir /tmp/data --output-dir /tmp/quality$2 >>/tmp/quality$2.log 2>&1
echo "quality-compiled/$3 on card $2 ended $?: $(ls /tmp/quality$2/*.json | wc -l) records"; grep -E '^\[' /tmp/quality$2.log | tail -n 3 | cut -c1-170
python3 - $2 <<'P'
import sys, zipfile
from pathlib import Path
with zipfile.ZipFile(f"/tmp/back/quality{sys.argv[1]}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(Path(f"/tmp/quality{sys.argv[1]}").glob("*.json")): archive.write(path, path.name)
P
