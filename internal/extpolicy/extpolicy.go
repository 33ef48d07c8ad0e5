// Package extpolicy connects a policy process to the scheduler. The process listens on a
// unix socket, or is started by the daemon and speaks through its standard input and
// output. Questions and answers are lines of JSON: see docs/POLICIES.md.
//
// The process is not trusted: answers are bounded and checked, and while it is late,
// wrong or gone a fallback policy decides. Nothing here blocks the loop.
package extpolicy

import (
	"bufio"
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
	Socket   string // a unix socket that the process listens on, or
	Exec     string // a command for the shell, started with the daemon's rights
	Deadline time.Duration
	Fallback sched.PolicyChoice
}

// DefaultDeadline is how long an answer may take if the parameters do not say.
const DefaultDeadline = 100 * time.Millisecond

const (
	minDeadline = time.Millisecond
	maxDeadline = 10 * time.Second
)

// reconnectPause is how long to wait before the process is started or dialled again.
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

// Connection is a connection to a policy process, renewed when it fails.
type Connection struct {
	cfg  Config
	post func(...sched.Event)
	log  *slog.Logger

	// Used by the loop only.
	number    uint64
	externals []*policy.External

	questions chan []byte // the newest question of each device, encoded
	closing   chan struct{}
	closed    sync.WaitGroup

	mu      sync.Mutex
	devices map[uint64]sched.DeviceID // by the numbers of open questions
	problem string                    // why there is no connection; empty: there is one
}

// Start connects to the process and keeps the connection. Answers are posted as events.
func Start(cfg Config, post func(...sched.Event), log *slog.Logger) *Connection {
	c := &Connection{
		cfg: cfg, post: post, log: log, questions: make(chan []byte, 64), closing: make(chan struct{}),
		devices: make(map[uint64]sched.DeviceID), problem: "it is being started",
	}
	c.closed.Go(c.keep)
	return c
}

// Choice returns the policy for the scheduler.
func (c *Connection) Choice() sched.PolicyChoice {
	return sched.PolicyChoice{Name: policy.ExternalName, Make: func() sched.Policy {
		p := policy.NewExternal(c.cfg.Deadline, c.cfg.Fallback.Make(), func() uint64 { c.number++; return c.number })
		c.externals = append(c.externals, p)
		return p
	}}
}

// Flush sends the questions that the policies have. The loop calls it after each turn.
// A question that finds the buffer full is dropped: the process is late anyway.
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

// Problem reports why the fallback policy decides; empty if it does not. The loop calls
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
	close(c.closing)
	c.closed.Wait()
}

// keep renews the connection until Close.
func (c *Connection) keep() {
	for {
		err := c.serve()
		if c.isClosing() {
			return
		}
		c.setProblem(fmt.Sprintf("the policy process is gone (%v)", err))
		c.log.Warn("external policy failed; the fallback policy decides", "fallback", c.cfg.Fallback.Name, "error", err)
		c.failAll()
		select {
		case <-c.closing:
			return
		case <-time.After(reconnectPause):
		}
	}
}

// serve runs one connection until it fails or Close is called.
func (c *Connection) serve() error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	c.setProblem("")
	var ended sync.WaitGroup
	stop := make(chan struct{})
	ended.Go(func() {
		select {
		case <-c.closing:
		case <-stop:
		}
		conn.Close() // ends the reader and the writer
	})
	ended.Go(func() { c.write(conn, stop) })
	err = c.read(conn)
	close(stop)
	ended.Wait()
	return err
}

// write sends questions until stop is closed or the connection fails.
func (c *Connection) write(w io.Writer, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
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

// failAll tells the policies that their questions will not be answered.
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

func (c *Connection) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}
