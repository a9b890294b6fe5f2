#!/usr/bin/env bash
# Checks that the pages in a Debian package link only to pages and pictures of the package. Looks into the package itself,
# since small systems install no documentation.
#   std-shim/program/deb/pages.sh PACKAGE.deb NAME
set -euo pipefail
package=$(realpath "$1") name=$2
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

dpkg --fsys-tarfile "$package" | tar -xf - "./usr/share/doc/$name"
find "usr/share/doc/$name" -name '*.md' | while read -r page; do
  { grep -oE '\]\([^)]+\)' "$page" || true; grep -oE '^\[[^]]+\]: .+' "$page" || true; } |
    sed -E 's/^\]\((.*)\)$/\1/; s/^\[[^]]+\]: //; s/#.*//' |
    { grep -E '\.(md|svg)$' || true; } | { grep -v '^http' || true; } |
    while read -r link; do
      [ -e "$(dirname "$page")/$link" ] || { echo "$page of the package links to $link, which is not there" >&2; exit 1; }
    done
done
[ "$(grep -c '\.md' "usr/share/doc/$name/README.md")" -gt 10 ] ||
  { echo "README.md of the package has lost its links" >&2; exit 1; }
