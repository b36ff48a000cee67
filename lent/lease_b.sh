#!/usr/bin/env bash
# lease_b.sh SECONDS: what the four GPUs of one machine do, all ended and in $OUT after SECONDS
set -u
export BEGAN=$(date +%s); export END=$(( BEGAN + ${1:-545} ))
say() { echo "[$(( $(date +%s) - BEGAN )) s] $*"; }
left() { local n=$(( END - $(date +%s) - ${1:-0} )); echo $(( n > 5 ? n : 5 )); }
stamped() { while IFS= read -r line; do say "$line"; done; }
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
mkdir -p data/wikitext-2; python3 -m zipfile -e .carry/wikitext-2.zip data/wikitext-2
cp .carry/wikitext-2.zip .carry/weights/; cp .carry/wikitext-2.zip .carry/attn/
JOBS=${JOBS:-"attn eager weights"}
nvidia-smi -L; lscpu | grep 'Model name'; nproc; ls data data/wikitext-2
bound() { taskset -cp $1 $BASHPID >/dev/null; }
job_attn() {
  bound 0-31; mkdir -p /tmp/attn_out
  OUT=/tmp/attn_out bash .carry/attn/attention_gpu.sh $(left 8) ${TINY:-} 2>&1
}
job_eager() {
  bound 32-47; export CUDA_VISIBLE_DEVICES=2
  timeout -k 8 $(left 14) python3 run_all.py eager --studies .carry/eager.yaml -p seed ${SEED:-2} --output-dir /tmp/eager >>/tmp/eager.log 2>&1
  say "eager ended $?"
  tail -n 4 /tmp/eager.log
}
job_weights() {
  bound 48-63; export CUDA_VISIBLE_DEVICES=3
  timeout -k 5 60 python3 .carry/weights/weights_graph_check.py 2>&1 | grep -E "^(pass|FAIL|[0-9])"; say "graph check ended"
  SHARE=${SHARE:-0/2} MOST=14 OUT=/tmp/back bash .carry/weights/weights_counted.sh gpt $(left 10) 3 48-63 2>&1 | stamped
}
mkdir -p /tmp/back
for n in $JOBS; do job_$n >/tmp/job_$n.txt 2>&1 & done
( sleep $(left 4) ) & watch=$!
wait $(jobs -p | grep -vx $watch); kill $watch 2>/dev/null
for n in $JOBS; do echo "=== $n"; tail -n 45 /tmp/job_$n.txt | cut -c1-200; done
cp /tmp/back/*.zip $OUT/ 2>/dev/null
( cd /tmp/attn_out 2>/dev/null && tar -czf $OUT/attention.tar.gz . )
( cd /tmp && find eager \( -name '*.json' -o -name '*.log' \) -size -300k 2>/dev/null | tar -czf $OUT/eager.tar.gz -T - job_*.txt eager.log )
ls -la $OUT
