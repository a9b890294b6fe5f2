#!/usr/bin/env bash
# Installs Debian packages that are missing. The one place that calls apt.
#   tests/packages.sh PACKAGE...
# PACKAGE is a name, or the path of a `.deb` file, which is installed with its dependencies.
# Exit status 77, which a step of tests/full.sh counts as skipped: they cannot be installed here.
set -euo pipefail

cannot() { echo "skipped: $*" >&2; exit 77; }

# The packages of an earlier call, or of the machine; not those of which only the settings are left.
are_there() {
  local package
  for package in "$@"; do
    dpkg-query --show --showformat '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || return
  done
}
! are_there "$@" || exit 0
command -v apt-get >/dev/null || cannot "there is no apt-get to install $* with"

# Another apt may hold the lock for minutes; a mirror may not answer at once. What a package starts would keep our lock.
apt() {
  apt-get -qq -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 "$@" 9>&- </dev/null
}
# apt does not wait for the lock of its lists.
update() {
  local try
  for try in 1 2 3; do
    apt update && return
    sleep $((20 * try))
  done
  echo "apt-get update failed: the lists that are there have to do" >&2
}

exec 9<"$0"
flock 9
update
apt install -y --no-install-recommends "$@" >/dev/null || cannot "apt-get cannot install $*"
