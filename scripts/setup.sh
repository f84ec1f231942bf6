#!/usr/bin/env bash
# Make .venv and install QLM into it, editable. Usage: scripts/setup.sh serve|dev
# A second call costs milliseconds: a stamp holds the hash of everything that decides the result.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

want=${1:-serve}
case "$want" in
serve | dev) ;;
*) echo "setup: '$want' is not a set of requirements; say serve or dev." >&2 && exit 2 ;;
esac

venv=.venv
stamp() { cat pyproject.toml "requirements/$1.lock" scripts/setup.sh | sha256sum | cut -d' ' -f1; }
current() { [ -x "$venv/bin/qlm" ] && [ "$(cat "$venv/.qlm-$1" 2>/dev/null)" = "$(stamp "$1")" ]; }

# The development set holds the serving set, in the same versions.
current dev && exit 0
[ "$want" = serve ] && current serve && exit 0
lock setup
current "$want" && exit 0

make_venv "$venv"
pip=("$venv/bin/python" -m pip install -qq)
step "$venv: installed requirements/$want.lock" -- "${pip[@]}" --require-hashes -r "requirements/$want.lock"
step "$venv: installed QLM, editable" -- "${pip[@]}" --no-deps --no-build-isolation -e .
stamp "$want" >"$venv/.qlm-$want"
