#!/bin/bash
# weights-time, alone on its GPU, one process after another: weights_time.sh [SECONDS=560] [GPU=0] [CORES=0-15] [REPEATS="0 1 2 3"]
# About 250 s a repetition (12 processes), so on two GPUs give "0 1" to the first and "2 3" to the second.
here=$(cd "$(dirname "$0")" && pwd); repeats=${4:-0 1 2 3}; set -- "${1:-560}" "${2-0}" "${3:-0-15}"; . "$here/weights_lib.sh"
work=${WORK:-/tmp/weights-time-$2}; unset OMP_NUM_THREADS
ls "$here"/*.whl >/dev/null 2>&1 && python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/weights-site-$gpu --upgrade "$here"/torchao*.whl && export PYTHONPATH="/tmp/weights-site-$gpu:${PYTHONPATH:-}"
texts
base base-gpt transformer 200
for repeat in $repeats; do
  run weights-time/transformer --work "$work/repeat-$repeat" --seconds "$(left 25)" --most 1 --split none --set repeat=$repeat $SET
done
collect weights-time-$2
