// Package client talks to the daemon over its control socket: the only way in
// for the command line, the dashboard and other programs.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
)

// SystemSocket is where the daemon of the whole machine listens.
const SystemSocket = "/run/giveway/giveway.sock"

// UserSocket is where a user's own daemon listens, or empty where users have no
// folder for such things.
func UserSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "giveway.sock")
	}
	return ""
}

// Sockets are the places where a daemon is looked for, in order: the one that
// GIVEWAY_SOCKET names, or the machine's and then the user's own.
func Sockets() []string {
	if path := os.Getenv("GIVEWAY_SOCKET"); path != "" {
		return []string{path}
	}
	if user := UserSocket(); user != "" {
		return []string{SystemSocket, user}
	}
	return []string{SystemSocket}
}

// ErrNoDaemon is wrapped by errors that mean that nobody listens.
var ErrNoDaemon = errors.New("no daemon is running")

// noDaemon says where it was looked for.
type noDaemon struct{ looked []string }

func (e noDaemon) Error() string {
	return fmt.Sprintf("%v: start one with 'giveway daemon' (looked at %s)", ErrNoDaemon, strings.Join(e.looked, ", "))
}

func (noDaemon) Is(target error) bool { return target == ErrNoDaemon }

// Error is a refusal by the daemon.
type Error struct {
	Status  int // as HTTP has it: 400, 403, 404, 409, ...
	Message string
}

func (e *Error) Error() string { return e.Message }

// callTime is how long the daemon may take to answer.
const callTime = 30 * time.Second

// mostAnswer is how much it may say.
const mostAnswer = 64 << 20

// Client is a way to a daemon. It is safe for concurrent use.
type Client struct {
	sockets []string
	http    http.Client
}

// New returns a client of the daemon at the given socket, or at the first of
// Sockets where somebody listens if path is empty. Nothing is connected yet.
func New(path string) *Client {
	c := &Client{sockets: []string{path}}
	if path == "" {
		c.sockets = Sockets()
	}
	c.http.Transport = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression: true,
		IdleConnTimeout:    time.Minute,
	}
	return c
}

// Close gives up connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	for _, path := range c.sockets {
		conn, err := d.DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
			// Nobody is there.
		default:
			return nil, err
		}
	}
	return nil, noDaemon{c.sockets}
}

// Processes lists the programs on the daemon's devices.
func (c *Client) Processes(ctx context.Context) ([]api.Process, error) {
	var all []api.Process
	err := c.call(ctx, http.MethodGet, "/v1/processes", nil, &all)
	return all, err
}

// Change asks for something else for a process, and returns it as it then is.
func (c *Client) Change(ctx context.Context, pid int, change api.Change) (api.Process, error) {
	var p api.Process
	err := c.call(ctx, http.MethodPost, "/v1/processes/"+strconv.Itoa(pid), change, &p)
	return p, err
}

// Hint says something of what a process is about to do, and returns it as it then is.
func (c *Client) Hint(ctx context.Context, pid int, h api.Hint) (api.Process, error) {
	var p api.Process
	err := c.call(ctx, http.MethodPost, "/v1/processes/"+strconv.Itoa(pid)+"/hint", h, &p)
	return p, err
}

// Policy returns the policy in charge.
func (c *Client) Policy(ctx context.Context) (api.Policy, error) {
	var p api.Policy
	err := c.call(ctx, http.MethodGet, "/v1/policy", nil, &p)
	return p, err
}

// SetPolicy puts a policy in charge.
func (c *Client) SetPolicy(ctx context.Context, p api.Policy) (api.Policy, error) {
	err := c.call(ctx, http.MethodPost, "/v1/policy", p, &p)
	return p, err
}

// Status says how the daemon and its devices are.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	var s api.Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Restore puts everything back as the vendor has it.
func (c *Client) Restore(ctx context.Context) (api.Status, error) {
	var s api.Status
	err := c.call(ctx, http.MethodPost, "/v1/restore", nil, &s)
	return s, err
}

// Run is the daemon's promise to treat the calling process, and all that descend
// from it, as was asked.
type Run struct {
	// Done is closed when the promise ends: by Close, or with the daemon.
	Done   <-chan struct{}
	cancel context.CancelFunc
}

// Close ends the promise. Twice equals once.
func (r *Run) Close() {
	r.cancel()
	<-r.Done
}

// Run asks for such a promise. ctx bounds how long the asking may take, and not
// the promise.
func (c *Client) Run(ctx context.Context, change api.Change) (*Run, error) {
	held, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	resp, err := c.send(held, http.MethodPost, "/v1/runs", api.Run{Change: change})
	if !stop() && err == nil { // too late
		resp.Body.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // it ends when the daemon does, or by cancel
	}()
	return &Run{Done: done, cancel: cancel}, nil
}

// call makes a request and decodes what comes back into v.
func (c *Client) call(ctx context.Context, method, path string, body, v any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostAnswer)).Decode(v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	return nil
}

// send makes a request, and turns a refusal into an Error.
func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var data io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		data = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://giveway"+path, data)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, plain(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	var refusal api.Error
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&refusal) != nil || refusal.Message == "" {
		refusal.Message = "the daemon answered " + resp.Status
	}
	return nil, &Error{resp.StatusCode, refusal.Message}
}

// plain is err without the address that only this package made up.
func plain(err error) error {
	var none noDaemon
	if errors.As(err, &none) {
		return none
	}
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		err = inner.Unwrap()
	}
	return fmt.Errorf("call the daemon: %w", err)
}
