package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// client is a workload process.
type client struct {
	name   string
	pid    int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *lastBytes

	ready   chan Message // its first message
	answers chan *Answered
	ended   chan struct{} // closed when the process has ended

	mu       sync.Mutex
	failure  string // first error that it sent or caused
	progress []timedProgress
}

// timedProgress is progress and when the harness read it.
type timedProgress struct {
	Progress
	read time.Time
}

// clientOptions says how to start a client.
type clientOptions struct {
	name    string
	argv    []string
	env     []string // added to the harness's own
	timeout time.Duration
}

// startClient starts a process and waits until it is ready. It returns the message
// that says so.
func startClient(ctx context.Context, o clientOptions) (*client, Message, error) {
	cl := &client{
		name: o.name, cmd: exec.CommandContext(ctx, o.argv[0], o.argv[1:]...), stderr: &lastBytes{},
		ready: make(chan Message, 1), answers: make(chan *Answered, 4), ended: make(chan struct{}),
	}
	cl.cmd.WaitDelay = quitTimeout
	cl.cmd.Stderr = cl.stderr
	cl.cmd.Env = append(os.Environ(), o.env...)
	stdin, err := cl.cmd.StdinPipe()
	if err != nil {
		return nil, Message{}, err
	}
	stdout, err := cl.cmd.StdoutPipe()
	if err == nil {
		err = cl.cmd.Start()
	}
	if err != nil {
		return nil, Message{}, fmt.Errorf("%s: %w", o.name, err)
	}
	cl.stdin, cl.pid = stdin, cl.cmd.Process.Pid
	go cl.read(stdout)
	select {
	case m := <-cl.ready:
		cl.pid = cmp.Or(m.PID, cl.pid) // giveway run starts the client as a child
		return cl, m, nil
	case <-time.After(o.timeout):
		cl.kill()
		return nil, Message{}, cl.error(fmt.Sprintf("not ready after %v", o.timeout))
	case <-cl.ended:
	}
	select {
	case m := <-cl.ready: // it ended after this message
		return cl, m, nil
	default:
		return nil, Message{}, cl.error("ended before it was ready")
	}
}

// read handles the client's lines until it ends, and reaps it.
func (cl *client) read(from io.Reader) {
	defer close(cl.ended)
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			cl.handle(line)
		}
		if err != nil {
			break
		}
	}
	_ = cl.cmd.Wait() // the exit status of a client that quits does not matter
}

func (cl *client) handle(line []byte) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		m.Error = fmt.Sprintf("sent a line that is not JSON: %.80q", line)
	}
	if m.Ready {
		select {
		case cl.ready <- m:
		default: // it was ready before
		}
	}
	if m.Answered != nil {
		select {
		case cl.answers <- m.Answered:
		default:
			m.Error = "sent samples without a start"
		}
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.failure = cmp.Or(cl.failure, m.Error)
	if m.Progress != nil {
		cl.progress = append(cl.progress, timedProgress{*m.Progress, time.Now()})
	}
}

// error returns an error about the client, with its own error or its stderr.
func (cl *client) error(what string) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cause := cmp.Or(cl.failure, cl.stderr.String()); cause != "" {
		what += ": " + cause
	}
	return fmt.Errorf("%s: %s", cl.name, what)
}

// send writes a command to the client: start, work, rest or quit.
func (cl *client) send(command string) error {
	if _, err := io.WriteString(cl.stdin, command+"\n"); err == nil {
		return nil
	}
	select {
	case <-cl.ended:
		return cl.error("ended during the measurement")
	case <-time.After(quitTimeout):
		return cl.error("does not read its input: send " + command)
	}
}

// samples waits for the samples of the last start.
func (cl *client) samples(ctx context.Context, timeout time.Duration) (*Answered, error) {
	select {
	case a := <-cl.answers:
		return a, nil
	case <-cl.ended:
		return nil, cl.error("ended during the measurement")
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(timeout):
		return nil, cl.error(fmt.Sprintf("sent no samples within %v", timeout))
	}
}

// rate returns the completions per second between two times, by the client's clock. If
// the client sent too little progress by then, rate waits for more.
func (cl *client) rate(from, to time.Time) (float64, error) {
	for end := to.Add(progressTimeout); ; to = time.Now() {
		select {
		case <-cl.ended:
			return 0, cl.error("ended during the measurement")
		default:
		}
		cl.mu.Lock()
		rate, ok := rateOf(cl.progress, from, to)
		cl.mu.Unlock()
		if ok {
			return rate, nil
		}
		if to.After(end) {
			return 0, cl.error("sent too little progress to compute a rate")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func rateOf(progress []timedProgress, from, to time.Time) (float64, bool) {
	var in []timedProgress
	for _, p := range progress {
		if !p.read.Before(from) && !p.read.After(to) {
			in = append(in, p)
		}
	}
	if len(in) < 2 {
		return 0, false
	}
	first, last := in[0], in[len(in)-1]
	took := (last.At - first.At).Seconds()
	return float64(last.Done-first.Done) / took, took > 0
}

// lastCompletion returns when the client last finished a kernel, by our clock.
func (cl *client) lastCompletion() time.Time {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.progress) == 0 {
		return time.Time{}
	}
	p := cl.progress[len(cl.progress)-1]
	return p.read.Add(-p.Idle)
}

// stop sends quit to the client, and kills it if it does not exit.
func (cl *client) stop() {
	_ = cl.send("quit")
	_ = cl.stdin.Close()
	select {
	case <-cl.ended:
	case <-time.After(quitTimeout):
		cl.kill()
	}
}

// kill kills the client, and giveway run where that started it.
func (cl *client) kill() {
	if cl.pid != cl.cmd.Process.Pid {
		_ = syscall.Kill(cl.pid, syscall.SIGKILL)
	}
	_ = cl.cmd.Process.Kill()
	<-cl.ended
}

// lastBytes keeps the last 2000 bytes that are written to it.
type lastBytes struct {
	mu   sync.Mutex
	text []byte
}

func (t *lastBytes) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2000):]
	return len(p), nil
}

func (t *lastBytes) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
