#!/usr/bin/env bash
# 87_head.sh SECONDS CARD: headline, two seeds of each model on a card (0 and 1, or 2 and 3). Data below /tmp/data. Ended early it goes on
# at the next call to the same warm machine. Records: /tmp/back/head<CARD>.zip. About 470 + 250 s EfficientNet, 130 s LSTM, 220 s ResNet-18 a card.
set -u
end=$(( $(date +%s) + $1 - 14 )); mkdir -p /tmp/back
for nb in ${MODELS:-lstm_language_model cifar_resnet efficientnet_regression}; do
  for seed in $( [ $2 = 0 ] && echo 0 1 || echo 2 3 ); do
    left=$(( end - $(date +%s) )); [ $left -lt 40 ] && break 2
    timeout -s INT $left python3 run_all.py headline/$nb -p seed $seed -p data_dir /tmp/data --output-dir /tmp/head$2 >>/tmp/head$2.log 2>&1
    echo "$nb seed $seed ended $?: $(ls /tmp/head$2/*.json | wc -l) records of 24"; grep -E '^\[' /tmp/head$2.log | tail -n 6 | cut -c1-170
  done
done
grep -c "made-up" /tmp/head$2.log
python3 - $2 <<'P'
import sys, zipfile
from pathlib import Path
with zipfile.ZipFile(f"/tmp/back/head{sys.argv[1]}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(Path(f"/tmp/head{sys.argv[1]}").glob("*.json")): archive.write(path, path.name)
P
