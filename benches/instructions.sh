#!/usr/bin/env bash
# Counts the instructions of every row of the benches and compares them with benches/instructions.json.
# Installs valgrind if it is missing.
#   benches/instructions.sh [OPTION]...    options as `--help` prints them; --accept rewrites the file
set -euo pipefail
cd "$(dirname "$0")/.."
tests/packages.sh valgrind
exec cargo run --release --locked -p polyrail-benches --bin instructions -- "$@"
