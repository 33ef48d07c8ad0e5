#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Implements `make hip-check`: checks the shim and giveway_guard.h with AMD's real HIP, on
# a machine without an AMD GPU. HIP says which one:
#
#   (empty)     the one in PATH, or in /opt/rocm
#   DIRECTORY   the one whose compiler is DIRECTORY/bin/hipcc
#   fetch       Debian's packages, unpacked into out/hip (125 MB); nothing is installed
set -euo pipefail
cd "$(dirname "$0")/.."

# What hipcc, libamdhip64 and hiprtc need beside a system with clang-15.
packages=(hipcc libamdhip64-dev libamdhip64-5 libhiprtc-builtins5 rocm-device-libs libhsakmt1 libhsa-runtime64-1 rocminfo
  libamd-comgr2 libamd-comgr-dev libhsa-runtime-dev lld-15 clang-tools-15 liburi-encode-perl libfile-which-perl)

die() { printf '%s\n' "$*" >&2; exit 1; }

fetch() {
  local deb
  command -v clang-15 >/dev/null || die 'HIP=fetch needs clang-15: apt-get install --no-install-recommends clang-15'
  if [[ ! -x out/hip/root/usr/bin/hipcc || ! -e out/hip/complete ]]; then
    rm -rf out/hip
    mkdir -p out/hip/root
    (cd out/hip && apt-get -qq download "${packages[@]}") || die 'apt-get could not download; run apt-get update, or install hipcc libamdhip64-dev libhiprtc-builtins5'
    for deb in out/hip/*.deb; do dpkg -x "$deb" out/hip/root; done
    rm out/hip/*.deb
    touch out/hip/complete
  fi
  # hipcc looks for everything where the packages would have put it.
  prefix=$PWD/out/hip/root/usr
  local lib=$prefix/lib/x86_64-linux-gnu
  export HIP_PATH=$prefix HSA_PATH=$prefix ROCM_PATH=$prefix HIP_PLATFORM=amd HIP_CLANG_PATH=/usr/lib/llvm-15/bin
  export DEVICE_LIB_PATH=$lib/amdgcn/bitcode PERL5LIB=$prefix/share/perl5 LIBRARY_PATH=$lib LD_LIBRARY_PATH=$lib
  export PATH=$prefix/bin:$prefix/lib/llvm-15/bin:$PATH
}

prefix=${HIP:-}
case $prefix in
fetch) fetch ;;
'')
  hipcc=$(command -v hipcc || ls /opt/rocm/bin/hipcc 2>/dev/null) ||
    die 'HIP is missing: apt-get install --no-install-recommends hipcc libamdhip64-dev libhiprtc-builtins5, or use HIP=fetch, which installs nothing'
  prefix=$(dirname "$(dirname "$hipcc")")
  ;;
esac
[[ -x $prefix/bin/hipcc ]] || die "$prefix/bin/hipcc does not exist"
[[ -e $prefix/include/hip/hip_runtime_api.h ]] || die "$prefix has no headers of HIP; Debian: apt-get install libamdhip64-dev"

mkdir -p out
rm -f out/hip-check.md
status=0
go test -count=1 -run '^(TestRealHIP|TestHIPTypesDiffer)$' ./shim -args -hip "$(realpath "$prefix")" -hip-table "$PWD/out/hip-check.md" || status=$?
# What giveway-bench knows of HIP.
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-$prefix/lib} HIP_INCLUDE=$prefix/include go test -count=1 -run '^(TestHeaders|TestRealCompiler)$' ./internal/hip || status=$?
[[ ! -e out/hip-check.md ]] || cat out/hip-check.md
[[ $status == 0 ]] || die 'make hip-check: FAILED'
echo 'make hip-check: all passed'
