#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Implements `make kernel-check` and `make kernel-test`. All kernel sources and build results stay under out/kernel.
#
#   build.sh check    check that the patches apply without fuzz; run checkpatch; compile all of amdkfd with W=1 and sparse;
#                     check that all symbols used are exported
#   build.sh test     boot stock and patched kernels in QEMU: KUnit, conformance, rights; compare with testdata/
#   build.sh golden   the same, and rewrite testdata/
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/out/kernel
series=6.12
src=$out/linux-source-$series
tarball=/usr/src/linux-source-$series.tar.xz
packages="linux-source-$series build-essential flex bison bc libelf-dev libssl-dev sparse qemu-system-x86 cpio kmod xz-utils patch perl"
jobs=${JOBS:-$(nproc)}
amdkfd=drivers/gpu/drm/amd/amdkfd
touched=("$amdkfd" include/uapi/linux/kfd_ioctl.h)

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
timed() { # TEXT COMMAND...: show on a terminal how long the command has taken so far
  local text=$1 status=0 ticker
  shift
  [[ -t 2 ]] || { "$@"; return; }
  (s=0; while sleep 1 && kill -0 $$ 2>/dev/null; do printf '\r%s (%ds)' "$text" $((++s)); done) >&2 &
  ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null
  wait "$ticker" 2>/dev/null || true
  printf '\r%*s\r' $((${#text} + 12)) '' >&2
  return "$status"
}
to_log() { "${@:2}" >"$1" 2>&1; } # LOG COMMAND...
quietly() { # LOG COMMAND...: print the output only if the command fails
  local log=$1
  shift
  timed "  output is in $log" to_log "$log" "$@" || { tail -n 40 "$log" >&2; die "$* failed; the whole output is in $log"; }
}

install_packages() {
  local missing=()
  for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  ((${#missing[@]})) || return 0
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || die "missing: apt-get install --no-install-recommends ${missing[*]}"
  say "installing ${missing[*]}"
  mkdir -p "$out"
  quietly "$out/apt.log" apt-get update
  DEBIAN_FRONTEND=noninteractive quietly "$out/apt.log" apt-get install -y --no-install-recommends "${missing[@]}"
}

# Unpacks Debian's source, and copies the files that our patches may change.
unpack() {
  mkdir -p "$out"
  echo 'module ignored' >"$out/go.mod" # hides the kernel source from the Go tools
  if [[ ! -e $out/orig/.complete || $tarball -nt $out/orig/.complete ]]; then
    say "unpacking $tarball"
    rm -rf "$src" "$out/orig" "$out/build" "$out/check"
    timed '  unpacking' tar xf "$tarball" -C "$out"
    for f in "${touched[@]}"; do
      mkdir -p "$out/orig/$(dirname "$f")"
      cp -a "$src/$f" "$out/orig/$f"
    done
    touch "$out/orig/.complete"
  fi
}

# Makes the source stock or patched. It changes only the files that differ, so that little is rebuilt.
source_is() { # stock|patched
  local want=$out/want
  rm -rf "$want"
  cp -a "$out/orig" "$want"
  if [[ $1 == patched ]]; then
    for p in "$here"/patches/*.patch; do
      patch -d "$want" -p1 --fuzz=0 --no-backup-if-mismatch -s <"$p" || die "$p does not apply to $(make -s -C "$src" kernelversion)"
    done
  fi
  local f
  (cd "$src" && find "${touched[@]}" -type f) | while read -r f; do
    [[ -e $want/$f ]] || rm "$src/$f"
  done
  (cd "$want" && find "${touched[@]}" -type f) | while read -r f; do
    cmp -s "$want/$f" "$src/$f" || { mkdir -p "$(dirname "$src/$f")"; cp "$want/$f" "$src/$f"; }
  done
}

configure() { # DIR
  mkdir -p "$1"
  [[ -e $1/.config && $1/.config.from -nt $here/qemu.config ]] || {
    make -s -C "$src" O="$1" allnoconfig >/dev/null
    touch "$1/.config.from"
  }
  (cd "$src" && scripts/kconfig/merge_config.sh -m -O "$1" "$1/.config" "$here/qemu.config") >"$out/config.log" 2>&1
  make -s -C "$src" O="$1" olddefconfig >/dev/null
}

# Fails if an object uses a symbol that is not exported to modules.
symbols_are_exported() { # OBJECT
  local s bad=0
  for s in $(nm -u "$1" | awk '{print $2}'); do
    case $s in __fentry__ | __stack_chk_fail | __x86_return_thunk | __x86_indirect_thunk_* | __SCT__* | __SCK__* | kfd_* | sched_policy) continue ;; esac
    # Macros export some symbols under another name.
    grep -rqsE "EXPORT_[A-Z_]*\(_*${s#__}(_noprof|_nested)?[,)]" "$src"/{kernel,mm,lib,fs,security,arch/x86} --include='*.[cS]' ||
      { say "$s is used by $(basename "$1") but not exported to modules"; bad=1; }
  done
  return $bad
}

# Prints the lines that the patches add, as "file:number:".
added_lines() {
  local f
  (cd "$out/want" && find "${touched[@]}" -type f) | while read -r f; do
    diff --unchanged-line-format= --old-line-format= --new-line-format="$f:%dn:%c'\012'" \
      "$([[ -e $out/orig/$f ]] && echo "$out/orig/$f" || echo /dev/null)" "$out/want/$f" || true
  done
}

check() {
  local p build=$out/check log=$out/check.log bad=0
  install_packages
  unpack
  source_is patched
  for p in "$here"/patches/*.patch; do
    # Ignored: MAINTAINERS is not changed; amdkfd uses uint32_t; the patches are signed when they are sent upstream.
    (cd "$src" && perl scripts/checkpatch.pl --no-signoff --strict --terse --ignore FILE_PATH_CHANGES,PREFER_KERNEL_TYPES "$p") || bad=1
  done
  ((bad == 0)) || die 'checkpatch reports problems'

  configure "$build"
  say 'compiling amdkfd with W=1 and sparse'
  quietly "$out/prepare.log" nice -n 15 make -C "$src" O="$build" -j"$jobs" modules_prepare
  local objects=()
  for f in "$src/$amdkfd"/*.c; do objects+=("drivers/gpu/drm/amd/amdgpu/../amdkfd/$(basename "$f" .c).o"); done
  rm -f "$build/$amdkfd"/*.o
  # Sparse computes a wrong size for a bit-field of amdgv_sriovmsg.h, fails an assertion there and stops. So assertions are
  # removed for sparse; the compiler checks them.
  timed "  output is in $log" to_log "$log" nice -n 15 make -C "$src" O="$build" -j"$jobs" W=1 C=1 CF="-D'_Static_assert(...)='" "${objects[@]}" || { grep -E 'error' "$log" >&2; die "see $log"; }
  # The compiler must report nothing. Sparse reports over a hundred problems in AMD's lines; it must report none in ours.
  local complaints ours
  complaints=$(sed -n "s#^$src/##p" "$log" | sed 's#amdgpu/\.\./##' | grep -E "^($amdkfd|include/uapi/linux/kfd_ioctl).*(warning|error):" || true)
  ours=$(added_lines | grep -Ff - <(printf '%s\n' "$complaints") || true; grep -E '\[-W|error:' <<<"$complaints" || true)
  [[ -z $ours ]] || { printf '%s\n' "$ours" >&2; die 'amdkfd does not compile without warnings'; }
  symbols_are_exported "$build/$amdkfd/kfd_sched.o" || die 'the patched driver would not load as a module'
  echo "make kernel-check: ${#objects[@]} files of amdkfd $(make -s -C "$src" kernelversion) with W=1: no warnings;" \
    "sparse: none in our $(added_lines | wc -l) lines ($(grep -c . <<<"$complaints") in others)"
}

image() { # stock|patched
  local key
  key=$(sha256sum <"$here/qemu.config")$(stat -L -c "%s %Y" "$tarball")
  # The stock kernel is built once. The source is left patched.
  [[ $1 == stock && -e $out/bzImage-stock && $(cat "$out/bzImage-stock.key" 2>/dev/null) == "$key" ]] && return
  say "building the $1 kernel"
  source_is "$1"
  configure "$out/build"
  quietly "$out/build-$1.log" nice -n 15 make -C "$src" O="$out/build" -j"$jobs" bzImage
  cp "$out/build/arch/x86/boot/bzImage" "$out/bzImage-$1"
  echo "$key" >"$out/bzImage-$1.key"
}

initrd() {
  local dir=$out/root p
  rm -rf "$dir"
  mkdir -p "$dir"
  for p in init rights; do
    cc -std=gnu11 -O1 -static -pthread -Wall -Wextra -Wshadow -Werror -o "$dir/$p" "$here/guest/$p.c"
  done
  (cd "$root" && CGO_ENABLED=0 go test -c -o "$dir/kfdtest.test" ./internal/amd/kfd/kfdtest)
  (cd "$dir" && find . | cpio -o -H newc --quiet | gzip -1) >"$out/initrd.gz"
}

boot() { # stock|patched
  rm -f "$out/report-$1.txt"
  say "booting the $1 kernel"
  # KVM is not available everywhere, and the run takes only seconds without it.
  timed "  its output is in $out/console-$1.log" timeout 600 qemu-system-x86_64 -accel tcg -cpu max -m 1024 -smp 2 -kernel "$out/bzImage-$1" -initrd "$out/initrd.gz" \
    -append 'console=ttyS0 panic=-1 oops=panic loglevel=7' -display none -monitor none -no-reboot \
    -serial "file:$out/console-$1.log" -serial "file:$out/report-$1.txt" || die "QEMU failed; see $out/console-$1.log"
  grep -qx '== end' "$out/report-$1.txt" || { tail -n 40 "$out/console-$1.log" >&2; die "the $1 kernel did not finish its tests"; }
}

part() { # REPORT NAME: print the lines of a section of a report
  awk -v want="== $2" '/^== /{on = $0 == want; next} on' "$1"
}

same() { # GOLDEN: compare with stdin; not in a pipe, whose subshell could not set failed
  if [[ $golden ]]; then
    cat >"$here/testdata/$1"
  else
    diff -u --label "testdata/$1" --label got "$here/testdata/$1" - || { say "the driver's answers differ from testdata/$1"; failed=1; }
  fi
}

judge() { # stock|patched
  local r=$out/report-$1.txt log=$out/console-$1.log
  same "$1.txt" < <(part "$r" conformance)
  [[ $(part "$r" 'conformance status') == 0 ]] || { grep -E -- '--- FAIL|want ' "$log" >&2 || true; say "$1: the conformance table failed"; failed=1; }
  [[ $(part "$r" 'rights status') == 0 ]] || { part "$r" rights | grep -B1 '^  want ' >&2 || true; say "$1: the tests of rights failed"; failed=1; }
  part "$r" lockdep | grep -q 'debug_locks: *1' || { say "$1: lockdep found a problem"; failed=1; }
  ! grep -E 'WARNING:|BUG:|INFO: task|possible .* detected|refcount_t' "$log" >&2 || { say "$1: the kernel logged warnings"; failed=1; }
  if [[ $1 == patched ]]; then
    same rights.txt < <(part "$r" rights)
    # The duration of a case depends on the machine.
    same kunit.txt < <(part "$r" kunit | grep -v 'should be marked slow')
    part "$r" kunit | grep -qE '^ok 1 amdkfd_sched$' && ! part "$r" kunit | grep -q 'not ok' || { say 'KUnit: not all tests passed'; failed=1; }
  fi
  echo "$1: $(part "$r" conformance | wc -l) rows of the conformance table, $(part "$r" rights | wc -l) of rights;" \
    "KUnit$(part "$r" kunit | sed -n 's/^# Totals:/:/p' | grep . || echo ': none')"
}

run_tests() {
  failed=
  install_packages
  unpack
  initrd
  image stock
  image patched
  for v in stock patched; do
    boot $v
    judge $v
  done
  [[ -z $failed ]] || die 'make kernel-test: FAILED'
  echo 'make kernel-test: all passed'
}

golden=
case ${1-} in
check) check ;;
test) run_tests ;;
golden) golden=1 run_tests ;;
*) die "usage: $0 check|test|golden" ;;
esac
