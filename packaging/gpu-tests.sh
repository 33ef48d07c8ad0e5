#!/usr/bin/env bash
# What needs a real GPU, on a machine with NVIDIA's driver and neither Go nor a
# network: run this in the folder that `make gpu-bundle` made, as root.
#
#   ./gpu-tests.sh [folder for the results] [flags of giveway-bench run]
#
# It starts only processes of its own and ends with everything restored.
set -u
cd "$(dirname "$0")"
out=${1:-results}
shift || true
mkdir -p "$out"
export GIVEWAY_SOCKET=$(mktemp -d)/giveway.sock
failed=0
check() { echo "== $*"; "$@" || { echo "FAILED: $*"; failed=1; }; }

check ./nvrm.test -test.run TestContract -test.v
GIVEWAY_BENCH=./giveway-bench check ./nvidia.test -test.run OnGPU -test.v
GIVEWAY_BUNDLE=$PWD GIVEWAY_TORCH=$PWD/torch_client.py check ./e2e.test -test.v -test.timeout 40m # some 15 minutes

./giveway daemon --socket "$GIVEWAY_SOCKET" > "$out/daemon.log" 2>&1 &
daemon=$!
trap 'pkill -P $$ -x giveway-bench; kill $daemon 2>/dev/null; wait $daemon' EXIT
sleep 2
check ./giveway doctor

(sleep 30 | ./giveway-bench be --kernel 200us > /dev/null) &
(sleep 30 | ./giveway-bench be --kernel 1ms > /dev/null) &
sleep 4
check ./giveway ps
NVTRACE_GPU=1 check ./nvtrace.test -test.run TestOnGPU -test.v
pkill -x giveway-bench
sleep 1

check ./giveway bench -- --json "$out/bench.json" --html "$out/bench.html" "$@"
exit $failed
