#!/usr/bin/env bash
# fit_time.sh SECONDS CARD: fit-time by the order of the plan, three processes each in three orders: card 0 the GPT at 1,024 tokens,
# then the ViT; card 1 the held-out GPT. Ended after SECONDS it goes on at the next call to the same warm machine. Records: /tmp/back/fit_time<CARD>.zip
set -u
began=$(date +%s); seconds=$1; card=$2; work=/tmp/fit-time$card; mkdir -p $work /tmp/back
python3 -c 'import torchao.optim, peft, papermill, timm; print("torchao, peft, papermill, timm are there")' 2>&1 | tail -n 1
python3 - $card <<'P'
import sys, yaml
from pathlib import Path
study = yaml.safe_load(Path("notebooks/studies.yaml").read_text())["fit-time"]
for place in range(len(study["runs"])):
    Path(f"/tmp/fit_time{place}.yaml").write_text(yaml.safe_dump({"fit-time": {**study, "runs": study["runs"][place:place + 1]}}, sort_keys=False, allow_unicode=True))
P
for place in ${PLACES:-$( [ $card = 0 ] && echo 0 2 || echo 1 )}; do
  left=$(( seconds - ($(date +%s) - began) - 16 )); [ "$left" -lt 40 ] && break
  mkdir -p $work/$place; rm -f "$work/$place/logs/summary.log"
  python3 run_all.py fit-time --studies /tmp/fit_time$place.yaml --output-dir "$work/$place" >>"$work/$place.log" 2>&1 &
  pid=$!; until=$(( $(date +%s) + left ))
  while kill -0 $pid 2>/dev/null; do
    if [ "$(date +%s)" -ge "$until" ] || [ -e "$work/$place/logs/summary.log" ]; then kill -TERM $pid 2>/dev/null; break; fi
    sleep 1
  done
  wait $pid; rm -f "$work/$place/logs/summary.log"
  echo "fit-time entry $place on card $card ended after $(( $(date +%s) - began )) s: $(ls "$work/$place"/*.json 2>/dev/null | wc -l) records of 42, 24, 30, 24"
  grep -iE "fail|error|oom|out of mem" "$work/$place.log" | head -5 | cut -c1-200; tail -n 3 "$work/$place.log" | cut -c1-160
done
python3 - "$work" $card <<'P'
import sys, zipfile
from pathlib import Path
with zipfile.ZipFile(f"/tmp/back/fit_time{sys.argv[2]}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(Path(sys.argv[1]).glob("*/*.json")): archive.write(path, path.name)
P
