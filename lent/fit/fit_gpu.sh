#!/usr/bin/env bash
# bash .carry/fit_gpu.sh SECONDS STUDY [STUDY ...], from the root of the tree on the lent machine. One process of a training each, shared
# evenly by all GPUs. What is finished when SECONDS are over is kept and comes back as $OUT/fit_records.zip; put that into .carry, and the
# same call on any machine makes what lacks. Studies: fit, fit-held-out, fit-quality (wants .carry/wikitext-2.zip).
set -u
began=$(date +%s); seconds=${1:?}; shift
here=$(cd "$(dirname "$0")" && pwd); work=/tmp/fit-records; OUT=${OUT:-/tmp/out}; mkdir -p "$OUT" "$work"
: "${MIXED_PRECISION_COMMIT:?the commit of the tree}"
if ls .whl/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
  export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
fi
python3 -c 'import torchao.optim, peft, papermill, timm; print("torchao, peft, papermill, timm are there")' 2>&1 | tail -n 1
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,uuid,memory.used --format=csv,noheader
if [ -f "$here/wikitext-2.zip" ] && [ ! -e data/wikitext-2/train.txt ]; then
  mkdir -p data/wikitext-2 && (cd data/wikitext-2 && python3 -m zipfile -e "$here/wikitext-2.zip" .)
fi
[ -f "$here/fit_records.zip" ] && python3 -m zipfile -e "$here/fit_records.zip" "$work"
python3 "$here/fit_split.py" /tmp/fit_split.yaml fit fit-held-out fit-quality
for study in "$@"; do
  left=$(( seconds - ($(date +%s) - began) - 25 ))
  [ "$left" -lt 40 ] && break
  mkdir -p "$work/$study"
  python3 run_all.py "$study" --studies /tmp/fit_split.yaml --output-dir "$work/$study" ${GPUS:+--gpus "$GPUS"} >>"$work/$study.log" 2>&1 &
  pid=$!; until=$(( $(date +%s) + left ))
  # SIGTERM keeps what is finished, and gives what runs 8 s; the report is not wanted here
  while kill -0 $pid 2>/dev/null; do
    if [ "$(date +%s)" -ge "$until" ] || [ -e "$work/$study/logs/summary.log" ]; then kill -TERM $pid 2>/dev/null; break; fi
    sleep 1
  done
  wait $pid; echo "$study ended after $(( $(date +%s) - began )) s: $(ls "$work/$study"/*.json 2>/dev/null | wc -l) records"
  tail -n 6 "$work/$study.log" | cut -c1-220
done
python3 - "$work" "$OUT" <<'P'
import collections, json, statistics, sys, zipfile
from pathlib import Path
work, out = map(Path, sys.argv[1:])
paths = sorted(path for path in work.rglob("*.json") if path.parent.parent == work)
with zipfile.ZipFile(out / "fit_records.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in paths:
        archive.write(path, path.relative_to(work))
with zipfile.ZipFile(out / "fit_logs.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(work.rglob("*.log")):
        archive.writestr(str(path.relative_to(work)), path.read_bytes()[-40000:])
counts = collections.Counter()
for path in paths:
    record = json.loads(path.read_text())
    if "run" not in record:
        continue
    run, settings, memory = record["run"], record["settings"], record["measured"]["memory"]
    counts[path.parent.name, run["status"]] += 1
    names = ("execution", "moments", "rounding", "loss_chunks", "checkpointing", "memory_budget", "offload", "micro_batches", "optimizer_in_backward", "adapters")
    arm = [run["precision"], *(f"{name}={settings[name]}" for name in names if settings.get(name) not in (None, "eager", "as_weights", "nearest", 1, 0, 0.0, False))]
    peak, step = memory["peak_allocated_mib"], record["measured"]["time"]["step_ms_median"]
    began, ended = run["started_at"], run["finished_at"]
    print(run["notebook"][:11], settings.get("layers", ""), settings.get("context", ""), *arm, run["status"], (run["reason"] or "")[:160],
          f"{peak / 1024:.2f} GiB" if peak else "", f"{step:.1f} ms" if step else "", f"{began[11:19]}-{(ended or '')[11:19]}")
print(dict(counts))
P
ls -la "$OUT"; echo "$(( $(date +%s) - began )) s in all"
