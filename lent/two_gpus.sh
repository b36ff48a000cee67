#!/usr/bin/env bash
# limit.sh: what is run on the lent machine; END is when it must stop (seconds since the epoch)
set -u
say() { echo "[$(( $(date +%s) - BEGAN )) s] $*"; }
left() { echo $(( END - $(date +%s) - ${1:-0} )); }
gpu0() {
  export CUDA_VISIBLE_DEVICES=0 TORCHINDUCTOR_COMPILE_THREADS=8
  timeout $(left 15) taskset -c 0-15 python3 benchmarks/gpt_limit.py /tmp/limit --nanogpt .carry/nanogpt >/tmp/limit.log 2>&1
  say "limit ended $?"; tail -c 3000 /tmp/limit.log
  mkdir -p /tmp/peers; cp outputs/checks/peers-h200/measured.csv /tmp/peers/
  [ $(left) -gt 80 ] && timeout $(left 12) taskset -c 0-15 python3 benchmarks/peers.py /tmp/peers --nanogpt .carry/nanogpt --rounds 3 4 --abreast 6 --cells 'a batch a step' >/tmp/peers.log 2>&1
  say "peers ended $?"; tail -c 1500 /tmp/peers.log
}
gpu1() {
  export CUDA_VISIBLE_DEVICES=1 TORCHINDUCTOR_COMPILE_THREADS=8
  timeout $(( $(left 15) < 330 ? $(left 15) : 330 )) taskset -c 16-31 python3 run_all.py reference/transformer -p repeat 2 -p data_dir /tmp/data --output-dir /tmp/ref2 >/tmp/ref2.log 2>&1
  say "repeat 2 ended $?"; tail -n 12 /tmp/ref2.log
  if [ -f .carry/weights_pilot_gpt.sh ]; then
    taskset -c 16-31 timeout $(left 8) bash .carry/weights_pilot_gpt.sh $(left 20) >/tmp/pilot.log 2>&1
    say "pilot ended $?"; tail -n 40 /tmp/pilot.log
  fi
}
BEGAN=$(date +%s); END=$(( BEGAN + ${1:-575} ))
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
mkdir -p /tmp/data/wikitext-2; (cd /tmp/data/wikitext-2 && python3 -m zipfile -e "$OLDPWD/.carry/wikitext-2.zip" . )
ls -R /tmp/data | head; nvidia-smi -L; lscpu | grep 'Model name'; nproc
gpu0 >/tmp/gpu0.txt 2>&1 & gpu1 >/tmp/gpu1.txt 2>&1 &
wait
cat /tmp/gpu0.txt /tmp/gpu1.txt
tar -C /tmp -czf $OUT/limit.tar.gz limit peers limit.log peers.log ref2.log pilot.log 2>/dev/null
cd /tmp && [ -d ref2 ] && find ref2 -name '*.json' -size -200k | tar -czf $OUT/ref2.tar.gz -T -
ls -la $OUT
