# Shared by weights_*.sh, from the root of the repository. Usage of each: SCRIPT [SECONDS] [GPU] [CORES]; its folder
# also holds weights_run.py, weights_collect.py, stdlib_text.py and wikitext-2.zip or cifar100.part-00 and -01.
# Environment: MIXED_PRECISION_COMMIT, OUT, MOST (processes at once), SHARE (K/N: every N-th rate from K on), WORK.
set -u
began=$(date +%s); budget=$1; gpu=$2; cores=$3
OUT=${OUT:-/tmp/out}; SHARE=${SHARE:-0/1}; EXTRA=${EXTRA:-}; SET=${SET:-}; BASE_SET=${BASE_SET:-}
[ -n "$gpu" ] && export CUDA_VISIBLE_DEVICES=$gpu
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1
[ "$cores" = all ] || taskset -cp "$cores" $$ >/dev/null
left() { local n=$(( budget - ($(date +%s) - began) - $1 )); echo $(( n > 5 ? n : 5 )); }
find_one() { for d in "$here" "${CARRY:-$here}" benchmarks data/wikitext-2; do [ -f "$d/$1" ] && echo "$d/$1" && return; done; }
run() { timeout -k 15 "$(left 0)" python3 "$here/weights_run.py" "$@" $EXTRA; }
texts() {
  mkdir -p data/wikitext-2
  [ -f data/wikitext-2/train.txt ] || python3 -m zipfile -e "$(find_one wikitext-2.zip)" data/wikitext-2
  [ -f data/stdlib.txt ] || python3 "$(find_one stdlib_text.py)" data/stdlib.txt
  sha256sum data/stdlib.txt
}
# base NAME NOTEBOOK SECONDS_LEFT: trained once on a machine, also where two scripts ask for it at the same time
base() {
  mkdir -p data "$work" "$OUT"
  ( flock -w "$(left "$3")" 9
    [ -f "data/$1-amp_bf16.pt" ] || run "weights-base/$2" --work "$work/base" --seconds "$(left "$3")" --split none $BASE_SET
  ) 9>"data/.$1.lock"
  [ -f "data/$1-amp_bf16.pt" ] || { echo "no base $1; its log:"; tail -n 30 "$work"/base/*.log "$work"/base/*/logs/*.log 2>/dev/null; }
  sha256sum "data/$1-amp_bf16.pt"
}
# collect NAME: zips the records into $OUT
collect() {
  python3 "$here/weights_collect.py" "$OUT/$1.zip" "$work"
  echo "$1: $(( $(date +%s) - began )) s of $budget"
}
