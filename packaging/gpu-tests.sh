#!/usr/bin/env bash
# Runs every test and benchmark that needs a real GPU. It needs root, NVIDIA's driver
# and the folder made by `make gpu-bundle`; neither Go nor a network.
#
#   ./gpu-tests.sh [-o FOLDER] [GROUP...]
#
# The results go to FOLDER (default: results), one JSON file per test, and what the daemon recorded of
# each phase of a benchmark to its folder traces. Without a group
# all groups run, one after another. Every step has its own time limit, so that a hung
# step costs only itself. Each group takes less than ten minutes:
#
#   contract  the driver's calls, the backend's conformance suite, the context-switch trace
#   daemon    killed daemon, floor, late daemon, idle job, namespaces, ordinary user, MPS
#   churn     200 short processes
#   latency   online latency beside 40 ms kernels
#   shim      order of calls, cost of a launch, holding and bounding, announced arrivals, guard
#   streams   two streams of one process: latencies with and without --stream-classes
#   slo       --slo with PyTorch, with synchronous kernels, with a loop that waits for each
#   torch     PyTorch with slices from the vendor's to the minimum; training with a bound
#   bench     giveway bench without PyTorch: micro, hint, eight, weights, pause, poisson, priority
#   bench-torch  giveway bench with PyTorch
#   small     giveway bench: launch-bound batch jobs, saturating ones, loops of launch and wait
#   late      late entry: equal results; giveway bench with launch-bound online programs
#   pool      the pool: members, a killed server, a killed daemon; giveway bench
#   record    delays, account of device time, trace and replay, cost of the record, a container
#
# It starts only processes of its own and ends them by their ids.
set -u
cd "$(dirname "$0")"
self=$(basename "$0")
all=(contract daemon churn latency shim streams slo torch bench bench-torch small late pool record)

usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$self"; }

out=results
groups=()
while (($#)); do
  case $1 in
    -o) out=${2:?folder for the results}; shift ;;
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

mkdir -p "$out"
out=$(cd "$out" && pwd)
runtime=$(mktemp -d)
export GIVEWAY_SOCKET=$runtime/giveway.sock
export GIVEWAY_BUNDLE=$PWD GIVEWAY_TORCH=$PWD/torch_client.py GIVEWAY_BENCH=$PWD/giveway-bench
export GIVEWAY_RESULTS=$out PYTHONUNBUFFERED=1
failed=()
daemon=
clients=()

finish() {
  stop_clients
  stop_daemon
  rm -rf "$runtime"
}
trap finish EXIT
trap 'exit 130' INT TERM

# step SECONDS COMMAND...: one step with its own time limit; output is not buffered.
step() {
  local limit=$1 begun=$SECONDS status=0
  shift
  echo "== $* (at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" || status=$?
  echo "== took $((SECONDS - begun)) s, status $status"
  ((status == 0)) || { ((status != 124 && status != 137)) || echo "== TIME LIMIT"; failed+=("$*"); }
}

# e2e SECONDS TEST...: each test is a step of its own, in a fresh process. At its limit
# timeout(1) ends the test's whole process group, so that the daemon restores everything.
e2e() {
  local limit=$1 name
  shift
  for name in "$@"; do
    step "$limit" ./e2e.test -test.v -test.run "^$name\$" -test.timeout "$((limit + 60))s"
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

stop_clients() {
  ((${#clients[@]} == 0)) || { kill "${clients[@]}" 2>/dev/null; wait "${clients[@]}" 2>/dev/null; }
  clients=()
}

group_contract() {
  step 60 ./nvrm.test -test.run TestDoubleAnswersAsDriver -test.v
  step 240 ./nvidia.test -test.run OnGPU -test.v
  start_daemon
  step 30 ./giveway doctor
  local kernel
  for kernel in 200us 1ms; do # clients end with their input, after 60 s at the latest
    ./giveway-bench be --kernel "$kernel" < <(exec sleep 60) >/dev/null &
    clients+=($!)
  done
  sleep 4
  step 30 ./giveway ps
  NVTRACE_GPU=1 step 60 ./nvtrace.test -test.run TestOnGPU -test.v
  stop_clients
  stop_daemon
}

group_daemon() {
  e2e 90 TestDaemonKilledAtAnyInstant
  e2e 120 TestBothKilledAtAnyInstant
  e2e 120 TestFloor
  e2e 60 TestDaemonFindsEarlierProcesses TestOtherNamespaces TestOrdinaryUser TestMPS
  e2e 90 TestIdleBatchJobCostsNothing
}

group_churn() { e2e 240 TestShortProcesses; }
group_latency() { e2e 120 TestOnlineLatency; }

group_shim() {
  e2e 180 TestShimOrder
  e2e 120 TestShimCost
  e2e 120 TestShimOnly
  e2e 150 TestAnnouncedArrivals
  e2e 90 TestGuard
}

group_streams() { e2e 90 TestStreamClasses; }

group_slo() {
  e2e 330 TestSLO
  e2e 180 TestSLOSynchronous
  e2e 90 TestSLOLoop
}

group_torch() {
  e2e 250 TestTorchSlices
  e2e 330 TestTrainingBound
}

bench() {
  local limit=$1 name=$2
  shift 2
  start_daemon
  step "$limit" ./giveway-bench run --giveway ./giveway --json "$out/$name.json" --html "$out/$name.html" --traces "$out/traces" "$@"
  stop_daemon
}

group_bench() { bench 580 bench --cases micro,hint,eight,weights,pause,poisson,priority; }
group_bench-torch() { bench 400 bench-torch --cases torch --length 8s; }
group_small() { bench 400 small --cases small,loop --length 3s; }

group_late() {
  e2e 180 TestLateEntryIsExact
  bench 400 late --cases late --length 3s
}

# pool_state shows what tells why a pool does not do what it should.
pool_state() {
  local folder=/run/giveway-pool
  ((EUID == 0)) || folder=/tmp/giveway-$EUID/pool
  folder=${GIVEWAY_POOLS:-$folder}
  echo "== state of the pool in $folder"
  ./giveway pool --json
  ls -lanR "$folder"
  tail -n 30 "$folder"/*/log/*
}

group_pool() {
  local before=${#failed[@]}
  e2e 120 TestPool
  e2e 180 TestKilledWithLateEntryAndPool
  bench 300 pool --cases pool --length 3s
  ((${#failed[@]} == before)) || pool_state 2>&1
  step 30 ./giveway pool end
}

group_record() { e2e 120 TestDelays TestAccount TestPromises TestTraceOfGPU TestRecordCost TestContainer; }

for g in "${groups[@]}"; do
  echo "==== group $g"
  "group_$g"
done
((${#failed[@]} == 0)) || {
  echo "==== FAILED:"
  printf '  %s\n' "${failed[@]}"
  exit 1
}
echo "==== all passed"
