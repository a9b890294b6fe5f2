#!/usr/bin/env bash
# Tests over real verbs on any machine: boots a throw-away guest in QEMU, without hardware acceleration,
# with Debian's kernel and its software RDMA driver rxe, and runs the tests there.
#   tests/rxe/run.sh                      all tests
#   tests/rxe/run.sh PROGRAM [ARG]...     another program of this machine, in the same guest
#
# The guest has RAILS rails (2 by default): the devices rxeA0 and rxeB0 sit on the ends of the veth pair
# a0, b0, so that packets cross a link that can go down; and so on. GID 0 of each is its link-local
# address, GID 1 is 10.0.RAIL.1 and 10.0.RAIL.2.
#
# Exit status: the program's; 124 if it takes more than SECONDS_MAX (300 by default); 125 if the guest
# dies; 126 if it cannot be set up. Kernel and base image are kept under target/rxe.
set -euo pipefail
cd "$(dirname "$0")/../.."
RAILS=${RAILS:-2} SECONDS_MAX=${SECONDS_MAX:-300} MEMORY_MIB=512
TARGET=${CARGO_TARGET_DIR:-target} CACHE=${CARGO_TARGET_DIR:-$PWD/target}/rxe
GUEST=$PWD/tests/rxe/guest
PATH=$PATH:/sbin:/usr/sbin
# rxe asks for crc32 by name, so crc32_generic is not among its dependencies.
MODULES="crc32_generic rdma_rxe veth sch_netem"

say() { printf '== rxe: %s\n' "$*" >&2; }
die() { say "$*"; exit 126; }

packages() {
  local missing=() package
  for package in qemu-system-x86 busybox-static dash cpio xz-utils kmod iproute2 rdma-core \
    ibverbs-providers libibverbs-dev librdmacm-dev libclang-dev pkg-config; do
    dpkg-query -Wf '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  apt-get -qq update
  apt-get -qq install -y "${missing[@]}" >/dev/null
}

# Downloads and unpacks the kernel that linux-image-amd64 stands for. Sets VERSION, TREE and KERNEL.
kernel() {
  local package
  TREE=$CACHE/kernel
  if ! ls "$TREE"/boot/vmlinuz-* >/dev/null 2>&1; then
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get -qq update
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$package" ] || die "no kernel package"
    say "downloading $package"
    (cd "$WORK" && apt-get -qq download "$package") || die "cannot download $package"
    rm -rf "$TREE.new" && mkdir -p "$TREE.new"
    dpkg-deb -x "$WORK/$package"_*.deb "$TREE.new"
    rm -rf "$TREE" && mv "$TREE.new" "$TREE"
  fi
  KERNEL=$(ls "$TREE"/boot/vmlinuz-* | sort -V | tail -1)
  VERSION=${KERNEL##*/vmlinuz-}
  [ -s "$TREE/lib/modules/$VERSION/modules.dep" ] || depmod -b "$TREE" "$VERSION"
  uncompressed
}

# Unpacks the ELF kernel inside the image: under emulation, the guest would take seconds for it.
uncompressed() {
  local elf=$CACHE/vmlinux-$VERSION offset
  if [ ! -s "$elf" ]; then
    offset=$(LC_ALL=C grep -abo $'\xfd7zXZ' "$KERNEL" | head -1 | cut -d: -f1)
    # xz stops with an error at what follows the stream; what came before counts.
    tail -c +$((offset + 1)) "$KERNEL" | xz -dc --single-stream >"$WORK/elf" 2>/dev/null || true
    [ "$(head -c4 "$WORK/elf" | tail -c3)" = ELF ] && mv "$WORK/elf" "$elf"
  fi
  [ -s "$elf" ] && KERNEL=$elf
  return 0
}

# put ROOT FILE [PLACE]: copies a file into an image and, if it is a program, its libraries.
put() {
  local root=$1 file=$2 place=${3:-$2} library
  mkdir -p "$root$(dirname "$place")"
  cp -L "$file" "$root$place"
  for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true); do
    [ -e "$root$library" ] || { mkdir -p "$root$(dirname "$library")"; cp -L "$library" "$root$library"; }
  done
}

pack() { (cd "$1" && find . | cpio -o -H newc -R 0:0 --quiet); }

# Copies the modules, numbered in the order of loading.
modules() {
  local root=$1 name file number=100 place=$TREE/lib/modules/$VERSION
  for name in $MODULES; do
    # A line of modules.dep names a module and then its dependencies, the first to load last.
    for file in $(grep "/$name\.ko[^ ]*:" "$place/modules.dep" | tr -d : | tr ' ' '\n' | tac); do
      ls "$root"/modules/*-"$(basename "${file%%.ko*}").ko" >/dev/null 2>&1 && continue
      number=$((number + 1))
      case $file in
        *.xz) xz -dc "$place/$file" ;;
        *) cat "$place/$file" ;;
      esac >"$root/modules/$number-$(basename "${file%%.ko*}").ko"
    done
  done
}

# The image without the program. Sets BASE.
base() {
  local root=$WORK/base program provider
  BASE=$CACHE/base-$VERSION-$(cat "$0" "$GUEST"/* | cksum | cut -d' ' -f1).cpio
  [ -s "$BASE" ] && return
  say "making the base image"
  mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,work,modules,etc/libibverbs.d}
  cp "$(command -v busybox)" "$root/bin/busybox"
  # Not busybox's own shell, which would prefer its own, smaller ip.
  put "$root" "$(command -v dash)" /bin/dash
  for program in ip tc rdma; do put "$root" "$(command -v $program)" /sbin/$program; done
  provider=$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so | head -1)
  put "$root" "$provider"
  echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
  modules "$root"
  cp "$GUEST/init" "$root/init"
  cp "$GUEST/rail" "$root/sbin/rail"
  chmod +x "$root/init" "$root/sbin/rail"
  rm -f "$CACHE"/base-*.cpio
  pack "$root" >"$WORK/base.cpio"
  mv "$WORK/base.cpio" "$BASE"
}

# What differs from run to run, as a second image that the kernel unpacks over the first.
overlay() {
  local root=$WORK/overlay program=$1 command argument
  shift
  mkdir -p "$root/work"
  put "$root" "$program" "/work/$(basename "$program")"
  command=./$(basename "$program")
  for argument in "$@"; do command+=" $(printf %q "$argument")"; done
  printf 'export RAILS=%s\nCOMMAND=%q\n' "$RAILS" "$command" >"$root/work/.settings"
  pack "$root" | cat "$BASE" - >"$WORK/image"
}

# Runs the guest. The program's output is ours; the kernel's goes to a file.
boot() {
  local console=$WORK/console status=0 result
  timeout -k 5 "$SECONDS_MAX" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
    -accel tcg,thread=multi -smp 2 -m "$MEMORY_MIB" -cpu max,la57=off \
    -kernel "$KERNEL" -initrd "$WORK/image" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable" \
    -serial "file:$console" -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=4 \
    </dev/null || status=$?
  # The kernel's own complaints are worth seeing whatever the tests say.
  grep -aE 'WARNING: CPU|BUG:|Oops|Kernel panic|rcu:.*stall|blocked for more|cannot load' "$console" >&2 || true
  result=$(tr -d '\r' <"$console" | sed -n 's/^EXIT-STATUS //p' | tail -1)
  [ -n "$result" ] && return "$result"
  tail -15 "$console" >&2
  case $status in
    124 | 137) say "more than $SECONDS_MAX s"; return 124 ;;
    *) say "the guest died (QEMU says $status)"; return 125 ;;
  esac
}

packages
mkdir -p "$CACHE"
WORK=$(mktemp -d -p "$CACHE")
trap 'rm -rf "$WORK"' EXIT
if [ $# -eq 0 ]; then
  cargo build --locked -p polyrail-rxe
  set -- "$TARGET/debug/polyrail-rxe"
fi
[ -x "$1" ] || die "no program $1"
kernel
base
overlay "$@"
say "booting $VERSION"
boot
