#!/usr/bin/env bash
# worker.sh CARD: takes one task after the other. A task's name is its function below and its words, parted by dashes.
set -u
card=$1; echo $$ >/tmp/queue/worker$card; end=$(cat /tmp/queue/end); cd /tmp/repo
export CUDA_VISIBLE_DEVICES=$card TORCHINDUCTOR_COMPILE_THREADS=12 PYTHONUNBUFFERED=1
[ -z "${DRY:-}" ] && export PYTHONPATH=/tmp/site:/tmp/repo JUPYTER_PATH=/tmp/site/share/jupyter && taskset -cp $(( 16 * card ))-$(( 16 * card + 15 )) $$ >/dev/null
say() { echo "[$(( $(date +%s) - end + ${LEASE:-1690} ))] card $card: $*"; }
left() { echo $(( end - $(date +%s) )); }
run() { timeout -s INT $(left) ${DRY:+echo} python3 run_all.py "$@" >>$log 2>&1; }  # the log is of the task
head() { run headline/$1 -p seed $2 -p data_dir /tmp/data --output-dir $rec; }
quality() { python3 .carry/87_split.py . /tmp/split$card ${PARTS:-2}; run --studies /tmp/split$card/part-$2.yaml quality-compiled/$1 -p data_dir /tmp/data --output-dir $rec; }
forms() {  # MODEL REPETITION
  python3 -c "import sys,yaml; s=yaml.safe_load(open('notebooks/articles.yaml'))['article-forms']; s['runs']=[r for r in s['runs'] if r['parameters']['model']==sys.argv[1]]; assert s['runs']; yaml.safe_dump({'article-forms':s},open(sys.argv[2],'w'),sort_keys=False)" $1 /tmp/forms$card.yaml
  run --studies /tmp/forms$card.yaml article-forms -p repeat $2 -p data_dir /tmp/data --output-dir $rec
}
more() { OUT_DIR=$rec bash .carry/fit_more.sh $(left) $card >>$log 2>&1; }
peers() { timeout -s INT $(left) ${DRY:+echo} python3 -u benchmarks/peers.py $rec --cifar .carry/pytorch-cifar --rounds ${ROUNDS:-2} --abreast 4 >>$log 2>&1; }
while [ $(left) -gt 40 ]; do
  task=
  for one in $(ls /tmp/queue/todo); do
    [[ $one == *quality-lstm* || $one == *peers* ]] || [ -f /tmp/queue/data ] || continue
    mv /tmp/queue/todo/$one /tmp/queue/doing/$one@$card 2>/dev/null && { task=$one; break; }
  done
  [ -z "$task" ] && { [ -z "$(ls /tmp/queue/todo)" ] && break; sleep 1; continue; }
  began=$(date +%s); name=${task#*-}; rec=/tmp/rec/$name; log=/tmp/rec/$name.log; mkdir -p $rec
  ${name%%-*} $( [[ $name == *-* ]] && tr - ' ' <<<${name#*-} ); code=$?
  say "$name ended $code after $(( $(date +%s) - began )) s: $(ls $rec/*.json 2>/dev/null | wc -l) records, $(cat $rec/*.json 2>/dev/null | grep -c '"status": "ok"') ok"
  mv /tmp/queue/doing/$task@$card /tmp/queue/done/
done
say "no more"
