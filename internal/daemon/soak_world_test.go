package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/sandbox"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/shim"
)

func newSoak(t *testing.T, seed uint64) *soak {
	s := &soak{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), dir: t.TempDir(),
		over: make(chan struct{}), resumes: map[int]time.Time{}, lastMark: map[string]progress{}, shims: map[string]api.Shim{},
	}
	s.client = client.New(s.path("s"))
	s.giveway = s.path("giveway")
	build := exec.Command("go", "build", "-o", s.giveway, "../../cmd/giveway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build giveway: %v: %s", err, out)
	}
	s.buildOpenCL()
	library, err := shim.Library()
	if err != nil {
		t.Fatal(err)
	}
	s.write("libgiveway.so", string(library))
	s.write("giveway.yaml", soakConfigs[0])
	if err := os.Mkdir(s.path("queues"), 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *soak) path(name string) string { return filepath.Join(s.dir, name) }

// write replaces a file at once.
func (s *soak) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path("new"), []byte(text), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path("new"), s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// openclEnv returns the environment of an OpenCL program. All of them use one cache of kernels.
func (s *soak) openclEnv() []string {
	return append(os.Environ(), "POCL_MAX_PTHREAD_COUNT=1", "POCL_CACHE_DIR="+s.path("pocl"))
}

// buildOpenCL compiles the OpenCL program. Without OpenCL no program runs. It fills the cache of
// kernels: of several programs that fill it at the same time, clBuildProgram may fail in one.
func (s *soak) buildOpenCL() {
	s.opencl = s.path("openclwork")
	out, err := exec.Command("gcc", "-std=gnu11", "-O2", "-o", s.opencl, "../../shim/test/openclwork.c", "-ldl", "-pthread").CombinedOutput()
	for _, work := range [][]string{{"chain", "1", "1"}, {"mixed", "8"}, {"user", "1"}} {
		if err == nil {
			cmd := exec.Command(s.opencl, work...)
			cmd.Env = s.openclEnv()
			out, err = cmd.CombinedOutput()
		}
	}
	if err == nil {
		return
	}
	if os.Getenv("GIVEWAY_TEST_OPENCL") != "" {
		s.t.Fatalf("no OpenCL: %v: %s", err, out)
	}
	s.t.Logf("no OpenCL, so no program with the shim runs; install gcc, pocl-opencl-icd and ocl-icd-libopencl1: %v: %s", err, out)
	s.opencl = ""
}

// soakDaemon is a daemon process.
type soakDaemon struct {
	*soakProcess
	since    time.Time
	answered time.Time // when it first answered
	warm     map[string]usage
}

// soakProcess is a child that was started and may be killed.
type soakProcess struct {
	*exec.Cmd
	output *logBuffer
	ended  chan struct{} // closed when it has exited

	mu     sync.Mutex
	killed bool // by the test
}

func (s *soak) start(cmd *exec.Cmd) *soakProcess {
	p := &soakProcess{Cmd: cmd, output: &logBuffer{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.WaitDelay = time.Second // a guardian outlives its daemon and has the same output
	if err := cmd.Start(); err != nil {
		s.t.Errorf("start %v: %v", cmd.Args, err)
		close(p.ended)
		return p
	}
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		close(p.ended)
	}()
	s.t.Cleanup(p.kill)
	return p
}

// kill kills the process and waits for its end.
func (p *soakProcess) kill() {
	if p.Process == nil {
		return
	}
	p.markKilled()
	_ = p.Process.Kill() // it may have exited
	<-p.ended
}

func (p *soakProcess) markKilled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
}

func (p *soakProcess) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

func (p *soakProcess) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// startDaemon starts a daemon and waits until it answers. The arguments are those of
// serveSoak after the folder.
func (s *soak) startDaemon(args ...string) {
	cmd := exec.Command(os.Args[0], append([]string{s.dir}, args...)...)
	cmd.Env = append(os.Environ(), "DAEMON_TEST=soak")
	d := &soakDaemon{soakProcess: s.start(cmd), since: time.Now(), warm: map[string]usage{}}
	s.mu.Lock()
	s.daemon = d
	s.mu.Unlock()
	for {
		if st, err := s.client.Status(s.t.Context()); err == nil && st.PID == d.Process.Pid {
			break
		}
		if d.hasEnded() || time.Since(d.since) > time.Minute {
			s.violation("a daemon does not answer within a minute, or has exited: %s", tail(d.output))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.answered = time.Now()
	s.event("daemon %d answers after %v", d.Process.Pid, d.answered.Sub(d.since).Round(time.Millisecond))
}

// tail returns the end of a process's output.
func tail(b *logBuffer) string {
	text := b.String()
	return text[max(len(text)-2000, 0):]
}

// serveSoak is the daemon process of TestSoak. It may take over from a daemon that runs.
func serveSoak(dir string, takeOver bool) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	server.RaiseFileLimit()
	if capabilities, calls := sandbox.Daemon(); calls != nil || capabilities != nil && !errors.Is(capabilities, errors.ErrUnsupported) { // with cgo
		log.Warn("daemon has more rights than the one that ships", "capabilities", capabilities, "calls", calls)
	}
	err := Serve(ctx, Options{
		File: filepath.Join(dir, "giveway.yaml"), Socket: filepath.Join(dir, "s"), TakeOver: takeOver,
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		FrontEnd: []string{"/usr/bin/env", "DAEMON_TEST=front-end", os.Args[0], frontEndMark},
		Backends: func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) {
			simulated, _, err := backends.Simulated("testdata/soak.yaml", 1)
			return []hal.Backend{newShim(), &soakQueues{newFakeBackend(filepath.Join(dir, "queues"))}, simulated}, nil, err
		},
		Log: log,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// frontEndMark is an argument of front ends, by which frontEnds finds them.
const frontEndMark = "front-end-of-test"

// runFrontEnd is a front end of serveSoak, with the rights of one that ships.
func runFrontEnd() {
	err := sandbox.FrontEnd()
	if err == nil {
		err = server.RunFrontEnd(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "front end:", err)
		os.Exit(1)
	}
}

// frontEnds returns those children of a daemon that are front ends.
func frontEnds(daemon int) (pids []int) {
	for _, pid := range children(daemon) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty: it has exited
		if bytes.HasSuffix(text, []byte(frontEndMark+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isConfined reports whether a process has the rights of a front end: a filter of system calls, and
// if the daemon is root's another user.
func isConfined(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	status := string(text)
	return strings.Contains(status, "\nSeccomp:\t2\n") && (os.Geteuid() != 0 || strings.Contains(status, "\nUid:\t65534\t65534\t65534\t65534\n"))
}

// soakQueues is a backend that finds its processes by itself: each has a file "pid-PID".
type soakQueues struct{ *fakeBackend }

// Start implements hal.Backend.
func (b *soakQueues) Start(ctx context.Context, h hal.Host) error {
	if err := b.fakeBackend.Start(ctx, h); err != nil {
		return err
	}
	go func() {
		found := map[int]hal.QueueHandle{}
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			b.scan(found)
		}
	}()
	return nil
}

// scan offers the queues of new processes and withdraws those of processes that exited.
func (b *soakQueues) scan(found map[int]hal.QueueHandle) {
	files, _ := filepath.Glob(filepath.Join(b.dir, "pid-*"))
	for _, file := range files {
		pid, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(file), "pid-"))
		if p, err := proc.Look(pid); err == nil && found[pid] == nil {
			if q, err := b.offer(p); err == nil {
				found[pid] = q
			}
		}
	}
	for pid, q := range found {
		if _, err := proc.Look(pid); err != nil {
			q.Withdraw(true)
			delete(found, pid)
		}
	}
}

// startSleeper starts a process that has a queue.
func (s *soak) startSleeper() {
	p := s.start(exec.Command("sleep", "100000"))
	if p.Process == nil {
		return
	}
	s.sleepers = append(s.sleepers, p)
	s.write(fmt.Sprint("queues/pid-", p.Process.Pid), "")
}

// replaceSleeper kills a process that has a queue and starts another.
func (s *soak) replaceSleeper() {
	i := s.r.IntN(len(s.sleepers))
	p := s.sleepers[i]
	s.event("kill process %d, which has a queue", p.Process.Pid)
	p.kill()
	_ = os.Remove(s.path(fmt.Sprint("queues/pid-", p.Process.Pid)))
	_ = os.Remove(s.path(fmt.Sprint("queues/", p.Process.Pid)))
	s.sleepers = append(s.sleepers[:i], s.sleepers[i+1:]...)
	s.startSleeper()
}

// soakProgram is an OpenCL program and the giveway run that started it.
type soakProgram struct {
	*soakProcess
	args []string
}

// pid returns the pid of the OpenCL program itself; zero: it does not run.
func (p *soakProgram) pid() int {
	for _, child := range children(p.Process.Pid) {
		return child
	}
	return 0
}

// children returns the children of a process.
func children(pid int) (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(field)
			pids = append(pids, child)
		}
	}
	return pids
}

// runPrograms runs one OpenCL program after the other.
func (s *soak) runPrograms(slot int) {
	if s.opencl == "" {
		return
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(slot+1)))
	for {
		p := s.startProgram(r, slot)
		<-p.ended
		s.mu.Lock()
		s.programs[slot] = nil
		s.mu.Unlock()
		s.checkResult(p)
		select {
		case <-s.over:
			return
		case <-time.After(time.Duration(r.Int64N(int64(2 * time.Second)))):
		}
	}
}

// startProgram starts an OpenCL program with random work and attributes.
func (s *soak) startProgram(r *rand.Rand, slot int) *soakProgram {
	work := [][]string{
		{"chain", fmt.Sprint(500 + r.IntN(8000)), "500"},
		{"paced", fmt.Sprint(100 + r.IntN(800)), "300", fmt.Sprint(1000 + r.IntN(20000))},
		{"mixed", fmt.Sprint(50 + r.IntN(2000))},
		{"user", fmt.Sprint(5 + r.IntN(40))},
		{"chain", fmt.Sprint(40000 + r.IntN(40000)), "500"}, // long enough to starve another
	}[[]int{0, 0, 0, 1, 1, 1, 2, 3, 4, 4}[r.IntN(10)]]
	attrs := [][]string{
		{"--class", "batch"},
		{"--class", "batch", "--weight", fmt.Sprint(1 + r.IntN(8))},
		{"--class", "online"},
		{"--class", "standard"},
		{"--class", "idle"},
		{"--slo", "20ms"},
		{"--priority", fmt.Sprint(r.IntN(10))},
	}[r.IntN(7)]
	switch slot { // often requests beside batch work, so that they enter late
	case 0:
		work, attrs = []string{"paced", fmt.Sprint(500 + r.IntN(1500)), "300", fmt.Sprint(r.IntN(5000))}, []string{"--class", "online"}
	case 1:
		attrs = []string{"--class", "batch"}
	}
	args := append(append([]string{"-n", "5", s.giveway, "run", "--no-shim"}, attrs...), "--", s.opencl)
	cmd := exec.Command("nice", append(args, work...)...)
	cmd.Env = append(s.openclEnv(), "GIVEWAY_SOCKET="+s.path("s"), "LD_PRELOAD="+s.path("libgiveway.so"))
	p := &soakProgram{soakProcess: s.start(cmd), args: append(attrs, work...)}
	s.mu.Lock()
	s.programs[slot] = p
	s.figures.programs++
	s.mu.Unlock()
	s.event("program %d: %v", p.Process.Pid, p.args)
	return p
}

// checkResult checks that a program that was not killed has ended with the right results.
func (s *soak) checkResult(p *soakProgram) {
	text := p.output.String()
	lines := bytes.Split(bytes.TrimSpace([]byte(text)), []byte("\n"))
	switch last := string(lines[len(lines)-1]); {
	case p.wasKilled():
		s.mu.Lock()
		s.figures.killedPrograms++
		s.mu.Unlock()
	case !p.ProcessState.Success() || !strings.HasPrefix(last, "ok "):
		s.violation("program %d %v: %v: %s", p.Process.Pid, p.args, p.ProcessState, tail(p.output))
	default:
		s.mu.Lock()
		s.figures.finished++
		s.mu.Unlock()
	}
}
