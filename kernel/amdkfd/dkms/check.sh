#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Implements `make dkms-check`.
#
#   check.sh                   compare the patches with those of ../patches; test install.sh on small trees with a recorder
#                              in place of dkms
#   check.sh SOURCE            also apply the patch without fuzz to a copy of these sources, such as /usr/src/amdgpu-VERSION
#   check.sh SOURCE KERNEL     also compile all of amdkfd in it for this kernel, whose headers must be installed. The whole
#                              module is not linked
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf '%s\n' "$*" >&2; exit 1; }

# Prints the lines that patches add and do not remove again.
added() {
  LC_ALL=C comm -23 <(sed -n '/^+++ /d; s/^+//p' "$@" | LC_ALL=C sort) <(sed -n '/^--- \|^---\{0,1\}$\|^-- $/d; s/^-//p' "$@" | LC_ALL=C sort)
}

# The patches for DKMS must say what those for Linux say, apart from what concerns the Makefile, a comment, and the reset of
# queues, which 6.7.0 does not have.
compare_patches() {
  local patch differences
  for patch in "$here"/amdgpu-*.patch; do
    differences=$(diff <(added "$here"/../patches/000[123]-*.patch) <(added "$patch") | grep '^[<>]' |
      grep -vE 'AMDKFD_PATH|/\* Far from the numbers above|has_reset_queue|What is left of a queue that was reset' || true)
    if [[ $patch == */amdgpu-6.7.0.patch ]]; then # the rest of the two conditions
      differences=$(grep -vxE '<\s+(return -EIO;|q->properties\.is_preempted = false;|})' <<<"$differences" || true)
    fi
    [[ -z $differences ]] || die "$(basename "$patch") differs from ../patches:"$'\n'"$differences"
  done
}

# Makes a tree of nothing but the lines that a patch expects.
small_tree() { # PATCH DIRECTORY VERSION
  awk -v dir="$2" '
    /^diff --git/ { file = ""; in_hunk = 0 }
    /^--- a\// { file = dir "/" substr($0, 7); parent = file; sub("/[^/]*$", "", parent); system("mkdir -p " parent) }
    /^@@ / { in_hunk = 1; next }
    in_hunk && file != "" && /^[ -]/ { print substr($0, 2) >file }
  ' "$1"
  mkdir -p "$2/amd/dkms"
  printf 'AC_INIT(amdgpu-dkms, %s)\n' "$3" >"$2/amd/dkms/configure.ac"
  printf 'PACKAGE_NAME="amdgpu"\nPACKAGE_VERSION="%s"\n' "${2##*/amdgpu-}" >"$2/amd/dkms/dkms.conf"
  ln -s amd/dkms/dkms.conf "$2/dkms.conf"
}

run_install() { PATH=$work/bin:$PATH DKMS_LOG=$work/dkms.log DKMS_FAILS=${fails-} AMDGPU_SRC=$work/src "$here/install.sh" "$@" >"$work/output" 2>&1; }

expect() { # TEXT COMMAND...
  local text=$1
  shift
  "$@" || die "install.sh: $text"$'\n'"$(cat "$work/output" "$work/dkms.log" 2>/dev/null)"
}

test_install() {
  local patch version tree before kernel fails=
  kernel=$(uname -r)
  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "$*" >>"$DKMS_LOG"\n[ "$1" != "$DKMS_FAILS" ]\n' >"$work/bin/dkms"
  chmod +x "$work/bin/dkms"
  for patch in "$here"/amdgpu-*.patch; do
    version=$(basename "$patch" .patch)
    version=${version#amdgpu-}
    rm -rf "$work/src" "$work/dkms.log"
    tree=$work/src/amdgpu-$version-1234.24.04
    mkdir -p "$tree"
    small_tree "$patch" "$tree" "$version"
    before=$(cd "$tree" && find . -type f -exec sha256sum {} + | sort)

    expect 'does not install' run_install install
    expect 'does not patch' grep -q kfd_sched "$tree+giveway/amd/amdkfd/Makefile"
    expect 'does not change the version' grep -qx "PACKAGE_VERSION=\"$version-1234.24.04+giveway\"" "$tree+giveway/dkms.conf"
    expect 'calls dkms otherwise' diff "$work/dkms.log" - <<<"add amdgpu/$version-1234.24.04+giveway
build amdgpu/$version-1234.24.04+giveway -k $kernel
install amdgpu/$version-1234.24.04+giveway -k $kernel --force"
    expect 'does not say what there is' run_install status
    rm "$work/dkms.log"
    expect 'does not remove' run_install remove
    expect 'leaves the copy' test ! -e "$tree+giveway"
    expect 'does not restore' diff "$work/dkms.log" - <<<"remove amdgpu/$version-1234.24.04+giveway --all
install amdgpu/$version-1234.24.04 -k $kernel --force"
    expect 'removes twice' eval '! run_install remove'

    fails=build
    expect 'succeeds though the build fails' eval '! run_install install'
    expect 'leaves a copy that cannot be built' test ! -e "$tree+giveway"
    expect 'does not restore after a failed build' test "$(tail -n 1 "$work/dkms.log")" = "install amdgpu/$version-1234.24.04 -k $kernel --force"
    fails=

    expect 'changes the sources of the package' test "$before" = "$(cd "$tree" && find . -type f -exec sha256sum {} + | sort)"
    sed -i 's/kfd_unref_process(process);/kfd_unref_process_later(process);/' "$tree/amd/amdkfd/kfd_chardev.c"
    expect 'applies to other sources' eval '! run_install install'
    expect 'does not say that the patch does not fit' grep -q 'does not fit' "$work/output"
    expect 'leaves a copy that is not patched' test "$(ls "$work/src")" = "$(basename "$tree")"
    sed -i 's/AC_INIT.*/AC_INIT(amdgpu-dkms, 5.18.2)/' "$tree/amd/dkms/configure.ac"
    expect 'accepts another version' eval '! run_install install'
    expect 'does not name the versions' grep -q "5.18.2; there are patches for: .*$version" "$work/output"
  done
  rm -rf "$work/src" && mkdir "$work/src"
  expect 'accepts no sources' eval '! run_install install'
}

apply() { # SOURCE: into $work/tree
  local version
  version=$(sed -n 's/^AC_INIT([^,]*, *\[\{0,1\}\([0-9.]*\).*/\1/p' "$1/amd/dkms/configure.ac")
  [[ -e $here/amdgpu-$version.patch ]] || die "$1 has the driver $version; there is no patch for it"
  mkdir "$work/tree" && (cd "$1" && tar c --exclude=.git --exclude='*.o' --exclude='*.ko' .) | tar x -C "$work/tree"
  patch -d "$work/tree" -p1 --fuzz=0 --no-backup-if-mismatch <"$here/amdgpu-$version.patch" >"$work/patch.log" ||
    { cat "$work/patch.log" >&2; die "the patch for $version does not apply to $1"; }
  echo "applies to $1 ($version) with fuzz 0"
}

# Compiles as AMD's own Makefile does, but only amdkfd.
compile() { # KERNEL
  local build=/lib/modules/$1/build log=$work/make.log objects=() file symbol missing=
  [[ -e $build/Module.symvers ]] || die "the headers of Linux $1 are missing: $build"
  # AMD's configure runs objtool outside of make. Debian's objtool needs this variable, which make would set; without it
  # every test of configure fails, and the build stops with "dma_resv->seq is missing".
  export SRCARCH=x86
  (cd "$work/tree" && amd/dkms/pre-build.sh "$1" "$work/tree" "$work/m" gcc) >"$work/pre-build.log" 2>&1 || { tail -n 20 "$work/pre-build.log" >&2; die 'pre-build.sh failed'; }
  for file in "$work"/tree/amd/amdkfd/*.c; do
    [[ $file != */kfd_svm.c && $file != */kfd_migrate.c ]] || continue # only built with CONFIG_HSA_AMD_SVM
    objects+=("amd/amdgpu/../amdkfd/$(basename "$file" .c).o")
  done
  make -C "$build" M="$work/m" -k -j"${JOBS:-$(nproc)}" TTM_NAME=amdttm SCHED_NAME=amd-sched "${objects[@]}" >"$log" 2>&1 || { grep -E 'error|Error' "$log" | head -n 40 >&2; die "amdkfd does not compile for $1"; }
  ! grep -E 'amdkfd/.*warning:' "$log" || die 'the compiler warns'
  for symbol in $(nm -u "$work/tree/amd/amdkfd/kfd_sched.o" | awk '{print $2}'); do
    grep -qP "^0x[0-9a-f]+\t$symbol\t" "$build/Module.symvers" || nm --defined-only "$work"/tree/amd/amdkfd/*.o 2>/dev/null | grep -qE " [TDBR] $symbol\$" ||
      grep -qE "^(int|uint|bool) $symbol\>" "$work"/tree/amd/amdgpu/amdgpu_drv.c || missing+=" $symbol"
  done
  [[ -z $missing ]] || die "not exported to modules, nor defined in amdkfd:$missing"
  echo "${#objects[@]} files of amdkfd compile for Linux $1; kfd_sched.o uses exported symbols only"
}

compare_patches
test_install
[[ -z ${1-} ]] || apply "$1"
[[ -z ${2-} ]] || compile "$2"
echo 'make dkms-check: all passed'
