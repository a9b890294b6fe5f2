#!/usr/bin/env bash
# Runs real NCCL over the plugin, on a machine with an NVIDIA GPU: two ranks on one GPU add and exchange numbers, over
# the NICs in POLYRAIL_DEVICES or all NICs. Without a GPU or an RDMA device, the test is skipped. std-shim/nccl/gpu.sh
# Needs python3 with venv, and fetches the wheels of NCCL and of PyTorch.
set -euo pipefail
here=$(realpath "$(dirname "$0")")

skip() { echo "gpu.sh: skipped: $*"; exit 0; }

nvidia-smi -L 2>/dev/null | grep -q '^GPU' || skip "there is no NVIDIA GPU here"
compgen -G '/sys/class/infiniband/*' >/dev/null || skip "there is no RDMA device here: two processes need one"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/nccl
plugin=$("$here/install.sh" "$cache/plugin" | tail -n 1)
[ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv"
"$cache/venv/bin/python" -c 'import torch' 2>/dev/null ||
  "$cache/venv/bin/python" -m pip install --quiet numpy torch

# Both ranks are on one GPU, and talk over the network all the same.
export NCCL_NET_PLUGIN=polyrail NCCL_NET=polyrail NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export LD_LIBRARY_PATH=$(dirname "$plugin")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Two ranks on one GPU need NCCL 2.30, which PyTorch may not bring.
library=$("$here/wheel.sh")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
LD_PRELOAD=$library timeout 300 "$cache/venv/bin/python" -m torch.distributed.run --nproc-per-node 2 --master-port 29517 \
  "$here/gpu.py" 2>&1 | tee "$log"
grep -q 'Initialized NET plugin polyrail' "$log" || { echo "gpu.sh: NCCL did not take the plugin" >&2; exit 1; }
echo "gpu.sh: passed"
