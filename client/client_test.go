package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

func TestSockets(t *testing.T) {
	for _, c := range []struct {
		socket, runtime string
		want            []string
	}{
		{"", "", []string{client.SystemSocket}},
		{"", "relative", []string{client.SystemSocket}},
		{"", "/run/user/5", []string{client.SystemSocket, "/run/user/5/giveway.sock"}},
		{"/x", "/run/user/5", []string{"/x"}},
	} {
		t.Setenv("GIVEWAY_SOCKET", c.socket)
		t.Setenv("XDG_RUNTIME_DIR", c.runtime)
		if got := client.Sockets(); !slices.Equal(got, c.want) {
			t.Errorf("GIVEWAY_SOCKET=%s XDG_RUNTIME_DIR=%s: got %q, want %q", c.socket, c.runtime, got, c.want)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	t.Setenv("GIVEWAY_SOCKET", path)
	_, err := client.New("").Status(t.Context())
	want := "no daemon is running at " + path + ": start one with 'giveway daemon --socket " + path + "'"
	if !errors.Is(err, client.ErrNoDaemon) || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := client.New(path).Run(t.Context(), api.Run{}); !errors.Is(err, client.ErrNoDaemon) {
		t.Errorf("run: got error %v, want %v", err, client.ErrNoDaemon)
	}
}

// TestUnusableSockets: the error of a path that cannot be the socket of a daemon says what to do.
func TestUnusableSockets(t *testing.T) {
	dir := t.TempDir()
	plain, closed := filepath.Join(dir, "passwd"), filepath.Join(dir, "closed")
	if err := errors.Join(os.WriteFile(plain, nil, 0o600), os.Mkdir(closed, 0)); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{
		plain: "call the daemon: " + plain + " is not a socket: set GIVEWAY_SOCKET to the socket of a daemon",
		filepath.Join(dir, strings.Repeat("a", 200)): "and the kernel allows 107: choose a shorter one",
	}
	if os.Getuid() != 0 { // root may use every folder
		paths[filepath.Join(closed, "s")] = "run the command as the daemon's user or root"
	}
	for path, want := range paths {
		_, err := client.New(path).Status(t.Context())
		if err == nil || errors.Is(err, client.ErrNoDaemon) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

// TestNoAnswer: the daemon hangs. Each call ends with an error that says so, and what to do.
func TestNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path) // accepts nothing; the kernel completes connections
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := client.New(path)
	for name, call := range map[string]func(context.Context) error{
		"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
		"run":    func(ctx context.Context) error { _, err := c.Run(ctx, api.Run{}); return err },
		"delays": func(ctx context.Context) error { _, err := c.Delays(ctx); return err },
	} {
		ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := call(ctx)
		stop()
		if !errors.Is(err, client.ErrNoAnswer) || !strings.Contains(err.Error(), "nothing came from "+path) || !strings.Contains(err.Error(), "or end it") {
			t.Errorf("%s: got %v, want that the daemon does not answer", name, err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that its caller cancels: got %v, want %v", err, context.Canceled)
	}
}

// TestConnectionEndsWithoutAnAnswer: the front end that had the connection was killed, or the daemon was.
func TestConnectionEndsWithoutAnAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reads := []int{1, 10_000} // what is not read makes the kernel report a reset
	go func() {
		for _, n := range reads {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Read(make([]byte, n))
				c.Close()
			}
		}
	}()
	for _, n := range reads {
		_, err := client.New(path).SetPolicy(t.Context(), api.Policy{Name: "rr"})
		if err == nil || !strings.Contains(err.Error(), "closed the connection without an answer") || !strings.Contains(err.Error(), "Try again") || strings.Contains(err.Error(), path) {
			t.Errorf("after %d bytes: got %v, want what to do", n, err)
		}
	}
}

// TestRefusalBeforeTheEndOfAConnection: the daemon closes the connection of a client that makes too many
// requests. The caller gets the reason, and the next call makes another connection.
func TestRefusalBeforeTheEndOfAConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	refuse := true
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !refuse {
			_, _ = w.Write([]byte("{}"))
			return
		}
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error": "wait a second"}`))
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	c := client.New(path)
	defer c.Close()
	for range 2 {
		_, err = c.Status(t.Context())
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || err.Error() != "wait a second" {
			t.Errorf("got error %v, want the status 429 and its reason", err)
		}
	}
	refuse = false
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("the next call: got error %v", err)
	}
}

func TestInvalidAnswersAreErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stuck := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/status":
			http.Error(w, "<html>", http.StatusTeapot)
		case "/v1/policy":
			_, _ = w.Write([]byte("not JSON"))
		case "/v1/processes":
			panic(http.ErrAbortHandler)
		case "/v1/record/stream":
			_, _ = w.Write([]byte("data: {}\n\n"))
		default:
			<-stuck
		}
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	defer close(stuck)
	c := client.New(path)
	_, err = c.Status(t.Context())
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusTeapot || err.Error() != "the daemon answered 418 I'm a teapot" {
		t.Errorf("status: got error %v, want the status 418", err)
	}
	if _, err := c.Policy(t.Context()); err == nil {
		t.Error("policy: got no error for an answer that is not JSON")
	}
	if _, err := c.Processes(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "the daemon closed the connection without an answer (EOF)") {
		t.Errorf("processes: got error %v, want that the connection was closed", err)
	}
	err = c.FollowRecord(t.Context(), api.RecordQuery{}, func(api.Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "the daemon has ended, or has closed the connection") {
		t.Errorf("stream: got error %v, want that the daemon has ended", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Run(ctx, api.Run{}); err == nil {
		t.Error("run: got no error from a daemon that does not answer")
	}
}
