#!/usr/bin/env bash
# Builds everything that a release consists of into target/release-VERSION/, with SHA256SUMS, and tags the commit vVERSION;
# the tag's message is the version's entry in CHANGELOG.md. Publishes nothing.
#   tests/release.sh VERSION
#   tests/release.sh --dry-run    the version of the manifests; makes no tag, and warns where the other one refuses
# Refuses a version that the manifests do not have or that has no entry, manifests without the address of the repository, a
# tree with changes, and a tag that exists.
# Needs cargo-deb, make, a C++ compiler, pkg-config and Python; adds the target musl to the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release.sh: $*" >&2; exit 1; }
refuse() { if $dry_run; then echo "release.sh: warning: $*" >&2; else fail "$@"; fi }

[[ $# -eq 1 && $1 =~ ^([0-9]+\.[0-9]+\.[0-9]+|--dry-run)$ ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
manifests=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
version=$1 dry_run=false
[ "$1" != --dry-run ] || { version=$manifests dry_run=true; }
[ "$version" = "$manifests" ] || fail "the version of the manifests is $manifests, not $version"

# The lines between the version's heading, `## [0.1.0] - 2026-12-01`, and the next one.
entry=$(awk -v heading="## [$version] - " 'index($0, heading) == 1 { found = 1; next } /^## / { found = 0 } found' CHANGELOG.md)
[ -n "${entry//[[:space:]]/}" ] || refuse "CHANGELOG.md has no entry '## [$version] - DATE'"
# The address of the repository is not known yet: `repository` in Cargo.toml, `repository.workspace = true` elsewhere.
# shellcheck disable=SC2046
homeless=$({ grep -L '^repository' Cargo.toml $(git grep -l '^documentation = ' -- '*Cargo.toml') || true; } | tr '\n' ' ')
[ -z "$homeless" ] || refuse "no field repository in ${homeless% }"
[ -z "$(git status --porcelain)" ] || refuse "the tree has changes"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "the tag v$version exists"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$PWD/target/release-$version
machine=$(uname -m)
musl=$machine-unknown-linux-musl
# Files of a commit have the commit's time in every build.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$out"
mkdir -p "$out"

# pack NAME: makes NAME.tar.gz out of the folder target/release-VERSION/NAME, and removes the folder.
pack() {
  tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$1" |
    gzip -9n > "$out/$1.tar.gz"
  rm -r "${out:?}/$1"
}

# license NAME: adds the licenses to that folder.
license() { cp LICENSE-APACHE LICENSE-MIT "$out/$1/"; }

# Runs on any Linux, and so cannot load libibverbs: over TCP and the NIC in software only.
rustup -q target add "$musl"
cargo build --quiet --release --locked -p polyrail-program --no-default-features --features cli --target "$musl"
name=polyrail-$version-$musl
install -D "$target/$musl/release/polyrail" "$out/$name/polyrail"
strip "$out/$name/polyrail"
cp README.md "$out/$name/"
license "$name"
pack "$name"

cp "$(std-shim/program/deb/build.sh)" "$(std-shim/c/deb/build.sh)" "$out/"

# What the package of libpolyrail contains, to be unpacked anywhere.
name=libpolyrail-$version-$machine-linux-gnu
package=target/deb/libpolyrail/usr
mkdir -p "$out/$name/lib/pkgconfig"
cp -r "$package/include" "$out/$name/"
cp -d "$package"/lib/*.a "$package"/lib/*.so* "$out/$name/lib/"
cp -r "$package/lib/polyrail" "$out/$name/lib/"
sed 's|^prefix=.*|prefix=${pcfiledir}/../..|' "$package/lib/pkgconfig/polyrail.pc" > "$out/$name/lib/pkgconfig/polyrail.pc"
cp std-shim/c/README.md "$out/$name/README.md"
install -D -m 644 std-shim/c/examples/message.c "$out/$name/examples/message.c"
cp std-shim/nccl/README.md "$out/$name/nccl.md"
cp std-shim/nixl/README.md "$out/$name/nixl.md"
license "$name"
pack "$name"

std-shim/nixl/wheel/build.py "$package/lib/polyrail/nixl/libplugin_POLYRAIL.so" "$out" >/dev/null

# Crates that were packed before and are not any more would be copied too. The order to publish them in is CRATES of
# tests/packed.sh.
rm -f "$target"/package/*.crate
tests/packed.sh
mkdir "$out/crates"
cp "$target"/package/*"-$version.crate" "$out/crates/"

(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum > SHA256SUMS)
$dry_run || git tag --annotate "v$version" --message "polyrail $version" --message "$entry" --cleanup=whitespace
echo "$out"
