#!/usr/bin/env bash
# Runs one program of this machine in a throw-away guest that has RDMA rails, on a machine that has none.
#   tests/rxe/guest.sh [-t SECONDS] [-n RAILS] [-f FILE]... [-c] -- PROGRAM [ARGS...]
# The guest is QEMU without hardware acceleration, Debian's kernel and its software RDMA driver rdma_rxe.
#   -n RAILS    rails, 2 by default: rxeA$i on a$i <-> rxeB$i on b$i, a veth pair that packets really cross
#   -t SECONDS  time after which the guest is stopped, 120 by default
#   -f FILE     brings a file along, with its shared libraries; it lands beside the program in /home
#   -c          one processor instead of two, whose clock counts: an instruction takes a nanosecond, so that times that a
#               program measures are the same on every machine, whatever else that does
# GID 0 of a port is its IPv6 link-local address, GID 1 is 10.0.$i.1 (A) or 10.0.$i.2 (B). RAILS is in the
# program's environment. Its output appears as it comes.
# Exit status: the program's; 77 what the guest is made of cannot be had here; 124 it took too long; 125 the guest died; 126
# the guest could not be made.
# Parts that take long to make are kept in ${XDG_CACHE_HOME:-~/.cache}/polyrail/rxe. With CONSOLE=FILE in the
# environment the kernel's messages are kept there.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/polyrail/rxe
PATH=$PATH:/usr/sbin:/sbin

# rxe asks for its checksum by name, so it is not among its dependencies.
MODULES="crc32_generic rdma_rxe rdma_ucm veth sch_netem"
PACKAGES="qemu-system-x86 busybox-static cpio xz-utils kmod iproute2 rdma-core ibverbs-providers libibverbs1"
COMMANDS="qemu-system-x86_64 busybox cpio xz depmod ip tc rdma ldconfig"

die() { echo "guest.sh: $*" >&2; exit 126; }
cannot() { echo "skipped: guest.sh: $*" >&2; exit 77; }
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 126; }

install_packages() {
  ! is_complete || return 0
  "$here/../packages.sh" $PACKAGES || exit
}

is_complete() {
  local command
  for command in $COMMANDS; do
    command -v "$command" >/dev/null || return 1
  done
  provider >/dev/null
}

# The user-space half of the driver.
provider() { compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' | head -n 1 | grep .; }

kernel_package() {
  apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}' | grep .
}

# Debian's kernel, unpacked but not installed.
fetch_kernel() {
  kernel=$cache/kernel
  if ! compgen -G "$kernel/boot/vmlinuz-*" >/dev/null; then
    local package
    package=$(kernel_package) || { apt-get -qq update && package=$(kernel_package); } ||
      cannot "apt knows no linux-image-amd64"
    mkdir -m 777 "$scratch/download"
    (cd "$scratch/download" && apt-get -qq -o Acquire::Retries=5 download "$package") || cannot "apt-get cannot download $package"
    dpkg-deb -x "$scratch/download"/*.deb "$scratch/kernel"
    mkdir -p "$cache" && rm -rf "$kernel" && mv "$scratch/kernel" "$kernel"
  fi
  image=$(ls "$kernel"/boot/vmlinuz-* | head -n 1)
  release=${image##*/vmlinuz-}
  modules=$kernel/lib/modules/$release
  [ -s "$modules/modules.dep" ] || depmod -b "$kernel" "$release"
  unpack_image
}

# The kernel without its wrapper: under emulation, unpacking itself would take it seconds.
unpack_image() {
  local plain=$cache/vmlinux-$release at
  if ! [ -s "$plain" ]; then
    at=$(LC_ALL=C grep -abo $'\xfd7zXZ' "$image" | head -n 1 | cut -d: -f1) || return 0
    # xz complains about the data after the kernel.
    tail -c "+$((at + 1))" "$image" | xz -dc --single-stream 2>/dev/null > "$scratch/vmlinux" || true
    [ "$(head -c 4 "$scratch/vmlinux" | tail -c 3)" = ELF ] || return 0
    mv "$scratch/vmlinux" "$plain"
  fi
  image=$plain
}

# with_libraries ROOT FILE [PLACE]: a file, and the shared libraries that it needs, in their places.
with_libraries() {
  local root=$1 file=$2 place=${3:-$2} library
  install -D "$file" "$root$place" || die "cannot take $file along"
  for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*'); do
    [ -e "$root$library" ] || install -D "$library" "$root$library"
  done
}

# The modules and all that they depend on, numbered in the order in which they have to be loaded.
take_modules() {
  local root=$1 number=100 module line file name
  mkdir -p "$root/modules"
  for module in $MODULES; do
    # A line of modules.dep names the module, then what it depends on, in reverse order of loading.
    line=$(grep "/$module\.ko[^ ]*:" "$modules/modules.dep") || die "the kernel has no module $module"
    for file in $(tr -d : <<< "$line" | tr ' ' '\n' | tac); do
      name=$(basename "${file%%.ko*}")
      compgen -G "$root/modules/*-$name.ko" >/dev/null && continue
      case $file in
        *.xz) xz -dc "$modules/$file" ;;
        *) cat "$modules/$file" ;;
      esac > "$root/modules/$((number++))-$name.ko"
    done
  done
}

archive() { (cd "$1" && find . | cpio --quiet -o -H newc -R 0:0); }

# The whole guest except the program; made once for each version of kernel and scripts.
make_base() {
  local root=$scratch/base program
  base=$cache/base-$release-$(cat "$here"/guest.sh "$here"/init "$here"/rail | cksum | cut -d' ' -f1).cpio
  [ -s "$base" ] && return
  mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,home,etc/libibverbs.d}
  install "$(command -v busybox)" "$root/bin/busybox"
  for program in ip tc rdma; do
    with_libraries "$root" "$(command -v $program)" "/sbin/$program"
  done
  with_libraries "$root" "$(provider)"
  with_libraries "$root" "$(ldconfig -p | awk '/libibverbs\.so\.1 / {print $NF; exit}')"
  echo "driver rxe" > "$root/etc/libibverbs.d/rxe.driver"
  install "$here/init" "$root/init"
  install "$here/rail" "$root/sbin/rail"
  take_modules "$root"
  archive "$root" > "$scratch/base.cpio"
  rm -f "$cache"/base-*.cpio
  mv "$scratch/base.cpio" "$base"
}

# The program and its files, in an archive that the kernel unpacks over the first.
make_overlay() {
  local root=$scratch/overlay file
  for file in "$@"; do
    with_libraries "$root" "$file" "/home/$(basename "$file")"
  done
  {
    printf 'RAILS=%q\nexport RAILS\nset --' "$rails"
    printf ' %q' "./$(basename "$1")" "${arguments[@]}"
    echo
  } > "$root/home/.command"
  cat "$base" <(archive "$root") > "$scratch/initramfs"
}

# Starts the guest and waits for its end, with the status of `timeout`; STANDSTILL if it does not come as far as its
# program within STARTUP seconds. It takes 4 seconds, but once in some hundred starts an emulated processor has stood
# still before, for good.
STARTUP=60 STANDSTILL=3
boot() {
  # A busy host may let the kernel's check of its timer fail, which is for broken hardware.
  local serial=(-serial "file:$scratch/console" -serial stdio -serial "file:$scratch/status")
  local deadline=$((SECONDS + STARTUP))
  : > "$scratch/status"
  timeout --kill-after 5 "$seconds" qemu-system-x86_64 -nodefaults -no-user-config -display none \
    -no-reboot "${processors[@]}" -m 768 -cpu max,la57=off \
    -kernel "$image" -initrd "$scratch/initramfs" "${serial[@]}" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check" < /dev/null &
  guest=$!
  until is_started; do
    kill -0 $guest 2>/dev/null || break
    if [ $SECONDS -ge $deadline ]; then
      kill $guest
      wait $guest || true
      return $STANDSTILL
    fi
    sleep 0.2
  done
  wait $guest
}

is_started() { grep -q started "$scratch/status"; }

seconds=120 rails=2 files=() processors=(-accel tcg,thread=multi -smp 2)
while getopts t:n:f:c option; do
  case $option in
    t) seconds=$OPTARG ;;
    n) rails=$OPTARG ;;
    f) files+=("$OPTARG") ;;
    # Where nothing runs, the clock goes on at once to what is next.
    c) processors=(-accel tcg,thread=single -smp 1 -icount shift=0,sleep=off) ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
program=$(command -v "$1") || die "there is no program $1"
arguments=("${@:2}")

scratch=$(mktemp -d)
guest=
trap '[ -z "$guest" ] || kill $guest 2>/dev/null || true; rm -rf "$scratch"' EXIT
chmod 711 "$scratch" # apt downloads as a user of its own
install_packages
fetch_kernel
make_base
make_overlay "$program" ${files[@]+"${files[@]}"}
for attempt in 1 2 3; do
  qemu=0
  boot || qemu=$?
  [ $qemu -eq $STANDSTILL ] || break
  echo "guest.sh: the guest stood still before its program began, $attempt of 3 times" >&2
done
[ -z "${CONSOLE:-}" ] || cp "$scratch/console" "$CONSOLE"
# Messages of the kernel about its own errors.
grep -aE 'WARNING: CPU|BUG:|Oops|Kernel panic|rcu:.*stall|blocked for more|insmod: ' "$scratch/console" |
  sed 's/^/guest.sh: the kernel: /' >&2 || true
status=$(tr -cd 0-9 < "$scratch/status" || true)
[ -z "$status" ] || exit "$status"
tail -n 15 "$scratch/console" >&2
case $qemu in
  124 | 137) echo "guest.sh: no end after $seconds seconds" >&2; exit 124 ;;
  *) echo "guest.sh: the guest died (qemu: $qemu)" >&2; exit 125 ;;
esac
