#!/usr/bin/env bash
# Prints the version of this source tree:
#
#   0.2.0                the tag v0.2.0 itself
#   0.2.0-5-g1a2b3c4     five commits after that tag
#   0.1.0+g1a2b3c4       a clone without tags: the file VERSION and the commit
#   0.1.0                no git: the file VERSION
#
# ".dirty" is appended when tracked files are modified.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(<VERSION)
# -e .git: a source archive inside some other repository must not describe that one.
if [[ ! -e .git ]] || ! commit=$(git rev-parse --short HEAD 2>/dev/null); then
  echo "$release"
  exit
fi
if tag=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
  version=${tag#v}
else
  version=$release+g$commit
fi
git diff-index --quiet HEAD -- 2>/dev/null || version+=.dirty
echo "$version"
