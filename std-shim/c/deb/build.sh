#!/usr/bin/env bash
# Makes a Debian package of libpolyrail, its header and pkg-config file, and the plugins of NCCL and NIXL, and prints where
# it is.
#   std-shim/c/deb/build.sh
# Needs make, a C++ compiler and cargo-deb.
set -euo pipefail
cd "$(dirname "$0")/../../.."
root=$PWD/target/deb/libpolyrail
rm -rf "$root"

DESTDIR=$root std-shim/c/install.sh /usr >&2
std-shim/nccl/install.sh "$root/usr/lib" >&2
make -s -C std-shim/nixl BUILD="$root/nixl" POLYRAIL_CFLAGS="-I$root/usr/include" POLYRAIL_LIBDIR="$root/usr/lib" \
  ARCHIVE="$root/usr/lib/libpolyrail.a" DESTDIR="$root" PLUGIN_DIR=/usr/lib/polyrail/nixl install >&2
strip --strip-unneeded "$root"/usr/lib/*.so.*.*.* "$root/usr/lib/libnccl-net-polyrail.so" "$root/usr/lib/polyrail/nixl/"*.so
strip --strip-debug "$root/usr/lib/libpolyrail.a"
cargo deb --quiet --no-build --locked --package polyrail-c --output target/deb/ >&2
ls -t target/deb/libpolyrail_*.deb | head -n 1
