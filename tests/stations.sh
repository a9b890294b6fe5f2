#!/usr/bin/env bash
# How far does a reader walk to follow one request? Lists the stations of a WRITE_WITH_IMM over SPRAY, from
# its post through two polls to its report: the functions of polyrail-core that run, in order, and how often
# the next one is in another file. Not part of the full test: the figures are for comparison only.
#   tests/stations.sh
#
# Built without optimisation, without assertions and with nothing inlined; `tests/stations.py` defines
# what counts as a station.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v gdb >/dev/null || { apt-get -qq update && apt-get -qq install -y gdb; }
command -v nm >/dev/null || { apt-get -qq update && apt-get -qq install -y binutils; }

# Without its passes, LLVM does not even inline `#[inline(always)]` functions.
export RUSTFLAGS="-C no-prepopulate-passes"
export CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_TARGET_DIR=target/stations
# With a static relocation model, functions are at the addresses that nm prints.
cargo rustc --quiet --locked -p polyrail-tests --example stations -- -C relocation-model=static
gdb --batch-silent --nx -iex "set auto-load no" --command tests/stations.py target/stations/debug/examples/stations
