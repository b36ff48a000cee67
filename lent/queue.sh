#!/usr/bin/env bash
# queue.sh SECONDS: one call of a lease whose work goes on between the calls. The first call of a machine copies the tree to /tmp/repo and starts a worker
# for each GPU, in a session of its own. The workers take what comes next in /tmp/queue/todo until /tmp/queue/end. Each call brings data (.carry), waits SECONDS
# at most, and collects what is there. LEASE: seconds from the first call to the end of all.
set -u
began=$(date +%s); seconds=$1
if [ ! -d /tmp/repo ]; then
  mkdir -p /tmp/repo /tmp/back /tmp/data/wikitext-2 /tmp/queue/{todo,doing,done} /tmp/rec
  [ -z "${DRY:-}" ] && python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
  tar -c --exclude .whl --exclude '.carry/cifar10.part*' . | tar -x -C /tmp/repo
  [ -f .carry/wikitext-2.zip ] && python3 -m zipfile -e .carry/wikitext-2.zip /tmp/data/wikitext-2
  echo $(( began + ${LEASE:-1690} )) >/tmp/queue/end
  n=0; for task in $TASKS; do touch /tmp/queue/todo/$(printf %02d $n)-$task; n=$(( n + 1 )); done
  nvidia-smi -L; lscpu | grep 'Model name'; nproc
fi
bash .carry/87_data.sh
for card in $(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null || echo 0 1); do
  pid=$(cat /tmp/queue/worker$card 2>/dev/null); [ -n "$pid" ] && kill -0 $pid 2>/dev/null && continue
  [ -n "$pid" ] && echo "worker $card is no more; a new one"
  for stale in /tmp/queue/doing/*@$card; do [ -f $stale ] && mv $stale /tmp/queue/todo/$(basename ${stale%@*}); done
  setsid -f bash /tmp/repo/.carry/worker.sh $card >>/tmp/queue/log$card.txt 2>&1 </dev/null
done
sleep 2
while [ $(( $(date +%s) - began )) -lt $seconds ]; do
  [ -z "$(ls /tmp/queue/todo /tmp/queue/doing | grep -v :)" ] && break
  [ $(date +%s) -gt $(( $(cat /tmp/queue/end) + 8 )) ] && break
  sleep 2
done
python3 - <<'P'
import zipfile
from pathlib import Path
for kind in ("head", "quality", "forms", "more", "peers"):
    with zipfile.ZipFile(f"/tmp/back/{kind}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(Path("/tmp/rec").glob(f"{kind}*/*.*")):
            if path.suffix in (".json", ".csv", ".jsonl"):
                archive.write(path, f"{path.parent.name}/{path.name}")
P
cp /tmp/back/*.zip $OUT/; ( cd /tmp && tar -czf $OUT/logs.tar.gz queue rec/*.log 2>/dev/null )
echo "todo: $(ls /tmp/queue/todo | tr '\n' ' '); doing: $(ls /tmp/queue/doing | tr '\n' ' '); left $(( $(cat /tmp/queue/end) - $(date +%s) )) s; worker pids alive: $(pgrep -fc worker.sh)"
cat /tmp/queue/log*.txt | sort -t'[' -k2 -n | tail -n 70 | cut -c1-180
