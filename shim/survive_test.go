package shim_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/guardian"
)

// TestMain runs as the guardian of a test daemon if it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv(guardian.Env) == "" {
		os.Exit(m.Run())
	}
	if err := guardian.Run(3, backends.Adopt, slog.New(slog.DiscardHandler)); err != nil {
		panic(err)
	}
}

// testFullMemory runs a program with a full /dev/shm, which the page does not use.
func testFullMemory(t *testing.T, dir string) {
	spaces := "-rm"
	if os.Getuid() == 0 {
		spaces = "-m"
	}
	script := "#!/bin/sh\nexec unshare " + spaces + ` sh -c '
mount -t tmpfs -o size=4k full /dev/shm && ! head -c 8192 /dev/zero 2>/dev/null >/dev/shm/all && exec "$@"' sh "$@"` + "\n"
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(full, "true").CombinedOutput(); err != nil {
		t.Skipf("cannot mount a separate /dev/shm: %v: %s", err, out)
	}
	d := newDaemon(t, bound(4, 2))
	p := start(t, d.Socket(), dir, "full", filepath.Join(dir, "harm"), "plain")
	page := d.Page()
	line := p.expectOK()
	expectAllGated(t, page.Counters(), line)
}

// startDaemon runs the real daemon, without GPU backends, and rechanges its socket.
func startDaemon(t *testing.T) (socket string, c *client.Client) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "giveway.yaml")
	socket = filepath.Join(dir, "s")
	if err := os.WriteFile(file, []byte("nvidia: false\namd: false\npolicy: {name: giveway, turn: 2ms}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- daemon.Serve(ctx, daemon.Options{
			File: file, Socket: socket, Guardian: []string{os.Args[0]}, Backends: backends.New, Log: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	c = client.New(socket)
	eventually(t, "the daemon answers", func() bool { _, err := c.Status(t.Context()); return err == nil })
	return socket, c
}

func eventually(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", timeout, condition)
		}
	}
}

// testKilled kills processes at random moments while their gates open and close and they give
// hints. The daemon keeps nothing of them, and later processes work.
func testKilled(t *testing.T, dir string) {
	socket, c := startDaemon(t)
	known := func() []api.Process {
		all, err := c.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	noProcess := func() bool { return len(known()) == 0 }
	files := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	before, seed := files(), rand.Uint64()
	var changes atomic.Uint32
	t.Run("processes", func(t *testing.T) {
		t.Logf("seed %d", seed)
		for i := range uint64(4) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(seed, i))
				for range 20 {
					p := start(t, socket, dir, "harm", "forever")
					end := time.Now().Add(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
					for paused := int64(1); time.Now().Before(end); paused = 1 - paused {
						if _, err := c.Change(t.Context(), p.cmd.Process.Pid, api.Change{Values: attr.Paused.Of(paused)}); err == nil {
							changes.Add(1)
						}
						time.Sleep(time.Duration(r.Int64N(int64(3 * time.Millisecond))))
					}
					_ = p.cmd.Process.Kill()
					_ = p.cmd.Wait()
				}
			})
		}
	})
	t.Logf("gates were opened or closed %d times", changes.Load())
	if changes.Load() < 20 {
		t.Error("too few changes for a meaningful test, want at least 20")
	}
	eventually(t, "dead processes are forgotten", noProcess)
	eventually(t, "their descriptors are closed", func() bool { return files() <= before+8 })
	start(t, socket, dir, "harm", "plain").expectOK()
	p := start(t, socket, dir, "harm", "forever")
	eventually(t, "launches of another process are counted", func() bool {
		all := known()
		return len(all) == 1 && all[0].Shim != nil && all[0].Shim.Launched > 100
	})
	_ = p.cmd.Process.Kill()
	eventually(t, "that process is forgotten too", noProcess)
}
