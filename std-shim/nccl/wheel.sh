#!/usr/bin/env bash
# Fetches NCCL's library out of its wheel on PyPI, once, and says where it is.
#   std-shim/nccl/wheel.sh
set -euo pipefail
VERSION=2.32.3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/nccl
library=$cache/libnccl-$VERSION.so.2

if ! [ -s "$library" ]; then
  python3 -m pip --version >/dev/null 2>&1 || "$(dirname "$0")/../../tests/packages.sh" python3-pip >&2
  mkdir -p "$cache"
  scratch=$(mktemp -d -p "$cache")
  trap 'rm -rf "$scratch"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$scratch" "nvidia-nccl-cu12==$VERSION" >&2 ||
    { echo "skipped: pip cannot download nvidia-nccl-cu12 $VERSION" >&2; exit 77; }
  # A wheel is a zip file.
  python3 -m zipfile -e "$scratch"/nvidia_nccl_cu12-*.whl "$scratch"
  mv "$scratch/nvidia/nccl/lib/libnccl.so.2" "$library"
fi
echo "$library"
