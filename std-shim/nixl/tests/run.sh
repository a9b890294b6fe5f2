#!/usr/bin/env bash
# Tests the plugin, built from this tree, in NIXL's wheel: on the software NIC, over TCP, and beside
# the wheel's UCX.
#   std-shim/nixl/tests/run.sh [TEST]...    only these of TESTS; by default, all
#   POLYRAIL=PREFIX                         with the libpolyrail that is installed there
# Requires make, a C++ compiler, and a Python version that the wheel supports, with venv; installs
# the wheel into a separate virtual environment below target/.
set -euo pipefail
cd "$(dirname "$0")/../../.."

TESTS="host adverse floods pairs addresses costs transfers notifications refusals ends cycles estimates engines telemetry readme tcp compare wheel"
out="$PWD/target/nixl"
. std-shim/nixl/tests/wheel.sh

# Builds the library with cargo, unless POLYRAIL names an installation.
if [ -n "${POLYRAIL:-}" ]; then
  library=(POLYRAIL="$POLYRAIL")
else
  cargo rustc --quiet --profile sweep --locked -p polyrail-c --crate-type staticlib,cdylib
  built="${CARGO_TARGET_DIR:-$PWD/target}/sweep/libpolyrail_c"
  library=(POLYRAIL_CFLAGS="-I$PWD/std-shim/c/include" POLYRAIL_LIBS="$built.a -lgcc_s -lpthread -ldl -lm" ARCHIVE="$built.a" SHARED="$built.so")
fi
make() { command make --no-print-directory -s -C std-shim/nixl BUILD="$out" "${library[@]}" "$@"; }
make -j "$(nproc)"

install_wheel() {
  install_venv
  plugins="$out/plugins"
  mkdir -p "$plugins"
  ln -sf "$out/libplugin_POLYRAIL.so" "$plugins/"
  beside_ucx="$(dirname "$(find "$venv" -name libplugin_UCX.so -path '*plugins*' -print -quit)")"
  ln -sf "$out/libplugin_POLYRAIL.so" "$beside_ucx/"
}

export POLYRAIL_BACKEND=software NIXL_LOG_LEVEL="${NIXL_LOG_LEVEL:-FATAL}" PYTHONDONTWRITEBYTECODE=1
for test in ${*:-$TESTS}; do
  echo "== $test"
  case "$test" in
    host* | guest | adverse | floods | pairs | addresses | costs) ;;
    *) install_wheel ;;
  esac
  case "$test" in
    host)
      make "$out/host-address" "$out/host-thread"
      timeout 300 "$out/host-address" rails=2
      TSAN_OPTIONS=ignore_noninstrumented_modules=1 timeout 300 "$out/host-thread" rails=2
      ;;
    adverse)
      make "$out/adverse"
      timeout 300 "$out/adverse"
      ;;
    floods)
      make "$out/floods"
      timeout 300 "$out/floods"
      ;;
    pairs)
      # Each agent also answers the other. The two networks do not reach each other.
      make "$out/apart"
      timeout 120 "$out/apart" 3 backend=tcp interface=lo rails=4 a.devices=127.0.0.1,::1 b.devices=::1,127.0.0.1
      ;;
    addresses)
      make "$out/addresses"
      timeout 300 "$out/addresses"
      ;;
    costs)
      make "$out/costs"
      timeout 300 "$out/costs"
      ;;
    # Only built, for tests/rxe/nixl.sh.
    host-plain) make "$out/host-plain" ;;
    guest) make "$out/host-plain" "$out/apart" "$out/messages" ;;
    # Counts allocations.
    cycles) export GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1 ;;&
    # The interface for metadata is the loopback, as some hosts have no other.
    tcp)
      export NIXL_PLUGIN_DIR="$plugins" POLYRAIL_INTERFACE=lo
      for over_tcp in transfers estimates engines; do
        POLYRAIL_BACKEND=tcp POLYRAIL_DEVICES=lo,127.0.0.2 timeout 300 "$venv/bin/python" "std-shim/nixl/tests/$over_tcp.py"
      done
      POLYRAIL_BACKEND=tcp timeout 300 "$venv/bin/python" std-shim/nixl/tests/processes.py
      unset NIXL_PLUGIN_DIR POLYRAIL_INTERFACE
      ;;
    # As users install it: found beside NIXL's own backends, and elsewhere by the line that it prints.
    wheel)
      rm -rf "$beside_ucx/libplugin_POLYRAIL.so" "$out/wheel" "$out/elsewhere"
      wheel=$(std-shim/nixl/wheel/build.py "$out/libplugin_POLYRAIL.so" "$out/wheel")
      pip() { "$venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
      pip install --no-index --force-reinstall "$wheel"
      line=$("$venv/bin/python" -m polyrail_nixl)
      [ "$line" = "# POLYRAIL is found by nixl_cu12 ${NIXL##*==}" ] || { echo "it prints: $line" >&2; exit 1; }
      timeout 300 "$venv/bin/python" std-shim/nixl/tests/transfers.py
      pip uninstall --yes polyrail-nixl
      [ ! -e "$beside_ucx/libplugin_POLYRAIL.so" ]
      pip install --no-index --target "$out/elsewhere" "$wheel"
      line=$(PYTHONPATH="$out/elsewhere" "$venv/bin/python" -m polyrail_nixl)
      (eval "$line" && timeout 300 "$venv/bin/python" std-shim/nixl/tests/transfers.py)
      ;;
    # In NIXL's plugin folder, beside UCX and the exporters of telemetry.
    compare | telemetry) timeout 300 "$venv/bin/python" "std-shim/nixl/tests/$test.py" ;;
    *) NIXL_PLUGIN_DIR="$plugins" timeout 300 "$venv/bin/python" "std-shim/nixl/tests/$test.py" ;;
  esac
done
