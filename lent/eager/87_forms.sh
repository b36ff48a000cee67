#!/usr/bin/env bash
# 87_forms.sh SECONDS CARD: two repetitions of article-forms (card 0: 0 and 1, card 1: 2 and 3), 9 processes each, about 400 s a repetition.
# Records: /tmp/back/forms<CARD>.zip, whose names hold the repetition.
set -u
end=$(( $(date +%s) + $1 - 14 )); mkdir -p /tmp/back
for k in $(( 2 * $2 )) $(( 2 * $2 + 1 )); do
  left=$(( end - $(date +%s) )); [ $left -lt 40 ] && break
  timeout -s INT $left python3 run_all.py --studies notebooks/articles.yaml article-forms -p repeat $k -p data_dir /tmp/data --output-dir /tmp/forms$k >>/tmp/forms$2.log 2>&1
  echo "article-forms repetition $k ended $?: $(ls /tmp/forms$k/*.json | wc -l) records of 9"; grep -E '^\[' /tmp/forms$2.log | tail -n 3 | cut -c1-170
done
python3 - $2 <<'P'
import sys, zipfile
from pathlib import Path
with zipfile.ZipFile(f"/tmp/back/forms{sys.argv[1]}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for k in (2 * int(sys.argv[1]), 2 * int(sys.argv[1]) + 1):
        for path in sorted(Path(f"/tmp/forms{k}").glob("*.json")): archive.write(path, path.name)
P
