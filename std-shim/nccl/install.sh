#!/usr/bin/env bash
# Builds the plugin, and installs it under the name by which NCCL finds it.
#   std-shim/nccl/install.sh DIRECTORY [CARGO OPTIONS]...
# For NICs in memory only, without libibverbs: --no-default-features.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
directory=$(mkdir -p "$1" && realpath "$1")
cd "$(dirname "$0")/../.."

cargo build --release --locked -p polyrail-nccl "${@:2}"
install -m 755 "${CARGO_TARGET_DIR:-target}/release/libnccl_net_polyrail.so" "$directory/libnccl-net-polyrail.so"
echo "$directory/libnccl-net-polyrail.so"
