package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// client is a workload process.
type client struct {
	name  string
	pid   int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	quiet *tail // what it said on stderr

	answers chan *Answered
	gone    chan struct{} // closed when it has ended

	mu       sync.Mutex
	failure  string // what it said was wrong
	progress []seen
}

// seen is progress with the time at which we read it.
type seen struct {
	Progress
	read time.Time
}

// startClient starts a process and waits until it is ready.
func startClient(ctx context.Context, name string, argv []string, within time.Duration) (*client, error) {
	cl := &client{
		name: name, quiet: &tail{},
		answers: make(chan *Answered, 4), gone: make(chan struct{}),
	}
	cl.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	cl.cmd.WaitDelay = quitWithin
	cl.cmd.Stderr = cl.quiet
	var err error
	if cl.stdin, err = cl.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cl.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cl.cmd.Start(); err != nil {
		return nil, err
	}
	cl.pid = cl.cmd.Process.Pid
	ready := make(chan struct{})
	go cl.read(stdout, ready)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ready:
		return cl, nil
	case <-cl.gone:
		return nil, cl.why("it ended before it was ready")
	case <-timer.C:
		cl.kill()
		return nil, cl.why(fmt.Sprintf("not ready after %v", within))
	}
}

// read takes the client's lines until it ends, and reaps it.
func (cl *client) read(from io.Reader, ready chan struct{}) {
	defer close(cl.gone)
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			cl.take(line, &ready)
		}
		if err != nil {
			break
		}
	}
	_ = cl.cmd.Wait() // how it ended matters only if it was not told to
}

func (cl *client) take(line []byte, ready *chan struct{}) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		cl.fail(fmt.Sprintf("not a line of JSON: %.80q", line))
		return
	}
	if m.Error != "" {
		cl.fail(m.Error)
	}
	if m.Progress != nil {
		cl.mu.Lock()
		cl.progress = append(cl.progress, seen{*m.Progress, time.Now()})
		cl.mu.Unlock()
	}
	if m.Answered != nil {
		select {
		case cl.answers <- m.Answered:
		default:
			cl.fail("it answered without being asked")
		}
	}
	if m.Ready && *ready != nil {
		close(*ready)
		*ready = nil
	}
}

// fail keeps the first thing that went wrong.
func (cl *client) fail(what string) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.failure == "" {
		cl.failure = what
	}
}

// why is the error of a client, with what it said itself.
func (cl *client) why(what string) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	said := cl.failure
	if said == "" {
		said = cl.quiet.String()
	}
	if said == "" {
		return fmt.Errorf("%s: %s", cl.name, what)
	}
	return fmt.Errorf("%s: %s: %s", cl.name, what, said)
}

func (cl *client) say(word string) error {
	if _, err := io.WriteString(cl.stdin, word+"\n"); err != nil {
		return cl.why(fmt.Sprintf("cannot be told to %s", word))
	}
	return nil
}

// answered waits for the samples of the run that was started last.
func (cl *client) answered(ctx context.Context, within time.Duration) (*Answered, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case a := <-cl.answers:
		return a, nil
	case <-cl.gone:
		return nil, cl.why("it ended while it was measured")
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, cl.why(fmt.Sprintf("no answer %v after the end of the measurement", within))
	}
}

// rate is the completions a second between two times, by the client's own clock.
func (cl *client) rate(from, to time.Time) (float64, error) {
	select {
	case <-cl.gone:
		return 0, cl.why("it ended while it was measured")
	default:
	}
	cl.mu.Lock()
	rate, ok := rateOf(cl.progress, from, to)
	cl.mu.Unlock()
	if !ok {
		return 0, cl.why("it told too little progress to know its rate")
	}
	return rate, nil
}

func rateOf(progress []seen, from, to time.Time) (float64, bool) {
	var in []seen
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

// lastCompletion is when the client last finished anything, by our clock.
func (cl *client) lastCompletion() time.Time {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.progress) == 0 {
		return time.Time{}
	}
	p := cl.progress[len(cl.progress)-1]
	return p.read.Add(-p.Idle)
}

// stop asks the client to end, then makes it.
func (cl *client) stop() {
	_ = cl.say("quit")
	_ = cl.stdin.Close()
	timer := time.NewTimer(quitWithin)
	defer timer.Stop()
	select {
	case <-cl.gone:
	case <-timer.C:
		cl.kill()
	}
}

func (cl *client) kill() {
	_ = cl.cmd.Process.Kill()
	<-cl.gone
}

// ask runs a command that says one thing.
func ask(ctx context.Context, argv []string, within time.Duration) (Message, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	said := &tail{}
	cmd.Stderr = said
	out, err := cmd.Output()
	var m Message
	parsed := json.Unmarshal(bytes.TrimSpace(out), &m)
	switch {
	case m.Error != "":
		return m, errors.New(m.Error)
	case err != nil:
		return m, fmt.Errorf("%s: %w: %s", argv[0], err, said)
	case parsed != nil:
		return m, fmt.Errorf("%s said %.80q: %w", argv[0], out, parsed)
	}
	return m, nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if most := 2000; len(t.text) > most {
		t.text = t.text[len(t.text)-most:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
