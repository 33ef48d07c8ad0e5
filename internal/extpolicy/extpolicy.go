// Package extpolicy connects the scheduler to an external policy, which another process
// computes. The process listens on a unix socket, or the daemon starts it and uses its
// standard input and output. Questions and answers are lines of JSON: see
// docs/OWN-POLICY.md.
//
// The process is not trusted: answers are bounded and checked, and while there is no
// valid answer in time, a fallback policy decides. Nothing here blocks the loop.
package extpolicy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Config says how to reach the policy process.
type Config struct {
	Socket   string             // a unix socket that the process listens on, or
	Exec     string             // a shell command that starts the process, with the daemon's rights
	Deadline time.Duration      // for each answer
	Fallback sched.PolicyChoice // decides while there is no answer
}

// DefaultDeadline is the deadline of an answer if the parameters have none.
const DefaultDeadline = 100 * time.Millisecond

const (
	minDeadline = time.Millisecond
	maxDeadline = 10 * time.Second
)

// The pause before the next attempt is minPause after the first failure, and doubles with each
// further one up to maxPause. A connection that lasted for maxPause begins anew.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// StartTime is how long a command must run to count as started. A shell whose command does not
// exist ends within milliseconds. Tests set it, for machines that are busy.
var StartTime = 250 * time.Millisecond

// Info describes the external policy as policy.List does the others.
func Info() policy.Info {
	return policy.Info{
		Name: policy.ExternalName, Doc: "another process decides: see giveway policy external --help",
		Params: []policy.ParamInfo{
			{Name: "socket", Range: "a path", Doc: "unix socket that the process listens on; or"},
			{Name: "exec", Range: "a command", Doc: "starts the process, with the daemon's rights"},
			{Name: "deadline", Value: DefaultDeadline.String(), Range: fmt.Sprintf("%v to %v", minDeadline, maxDeadline), Doc: "how long an answer may take"},
			{Name: "fallback", Value: policy.Names()[0], Range: "a policy", Doc: "decides while there is no valid answer"},
		},
	}
}

// Parse reads the parameters of the external policy: socket or exec, deadline, fallback.
func Parse(params map[string]string) (Config, error) {
	c := Config{Deadline: DefaultDeadline}
	fallback := policy.Names()[0]
	for key, value := range params {
		switch key {
		case "socket":
			c.Socket = value
		case "exec":
			c.Exec = value
		case "deadline":
			d, err := time.ParseDuration(value)
			if err != nil || d < minDeadline || d > maxDeadline {
				return Config{}, fmt.Errorf("policy external: deadline %q is not a duration from %v to %v", value, minDeadline, maxDeadline)
			}
			c.Deadline = d
		case "fallback":
			fallback = value
		default:
			return Config{}, fmt.Errorf("policy external: it has no parameter %q; it has: socket, exec, deadline, fallback", key)
		}
	}
	switch {
	case (c.Socket == "") == (c.Exec == ""):
		return Config{}, errors.New("policy external: give either socket, the path that the policy process listens on, or exec, the command that starts it")
	case c.Socket != "" && !filepath.IsAbs(c.Socket):
		return Config{}, fmt.Errorf("policy external: socket %q is not an absolute path", c.Socket)
	}
	var err error
	if c.Fallback, err = policy.Choose(fallback, nil); err != nil {
		return Config{}, fmt.Errorf("policy external: fallback: %w", err)
	}
	if c.Fallback.AllDevices {
		return Config{}, fmt.Errorf("policy external: fallback %s decides for all devices at once; choose one that decides for each device", fallback)
	}
	return c, nil
}

// Connection is a connection to a policy process. It is made again when it fails.
type Connection struct {
	cfg  Config
	post func(...sched.Event)
	note func(text string) // of a change of state
	log  *slog.Logger

	connected  chan struct{} // closed when the first connection is made
	failed     chan error    // has the error if the process failed while it was tried
	failing    error         // why the last attempt failed; nil: it did not, or the process has answered since
	lastLogged string        // of the errors since the process last answered

	// Used by the loop only.
	number    uint64             // of the last question
	externals []*policy.External // one for each device

	questions chan []byte // encoded; each device has at most one open question
	stop      context.CancelFunc
	ended     sync.WaitGroup

	mu      sync.Mutex
	devices map[uint64]sched.DeviceID // by the numbers of open questions
	problem string                    // why there is no connection; empty: there is one
	tried   bool                      // by Try, which has not returned: the policy is not in force
}

// Start connects to the process, again whenever the connection fails. Answers are posted
// as events. note is called when the process fails for another reason than before, and when it
// answers again.
func Start(cfg Config, post func(...sched.Event), note func(text string), log *slog.Logger) *Connection {
	return start(cfg, post, note, log, false)
}

// Try is Start for a process that must run now. It returns an error, and no connection, if the
// process cannot be connected to or, as a command, ends within StartTime.
func Try(cfg Config, post func(...sched.Event), note func(text string), log *slog.Logger) (*Connection, error) {
	c := start(cfg, post, note, log, true)
	err := c.started()
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func start(cfg Config, post func(...sched.Event), note func(text string), log *slog.Logger, tried bool) *Connection {
	c := &Connection{
		cfg: cfg, post: post, note: note, log: log, questions: make(chan []byte, 64),
		connected: make(chan struct{}), failed: make(chan error, 1), tried: tried,
		devices: make(map[uint64]sched.DeviceID), problem: "the policy process is being started",
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.ended.Go(func() { c.run(ctx) })
	return c
}

// started waits until the process is connected to or, as a command, has run for StartTime. It
// returns why it failed before.
func (c *Connection) started() error {
	select {
	case err := <-c.failed:
		return err
	case <-c.connected:
	}
	if c.cfg.Exec != "" {
		select {
		case err := <-c.failed:
			return err
		case <-time.After(StartTime):
		}
	}
	c.mu.Lock()
	c.tried = false
	c.mu.Unlock()
	select {
	case err := <-c.failed: // at the last moment
		return err
	default:
		return nil
	}
}

// Choice returns the policy for the scheduler.
func (c *Connection) Choice() sched.PolicyChoice {
	return sched.PolicyChoice{Name: policy.ExternalName, Make: func() sched.Policy {
		p := policy.NewExternal(c.cfg.Deadline, c.cfg.Fallback.Make, func() uint64 { c.number++; return c.number })
		c.externals = append(c.externals, p)
		return p
	}}
}

// Flush sends the questions that the policies have. The loop calls it after each turn.
// If the process reads so slowly that the buffer is full, the question is dropped.
func (c *Connection) Flush() {
	for _, p := range c.externals {
		q, ok := p.Ask()
		if !ok {
			continue
		}
		line, err := json.Marshal(q)
		if err != nil || len(q.Devices) == 0 {
			continue
		}
		c.mu.Lock()
		c.devices[q.Number] = q.Devices[0].ID
		c.mu.Unlock()
		select {
		case c.questions <- append(line, '\n'):
		default:
		}
	}
}

// Problem returns why the fallback policy decides; empty if it does not. The loop calls
// it.
func (c *Connection) Problem(now sched.Time) string {
	c.mu.Lock()
	problem := c.problem
	c.mu.Unlock()
	for _, p := range c.externals {
		if why, yes := p.FallingBack(now); yes && problem == "" {
			problem = why
		}
	}
	if problem == "" {
		return ""
	}
	return fmt.Sprintf("%s; policy %s decides", problem, c.cfg.Fallback.Name)
}

// Close ends the connection, and the process if this package started it.
func (c *Connection) Close() {
	c.stop()
	c.ended.Wait()
}

// run makes connections, one after the other, until Close.
func (c *Connection) run(ctx context.Context) {
	pause := minPause
	for {
		began := time.Now()
		err := c.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.failTry(err) {
			return
		}
		if time.Since(began) >= maxPause {
			pause = minPause
		}
		c.fail(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// failTry gives an error to Try, and reports whether Try waits for it.
func (c *Connection) failTry(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tried {
		c.failed <- err // has room: it is done once
	}
	return c.tried
}

// fail reports that the connection failed. An error that repeats is logged once.
func (c *Connection) fail(err error) {
	c.failing = err
	c.setProblem(fmt.Sprintf("the policy process is gone (%v)", err))
	if text := err.Error(); text != c.lastLogged {
		c.lastLogged = text
		c.log.Warn("external policy failed; the fallback policy decides", "fallback", c.cfg.Fallback.Name, "error", err)
		c.note(fmt.Sprintf("it failed, and policy %s decides: %v", c.cfg.Fallback.Name, err))
	}
	c.failAll()
}

// answered reports that the process has answered.
func (c *Connection) answered() {
	if c.failing == nil {
		return
	}
	c.failing, c.lastLogged = nil, ""
	c.log.Info("external policy answers again")
	c.note("it answers again")
}

// serve runs one connection until it fails or Close is called.
func (c *Connection) serve(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	select {
	case <-c.connected:
	default:
		close(c.connected)
	}
	c.setProblem("")
	ctx, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		<-ctx.Done()
		conn.Close() // ends the reader and the writer
	})
	ended.Go(func() { c.write(ctx, conn) })
	err = c.read(conn)
	stop()
	ended.Wait()
	if p, ok := conn.(*process); ok && errors.Is(err, errClosed) {
		return p.ended
	}
	return err
}

// write sends questions until ctx is done or the connection fails.
func (c *Connection) write(ctx context.Context, w io.Writer) {
	for {
		select {
		case <-ctx.Done():
			return
		case line := <-c.questions:
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
}

// read posts answers until the connection fails or an answer cannot be parsed.
func (c *Connection) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), policy.MaxAnswerBytes)
	for lines.Scan() {
		number, plan, err := policy.ParseAnswer(lines.Bytes())
		if err != nil {
			return err
		}
		c.answered()
		c.mu.Lock()
		device, asked := c.devices[number]
		delete(c.devices, number)
		c.mu.Unlock()
		if asked {
			c.post(sched.Event{Kind: sched.PlanOffered, Device: device, Number: number, Plan: plan})
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errClosed
}

var errClosed = errors.New("it closed the connection")

// failAll drops the open questions and tells the policies so.
func (c *Connection) failAll() {
	for drained := false; !drained; {
		select {
		case <-c.questions:
		default:
			drained = true
		}
	}
	c.mu.Lock()
	clear(c.devices)
	c.mu.Unlock()
	c.post(sched.Event{Kind: sched.PlanOffered})
}

func (c *Connection) setProblem(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = why
}
