set -u
BEGAN=$(date +%s); END=$(( BEGAN + ${1:-515} ))
say() { echo "[$(( $(date +%s) - BEGAN )) s] $*"; }
left() { echo $(( END - $(date +%s) - ${1:-0} )); }
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
export PYTHONPATH=/tmp/site:$PWD JUPYTER_PATH=/tmp/site/share/jupyter
mkdir -p /tmp/data/wikitext-2; (cd /tmp/data/wikitext-2 && python3 -m zipfile -e "$OLDPWD/.carry/wikitext-2.zip" . )
nvidia-smi -L; nvidia-smi --query-gpu=index,memory.used,utilization.gpu --format=csv,noheader; lscpu | grep 'Model name'; nproc
export OMP_NUM_THREADS=4
gpu0() {
  export CUDA_VISIBLE_DEVICES=0 TORCHINDUCTOR_COMPILE_THREADS=4 STACKS=/tmp/stacks
  PYTHONPATH=$PWD/.carry/site:$PYTHONPATH timeout $(( $(left 12) < ${2:-300} ? $(left 12) : ${2:-300} )) python3 -u benchmarks/gpt_limit.py /tmp/limit --nanogpt .carry/nanogpt 2>&1 | while read -r line; do say "$line"; done
  say "limit ended"
}
gpu1() {
  export CUDA_VISIBLE_DEVICES=0 TORCHINDUCTOR_COMPILE_THREADS=4
  timeout $(( $(left 15) < 330 ? $(left 15) : 330 )) python3 run_all.py reference/transformer -p repeat 3 -p data_dir /tmp/data --output-dir /tmp/ref3 >/tmp/ref3.log 2>&1
  say "repeat 3 ended $?"; tail -n 9 /tmp/ref3.log
  mkdir -p /tmp/peers; cp outputs/checks/peers-h200/measured.csv /tmp/peers/
  timeout $(left 10) python3 -u benchmarks/peers.py /tmp/peers --nanogpt .carry/nanogpt --rounds 3 4 --abreast 6 --cells 'a batch a step' 2>&1 | while read -r line; do say "$line"; done
  say "peers ended"
}
gpu0 >/tmp/gpu0.txt 2>&1; gpu1 >/tmp/gpu1.txt 2>&1
tail -n 14 /tmp/stacks/*.txt 2>/dev/null | cut -c1-150 | tail -n 60
cat /tmp/gpu1.txt /tmp/gpu0.txt
tar -C /tmp -czf $OUT/limit.tar.gz limit peers stacks gpu0.txt gpu1.txt ref3.log 2>/dev/null
cd /tmp && [ -d ref3 ] && find ref3 -name '*.json' -size -200k | tar -czf $OUT/ref3.tar.gz -T -
ls -la $OUT
