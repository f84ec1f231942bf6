#!/usr/bin/env bash
# RabbitMQ, Redis, Prometheus and Chromium for the integration tests, from Debian. Tests start their own private copies;
# the system services are not used and need not run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Debian keeps server programs in sbin, which is not on every user's PATH.
PATH="$PATH:/usr/sbin:/usr/lib/rabbitmq/bin"

missing=()
command -v rabbitmq-server >/dev/null || missing+=(rabbitmq-server)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v prometheus >/dev/null || missing+=(prometheus)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} = 0 ] && exit 0

if ! may_install; then
    echo "The integration tests need ${missing[*]}. Please run: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
step "installed ${missing[*]}" -- apt_install "${missing[@]}"
