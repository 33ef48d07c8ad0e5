#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Builds amdgpu-dkms with our patch, beside the one that is installed.
#
#   install.sh install [VERSION]   copy /usr/src/amdgpu-VERSION, patch the copy, build and install it for the running kernel
#   install.sh remove [VERSION]    remove the patched module, and install the one of the package again
#   install.sh status              print what there is
#
# The package's own sources are not changed. The copy is /usr/src/amdgpu-VERSION+giveway, and DKMS knows it as a later
# version of amdgpu: it is also built for kernels that are installed later. The module is loaded at the next start.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
src=${AMDGPU_SRC:-/usr/src} # where the sources are; for tests
export SRCARCH=${SRCARCH:-x86} # for Debian's objtool, which AMD's configure runs outside of make
suffix=+giveway

die() { printf '%s\n' "$*" >&2; exit 1; }

supported() { (cd "$here" && ls amdgpu-*.patch) | sed 's/^amdgpu-//; s/\.patch$//' | tr '\n' ' '; }

# Prints the version of the driver in a source tree, such as 6.12.12: the package's version has a build number behind it.
driver_version() { sed -n 's/^AC_INIT(\[\{0,1\}amdgpu-dkms\]\{0,1\}, *\[\{0,1\}\([0-9.]*\)\]\{0,1\}).*/\1/p' "$1/amd/dkms/configure.ac" 2>/dev/null; }

# Prints the version of the package: the one that is given, or the only one there is.
package_version() {
  local found=() dir
  if [[ ${1-} ]]; then
    [[ -e $src/amdgpu-$1/dkms.conf ]] || die "$src/amdgpu-$1 has no sources of amdgpu-dkms"
    echo "$1"
    return
  fi
  for dir in "$src"/amdgpu-*/; do
    dir=$(basename "$dir")
    [[ -e $src/$dir/dkms.conf && $dir != *"$suffix" ]] && found+=("${dir#amdgpu-}")
  done
  ((${#found[@]})) || die "no sources in $src/amdgpu-*: install AMD's package amdgpu-dkms first. For a distribution's own amdgpu see ../README.md"
  ((${#found[@]} == 1)) || die "there are several versions, name one: ${found[*]}"
  echo "${found[0]}"
}

# Copies and patches the sources. Nothing is left if that fails.
make_copy() { # VERSION
  local from=$src/amdgpu-$1 to=$src/amdgpu-$1$suffix driver patch
  driver=$(driver_version "$from")
  patch=$here/amdgpu-${driver:-unknown}.patch
  [[ -e $patch ]] || die "amdgpu-dkms $1 has the driver ${driver:-of an unknown version}; there are patches for: $(supported)"
  [[ ! -e $from/amd/amdkfd/kfd_sched.c ]] || die "$from is patched already"
  rm -rf "$to.new"
  # amdgpu.ko and other results of builds by hand are not sources.
  mkdir "$to.new" && (cd "$from" && tar c --exclude='*.o' --exclude='*.ko' --exclude='.*.cmd' .) | tar x -C "$to.new"
  if ! patch -d "$to.new" -p1 --fuzz=0 --no-backup-if-mismatch -s <"$patch"; then
    rm -rf "$to.new"
    die "the patch for $driver does not fit amdgpu-dkms $1: its sources differ from those that it was made for. Nothing was changed"
  fi
  sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\"$1$suffix\"/" "$(realpath "$to.new/dkms.conf")"
  grep -q "^PACKAGE_VERSION=\"$1$suffix\"" "$to.new/dkms.conf" || { rm -rf "$to.new"; die "$from/dkms.conf has no PACKAGE_VERSION"; }
  rm -rf "$to"
  mv "$to.new" "$to"
}

install() {
  local version kernel
  version=$(package_version "${1-}")
  kernel=$(uname -r)
  command -v dkms >/dev/null || die 'dkms is missing'
  make_copy "$version"
  dkms add "amdgpu/$version$suffix"
  if ! dkms build "amdgpu/$version$suffix" -k "$kernel" || ! dkms install "amdgpu/$version$suffix" -k "$kernel" --force; then
    drop "$version"
    die "the patched amdgpu could not be built for $kernel; the package's own is installed as before. The compiler's output is above, or in make.log as dkms says"
  fi
  echo "amdgpu/$version$suffix is installed for $kernel. Restart the machine; then giveway doctor shows AMD batch."
  [[ $(mokutil --sb-state 2>/dev/null) != *enabled* ]] || echo 'Secure boot is on: the key that dkms signs with must be enrolled (mokutil --import).'
}

# Removes the patched version and installs the package's.
drop() { # VERSION
  dkms remove "amdgpu/$1$suffix" --all || true
  rm -rf "$src/amdgpu-$1$suffix"
  dkms install "amdgpu/$1" -k "$(uname -r)" --force
}

remove() {
  local version
  version=$(package_version "${1-}")
  [[ -e $src/amdgpu-$version$suffix ]] || die "amdgpu-dkms $version was not patched by this script"
  drop "$version"
  echo "amdgpu/$version is installed again. Restart the machine."
}

status() {
  local version
  version=$(package_version "${1-}")
  echo "amdgpu-dkms $version, driver $(driver_version "$src/amdgpu-$version"); patches for: $(supported)"
  if [[ -e $src/amdgpu-$version$suffix ]]; then echo "patched copy: $src/amdgpu-$version$suffix"; else echo 'not patched'; fi
  dkms status amdgpu
}

case ${1-} in
install | remove) [[ -w $src ]] || die "$src cannot be written: run as root"; "$@" ;;
status) "$@" ;;
*) die "usage: $0 install|remove|status [VERSION]" ;;
esac
