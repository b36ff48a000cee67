#!/usr/bin/env bash
# worker.sh CARD: takes one task after the other. A task's name is its function below and its words, parted by dashes.
set -u
card=$1; echo $$ >/tmp/queue/worker$card; end=$(cat /tmp/queue/end); cd /tmp/repo
export CUDA_VISIBLE_DEVICES=$card TORCHINDUCTOR_COMPILE_THREADS=12 PYTHONUNBUFFERED=1
[ -z "${DRY:-}" ] && export PYTHONPATH=/tmp/site:/tmp/repo JUPYTER_PATH=/tmp/site/share/jupyter && taskset -cp $(( 16 * card ))-$(( 16 * card + 15 )) $$ >/dev/null
say() { echo "[$(( $(date +%s) - end + ${LEASE:-1690} ))] card $card: $*"; }
left() { echo $(( end - $(date +%s) )); }
run() { timeout -s INT $(left) ${DRY:+echo} python3 run_all.py "$@" >>$log 2>&1; }  # the log is of the task
forms() {  # MODEL REPETITION
  python3 -c "import sys,yaml; s=yaml.safe_load(open('notebooks/articles.yaml'))['article-forms']; s['runs']=[r for r in s['runs'] if r['parameters']['model']==sys.argv[1]]; assert s['runs']; yaml.safe_dump({'article-forms':s},open(sys.argv[2],'w'),sort_keys=False)" $1 /tmp/forms$card.yaml
  run --studies /tmp/forms$card.yaml article-forms -p repeat $2 -p data_dir /tmp/data --output-dir $rec
}
unpack() { for part in /tmp/parts/*; do python3 -m zipfile -e $part /tmp/data/cifar10; done; find /tmp/data/cifar10 -name '*.webp' | wc -l | tee -a $log | grep -qx 60000 && touch /tmp/queue/unpacked; }  # one after the other: at once they race for a folder
peers() { timeout -s INT $(left) ${DRY:+echo} python3 -u benchmarks/peers.py $rec --cifar .carry/pytorch-cifar --rounds ${ROUNDS:-2} --abreast 4 >>$log 2>&1; }
while [ $(left) -gt 40 ]; do
  task=
  for one in $(ls /tmp/queue/todo); do
    [[ $one == *unpack* ]] && ready=data || ready=unpacked  # nothing that is timed runs while data comes
    [ -f /tmp/queue/$ready ] || continue
    mv /tmp/queue/todo/$one /tmp/queue/doing/$one@$card 2>/dev/null && { task=$one; break; }
  done
  [ -z "$task" ] && { [ -z "$(ls /tmp/queue/todo)" ] && break; sleep 1; continue; }
  began=$(date +%s); name=${task#*-}; rec=/tmp/rec/$name; log=/tmp/rec/$name.log; mkdir -p $rec
  ${name%%-*} $( [[ $name == *-* ]] && tr - ' ' <<<${name#*-} ); code=$?
  say "$name ended $code after $(( $(date +%s) - began )) s: $(ls $rec/*.json 2>/dev/null | wc -l) records, $(cat $rec/*.json 2>/dev/null | grep -c '"status": "ok"') ok"
  mv /tmp/queue/doing/$task@$card /tmp/queue/done/
done
say "no more"
