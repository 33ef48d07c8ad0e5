// Package e2e runs the real daemon and real CUDA processes on a real GPU, as a
// user would. It needs a folder made by `make gpu-bundle`, a GPU with nothing else
// to do, and root:
//
//	GIVEWAY_BUNDLE=. ./e2e.test -test.v
//
// Figures are printed; what fails a test is what no machine may get wrong.
package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/bench"
)

const bundleEnv = "GIVEWAY_BUNDLE"

// bed is a test with a daemon and programs of its own.
type bed struct {
	*testing.T
	bundle string
	socket string
	daemon *exec.Cmd
	log    string
	as     *syscall.Credential // whom programs and the daemon run as; nil: us

	nsPer, nsPerTiny string // an iteration of a full grid's kernel, and of a small one's
}

var calibration []byte // made once, while nothing else runs

func newBed(t *testing.T) *bed {
	t.Helper()
	bundle := os.Getenv(bundleEnv)
	if bundle == "" {
		t.Skip(bundleEnv + " is not set: it names the folder that make gpu-bundle made, and there must be a GPU")
	}
	bundle, err := filepath.Abs(bundle)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "giveway-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o777) // for daemons of other users
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bed{T: t, bundle: bundle, socket: filepath.Join(dir, "giveway.sock"), log: filepath.Join(dir, "daemon.log")}
	b.calibrate()
	return b
}

func (b *bed) calibrate() {
	b.Helper()
	var err error
	if calibration == nil {
		calibration, err = b.command("giveway-bench", "calibrate").Output()
	}
	type shape struct {
		NsPer float64 `json:"ns_per_iteration"`
	}
	var said struct{ Calibration struct{ Full, Tiny shape } }
	if err == nil {
		err = json.Unmarshal(calibration, &said)
	}
	if err != nil {
		b.Fatalf("calibrate: %v: %s", err, calibration)
	}
	b.nsPer, b.nsPerTiny = fmt.Sprint(said.Calibration.Full.NsPer), fmt.Sprint(said.Calibration.Tiny.NsPer)
}

// command is a program of the bundle.
func (b *bed) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(b.bundle, name), args...)
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+b.socket, "HOME="+filepath.Dir(b.socket))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.as}
	return cmd
}

// start starts the daemon and waits until it answers.
func (b *bed) start(args ...string) {
	b.Helper()
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
			b.Logf("the daemon said:\n%s", text)
		}
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := b.giveway("policy"); err == nil {
			return
		}
		if time.Now().After(end) {
			b.Fatal("the daemon does not answer")
		}
	}
}

// kill kills the daemon.
func (b *bed) kill() {
	_ = b.daemon.Process.Kill()
	_ = b.daemon.Wait()
	b.daemon = nil
}

// giveway runs a command of the CLI.
func (b *bed) giveway(args ...string) (string, error) {
	out, err := b.command("giveway", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("giveway %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// set sets the class of a process as soon as the daemon knows it.
func (b *bed) set(pid int, args ...string) {
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

// told is what giveway ps --json says of a queue.
type told struct {
	PID    int
	Class  string
	Queues []struct {
		State  string
		Slice  time.Duration `json:"slice_ns"`
		Found  time.Duration `json:"found_ns"`
		Shared string        `json:"shared_by"`
	}
}

func (b *bed) ps() []told {
	b.Helper()
	out, err := b.giveway("ps", "--json")
	if err != nil {
		b.Fatal(err)
	}
	var all []told
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return all
}

// await waits until the daemon knows these processes.
func (b *bed) await(pids ...int) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		known := 0
		for _, p := range b.ps() {
			if slices.Contains(pids, p.PID) {
				known++
			}
		}
		if known == len(pids) {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("the daemon knows %d of %d processes", known, len(pids))
		}
	}
}

// work is a giveway-bench.
type work struct {
	pid int
	in  io.WriteCloser
	cmd *exec.Cmd

	mu      sync.Mutex
	done    int64
	last    time.Duration // when that was done
	samples chan []float64
}

// work starts a giveway-bench and waits until it is ready.
func (b *bed) work(args string) *work {
	b.Helper()
	return b.workBy(b.command("giveway-bench", strings.Fields(args)...))
}

func (b *bed) workBy(cmd *exec.Cmd) *work {
	b.Helper()
	w := &work{cmd: cmd, samples: make(chan []float64, 8)}
	cmd.Stderr = os.Stderr
	var err error
	if w.in, err = cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.kill)
	ready := make(chan int, 1)
	go w.listen(out, ready)
	select {
	case w.pid = <-ready:
	case <-time.After(60 * time.Second):
		b.Fatalf("%v was not ready in time", cmd.Args)
	}
	return w
}

func (w *work) kill() {
	if w.pid > 1 {
		_ = syscall.Kill(w.pid, syscall.SIGKILL) // giveway run leaves its program behind when it is killed
	}
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

func (w *work) listen(out io.Reader, ready chan<- int) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			Ready    bool
			PID      int
			Progress *bench.Progress
			Answered *struct {
				SamplesUs []float64 `json:"samples_us"`
			}
		}
		_ = json.Unmarshal(line, &m) // a line that says nothing changes nothing
		switch {
		case m.Ready:
			ready <- m.PID
		case m.Progress != nil:
			w.mu.Lock()
			w.done, w.last = m.Progress.Done, m.Progress.At-m.Progress.Idle
			w.mu.Unlock()
		case m.Answered != nil:
			w.samples <- m.Answered.SamplesUs
		}
	}
}

func (w *work) count() int64 {
	done, _ := w.progress()
	return done
}

func (w *work) progress() (done int64, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done, w.last
}

// rate is what it completes a second, over a while.
func (w *work) rate(d time.Duration) float64 { return w.during(func() { time.Sleep(d) }) }

// during is what it completes a second while something is done, from one completion to
// another: it tells of them ten times a second only.
func (w *work) during(something func()) float64 {
	from, at := w.progress()
	something()
	to, until := w.progress()
	if to == from {
		return 0
	}
	return float64(to-from) / (until - at).Seconds()
}

// together is what several complete a second, over a while.
func together(all []*work, d time.Duration) float64 {
	if len(all) == 0 {
		time.Sleep(d)
		return 0
	}
	var others float64
	own := all[0].during(func() { others = together(all[1:], d) })
	return own + others
}

// measure has an online client answer requests and returns its latencies.
func (w *work) measure() quantiles {
	return summary(w.raw())
}

// raw is what it measured, in microseconds.
func (w *work) raw() []float64 {
	fmt.Fprintln(w.in, "start")
	return <-w.samples
}

func summary(us []float64) quantiles {
	us = slices.Sorted(slices.Values(us))
	at := func(q float64) float64 { return us[min(int(q*float64(len(us))), len(us)-1)] }
	return quantiles{len(us), at(0.5), at(0.9), at(0.99), us[len(us)-1]}
}

type quantiles struct {
	n                  int
	p50, p90, p99, max float64
}

func (q quantiles) String() string {
	return fmt.Sprintf("n %d  p50 %.0f  p90 %.0f  p99 %.0f  max %.0f us", q.n, q.p50, q.p90, q.p99, q.max)
}
