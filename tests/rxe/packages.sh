#!/usr/bin/env bash
# Installs what tests of real verbs need, if it is missing: libibverbs and its headers, and the
# compiler library that reads them.
#   tests/rxe/packages.sh [PACKAGE]...    these too
exec "$(dirname "$0")/../packages.sh" libibverbs-dev libclang-dev pkg-config "$@"
