#!/usr/bin/env bash
# lease_a.sh SECONDS: what the four GPUs of one machine do, all ended and in $OUT after SECONDS
set -u
export BEGAN=$(date +%s); export END=$(( BEGAN + ${1:-545} ))
say() { echo "[$(( $(date +%s) - BEGAN )) s] $*"; }
left() { local n=$(( END - $(date +%s) - ${1:-0} )); echo $(( n > 5 ? n : 5 )); }
least() { echo $(( $1 < $2 ? $1 : $2 )); }
stamped() { while IFS= read -r line; do say "$line"; done; }
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
mkdir -p data/wikitext-2; python3 -m zipfile -e .carry/wikitext-2.zip data/wikitext-2
cp .carry/wikitext-2.zip .carry/weights/
GPUS=${GPUS:-"0 1 2 3"}
nvidia-smi -L; lscpu | grep 'Model name'; nproc; ls data data/wikitext-2
on() { export CUDA_VISIBLE_DEVICES=${1}; taskset -cp $(( 16 * $1 ))-$(( 16 * $1 + 15 )) $BASHPID >/dev/null; }
job0() {
  on 0
  timeout -k 8 $(left 12) python3 run_all.py eager -p seed ${SEED:-1} --output-dir /tmp/eager >/tmp/eager.log 2>&1
  say "eager ended $?"; tail -n 6 /tmp/eager.log
}
job1() {
  on 1; export OMP_NUM_THREADS=4 TORCHINDUCTOR_COMPILE_THREADS=4
  timeout -k 8 $(left 15) python3 -u benchmarks/gpt_limit.py /tmp/limit --nanogpt .carry/nanogpt ${TINY:-} 2>&1 | stamped
  say "limit ended"
  [ $(left) -gt 60 ] && timeout -k 8 $(left 12) python3 tests/on_gpu.py -k "inference or profile or ledger or release or backends or memory" 2>&1 | tail -n 25
  say "tests ended"
}
job2() {
  on 2
  timeout -k 5 120 python3 .carry/weights/weights_graph_check.py >/tmp/check.txt 2>&1 &
  EXTRA="--lr 1e-12,1e-6,2e-6,5e-6,1e-5,5e-5,2e-4,1e-3,5e-3" MOST=9 OUT=/tmp/back WORK=/tmp/weights-pilot-gpt bash .carry/weights/weights_pilot_gpt.sh $(left 14) 2 32-47 2>&1 | stamped &
  MOST=10 OUT=/tmp/back WORK=/tmp/weights-pilot-vit bash .carry/weights/weights_pilot_vit.sh $(left 12) 2 32-47 2>&1 | stamped &
  wait
  tail -n 24 /tmp/check.txt
}
job3() {
  on 3; export OMP_NUM_THREADS=4 TORCHINDUCTOR_COMPILE_THREADS=4
  timeout -k 8 $(least $(left 15) 330) python3 run_all.py reference/transformer -p repeats 5 -p repeat 4 --output-dir /tmp/ref4 >/tmp/ref4.log 2>&1
  say "repeat 4 ended $?"; tail -n 9 /tmp/ref4.log
  mkdir -p /tmp/peers; cp .carry/measured.csv /tmp/peers/
  timeout -k 8 $(left 10) python3 -u benchmarks/peers.py /tmp/peers --nanogpt .carry/nanogpt --rounds 3 4 --abreast 6 --cells 'a batch a step' ${TINY:-} 2>&1 | stamped
  say "peers ended"
}
mkdir -p /tmp/back
for n in $GPUS; do job$n >/tmp/job$n.txt 2>&1 & done
( sleep $(left 4) ) & watch=$!
wait $(jobs -p | grep -vx $watch) ; kill $watch 2>/dev/null
for n in $GPUS; do echo "=== $n"; cat /tmp/job$n.txt | tail -n 45 | cut -c1-220; done
cp /tmp/back/*.zip $OUT/ 2>/dev/null
tar -C /tmp -czf $OUT/limit.tar.gz limit peers check.txt job0.txt job1.txt job2.txt job3.txt ref4.log eager.log 2>/dev/null
for one in ref4 eager; do ( cd /tmp && [ -d $one ] && find $one \( -name '*.json' -o -name '*.log' \) -size -300k | tar -czf $OUT/$one.tar.gz -T - ); done
( cd /tmp; find weights-pilot-gpt weights-pilot-vit -name '*.log' -size -100k 2>/dev/null | tar -czf $OUT/pilot-logs.tar.gz -T - )
ls -la $OUT
