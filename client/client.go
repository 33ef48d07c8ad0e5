// Package client talks to the daemon over its control socket. The command line, the
// dashboard and other programs reach the daemon through it only.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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

// UserSocket is where a user's own daemon listens. It is empty if the user has no
// XDG_RUNTIME_DIR.
func UserSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "giveway.sock")
	}
	return ""
}

// Sockets lists the sockets where a client looks for a daemon, in order: the one that
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

// StartCommand returns the command that starts a daemon where Sockets looks for one. The
// daemon itself does not read GIVEWAY_SOCKET.
func StartCommand() string {
	if path := os.Getenv("GIVEWAY_SOCKET"); path != "" {
		return "giveway daemon --socket " + path
	}
	return "giveway daemon"
}

// ErrNoDaemon is wrapped by errors that mean that no daemon listens.
var ErrNoDaemon = errors.New("no daemon is running")

// ErrNoAnswer is wrapped by errors that mean that a daemon listens and has not answered in time.
var ErrNoAnswer = errors.New("the daemon does not answer")

// noAnswer returns the error of a call that began at a moment and was not answered.
func (c *Client) noAnswer(began time.Time) error {
	return fmt.Errorf("%w: nothing came from %s for %v. It hangs or was stopped: see its log, or end it ('systemctl restart giveway', or SIGKILL); its guardian then undoes what it has changed",
		ErrNoAnswer, strings.Join(c.sockets, " or "), time.Since(began).Round(time.Second/10))
}

// Error is a refusal by the daemon.
type Error struct {
	Status  int // of HTTP: 400, 403, 404, 409, ...
	Message string
}

func (e *Error) Error() string { return e.Message }

// callTime is how long a call waits for the daemon's answer.
const callTime = 30 * time.Second

// maxAnswer is the longest answer in bytes.
const maxAnswer = 64 << 20

// Client is a client of a daemon. It is safe for concurrent use.
type Client struct {
	sockets []string
	http    http.Client
}

// New returns a client of the daemon at the given socket or, if path is empty, at the
// first of Sockets where a daemon listens. It connects at the first call.
func New(path string) *Client {
	c := &Client{sockets: []string{path}}
	if path == "" {
		c.sockets = Sockets()
	}
	c.http.Transport = &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression:    true,
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: callTime, // also of a run, which has no other limit
	}
	return c
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Processes lists the processes on the daemon's devices.
func (c *Client) Processes(ctx context.Context) ([]api.Process, error) {
	return call[[]api.Process](ctx, c, http.MethodGet, "/v1/processes", nil)
}

// Change sets attributes of a process and returns the process as it is then.
func (c *Client) Change(ctx context.Context, pid int, change api.Change) (api.Process, error) {
	return call[api.Process](ctx, c, http.MethodPost, "/v1/processes/"+strconv.Itoa(pid), change)
}

// Hint gives a hint for a process and returns the process as it is then.
func (c *Client) Hint(ctx context.Context, pid int, h api.Hint) (api.Process, error) {
	return call[api.Process](ctx, c, http.MethodPost, "/v1/processes/"+strconv.Itoa(pid)+"/hint", h)
}

// Policy returns the policy in force.
func (c *Client) Policy(ctx context.Context) (api.Policy, error) {
	return call[api.Policy](ctx, c, http.MethodGet, "/v1/policy", nil)
}

// SetPolicy puts a policy in force and returns it as the daemon has it.
func (c *Client) SetPolicy(ctx context.Context, p api.Policy) (api.Policy, error) {
	return call[api.Policy](ctx, c, http.MethodPost, "/v1/policy", p)
}

// Status returns the state of the daemon and its devices.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return call[api.Status](ctx, c, http.MethodGet, "/v1/status", nil)
}

// Restore undoes every change: all queues run with the vendor's own scheduling.
func (c *Client) Restore(ctx context.Context) (api.Status, error) {
	return call[api.Status](ctx, c, http.MethodPost, "/v1/restore", nil)
}

// Containers lists the registered containers.
func (c *Client) Containers(ctx context.Context) ([]api.Container, error) {
	return call[[]api.Container](ctx, c, http.MethodGet, "/v1/containers", nil)
}

// Register registers a container, or replaces what was registered for it.
func (c *Client) Register(ctx context.Context, about api.Container) error {
	_, err := call[api.Container](ctx, c, http.MethodPut, "/v1/containers/"+url.PathEscape(about.ID), about)
	return err
}

// Unregister removes a container that is gone.
func (c *Client) Unregister(ctx context.Context, id string) error {
	_, err := call[api.Container](ctx, c, http.MethodDelete, "/v1/containers/"+url.PathEscape(id), nil)
	return err
}

// Run is a run that the daemon has begun: the calling process and its descendants have
// the attributes of the run until it ends.
type Run struct {
	api.RunStarted
	Done   <-chan struct{} // closed when the run ends: by Close, or because the daemon exited
	cancel context.CancelFunc
}

// Close ends the run. It may be called more than once.
func (r *Run) Close() {
	r.cancel()
	<-r.Done
}

// Run begins a run. ctx limits how long that may take; it does not end the run.
func (c *Client) Run(ctx context.Context, r api.Run) (*Run, error) {
	began := time.Now()
	held, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	var started api.RunStarted
	resp, err := c.send(held, http.MethodPost, "/v1/runs", r)
	if err == nil {
		err = decode(resp, &started)
	}
	if !stop() { // too late
		if err = ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			err = c.noAnswer(began)
		}
	}
	if err != nil {
		cancel()
		if resp != nil {
			resp.Body.Close()
		}
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // until the daemon exits or cancel is called
	}()
	return &Run{RunStarted: started, Done: done, cancel: cancel}, nil
}

// call makes a request and returns the decoded answer.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	err = decode(resp, &answer)
	return answer, err
}

func decode(resp *http.Response, v any) error {
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	return nil
}

// send makes a request. It turns a refusal into an Error.
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
	began := time.Now()
	resp, err := c.http.Do(req)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return nil, c.noAnswer(began)
	}
	if err != nil {
		return nil, withoutURL(err)
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

// withoutURL returns err without the URL, which only this package uses.
func withoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	if errors.Is(err, ErrNoDaemon) {
		return err
	}
	for _, ended := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, ended) { // which names a path of the daemon's, of no use to a user
			return fmt.Errorf("the daemon closed the connection without an answer (%w): it was restarted, or this user has too many connections or requests. Try again; an order may have been carried out: see 'giveway log'", ended)
		}
	}
	return fmt.Errorf("call the daemon: %w", err)
}
