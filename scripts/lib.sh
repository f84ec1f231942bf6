# Shared by the scripts of this folder; source it, do not run it.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# step WORDS... -- COMMAND...: say what is done, run it, say how long it took. Its output appears only on failure.
step() {
    local words=() started=$SECONDS log
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    shift
    log=$(mktemp)
    printf '%s ... ' "${words[*]}" # it may take minutes
    if ! "$@" >"$log" 2>&1; then
        echo
        tail -n 40 "$log" >&2
        rm -f "$log"
        echo "${words[*]}: failed after $((SECONDS - started)) s; the lines above say why." >&2
        return 1
    fi
    rm -f "$log"
    echo "($((SECONDS - started)) s)"
}

# lock NAME: wait until no other run of this checkout does the same.
lock() {
    exec 9>"${TMPDIR:-/tmp}/qlm-$1-$(pwd | sha256sum | cut -c1-12).lock"
    flock 9
}

supported_python() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    # A Python that was asked for by name is used or refused, never silently replaced.
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if supported_python "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "QLM needs Python 3.11, 3.12 or 3.13${PYTHON:+, and $PYTHON is not one that runs}." \
        "Please install one (Debian: apt-get install python3) or name it: make PYTHON=/path/to/python3.11" >&2
    return 1
}

# may_install: can this user install Debian packages?
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() (
    # Two scripts may run at once; apt-get itself does not wait for another one.
    exec 8>"${TMPDIR:-/tmp}/qlm-apt.lock"
    flock 8
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
)

# make_venv FOLDER: a virtual environment, kept if it works, made anew if not.
make_venv() {
    local python package
    supported_python "$1/bin/python" && return
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        if ! may_install; then
            echo "$python has no venv module. Please run: sudo apt-get install $package" >&2
            return 1
        fi
        step "installed $package" -- apt_install "$package"
    fi
    rm -rf "$1"
    "$python" -m venv "$1"
}
