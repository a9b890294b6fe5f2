#!/usr/bin/env bash
# Runs real NCCL over the plugin, on a machine with an NVIDIA GPU: two ranks on one GPU add and exchange numbers, over
# RDMA if there is a device for it, and over TCP, also while a rail fails again and again. Without a GPU, the test is
# skipped. It measures no rates: the GPU runs the two ranks in turns, for milliseconds each.
#   std-shim/nccl/gpu.sh [PLUGIN]
# Uses the python3 that has PyTorch, or fetches PyTorch for one with venv. Without PLUGIN, a path, it builds the plugin.
set -euo pipefail
here=$(realpath "$(dirname "$0")")

skip() { echo "gpu.sh: skipped: $*"; exit 0; }

nvidia-smi -L 2>/dev/null | grep -q '^GPU' || skip "there is no NVIDIA GPU here"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/nccl
if [ $# -ge 1 ]; then
  plugin=$(realpath "$1")
else
  plugin=$("$here/install.sh" "$cache/plugin" | tail -n 1)
fi
python=python3
if ! $python -c 'import torch' 2>/dev/null; then
  python=$cache/venv/bin/python
  [ -x "$python" ] || python3 -m venv "$cache/venv"
  "$python" -c 'import torch' 2>/dev/null || "$python" -m pip install --quiet numpy torch
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

export NCCL_NET_PLUGIN=polyrail NCCL_NET=polyrail NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export LD_LIBRARY_PATH=$(dirname "$plugin")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# ranks SETTING...: two ranks.
ranks() {
  echo "== $*"
  env "$@" timeout 300 "$python" -m torch.distributed.run --nproc-per-node 2 --master-port 29517 \
    "$here/gpu.py" >"$log" 2>&1 || { cat "$log"; return 1; }
  grep -E '^rank|NET/polyrail : |WARN' "$log"
  is_logged 'Initialized NET plugin polyrail'
}

is_logged() { grep -qE "$1" "$log" || { cat "$log"; echo "gpu.sh: NCCL did not log: $1" >&2; return 1; } }

if compgen -G '/sys/class/infiniband/*' >/dev/null; then
  ranks POLYRAIL_BACKEND=verbs
else
  echo "gpu.sh: over TCP only: there is no RDMA device here"
fi
# Two addresses of the loopback interface are two devices, which NCCL merges into the third.
over_tcp=(POLYRAIL_BACKEND=tcp POLYRAIL_INTERFACE=lo)
ranks "${over_tcp[@]}" POLYRAIL_DEVICES=127.0.0.1
is_logged 'via NET/polyrail/0'
ranks "${over_tcp[@]}" POLYRAIL_DEVICES=127.0.0.1,127.0.0.2
is_logged 'via NET/polyrail/2'
ranks "${over_tcp[@]}" POLYRAIL_DEVICES=127.0.0.1,127.0.0.2 CUT=127.0.0.2
is_logged 'a rail on tcp:127.0.0.2 failed'
is_logged 'a rail on tcp:127.0.0.2 is back'
echo "gpu.sh: passed"
