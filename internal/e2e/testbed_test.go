// Package e2e runs the real daemon and real CUDA processes on a real GPU. It needs
// a folder made by `make gpu-bundle`, an otherwise idle GPU, and root:
//
//	GIVEWAY_BUNDLE=. GIVEWAY_RESULTS=results ./e2e.test -test.v
//
// Without GIVEWAY_BUNDLE every test is skipped. Each test records what it measured
// (see results_test.go) and checks ratios between measurements of the same run: to
// the client alone, to the vendor's time-slicing ("native"), or to the daemon
// stopped. The limits leave room for a noisy host and fail on a 1.5x regression.
package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/bench"
)

const (
	bundleEnv = "GIVEWAY_BUNDLE" // the folder that make gpu-bundle made
	torchEnv  = "GIVEWAY_TORCH"  // the path of torch_client.py
)

// testbed is one test with a daemon and client processes of its own.
type testbed struct {
	*testing.T
	bundle  string
	socket  string
	daemon  *exec.Cmd
	log     string              // the daemon's standard error
	user    *syscall.Credential // runs the daemon and the clients; nil: the test's own user
	results results

	nsPer, nsPerTiny string // nanoseconds per iteration of the full-grid and the one-block kernel
}

// calibration is measured once, before anything else uses the GPU.
var calibration *bench.Message

// newTestbed skips the test when there is no bundle.
func newTestbed(t *testing.T) *testbed {
	t.Helper()
	bundle := os.Getenv(bundleEnv)
	if bundle == "" {
		t.Skip(bundleEnv + " is not set: it names the folder made by make gpu-bundle, and a GPU is needed")
	}
	bundle, err := filepath.Abs(bundle)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "giveway-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &testbed{T: t, bundle: bundle, socket: filepath.Join(dir, "giveway.sock"), log: filepath.Join(dir, "daemon.log")}
	b.calibrate()
	b.openResults()
	return b
}

func (b *testbed) calibrate() {
	b.Helper()
	if calibration == nil {
		out, err := b.command("giveway-bench", "calibrate").Output()
		var m bench.Message
		if err == nil {
			err = json.Unmarshal(out, &m)
		}
		if err != nil || m.Calibration == nil || m.Calibration.Full == nil || m.Calibration.Tiny == nil {
			b.Fatalf("giveway-bench calibrate: %v: %s", err, out)
		}
		calibration = &m
	}
	c := calibration.Calibration
	b.nsPer, b.nsPerTiny = fmt.Sprint(c.Full.NsPerIteration), fmt.Sprint(c.Tiny.NsPerIteration)
}

// command returns a program of the bundle, not yet started.
func (b *testbed) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(b.bundle, name), args...)
	dir := filepath.Dir(b.socket)
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+b.socket, "HOME="+dir, "GIVEWAY_POOLS="+filepath.Join(dir, "pools"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.user}
	return cmd
}

// startDaemon starts the daemon and waits until it answers.
func (b *testbed) startDaemon(args ...string) {
	b.Helper()
	if b.user != nil { // a daemon listens only in a folder of its own user or of root
		if err := os.Chown(filepath.Dir(b.socket), int(b.user.Uid), int(b.user.Gid)); err != nil {
			b.Fatal(err)
		}
	}
	cmd := b.command("giveway", append([]string{"daemon", "--socket", b.socket}, args...)...)
	log, err := os.OpenFile(b.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.daemon = cmd
	b.Cleanup(func() {
		if b.daemon == cmd {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
		if text, _ := os.ReadFile(b.log); b.Failed() && len(text) > 0 {
			b.Logf("the daemon's log:\n%s", text)
		}
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err := b.giveway("policy")
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("the daemon does not answer within 10 s: %v", err)
		}
	}
}

// startShimOnlyDaemon starts a daemon that does not use the driver: only the shim
// stops and starts queues.
func (b *testbed) startShimOnlyDaemon() {
	b.Helper()
	file := filepath.Join(filepath.Dir(b.socket), "giveway.yaml")
	if err := os.WriteFile(file, []byte(shimOnlyConfig), 0o644); err != nil {
		b.Fatal(err)
	}
	b.startDaemon("--config", file)
}

func (b *testbed) killDaemon() {
	_ = b.daemon.Process.Kill()
	_ = b.daemon.Wait()
	b.daemon = nil
}

// giveway runs one command of the CLI and returns what it printed.
func (b *testbed) giveway(args ...string) (string, error) {
	out, err := b.command("giveway", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("giveway %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// mustGiveway is giveway for commands that have to succeed.
func (b *testbed) mustGiveway(args ...string) string {
	b.Helper()
	out, err := b.giveway(args...)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// policy selects a policy and waits until it is in force.
func (b *testbed) policy(name string) {
	b.Helper()
	b.mustGiveway("policy", name)
	time.Sleep(500 * time.Millisecond)
}

// set changes attributes of a process, and retries until the daemon knows it.
func (b *testbed) set(pid int, args ...string) {
	b.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := b.giveway(append([]string{"set", strconv.Itoa(pid)}, args...)...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.Fatal(err)
		}
	}
}

// process is the part of giveway ps --json that the tests use.
type process struct {
	PID    int
	Class  string
	Queues []listedQueue
	Shim   *shimCounters
	Member *struct { // of an MPS server
		Server int
		Pool   string
	}
}

// shimCounters is the part of the shim's counters that the tests use.
type shimCounters struct {
	Late    uint64        `json:"late_requests"`
	Early   uint64        `json:"late_early"`
	LateFor time.Duration `json:"late_ns"`
}

func (b *testbed) ps() []process {
	b.Helper()
	out := b.mustGiveway("ps", "--json")
	var printed struct{ Processes []process }
	if err := json.Unmarshal([]byte(out), &printed); err != nil {
		b.Fatalf("giveway ps --json: %v: %s", err, out)
	}
	return printed.Processes
}

// listedQueue is what giveway ps prints about a queue.
type listedQueue struct {
	Can    []string
	State  string
	Slice  time.Duration `json:"slice_ns"`
	Found  time.Duration `json:"found_ns"`
	Shared string        `json:"shared_by"`
}

// await waits until the daemon knows these processes and can control their queues. A new queue
// settles for a quarter of a second before that.
func (b *testbed) await(pids ...int) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		known := 0
		for _, p := range b.ps() {
			if slices.Contains(pids, p.PID) && !slices.ContainsFunc(p.Queues, func(q listedQueue) bool { return len(q.Can) == 0 }) {
				known++
			}
		}
		if known == len(pids) {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("the daemon knows %d of %d processes after 10 s", known, len(pids))
		}
	}
}

// nvcc compiles a test program of shim/test, of which the bundle has a copy.
func (b *testbed) nvcc(name string, flags ...string) string {
	b.Helper()
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		nvcc = "/usr/local/cuda/bin/nvcc"
	}
	if _, err := os.Stat(nvcc); err != nil {
		b.Skip("no nvcc on this machine")
	}
	out := filepath.Join(filepath.Dir(b.socket), strings.TrimSuffix(name, ".cu")+strings.Join(flags, ""))
	args := append([]string{"-O2", "-std=c++17", "-arch=native", "-o", out, filepath.Join(b.bundle, "shim", "test", name)}, flags...)
	if text, err := exec.Command(nvcc, args...).CombinedOutput(); err != nil {
		b.Fatalf("nvcc %s: %v\n%s", name, err, text)
	}
	return out
}
