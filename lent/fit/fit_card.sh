#!/usr/bin/env bash
# fit_card.sh SECONDS CARD: fit (what lacks), then fit-held-out, on the one visible card; records: /tmp/back/fit_card<CARD>.zip
set -u
began=$(date +%s); seconds=$1; card=$2; work=/tmp/fit-records$card; mkdir -p $work /tmp/back
python3 -c 'import torchao.optim, peft, papermill, timm; print("torchao, peft, papermill, timm are there")' 2>&1 | tail -n 1
python3 .carry/fit_split2.py .carry/union
for study in fit fit-held-out; do
  left=$(( seconds - ($(date +%s) - began) - 16 ))
  [ "$left" -lt 40 ] && break
  mkdir -p "$work/$study"
  python3 run_all.py "$study" --studies /tmp/fit_card$card.yaml --output-dir "$work/$study" >>"$work/$study.log" 2>&1 &
  pid=$!; until=$(( $(date +%s) + left ))
  while kill -0 $pid 2>/dev/null; do
    if [ "$(date +%s)" -ge "$until" ] || [ -e "$work/$study/logs/summary.log" ]; then kill -TERM $pid 2>/dev/null; break; fi
    sleep 1
  done
  wait $pid; rm -f "$work/$study/logs/summary.log"
  echo "$study card $card ended after $(( $(date +%s) - began )) s: $(ls "$work/$study"/*.json 2>/dev/null | wc -l) records"
  grep -iE "fail|error|oom|out of mem" "$work/$study.log" | head -5 | cut -c1-200; tail -n 3 "$work/$study.log" | cut -c1-160
done
python3 - "$work" $card <<'P'
import sys, zipfile
from pathlib import Path
work = Path(sys.argv[1])
with zipfile.ZipFile(f"/tmp/back/fit_card{sys.argv[2]}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(work.rglob("*.json")):
        if path.parent.parent == work: archive.write(path, path.relative_to(work))
P
