#!/usr/bin/env bash
# Installs what a build against libibverbs needs, if it is missing: the library and its headers, and the
# compiler library that reads them.
#   tests/rxe/packages.sh [PACKAGE]...    these too
set -euo pipefail

PACKAGES="libibverbs-dev libclang-dev pkg-config $*"

dpkg -s $PACKAGES >/dev/null 2>&1 ||
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends $PACKAGES >/dev/null; }
