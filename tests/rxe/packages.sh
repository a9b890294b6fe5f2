#!/usr/bin/env bash
# Installs what building against libibverbs needs, if it is not there: the library and its headers
# (rdma-sys also asks for librdmacm's), and the compiler library that reads the headers.
set -euo pipefail

PACKAGES="libibverbs-dev librdmacm-dev libclang-dev pkg-config"

dpkg -s $PACKAGES >/dev/null 2>&1 ||
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends $PACKAGES >/dev/null; }
