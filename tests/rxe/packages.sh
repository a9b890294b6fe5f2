#!/usr/bin/env bash
# Installs what tests of real verbs need, if it is missing: libibverbs and its headers, and the
# compiler library that reads them.
#   tests/rxe/packages.sh [PACKAGE]...    these too
set -euo pipefail

PACKAGES="libibverbs-dev libclang-dev pkg-config $*"

# Steps that run at the same time install one after the other: apt does not wait for its own lock.
exec 9<"$0"
flock 9
# What a package starts would keep the lock.
dpkg -s $PACKAGES >/dev/null 2>&1 ||
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends $PACKAGES >/dev/null; } 9>&-
