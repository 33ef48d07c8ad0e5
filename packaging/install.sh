#!/usr/bin/env bash
# install.sh install|uninstall: what `make install` and `make uninstall` run. The
# variables PREFIX, UNITDIR, DESTDIR and BIN come from the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PREFIX:=/usr/local}" "${UNITDIR:=$PREFIX/lib/systemd/system}" "${DESTDIR:=}" "${BIN:=bin}"

config=/etc/giveway/giveway.yaml # config.Path in internal/config
completions=(
  "bash $PREFIX/share/bash-completion/completions/giveway"
  "zsh $PREFIX/share/zsh/site-functions/_giveway"
  "fish $PREFIX/share/fish/vendor_completions.d/giveway.fish"
)
headers=(shim/giveway.h shim/giveway_guard.h shim/queue.h)
documents=$PREFIX/share/doc/giveway # messages and man pages name files in it: docs/CONFIG.md, scenarios/demo.yaml

# put MODE FILE TARGET installs one file.
put() {
  install -D -m "$1" "$2" "$DESTDIR$3"
  echo "  $DESTDIR$3"
}

# fill FILE replaces the @NAMES@ of paths and the version in a template.
fill() {
  sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@BINDIR@|$PREFIX/bin|g" -e "s|@VERSION@|$version|g" "$1"
}

install_all() {
  for program in giveway giveway-bench libgiveway.so; do
    [[ -e $BIN/$program ]] || { echo "$BIN/$program does not exist: run make first, without sudo" >&2; exit 1; }
  done
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  version=$("$BIN/giveway" version --json | sed -nE 's/.*"version": *"([^"]+)".*/\1/p')

  put 755 "$BIN/giveway" "$PREFIX/bin/giveway"
  put 755 "$BIN/giveway-bench" "$PREFIX/bin/giveway-bench"
  put 755 "$BIN/libgiveway.so" "$PREFIX/lib/libgiveway.so"
  for header in "${headers[@]}"; do
    put 644 "$header" "$PREFIX/include/giveway/$(basename "$header")"
  done
  fill packaging/giveway.pc.in >"$temporary/giveway.pc"
  put 644 "$temporary/giveway.pc" "$PREFIX/lib/pkgconfig/giveway.pc"
  fill packaging/giveway.service.in >"$temporary/giveway.service"
  put 644 "$temporary/giveway.service" "$UNITDIR/giveway.service"

  mkdir "$temporary/man"
  "$BIN/giveway" man "$temporary/man"
  for page in "$temporary"/man/*.1; do
    put 644 "$page" "$PREFIX/share/man/man1/$(basename "$page")"
  done
  for completion in "${completions[@]}"; do
    read -r shell target <<<"$completion"
    "$BIN/giveway" completion "$shell" >"$temporary/completion"
    put 644 "$temporary/completion" "$target"
  done
  find README.md docs scenarios -type f | while read -r file; do
    put 644 "$file" "$documents/$file"
  done

  if [[ -e $DESTDIR$config ]]; then
    echo "  $DESTDIR$config exists and is kept"
  else
    put 644 packaging/giveway.yaml "$config"
  fi
  [[ -n $DESTDIR ]] || cat <<MESSAGE
To start the daemon:   systemctl daemon-reload && systemctl enable --now giveway
To link libgiveway:    ldconfig
docs/ and scenarios/:  $documents
MESSAGE
}

uninstall_all() {
  [[ -n $DESTDIR ]] || ! systemctl is-active --quiet giveway 2>/dev/null ||
    { echo 'the daemon is running: systemctl disable --now giveway' >&2; exit 1; }
  local files=(
    "$PREFIX"/bin/giveway "$PREFIX"/bin/giveway-bench "$PREFIX"/lib/libgiveway.so
    "$PREFIX"/lib/pkgconfig/giveway.pc "$UNITDIR"/giveway.service
  )
  for header in "${headers[@]}"; do files+=("$PREFIX/include/giveway/$(basename "$header")"); done
  for completion in "${completions[@]}"; do files+=("${completion#* }"); done
  for file in "${files[@]}"; do rm -fv "$DESTDIR$file"; done
  rm -rf "$DESTDIR$documents" && echo "removed '$DESTDIR$documents'"
  rm -fv "$DESTDIR$PREFIX"/share/man/man1/giveway.1 "$DESTDIR$PREFIX"/share/man/man1/giveway-*.1
  if cmp -s packaging/giveway.yaml "$DESTDIR$config"; then
    rm -fv "$DESTDIR$config"
  elif [[ -e $DESTDIR$config ]]; then
    echo "$DESTDIR$config was changed and is kept"
  fi
  for folder in "$PREFIX/include/giveway" "$(dirname "$config")"; do
    [[ ! -d $DESTDIR$folder ]] || rmdir --ignore-fail-on-non-empty "$DESTDIR$folder"
  done
}

case ${1-} in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac
