#!/usr/bin/env bash
# The ordinary vLLM for a machine with an NVIDIA GPU, in .venv-vllm-gpu (about 10 GB with CUDA).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

venv=.venv-vllm-gpu
version=0.32.0
[ "$(cat "$venv/.qlm-vllm" 2>/dev/null)" = "$version" ] && exit 0
lock vllm-gpu
make_venv "$venv"
step "$venv: installed vllm $version" -- "$venv/bin/python" -m pip install -qq "vllm==$version"
echo "$version" >"$venv/.qlm-vllm"
