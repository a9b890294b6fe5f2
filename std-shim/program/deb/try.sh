#!/usr/bin/env bash
# Installs a Debian package of the program on this machine, runs what is in it, and removes it, as root.
#   std-shim/program/deb/try.sh PACKAGE.deb
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

if dpkg -s polyrail >/dev/null 2>&1; then
  fail "polyrail is installed on this machine: remove it first"
fi
package=$(realpath "$1")
packages=$(realpath "$(dirname "$0")/../../../tests/packages.sh")
pages=$(realpath "$(dirname "$0")/pages.sh")
place=$(mktemp -d)
trap 'dpkg --purge polyrail >/dev/null 2>&1 || true; rm -rf "$place"' EXIT
cd "$place"

# With its dependencies, if they are not there.
"$packages" "$package" || fail "the package cannot be installed"
dpkg --listfiles polyrail | while read -r path; do
  [ -d "$path" ] || echo "$path"
done > files

head -c 10M /dev/urandom > source
/usr/bin/polyrail copy --quiet source copy
cmp source copy
/usr/bin/polyrail devices > devices.txt 2> why.txt || [ $? = 9 ] || fail "devices: $(cat why.txt)"
bash -c '. /usr/share/bash-completion/completions/polyrail && complete -p polyrail' > complete.txt
grep -q polyrail complete.txt || fail "bash does not complete polyrail"
for shell in zsh/vendor-completions/_polyrail fish/vendor_completions.d/polyrail.fish; do
  grep -q -- max-msg-size "/usr/share/$shell" || fail "$shell does not know the program's arguments"
done

# Of the package itself, since small systems install no man pages.
for page in polyrail polyrail-copy polyrail-serve polyrail-perf polyrail-devices polyrail-completions polyrail-man; do
  dpkg --fsys-tarfile "$package" | tar -xOf - "./usr/share/man/man1/$page.1.gz" | gunzip > page ||
    fail "the package has no man page $page"
  grep -q '^\.SH NAME' page || fail "$page is not a man page"
done

"$pages" "$package" polyrail

dpkg --purge polyrail >/dev/null
while read -r path; do
  [ ! -e "$path" ] || fail "$path is left behind"
done < files
echo "installed, ran and removed: $(basename "$package"), $(wc -l < files) files"
