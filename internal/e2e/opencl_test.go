package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
)

// These tests run the daemon and OpenCL programs on a device that only the shim controls: the
// CPU, through PoCL. They need no GPU.

// openclEnv is how long TestOpenCLShares measures each case, for example 30s. With it the test
// runs all cases and checks shares exactly; without, it runs a few, briefly, with limits that
// hold on a busy machine.
const openclEnv = "GIVEWAY_OPENCL_SHARES"

// job is a program beside others: a batch job launches kernels without waiting for them, an
// online process waits for the end of each request.
type job struct {
	attrs string
	work  string
	want  float64 // share of the commands of the batch jobs; zero: an online process
}

func batch(attrs string, want float64) job {
	return job{strings.TrimSpace("--class batch " + attrs), "chain 100000000 3000", want}
}

// busyOnline always has work.
var busyOnline = job{"--class online", "paced 100000000 3000 0", 0}

type sharesCase struct {
	policy string
	jobs   []job
	short  bool // also run without openclEnv
}

// sharesCases has two and three batch jobs under each policy that shares a device, alone and
// beside online work.
func sharesCases() (cases []sharesCase) {
	for _, p := range []string{"slo", "giveway", "wfq", "cfs"} {
		cases = append(cases,
			sharesCase{p, []job{batch("", 1./2), batch("", 1./2)}, p == "slo"},
			sharesCase{p, []job{batch("--weight 4", 4./5), batch("", 1./5)}, p == "wfq"},
			sharesCase{p, []job{batch("--weight 3", 1./2), batch("--weight 2", 1./3), batch("", 1./6)}, false})
	}
	for _, p := range []string{"rr", "mlfq"} {
		cases = append(cases,
			sharesCase{p, []job{batch("", 1./2), batch("", 1./2)}, false},
			sharesCase{p, []job{batch("", 1./3), batch("", 1./3), batch("", 1./3)}, false})
	}
	for _, p := range []string{"share", "share-process"} {
		cases = append(cases,
			sharesCase{p, []job{batch("--share 70%", 0.7), batch("--share 30%", 0.3)}, false},
			sharesCase{p, []job{batch("--share 50%", 0.5), batch("", 0.25), batch("", 0.25)}, false})
	}
	for _, p := range []string{"slo", "giveway", "wfq", "cfs", "rr", "mlfq", "share", "share-process"} {
		cases = append(cases,
			sharesCase{p, []job{batch("", 1./2), batch("", 1./2), busyOnline}, p == "slo"},
			sharesCase{p, []job{batch("", 1./3), batch("", 1./3), batch("", 1./3), busyOnline}, false})
	}
	return cases
}

// TestOpenCLShares: asynchronous batch jobs get device time in proportion to their weights, and
// none is without progress for long, even beside online work that always has work.
func TestOpenCLShares(t *testing.T) {
	length, exact := 3*time.Second, false
	if text := os.Getenv(openclEnv); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", openclEnv, err)
		}
		exact = true
	} else if testing.Short() {
		t.Skip("runs for 20 s")
	}
	dir := buildOpenCL(t)
	for _, c := range sharesCases() {
		if !c.short && !exact {
			continue
		}
		name := c.policy
		for _, j := range c.jobs {
			name += " " + strings.TrimPrefix(strings.TrimPrefix(j.attrs, "--class "), "batch --")
		}
		t.Run(name, func(t *testing.T) { runShares(t, dir, c, length, exact) })
	}
}

// buildOpenCL builds the daemon and the OpenCL program. It skips the test where that is not
// possible.
func buildOpenCL(t *testing.T) (dir string) {
	dir = t.TempDir()
	for _, tool := range []string{"go", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	work := filepath.Join(dir, "openclwork")
	for _, args := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "giveway"), "../../cmd/giveway"},
		{"gcc", "-std=gnu11", "-O2", "-o", work, "../../shim/test/openclwork.c", "-ldl"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	cmd := exec.Command(work, "chain", "1", "1")
	cmd.Env = append(os.Environ(), "POCL_CACHE_DIR="+filepath.Join(dir, "pocl"))
	if out, err := cmd.CombinedOutput(); err != nil {
		if os.Getenv("GIVEWAY_TEST_OPENCL") != "" {
			t.Fatalf("no OpenCL: %v: %s", err, out)
		}
		t.Skip("no OpenCL; install pocl-opencl-icd and ocl-icd-libopencl1")
	}
	return dir
}

func runShares(t *testing.T, dir string, c sharesCase, length time.Duration, exact bool) {
	b, pids := startJobs(t, dir, c)
	first, longest := b.watchProgress(pids, length)
	checkProgress(t, c, first, longest, exact)
}

// TestOpenCLSideBySide: the shim tells that jobs that wait for their work do not fill the device. They
// run side by side with one that does not wait, and with it take no turns.
func TestOpenCLSideBySide(t *testing.T) {
	dir := buildOpenCL(t)
	waits := job{attrs: "--class batch", work: "paced 100000000 300 300"}
	b, pids := startJobs(t, dir, sharesCase{policy: "giveway", jobs: []job{waits, waits, batch("", 1)}})
	beside := func() string {
		text, all := "", b.processes()
		for i, pid := range pids {
			at := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid })
			if at >= 0 && len(all[at].Queues) > 0 {
				text += fmt.Sprintf("job %d: %v; ", i, all[at].Queues[0].SideBySide)
			}
		}
		return text
	}
	const want = "job 0: true; job 1: true; job 2: false; "
	for end := time.Now().Add(time.Minute); beside() != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("side by side after a minute: %q, want %q", beside(), want)
		}
	}
}

// startJobs starts a daemon and the jobs of a case, and returns the pids of the jobs.
func startJobs(t *testing.T, dir string, c sharesCase) (b *testbed, pids []int) {
	b = &testbed{T: t, bundle: dir, socket: filepath.Join(t.TempDir(), "s"), log: filepath.Join(t.TempDir(), "daemon.log")}
	config := filepath.Join(dir, "giveway.yaml")
	if err := os.WriteFile(config, []byte("policy: "+c.policy+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.startDaemon("--user", "--config", config)
	for _, j := range c.jobs {
		args := slices.Concat([]string{"run"}, strings.Fields(j.attrs), []string{"--", filepath.Join(dir, "openclwork")}, strings.Fields(j.work))
		cmd := b.command("giveway", args...)
		cmd.Env = append(cmd.Env, "POCL_CACHE_DIR="+filepath.Join(dir, "pocl"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM) // which run passes on
			_ = cmd.Wait()
		})
		pids = append(pids, childOf(t, cmd.Process.Pid, filepath.Join(dir, "openclwork")))
	}
	return b, pids
}

// childOf waits until a process has a child that runs a program, and returns its pid. The
// process may have other children for a moment: Go's first fork is a trial.
func childOf(t *testing.T, pid int, program string) (child int) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range threads {
			text, _ := os.ReadFile(file)
			for _, word := range strings.Fields(string(text)) {
				if exe, _ := os.Readlink("/proc/" + word + "/exe"); exe == program {
					child, _ = strconv.Atoi(word)
					return child
				}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("process %d has no child that runs %s after a minute", pid, program)
		}
	}
}

// watchProgress waits until every process has completed commands. Then it returns how many each
// completes in the time length, and the longest time in which each completes none.
func (b *testbed) watchProgress(pids []int, length time.Duration) (completed []uint64, longest []time.Duration) {
	b.Helper()
	for end := time.Now().Add(time.Minute); slices.Contains(b.completed(pids), 0); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("commands completed after a minute: %v", b.completed(pids))
		}
	}
	time.Sleep(500 * time.Millisecond) // the last one has just begun
	began := b.completed(pids)
	last := slices.Clone(began)
	since := slices.Repeat([]time.Time{time.Now()}, len(pids))
	longest = make([]time.Duration, len(pids))
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for i, n := range b.completed(pids) {
			longest[i] = max(longest[i], time.Since(since[i]))
			if n != last[i] {
				last[i], since[i] = n, time.Now()
			}
		}
	}
	completed = make([]uint64, len(pids))
	for i := range pids {
		completed[i] = last[i] - began[i]
	}
	return completed, longest
}

// completed returns how many commands each process has completed.
func (b *testbed) completed(pids []int) []uint64 {
	b.Helper()
	all := b.processes()
	counts := make([]uint64, len(pids))
	for i, pid := range pids {
		at := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid })
		if at >= 0 && all[at].Shim != nil {
			counts[i] = all[at].Shim.Completed
		}
	}
	return counts
}

// processes returns what ps prints.
func (b *testbed) processes() []api.Process {
	b.Helper()
	var printed struct{ Processes []api.Process }
	if err := json.Unmarshal([]byte(b.mustGiveway("ps", "--json")), &printed); err != nil {
		b.Fatal(err)
	}
	return printed.Processes
}

// onlineFirst reports whether a policy leaves batch work only the floor beside online work that never
// rests.
func onlineFirst(policy string) bool { return policy == "slo" || policy == "giveway" }

// checkProgress checks the shares of the batch jobs, and that no process was without progress
// for long.
func checkProgress(t *testing.T, c sharesCase, completed []uint64, longest []time.Duration, exact bool) {
	tolerance, pause := 0.1, 3*time.Second
	switch online := slices.ContainsFunc(c.jobs, func(j job) bool { return j.want == 0 }); {
	case exact && onlineFirst(c.policy) && online && len(c.jobs) > 3:
		tolerance = 0.25 // on the floor each has a dozen turns in 30 s, of different lengths
	case exact:
	case online: // beside it the jobs have only the floor, so a few turns in such a short time
		tolerance, pause = 0.8, 5*time.Second
	default:
		tolerance, pause = 0.5, 5*time.Second
	}
	total := uint64(0)
	for i, j := range c.jobs {
		if j.want > 0 {
			total += completed[i]
		}
	}
	text, bad := "", total == 0
	for i, j := range c.jobs {
		share := float64(completed[i]) / float64(max(total, 1))
		bad = bad || j.want > 0 && math.Abs(share-j.want) > tolerance*j.want || longest[i] > pause
		text += fmt.Sprintf("\n  %-28s %6d commands, %.3f of batch work, want %.3f; longest pause %v", j.attrs, completed[i], share, j.want, longest[i].Round(time.Millisecond))
	}
	t.Log(c.policy, text)
	if bad {
		t.Errorf("a share is off by more than %v, or a pause is longer than %v", tolerance, pause)
	}
}
