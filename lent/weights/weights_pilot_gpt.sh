#!/bin/bash
# The GPT of weights-pilot: weights_pilot_gpt.sh [SECONDS=280] [GPU=0] [CORES=0-15]
here=$(cd "$(dirname "$0")" && pwd); set -- "${1:-280}" "${2-0}" "${3:-0-15}"; . "$here/weights_lib.sh"
work=${WORK:-/tmp/weights-pilot-gpt}
texts
base base-gpt transformer 90
run weights-pilot/transformer --work "$work/pilot" --seconds "$(left 25)" --most "${MOST:-10}" --share $SHARE $SET
collect weights-pilot-gpt
