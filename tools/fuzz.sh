#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each, one after the other, and prints
# how many inputs each has executed. Minimising is bounded: without a bound it takes most
# of the time, because inputs are long and runs are not deterministic to the nanosecond.
# Arguments: packages; without any, all of the module.
set -euo pipefail
time=${FUZZTIME:-30s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# go test -list prints the targets of a package, then "ok" and the package.
targets=$(go test -list '^Fuzz' "${@:-./...}" | awk '/^Fuzz/ { names[n++] = $1 } /^ok/ { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }')
[[ -n $targets ]] || { echo 'no fuzz targets found' >&2; exit 1; }

status=0 report=
while read -r package name; do
  echo "== $name of $package, for $time"
  result=passed
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 200x "$package" </dev/null 2>&1 | tee "$log" || { result=FAILED status=1; }
  execs=$(sed -nE 's/.*execs: ([0-9]+).*/\1/p' "$log" | tail -n 1)
  report+=$(printf '%-44s %-16s %12s executions  %s' "$package" "$name" "${execs:-0}" "$result")$'\n'
done <<<"$targets"
printf '\n%s' "$report"
exit "$status"
