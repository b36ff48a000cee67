#!/bin/bash
# The ViT of weights-pilot: weights_pilot_vit.sh [SECONDS=300] [GPU=0] [CORES=0-15]
here=$(cd "$(dirname "$0")" && pwd); set -- "${1:-300}" "${2-0}" "${3:-0-15}"; . "$here/weights_lib.sh"
work=${WORK:-/tmp/weights-pilot-vit}
bash "$here/weights_cifar.sh" || { echo "CIFAR-100 is not whole: carry the other part, too"; exit 1; }
base base-vit cifar_resnet 120
run weights-pilot/cifar_resnet --work "$work/pilot" --seconds "$(left 25)" --most "${MOST:-10}" --share $SHARE $SET
collect weights-pilot-vit
