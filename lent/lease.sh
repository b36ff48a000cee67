#!/usr/bin/env bash
# lease.sh SECONDS JOB:GPU ...: what the GPUs of one machine do, all ended and in $OUT after SECONDS
set -u
export BEGAN=$(date +%s); export END=$(( BEGAN + $1 )); shift
say() { echo "[$(( $(date +%s) - BEGAN )) s] $*"; }
left() { local n=$(( END - $(date +%s) - ${1:-0} )); echo $(( n > 5 ? n : 5 )); }
stamped() { while IFS= read -r line; do say "$line"; done; }
if [ ! -d /tmp/site ] && [ -z "${DRY:-}" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
fi
[ -z "${DRY:-}" ] && export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
mkdir -p data/wikitext-2; [ -f data/wikitext-2/train.txt ] || python3 -m zipfile -e .carry/wikitext-2.zip data/wikitext-2
cp .carry/wikitext-2.zip .carry/weights/ 2>/dev/null; mkdir -p /tmp/data; cp -rn data/wikitext-2 /tmp/data/
cp .carry/part0/* .carry/part1/* .carry/weights/ 2>/dev/null
nvidia-smi -L; lscpu | grep 'Model name'; nproc; ls data data/wikitext-2
on() { [ -n "${DRY:-}" ] || [ "$1" = all ] && return; export CUDA_VISIBLE_DEVICES=$1; taskset -cp $(( 16 * $1 ))-$(( 16 * $1 + 15 )) $BASHPID >/dev/null; }
cores() { [ -n "${DRY:-}" ] && echo all || echo $(( 16 * $1 ))-$(( 16 * $1 + 15 )); }
job_eager() {
  timeout -k 8 $(left 14) python3 run_all.py eager --studies .carry/eager.yaml -p seed ${SEED:?} --output-dir /tmp/eager >>/tmp/eager.log 2>&1
  say "eager ended $?"; tail -n 4 /tmp/eager.log
}
job_limit() {
  export OMP_NUM_THREADS=4
  for rungs in "${RUNGS:-.}"; do
    timeout -k 8 $(left 12) python3 -u benchmarks/gpt_limit.py /tmp/limit_${1} --nanogpt .carry/nanogpt --rungs "$rungs" ${TINY:-} 2>&1 | stamped
  done
  say "limit ended"; cat /tmp/limit_$1/phases.txt | tail -n 60
}
job_gpt() {  # SHARE K/2 by the card
  [ $1 = 0 ] && { timeout -k 5 60 python3 .carry/weights/weights_graph_check.py 2>&1 | grep -E "^(pass|FAIL|[0-9])"; say "graph check ended"; }
  SHARE=$1/2 MOST=${MOST:-14} OUT=/tmp/back bash .carry/weights/weights_counted.sh gpt $(left 10) $1 $(cores $1) 2>&1 | stamped
}
job_vit() { SPLIT=recipe EXTRA="--drop -3" SHARE=$1/2 MOST=${MOST:-14} OUT=/tmp/back bash .carry/weights/weights_counted.sh vit $(left 10) $1 $(cores $1) 2>&1 | stamped; }
job_time() { OUT=/tmp/back bash .carry/weights/weights_time.sh $(left 10) $1 $(cores $1) "${REPEATS:-0 1}" 2>&1 | stamped; }
job_tests() { timeout -k 8 ${TESTS_S:-$(left 12)} python3 tests/on_gpu.py ${TESTS:+-k "$TESTS"} 2>&1 | tail -n 60 | stamped; }
job_fit() { bash .carry/fit_card.sh $(left 8) $1 2>&1 | stamped; }
job_fittime() { bash .carry/fit_time.sh $(left 8) $1 2>&1 | stamped; }
job_limits() { bash .carry/fit_limits.sh $(left 12) $1 2>&1 | stamped; }
job_head() { bash .carry/87_head.sh $(left 8) $1 2>&1 | stamped; }
job_data() { bash .carry/87_data.sh 2>&1 | stamped; }
job_qlstm() { bash .carry/87_quality.sh $(left 8) $1 lstm_language_model 2>&1 | stamped; }
job_qresnet() { bash .carry/87_quality.sh $(left 8) $1 cifar_resnet 2>&1 | stamped; }
job_forms() { bash .carry/87_forms.sh $(left 8) $1 2>&1 | stamped; }
job_fitmore() { bash .carry/fit_more.sh $(( $(left 12) < 200 ? $(left 12) : 200 )) $1 2>&1 | stamped; }
job_quality() { bash .carry/quality_gpu.sh $(left 12) $1 2>&1 | stamped; }
job_alone() { timeout -k 8 $(left 12) python3 -m pytest tests -m "gpu and alone" -n 0 -q -p no:cacheprovider --tb short --ignore tests/report 2>&1 | grep -vi warn | tail -n 30 | stamped; }
job_equal() { CUBLAS_WORKSPACE_CONFIG=:4096:8 timeout -k 8 $(left 12) python3 .carry/fit_equal.py 2>/dev/null | stamped; }
job_unpack() { bash .carry/weights/weights_cifar.sh; }
mkdir -p /tmp/back
for one in "$@"; do
  ( on ${one#*:}; for job in $(tr + ' ' <<<${one%:*}); do job_$job ${one#*:}; done ) >/tmp/job_${one%:*}_${one#*:}.txt 2>&1 &
done
( sleep $(left 4) ) & watch=$!
wait $(jobs -p | grep -vx $watch); kill $watch 2>/dev/null
for one in "$@"; do echo "=== $one"; tail -n 60 /tmp/job_${one%:*}_${one#*:}.txt | cut -c1-190; done
cp /tmp/back/*.zip $OUT/ 2>/dev/null
( cd /tmp && find eager limit_* job_*.txt eager.log \( -name '*.json' -o -name '*.log' -o -name '*.txt' -o -name '*.csv' \) -size -300k 2>/dev/null | tar -czf $OUT/all.tar.gz -T - )
ls -la $OUT; say "all ended"
