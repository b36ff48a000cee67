#!/usr/bin/env bash
# bash attn_publish.sh CLONE FOLDER_OF_ZIPS --minutes GPU_MINUTES: makes the folder, draws, fills the page and checks.
exec "${PYTHON:-/tmp/venv/bin/python}" "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/attn_publish.py" "$@"
