#!/usr/bin/env bash
# Builds libpolyrail, and installs the header, both libraries and the pkg-config file: PREFIX/include/polyrail.h,
# PREFIX/lib/libpolyrail.{a,so} and PREFIX/lib/pkgconfig/polyrail.pc.
#   std-shim/c/install.sh PREFIX [CARGO OPTION]...
#   DESTDIR=DIR    below another root, for packages: DIR/PREFIX/...
# Optimized (`--release`), unless a CARGO OPTION is `--profile NAME`. Without real NICs: --no-default-features --features tcp
set -euo pipefail
[ $# -ge 1 ] && [[ $1 != -* ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$(realpath -m "$1")
root=$(realpath -m "${DESTDIR:-/}")
shift
cd "$(dirname "$0")/../.."

profile=release options=()
while [ $# -gt 0 ]; do
  case $1 in
    --profile) profile=${2:?--profile needs a name}; shift ;;
    --profile=*) profile=${1#*=} ;;
    --release) profile=release ;;
    *) options+=("$1") ;;
  esac
  shift
done

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Minor versions of 0.x may change functions, so a program needs the library of its own.
compatible=${version%.*}
shared=libpolyrail.so.$version

cargo rustc --locked --profile "$profile" -p polyrail-c --lib --crate-type staticlib,cdylib ${options[@]+"${options[@]}"} -- \
  -C "link-arg=-Wl,-soname,libpolyrail.so.$compatible"
built=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/libpolyrail_c

# What a static library of Rust needs of the system. rustc removes the file that it writes to first, even /dev/null.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
private=$(rustc --crate-type staticlib --crate-name needs --print native-static-libs -o "$scratch/needs.a" - 2>&1 </dev/null |
  sed -n 's/.*native-static-libs: //p')
[ -n "$private" ] || { echo "install.sh: rustc does not tell which libraries a static library needs" >&2; exit 1; }

to=$root/$prefix
install -D -m 644 std-shim/c/include/polyrail.h "$to/include/polyrail.h"
install -D -m 644 "$built.a" "$to/lib/libpolyrail.a"
install -D -m 755 "$built.so" "$to/lib/$shared"
ln -sf "$shared" "$to/lib/libpolyrail.so.$compatible"
ln -sf "$shared" "$to/lib/libpolyrail.so"
mkdir -p "$to/lib/pkgconfig"
cat > "$to/lib/pkgconfig/polyrail.pc" << END
prefix=$prefix
exec_prefix=\${prefix}
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: polyrail
Description: Many RDMA queue pairs and NICs as one
Version: $version
Libs: -L\${libdir} -lpolyrail
Cflags: -I\${includedir}
Libs.private: $private
END
echo "$prefix/lib/pkgconfig/polyrail.pc"
