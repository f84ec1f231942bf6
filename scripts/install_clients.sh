#!/usr/bin/env bash
# Make .venv-clients with suites that others wrote. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

venv=.venv-clients
stamp=$(sha256sum requirements/clients.lock scripts/install_clients.sh | sha256sum | cut -d' ' -f1)
[ "$(cat "$venv/.qlm-clients" 2>/dev/null)" = "$stamp" ] && exit 0
lock clients
make_venv "$venv"
step "$venv: installed requirements/clients.lock" -- \
    "$venv/bin/python" -m pip install -qq --require-hashes -r requirements/clients.lock
echo "$stamp" >"$venv/.qlm-clients"
