#!/usr/bin/env bash
# Runs every test and benchmark that needs a real GPU. It needs root, NVIDIA's driver
# and the folder made by `make gpu-bundle`; neither Go nor a network.
#
#   ./gpu-tests.sh [-o FOLDER] [GROUP...]
#   ./gpu-tests.sh [-o FOLDER] targets [MINUTES]
#
# The results go to FOLDER (default: results), one JSON file per test, and what the daemon recorded of
# each phase of a benchmark to its folder traces. targets.md is the table of targets and what was
# measured, and is also printed at the end.
#
# The second form measures what the table needs, the most important first, for at most MINUTES
# (default 9), and goes on where the last call ended. Three calls should be enough. The folder done in
# FOLDER has a file for each part that was measured; without its file a part is measured again.
#
# Without a group all groups run, one after another. Every step has its own time limit, so that a hung
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
minutes=
while (($#)); do
  case $1 in
    -o) out=${2:?folder for the results}; shift ;;
    targets) minutes=9; [[ ! ${2:-} =~ ^[0-9]+$ ]] || { minutes=$2; shift; } ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) groups+=("$1") ;;
  esac
  shift
done
((${#groups[@]})) || [[ -n $minutes ]] || groups=("${all[@]}")
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

# time_left prints how many seconds the parts of this call may still take, at least 1.
time_left() {
  local left=$((minutes * 60 - 10 - SECONDS)) # 10 to end programs and write the table
  echo $((left > 1 ? left : 1))
}

# step SECONDS COMMAND...: one step with its own time limit; output is not buffered.
step() {
  local limit=$1 begun=$SECONDS status=0
  shift
  [[ -z $minutes ]] || ((limit <= $(time_left))) || limit=$(time_left)
  echo "== $* (at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" || status=$?
  echo "== took $((SECONDS - begun)) s, status $status"
  ((status == 0)) || { ((status != 124 && status != 137)) || { echo "== TIME LIMIT"; cut=1; }; failed+=("$*"); }
}

# e2e SECONDS TEST... [-FLAG VALUE]: each test is a step of its own, in a fresh process. At its limit
# timeout(1) ends the test's whole process group, so that the daemon restores everything.
e2e() {
  local limit=$1 test tests=()
  shift
  while (($#)) && [[ $1 != -* ]]; do
    tests+=("$1")
    shift
  done
  for test in "${tests[@]}"; do
    step "$limit" ./e2e.test -test.v -test.run "^$test\$" -test.timeout "$((limit + 60))s" "$@"
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
group_small() { bench 500 small --cases small,loop --length 5s; }

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

# part NAME EXPECTED MOST COMMAND...: measures a part of what the table of targets needs, unless that
# was done before, or less time is left than it is expected to take. COMMAND gets MOST, in seconds, after
# its first word. A part that failed is done; one that was ended by a limit is not.
later=()
part() {
  local name=$1 expected=$2 most=$3 command=$4
  shift 4
  [[ ! -e $out/done/$name ]] || { echo "==== $name: done before"; return; }
  ((expected <= $(time_left))) || { later+=("$name"); return; }
  echo "==== $name (about $expected s; $(time_left) s are left)"
  cut=
  "$command" "$most" "$@"
  if [[ -n $cut ]]; then later+=("$name"); else touch "$out/done/$name"; fi
}

# cases SECONDS LENGTH CASES: cases of the benchmark, to a file of the part's own.
cases() {
  bench "$1" "$name" --cases "$3" --length "$2" --targets-only
  [[ $name != pool-* ]] || step 30 ./giveway pool end
}

# kills SECONDS: kills the daemon as often as there is time for, until it was killed 300 times in tests
# that passed. That takes ten minutes, for which the target wants results compared; 200 kills would do.
# Each part has a file of its own.
kills() {
  local file=$out/TestKilledWithLateEntryAndPool number=300 limit=$1 before
  while read -r before; do
    number=$((number - $(sed -n 's/.*"name": "\([0-9]*\) kills".*/\1/p' "$before")))
  done < <(grep -ls '"passed": true' "$file"-*.json)
  ((limit <= $(time_left))) || limit=$(time_left)
  ((number > 0)) || return 0
  step "$limit" ./e2e.test -test.v -test.run '^TestKilledWithLateEntryAndPool$' -test.timeout "${limit}s" -kills "$number"
  [[ ! -e $file.json ]] || mv "$file.json" "$file-$name.json"
}

# What the table of targets needs: first what no run has shown yet, last what every run has. The times are
# those of an H200 on a fast host, where PyTorch processes take 20 s to start. A part that does not fit
# into the time that is left waits for the next call.
target_parts() {
  part contract 50 120 group_contract
  part orders 40 70 e2e TestShimOrder
  part discovery 18 60 e2e TestDaemonFindsEarlierProcesses TestContainer
  part pool-small 121 160 cases 11s pool-small
  part pool-mixed 105 160 cases 11s pool-mixed
  part kernels 88 130 cases 3s micro-212us,eight,poisson,priority
  part eager-loop 76 120 cases 8s eager-loop-late
  part kills-1 325 440 kills
  part decode 76 120 cases 8s decode-late
  part launch-cost 30 60 e2e TestShimCost -cost 'late entry'
  part kills-2 325 440 kills
  part many-small-online 72 120 cases 11s many-small-online
  part eager 90 140 cases 11s eager-late
  part heavy 72 120 cases 11s heavy
  part many-small 48 90 cases 6s many-small
  part loops 38 70 cases 3s loop-1us,loop-200us
  part kills-3 60 440 kills
}

if [[ -n $minutes ]]; then
  mkdir -p "$out/done"
  target_parts
  ((${#later[@]} == 0)) || echo "==== left for the next call: ${later[*]}"
fi
for g in "${groups[@]}"; do
  echo "==== group $g"
  "group_$g"
done
echo "==== targets"
./giveway-bench targets --results "$out" | tee "$out/targets.md"
((${#failed[@]} == 0)) || {
  echo "==== FAILED:"
  printf '  %s\n' "${failed[@]}"
  exit 1
}
echo "==== all passed"
