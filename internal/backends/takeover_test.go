package backends

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

// serve runs a daemon with its socket until SIGTERM, as 'giveway daemon --takeover' does.
func serve(control, socket string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = daemon.Serve(ctx, daemon.Options{
		Version: os.Getenv("BACKENDS_TEST_VERSION"), Config: config.Default(), Socket: socket, TakeOver: true,
		Guardian: []string{"/usr/bin/env", "BACKENDS_TEST=guardian", self},
		Backends: func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) {
			return []hal.Backend{onDouble(control)}, nil, nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestTakeoverOnNVIDIA starts daemon after daemon, each of which takes over from the last. A
// paused process is paused by each of them, its class and the policy are kept, and the gap in
// which it runs is reported. At the end everything is as it was found.
func TestTakeoverOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	paused, other := m.Start(t), m.Start(t)
	dir, err := os.MkdirTemp("", "giveway") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	start := func(version string) *drivertest.Child {
		return drivertest.Start(t, drivertest.Self("BACKENDS_TEST=serve", "BACKENDS_TEST_CONTROL="+m.Path,
			"BACKENDS_TEST_SOCKET="+socket, "BACKENDS_TEST_VERSION="+version))
	}
	c := client.New(socket)
	answers := func(version string) func() bool {
		return func() bool { st, err := c.Status(t.Context()); return err == nil && st.Version == version }
	}
	stopped := func() bool { return groupOf(t, rm, m.Path, paused.PID).disabled }
	if stopped() {
		t.Fatal("stopped at first")
	}
	daemon := start("0")
	drivertest.Eventually(t, "the first daemon answers", answers("0"))
	order := func(do func() error) {
		t.Helper()
		drivertest.Eventually(t, "an order is accepted", func() bool { return do() == nil })
	}
	order(func() error {
		_, err := c.Change(t.Context(), paused.PID, api.Change{Values: attr.Must("paused=true class=batch")})
		return err
	})
	order(func() error { _, err := c.SetPolicy(t.Context(), api.Policy{Name: "wfq"}); return err })
	drivertest.Eventually(t, "the process is paused", stopped)
	for n := range 3 {
		version := fmt.Sprint(n + 1)
		next := start(version)
		drivertest.Eventually(t, "the old daemon has started the process", func() bool { return !stopped() })
		began := time.Now()
		drivertest.Eventually(t, "the new daemon has paused it", stopped)
		t.Logf("takeover %d: the paused process ran for %v", n+1, time.Since(began))
		drivertest.Eventually(t, "the new daemon answers", answers(version))
		if err := daemon.Exit(); err != nil {
			t.Errorf("the old daemon: got %v, want a clean end", err)
		}
		p, err := c.Policy(t.Context())
		if err != nil || p.Name != "wfq" {
			t.Errorf("takeover %d: got policy %s, %v; want wfq", n+1, p.Name, err)
		}
		daemon = next
	}
	if _, err := c.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(daemon.PID, syscall.SIGTERM)
	if err := daemon.Exit(); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{paused.PID, other.PID} {
		if got := groupOf(t, rm, m.Path, pid); got != asFound {
			t.Errorf("at the end: got %+v, want %+v", got, asFound)
		}
	}
}
