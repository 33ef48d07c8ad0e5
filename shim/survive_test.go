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

// TestMain is the guardian of a daemon that a test runs, if it is started as that.
func TestMain(m *testing.M) {
	if os.Getenv(guardian.Env) == "" {
		os.Exit(m.Run())
	}
	if err := guardian.Keep(3, backends.Adopt, slog.New(slog.DiscardHandler)); err != nil {
		panic(err)
	}
}

// testFullMemory runs a program where /dev/shm is full: the page is none of its files.
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
		t.Skipf("a /dev/shm of its own: %v: %s", err, out)
	}
	k := keep(t, bound(4, 2))
	p := start(t, k, dir, "full", filepath.Join(dir, "harm"), "plain")
	page := k.page()
	line := p.ok()
	allPassed(t, page.Counters(), line)
}

// wholeDaemon is one as people run it, but that it leaves all GPUs alone.
func wholeDaemon(t *testing.T) (*keeper, *client.Client) {
	t.Helper()
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "giveway.yaml"), filepath.Join(dir, "s")
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
	c := client.New(socket)
	eventually(t, "the daemon answers", func() bool { _, err := c.Status(t.Context()); return err == nil })
	return &keeper{socket: socket}, c
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, hang)
		}
	}
}

// testKilled kills programs wherever they are just then, while their gates open and
// shut and they give hints. Nothing of them stays, and who comes after finds all well.
func testKilled(t *testing.T, dir string) {
	k, c := wholeDaemon(t)
	known := func() []api.Process {
		all, err := c.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	nobody := func() bool { return len(known()) == 0 }
	files := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	before, seed := files(), rand.Uint64()
	var turns atomic.Uint32
	t.Run("lives", func(t *testing.T) {
		t.Logf("seed %d", seed)
		for i := range uint64(4) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(seed, i))
				for range 20 {
					p := start(t, k, dir, "harm", "forever")
					end := time.Now().Add(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
					for paused := int64(1); time.Now().Before(end); paused = 1 - paused {
						if _, err := c.Change(t.Context(), p.cmd.Process.Pid, api.Change{Values: attr.Paused.Of(paused)}); err == nil {
							turns.Add(1)
						}
						time.Sleep(time.Duration(r.Int64N(int64(3 * time.Millisecond))))
					}
					_ = p.cmd.Process.Kill()
					_ = p.cmd.Wait()
				}
			})
		}
	})
	t.Logf("gates were opened or shut %d times", turns.Load())
	if turns.Load() < 20 {
		t.Error("too few to have tried anything")
	}
	eventually(t, "the dead are forgotten", nobody)
	eventually(t, "no descriptor of theirs is left", func() bool { return files() <= before+8 })
	start(t, k, dir, "harm", "plain").ok()
	p := start(t, k, dir, "harm", "forever")
	eventually(t, "another is seen to launch", func() bool {
		all := known()
		return len(all) == 1 && all[0].Shim != nil && all[0].Shim.Launched > 100
	})
	_ = p.cmd.Process.Kill()
	eventually(t, "it is forgotten too", nobody)
}
