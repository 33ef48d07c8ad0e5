#!/usr/bin/env bash
# Runs every test and benchmark that needs a real AMD GPU. It needs root, the amdgpu
# driver (stock or with our patch, which is detected), ROCm's HIP runtime, and the folder
# made by `make amd-bundle`; neither Go nor a network.
#
#   ./amd-tests.sh [-o FOLDER] [--soak LENGTH] [GROUP...]
#
# The results go to FOLDER (default: results): JSON files, pages with plots, and
# targets.md, the table of the design notes' targets, which is also printed at the end.
# Without a group all groups run, one after another. Every step has its own time limit, so
# that a hung step costs only itself. Each group except soak takes less than ten minutes:
#
#   contract  the driver's calls, the doctor, the backend's conformance suite on real queues
#   stops     time to stop and start 1, 2, 10 and 64 queues: one by one, stock suspend, batch
#   bench     giveway bench without PyTorch: micro, eight, pause, loop
#   bench-torch  giveway bench with PyTorch for ROCm
#   daemon    a killed daemon, the floor, an idle job
#   churn     200 short processes
#   soak      processes that come and go under the daemon, for LENGTH (default 1h); use of slots
#
# No other program may use the GPU meanwhile. The script starts only processes of its own
# and ends them by their ids.
set -u
cd "$(dirname "$0")"
self=$(basename "$0")
all=(contract stops bench bench-torch daemon churn soak)

usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$self"; }

out=results
soak=1h
groups=()
while (($#)); do
  case $1 in
    -o) out=${2:?folder for the results}; shift ;;
    --soak) soak=${2:?length of the soak, such as 1h}; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) groups+=("$1") ;;
  esac
  shift
done
((${#groups[@]})) || groups=("${all[@]}")
for g in "${groups[@]}"; do
  [[ " ${all[*]} " == *" $g "* ]] || { echo "no group $g; there are: ${all[*]}" >&2; exit 2; }
done
soak_s=$(sed -nE 's/^([0-9]+)s$/\1/p; s/^([0-9]+)m$/\1*60/p; s/^([0-9]+)h$/\1*3600/p' <<<"$soak")
[[ -n $soak_s ]] || { echo "--soak $soak: want a length such as 90s, 10m or 1h" >&2; exit 2; }
soak_s=$((soak_s))

# A run on the doubles (make amd-bundle-test) says so, and is short.
label=
quick=${GIVEWAY_QUICK:-}
[[ -z ${GIVEWAY_DOUBLE:-} ]] || label=' [double, not hardware]'
rounds=200 queues=1,2,10,64 length=5s kills=12
[[ -z $quick ]] || { rounds=5 length=500ms kills=2; }
[[ $quick != least ]] || queues=1,10

[[ -e /dev/kfd ]] || { echo "no /dev/kfd: is the amdgpu driver loaded?" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "run it as root" >&2; exit 1; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
runtime=$(mktemp -d)
chmod 755 "$runtime" # a program of another user opens the device in it
export GIVEWAY_SOCKET=$runtime/giveway.sock
export GIVEWAY_BUNDLE=$PWD GIVEWAY_TORCH=$PWD/torch_client.py GIVEWAY_BENCH=$PWD/giveway-bench
export GIVEWAY_RESULTS=$out PYTHONUNBUFFERED=1
failed=()
daemon=

finish() {
  stop_daemon
  rm -f "/dev/giveway-kfd-$$"
  rm -rf "$runtime"
}
trap finish EXIT
trap 'exit 130' INT TERM

# step SECONDS COMMAND...: one step with its own time limit; output is not buffered.
step() {
  local limit=$1 begun=$SECONDS status=0
  shift
  echo "== $* (at most $limit s)$label"
  timeout --kill-after=10 "$limit" "$@" || status=$?
  echo "== took $((SECONDS - begun)) s, status $status$label"
  ((status == 0)) || { ((status != 124 && status != 137)) || echo "== TIME LIMIT"; failed+=("$*"); }
}

# e2e SECONDS TEST...: each test is a step of its own, in a fresh process.
e2e() {
  local limit=$1 name
  shift
  for name in "$@"; do
    step "$limit" ./e2e.test -test.v -test.run "^$name\$" -test.timeout "$((limit + 60))s" -kills "$kills"
  done
}

start_daemon() {
  ./giveway daemon --socket "$GIVEWAY_SOCKET" >>"$out/daemon.log" 2>&1 &
  daemon=$!
  for _ in {1..100}; do
    ./giveway policy >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "the daemon does not answer; its log:" >&2
  tail -20 "$out/daemon.log" >&2
}

stop_daemon() {
  [[ -z $daemon ]] || { kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; }
  daemon=
  rm -f "$GIVEWAY_SOCKET".journal # the next group begins without orders
}

# The table of the driver's calls needs a device that every user may open. A node of its
# own leaves the permissions of /dev/kfd as they are. Where devices do not work in the
# temporary folder (nodev), it is in /dev until the script ends.
node=
open_to_all() {
  node=/dev/kfd
  [[ -c /dev/kfd ]] || return 0
  local numbers="$((16#$(stat -c %t /dev/kfd))) $((16#$(stat -c %T /dev/kfd)))"
  for node in "$runtime/kfd" "/dev/giveway-kfd-$$"; do
    # shellcheck disable=SC2086 # two numbers
    mknod -m 666 "$node" c $numbers && (exec 3<>"$node") 2>/dev/null && return 0
    rm -f "$node"
  done
  node=/dev/kfd
}

group_contract() {
  step 30 ./giveway-bench calibrate
  open_to_all
  KFDTEST_DEV=$node KFDTEST_OUT=$out/kfd-calls.txt step 60 ./kfdtest.test -test.run '^TestConformance$/^Real$' -test.v
  if [[ -s $out/kfd-calls.txt ]]; then
    local file=stock.txt
    grep -q '^may unmap: 0' "$out/kfd-calls.txt" && file=patched.txt
    # Without a GPU the driver was seen to answer as in testdata. A difference is not a failure.
    diff "testdata/$file" "$out/kfd-calls.txt" >"$out/kfd-calls.diff" && echo "== as the driver of $file without a GPU$label" || echo "== differs from $file: see kfd-calls.diff$label"
  fi
  start_daemon
  step 30 ./giveway doctor
  stop_daemon
  step 240 ./amd.test -test.run OnGPU -test.v
}

group_stops() { step 580 ./giveway-bench stops --runtime hip --rounds "$rounds" --queues "$queues" --json "$out/stops.json" --html "$out/stops.html"; }

bench() {
  local limit=$1 name=$2
  shift 2
  start_daemon
  step "$limit" ./giveway-bench run --runtime hip --giveway ./giveway --json "$out/$name.json" --html "$out/$name.html" --traces "$out/traces" "$@"
  stop_daemon
}

group_bench() {
  local cases=micro,eight,pause,loop
  [[ -z $quick ]] || cases=micro-40ms,pause
  bench 580 bench --cases "$cases" --length "$length"
}

group_bench-torch() { bench 580 bench-torch --cases torch --length 8s; }

group_daemon() {
  e2e 120 TestDaemonKilledAtAnyInstant
  [[ -z $quick ]] || return
  e2e 120 TestBothKilledAtAnyInstant TestFloor TestOnlineLatency
  e2e 90 TestIdleBatchJobCostsNothing
}

group_churn() { e2e 240 TestShortProcesses; }

group_soak() {
  local extra=()
  [[ -z $quick ]] || extra=(--round 2s --batch 2 --streams 2)
  start_daemon
  step 30 ./giveway policy hpf # batch queues side by side, so that the slots are in use
  step $((soak_s + 300)) ./giveway-bench soak --runtime hip --giveway ./giveway --for "$soak" --json "$out/soak.json" "${extra[@]}"
  step 30 ./giveway doctor
  stop_daemon
}

[[ -z $label ]] || echo "==== DOUBLE, NOT HARDWARE: no figure below says anything about a GPU"
for g in "${groups[@]}"; do
  echo "==== group $g$label"
  "group_$g"
done
echo "==== targets$label"
./giveway-bench amd-targets --results "$out" | tee "$out/targets.md"
((${#failed[@]} == 0)) || {
  echo "==== FAILED:$label"
  printf '  %s\n' "${failed[@]}"
  exit 1
}
echo "==== all passed$label"
