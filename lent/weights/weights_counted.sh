#!/bin/bash
# The counted study: weights_counted.sh gpt|vit [SECONDS=560] [GPU=0] [CORES=0-15]; rates are those of notebooks/studies.yaml.
# On two GPUs of one machine, which share a base: SHARE=0/2 on the first and SHARE=1/2 on the second.
here=$(cd "$(dirname "$0")" && pwd); what=$1; set -- "${2:-560}" "${3-0}" "${4:-0-15}"; . "$here/weights_lib.sh"
work=${WORK:-/tmp/weights-$what-${SHARE%/*}}
ls "$here"/*.whl >/dev/null 2>&1 && python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/weights-site-$gpu --upgrade "$here"/torchao*.whl && export PYTHONPATH="/tmp/weights-site-$gpu:${PYTHONPATH:-}"
if [ "$what" = gpt ]; then
  notebook=transformer; texts
  python3 -c "from torchao.optim import AdamW8bit; import torchao; print('torchao', torchao.__version__)"
else
  notebook=cifar_resnet; bash "$here/weights_cifar.sh" || { echo "CIFAR-100 is not whole: carry the other part, too"; exit 1; }
fi
base base-$what $notebook 200
run weights/$notebook --work "$work/counted" --seconds "$(left 25)" --most "${MOST:-12}" --split ${SPLIT:-way} --share $SHARE $SET
collect weights-$what-${SHARE%/*}
