#!/usr/bin/env bash
# The GPU run of issue 89, in the root of a clean tree. Beside this script lie attention_parts.py,
# attention_gate.py and wikitext-2.zip (of shared/data/wikitext-2). On the machine with two H200s, as
#     export PYTHONPATH=/tmp/site JUPYTER_PATH=... MIXED_PRECISION_COMMIT=...; bash .attn/attention_gpu.sh 550
# where 550 is the second at which all has ended and lies in $OUT: at most the call's limit less what
# comes before this script, less 5. More options go to attention_parts.py, such as `--only more --gpus 1
# --lanes 0 1` on a machine with one GPU, or `--only warm,core` for the times of the 2 x 2 alone.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:?seconds until all is ended}; shift
: "${OUT:?where files come back from}" "${MIXED_PRECISION_COMMIT:?the commit of the tree}"
python=${PYTHON:-python3}
if [ ! -e data/wikitext-2/train.txt ] && [ -e "$here/wikitext-2.zip" ]; then
  "$python" - "$here/wikitext-2.zip" <<'P'
import sys, zipfile
from pathlib import Path
folder = Path("data/wikitext-2"); folder.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in archive.namelist():
        if not name.endswith("/"):
            (folder / Path(name).name).write_bytes(archive.read(name))
P
fi
ls data/wikitext-2 2>/dev/null || echo "no WikiText-2: the trainings of attention-quality would be of made-up text"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,uuid,memory.used --format=csv,noheader
exec timeout -k 5 "$((seconds + 8))" "$python" "$here/attention_parts.py" drive --seconds "$((seconds - 14))" --out "$OUT" "$@"
