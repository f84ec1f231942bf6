#!/usr/bin/env bash
# Generate the Python stubs of the gRPC API from its proto, into FOLDER (default: where they belong).
# Usage: scripts/generate_rpc.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

proto=qlm/gateway/rpc/v1/qlm.proto
out=${1:-gateway}
.venv/bin/python -m grpc_tools.protoc -I gateway --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" "$proto"
