package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/stats"
)

// batchJob is a batch client that saturates the GPU with kernels of 212 us.
const batchJob = "be --kernel 212us --depth 64"

// client is a running workload: giveway-bench, the PyTorch script, or a test
// program that writes the same messages.
type client struct {
	bed *testbed
	pid int
	in  io.WriteCloser
	cmd *exec.Cmd

	opened time.Time // when it had opened the GPU, before its first kernel; valid when it is ready

	mu      sync.Mutex
	done    int64         // completions reported so far
	last    time.Duration // time of the last completion, by the client's clock
	samples chan []float64
	sums    chan string   // checksums of results
	exited  chan struct{} // closed when the client's output ends
}

// start starts a giveway-bench and waits until it is ready.
func (b *testbed) start(args string) *client {
	b.Helper()
	return b.startCommand(b.command("giveway-bench", strings.Fields(args)...))
}

// startJob starts a calibrated batch client.
func (b *testbed) startJob() *client {
	b.Helper()
	return b.start(batchJob + " --ns-per-iteration " + b.nsPer)
}

// run starts a giveway-bench with giveway run, that is, with the shim.
func (b *testbed) run(flags, args string) *client {
	b.Helper()
	return b.runProgram(flags, filepath.Join(b.bundle, "giveway-bench")+" "+args)
}

// runProgram starts any client with giveway run.
func (b *testbed) runProgram(flags, command string) *client {
	b.Helper()
	return b.startCommand(b.under(flags, command))
}

// under returns a command with giveway run.
func (b *testbed) under(flags, command string) *exec.Cmd {
	args := append([]string{"run"}, strings.Fields(flags)...)
	return b.command("giveway", append(append(args, "--"), strings.Fields(command)...)...)
}

// runTorch starts a PyTorch client with giveway run.
func (b *testbed) runTorch(flags, args string) *client {
	b.Helper()
	return b.startCommand(b.torchUnder(flags, args))
}

// startTorch starts a PyTorch client without the shim.
func (b *testbed) startTorch(args string) *client {
	b.Helper()
	return b.startCommand(b.torch(args))
}

// torchUnder returns the command of a PyTorch client with giveway run.
func (b *testbed) torchUnder(flags, args string) *exec.Cmd {
	b.Helper()
	return b.under(flags, "python3 -u "+b.torchScript()+" "+args)
}

// torch returns the command of a PyTorch client without the shim.
func (b *testbed) torch(args string) *exec.Cmd {
	b.Helper()
	cmd := exec.Command("python3", append([]string{"-u", b.torchScript()}, strings.Fields(args)...)...)
	cmd.Env = b.command("giveway").Env
	return cmd
}

func (b *testbed) torchScript() string {
	b.Helper()
	script := os.Getenv(torchEnv)
	if script == "" {
		b.Skip(torchEnv + " is not set: it names torch_client.py")
	}
	return script
}

func (b *testbed) startCommand(cmd *exec.Cmd) *client {
	b.Helper()
	c, ready := b.begin(cmd)
	c.awaitReady(ready)
	return c
}

// startJobs starts n calibrated batch clients at the same time.
func (b *testbed) startJobs(n int) []*client {
	b.Helper()
	commands := make([]*exec.Cmd, n)
	for i := range commands {
		commands[i] = b.command("giveway-bench", strings.Fields(batchJob+" --ns-per-iteration "+b.nsPer)...)
	}
	return b.startCommands(commands)
}

// startCommands starts clients at the same time and waits until all are ready.
func (b *testbed) startCommands(commands []*exec.Cmd) []*client {
	b.Helper()
	clients, ready := make([]*client, len(commands)), make([]<-chan int, len(commands))
	for i, cmd := range commands {
		clients[i], ready[i] = b.begin(cmd)
	}
	for i, c := range clients {
		c.awaitReady(ready[i])
	}
	return clients
}

// begin starts a client and returns a channel that gets its pid when it is ready.
func (b *testbed) begin(cmd *exec.Cmd) (*client, <-chan int) {
	b.Helper()
	c := &client{bed: b, cmd: cmd, samples: make(chan []float64, 8), sums: make(chan string, 8), exited: make(chan struct{})}
	cmd.Stderr = os.Stderr
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.kill)
	ready := make(chan int, 1)
	go c.readMessages(out, ready)
	return c, ready
}

func (c *client) awaitReady(ready <-chan int) {
	c.bed.Helper()
	select {
	case c.pid = <-ready:
	case <-c.exited:
		c.bed.Fatalf("%v ended before it was ready", c.cmd.Args)
	case <-time.After(60 * time.Second):
		c.bed.Fatalf("%v is not ready within 60 s", c.cmd.Args)
	}
}

func (c *client) readMessages(out io.Reader, ready chan<- int) {
	defer close(c.exited)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m bench.Message
		_ = json.Unmarshal(line, &m) // a line that is no message leaves m empty
		switch {
		case m.Ready:
			c.opened = m.Opened
			ready <- m.PID
		case m.Progress != nil:
			c.mu.Lock()
			c.done, c.last = m.Progress.Done, m.Progress.At-m.Progress.Idle
			c.mu.Unlock()
		case m.Answered != nil:
			c.samples <- m.Answered.SamplesUs
		case m.Checksum != "":
			c.sums <- m.Checksum
		}
	}
}

// kill kills the client, and its parent where giveway run started it: giveway run
// leaves its program running when it is killed itself.
func (c *client) kill() {
	if c.pid > 1 {
		_ = syscall.Kill(c.pid, syscall.SIGKILL)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// quit lets the client end by itself.
func (c *client) quit() {
	fmt.Fprintln(c.in, "quit")
	_ = c.cmd.Wait()
}

// progress returns the number of completions and the time of the last one.
func (c *client) progress() (done int64, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, c.last
}

// awaitProgress waits until the client completes something and reports how long
// that took, up to 3 s. Clients report ten times a second.
func (c *client) awaitProgress() (time.Duration, bool) {
	begun := time.Now()
	from, _ := c.progress()
	for {
		took := time.Since(begun)
		if now, _ := c.progress(); now != from {
			return took, true
		}
		if took > 3*time.Second {
			return took, false
		}
		time.Sleep(time.Millisecond)
	}
}

// rate returns completions per second over a period.
func (c *client) rate(d time.Duration) float64 {
	return c.rateDuring(func() { time.Sleep(d) })
}

// rateDuring returns completions per second while f runs, counted from one
// completion to another: reports come only ten times a second.
func (c *client) rateDuring(f func()) float64 {
	from, at := c.progress()
	f()
	to, until := c.progress()
	if to == from {
		return 0
	}
	return float64(to-from) / (until - at).Seconds()
}

// sumOfRates returns the completions per second of all clients together.
func sumOfRates(clients []*client, d time.Duration) float64 {
	if len(clients) == 0 {
		time.Sleep(d)
		return 0
	}
	var others float64
	first := clients[0].rateDuring(func() { others = sumOfRates(clients[1:], d) })
	return first + others
}

// measure makes an online client serve requests for its --seconds and returns
// their latencies.
func (c *client) measure() stats.Summary {
	c.bed.Helper()
	return summarize(c.measureSamples())
}

// measureSamples is measure with the raw latencies, in microseconds.
func (c *client) measureSamples() []float64 {
	c.bed.Helper()
	fmt.Fprintln(c.in, "start")
	select {
	case us := <-c.samples:
		if len(us) == 0 {
			c.bed.Fatal("the online client finished no request")
		}
		return us
	case <-c.exited:
		c.bed.Fatal("the online client ended while it was measured")
	case <-time.After(2 * time.Minute):
		c.bed.Fatal("the online client sent no latencies within 2 minutes")
	}
	return nil
}

// checksum makes a client do its work once and returns the checksum of the results. It may
// run beside the test's own goroutine, so it fails nothing.
func (c *client) checksum() (string, error) {
	fmt.Fprintln(c.in, "start")
	select {
	case sum := <-c.sums:
		return sum, nil
	case <-c.exited:
		return "", fmt.Errorf("process %d ended", c.pid)
	case <-time.After(time.Minute):
		return "", fmt.Errorf("process %d sent no checksum within a minute", c.pid)
	}
}

// alive reports whether the client's output is still open.
func (c *client) alive() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}
