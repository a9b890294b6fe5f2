#!/usr/bin/env bash
# Installs the package of libpolyrail on this machine, builds a C program with it, loads both plugins, and removes it, as
# root.
#   std-shim/c/deb/try.sh PACKAGE.deb
# Needs a C compiler, pkg-config and Python.
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

if dpkg -s libpolyrail >/dev/null 2>&1; then
  fail "libpolyrail is installed on this machine: remove it first"
fi
package=$(realpath "$1")
packages=$(realpath "$(dirname "$0")/../../../tests/packages.sh")
pages=$(realpath "$(dirname "$0")/../../program/deb/pages.sh")
programs=$(realpath "$(dirname "$0")/../tests/c")
place=$(mktemp -d)
trap 'dpkg --purge libpolyrail >/dev/null 2>&1 || true; rm -rf "$place"' EXIT
cd "$place"

# With its dependencies, if they are not there.
"$packages" "$package" || fail "the package cannot be installed"
dpkg --listfiles libpolyrail | while read -r path; do
  [ -d "$path" ] || echo "$path"
done > files

# shellcheck disable=SC2046
cc -std=c11 "$programs/move.c" -o move $(pkg-config --cflags --libs polyrail)
./move 16
python3 - << 'PYTHON'
import ctypes

# By their names, as NCCL and NIXL do.
nccl = ctypes.CDLL("libnccl-net-polyrail.so")
for version in range(8, 13):
    ctypes.c_void_p.in_dll(nccl, f"ncclNetPlugin_v{version}")
begin = ctypes.CDLL("/usr/lib/polyrail/nixl/libplugin_POLYRAIL.so").nixl_plugin_init
begin.restype = ctypes.c_void_p
assert begin(), "NIXL's plugin has no table"
PYTHON

"$pages" "$package" libpolyrail

dpkg --purge libpolyrail >/dev/null
while read -r path; do
  [ ! -e "$path" ] || fail "$path is left behind"
done < files
echo "installed, used and removed: $(basename "$package"), $(wc -l < files) files"
