// Package extpolicy connects the scheduler to an external policy, which another process
// computes. The process listens on a unix socket, or the daemon starts it and uses its
// standard input and output. Questions and answers are lines of JSON: see
// docs/POLICIES.md.
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

// reconnectPause is the time between the end of a connection and the next attempt.
const reconnectPause = time.Second

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
	log  *slog.Logger

	// Used by the loop only.
	number    uint64             // of the last question
	externals []*policy.External // one for each device

	questions chan []byte // encoded; each device has at most one open question
	stop      context.CancelFunc
	ended     sync.WaitGroup

	mu      sync.Mutex
	devices map[uint64]sched.DeviceID // by the numbers of open questions
	problem string                    // why there is no connection; empty: there is one
}

// Start connects to the process, again whenever the connection fails. Answers are posted
// as events.
func Start(cfg Config, post func(...sched.Event), log *slog.Logger) *Connection {
	c := &Connection{
		cfg: cfg, post: post, log: log, questions: make(chan []byte, 64),
		devices: make(map[uint64]sched.DeviceID), problem: "the policy process is being started",
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.ended.Go(func() { c.run(ctx) })
	return c
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
	for {
		err := c.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		c.setProblem(fmt.Sprintf("the policy process is gone (%v)", err))
		c.log.Warn("external policy failed; the fallback policy decides", "fallback", c.cfg.Fallback.Name, "error", err)
		c.failAll()
		select {
		case <-ctx.Done():
			return
		case <-time.After(reconnectPause):
		}
	}
}

// serve runs one connection until it fails or Close is called.
func (c *Connection) serve(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
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
	return errors.New("it closed the connection")
}

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
