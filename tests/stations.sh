#!/usr/bin/env bash
# Counts how far a reader walks to follow the engine: which functions of core/src run, in order, how often the
# next one is in another file, and how many files there are.
#   tests/stations.sh [--summary] [WAY]...
#
# The ways, all of them by default:
#   write      a WRITE_WITH_IMM over SPRAY, from its post through two polls to its report
#   rail       a rail that fails with fragments in flight and returns, from the failure to the reports of both ends
#   message    a message, from irecv and isend until both ends are done with it
# Prints the stations of each way, then a table with one line for each way. --summary prints only the table.
#
# tests/stations.py defines what counts as a station; tests/examples/stations has the programs. They are built
# without optimisation, without assertions and with nothing inlined. The figures are for comparison only: this is
# not part of the gate or of tests/full.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

ways=()
STATIONS_LIST=yes
for argument; do
  case $argument in
    write | rail | message) ways+=("$argument") ;;
    --summary) STATIONS_LIST= ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \?//p}' "$0"; exit ;;
    *) echo "unknown way or option: $argument (see --help)" >&2; exit 2 ;;
  esac
done
[ "${#ways[@]}" -gt 0 ] || ways=(write rail message)
STATIONS_WAYS=${ways[*]}
export STATIONS_WAYS STATIONS_LIST

tests/packages.sh gdb binutils

# Without its passes, LLVM does not even inline `#[inline(always)]` functions.
export RUSTFLAGS="-C no-prepopulate-passes"
export CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_TARGET_DIR=target/stations
# gdb needs the names of functions, whatever the caller's own builds have.
export CARGO_PROFILE_DEV_DEBUG=full
# With a static relocation model, functions are at the addresses that nm prints.
cargo rustc --quiet --locked -p polyrail-tests --example stations -- -C relocation-model=static
gdb --batch-silent --nx -iex "set auto-load no" --command tests/stations.py target/stations/debug/examples/stations
