package backends

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// These tests run the real daemon with the NVIDIA backend on a double of the driver: real
// processes, a real guardian, and a control device that is a file.

func TestMain(m *testing.M) {
	switch os.Getenv("BACKENDS_TEST") {
	case "guardian":
		_ = guardian.Run(3, Adopt, slog.New(slog.DiscardHandler))
		os.Exit(0)
	case "serve":
		serve(os.Getenv("BACKENDS_TEST_CONTROL"), os.Getenv("BACKENDS_TEST_SOCKET"))
	case "daemon":
		d := newDaemon(os.Getenv("BACKENDS_TEST_CONTROL"), os.Getenv("BACKENDS_TEST_JOURNAL"))
		fmt.Println("ready")
		if pid, err := strconv.Atoi(os.Getenv("BACKENDS_TEST_ONLINE")); err == nil {
			go makeOnline(d, pid)
		}
		_ = d.Run(context.Background())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// makeOnline gives a process the class online as soon as the daemon has found it.
func makeOnline(d *daemon.Daemon, pid int) {
	for {
		time.Sleep(time.Millisecond)
		if len(d.Processes()) == 0 {
			continue // the daemon may still read its journal, and takes no orders before
		}
		if _, err := d.Change(server.Caller{All: true}, pid, api.Change{Values: attr.Must("class=online")}); err == nil {
			return
		}
	}
}

// newDaemon makes a daemon on a control file of the double. Without a journal it keeps none.
func newDaemon(control, journalPath string) *daemon.Daemon {
	file := config.Config{Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}}}
	if os.Getenv("BACKENDS_TEST") == "daemon" {
		file.Rules = []config.Rule{{Attrs: attr.Must("class=batch")}}
		if os.Getenv("BACKENDS_TEST_ONLINE") == "" { // without online work giveway changes nothing here, where there is no trace
			file.Policy = api.Policy{Name: "rr", Params: map[string]string{"quantum": "20ms"}}
		}
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	var disk *journal.Store
	if journalPath != "" {
		if disk, err = journal.Open(journalPath, 10*time.Second, slog.New(slog.DiscardHandler)); err != nil {
			panic(err)
		}
	}
	d, err := daemon.New(daemon.Config{
		File:     file,
		Journal:  disk,
		Guardian: []string{"/usr/bin/env", "BACKENDS_TEST=guardian", self},
		Backends: []hal.Backend{onDouble(control)},
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d
}

// onDouble returns the NVIDIA backend on a control file of the double.
func onDouble(control string) *nvidia.Backend {
	knownDriver := fstest.MapFS{"sys/module/nvidia/version": {Data: []byte("580.159.04\n")}}
	return nvidia.New(nvidia.Config{
		Only: proc.Everyone, Control: control, Poll: 20 * time.Millisecond, NoBPF: true, Root: knownDriver,
	})
}

// run runs a daemon until stop is called.
func run(t *testing.T, d *daemon.Daemon) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// group is the state of a process's compute group in the driver.
type group struct {
	slice    time.Duration
	disabled bool
}

// asFound is a group that nothing has changed.
var asFound = group{slice: 2048 * time.Microsecond}

// groupOf returns the state of the compute group of a process. Only the first call for a
// process makes a copy of its descriptor: while there is one, a daemon in another process would
// take this one, an ancestor with the same open file, for the owner of the group.
func groupOf(t *testing.T, rm *nvrmtest.RM, control string, pid int) group {
	t.Helper()
	type key struct {
		rm  *nvrmtest.RM
		pid int
	}
	known, ok := clientsOf.Load(key{rm, pid})
	if !ok {
		withGroup(t, control, pid, func(g nvrm.Group) error {
			known = g.Client
			clientsOf.Store(key{rm, pid}, known)
			return nil
		})
	}
	client := known.(nvrm.Handle)
	const channel = 0x5c00001c
	return group{rm.Slice(client, computeGroup), rm.Disabled(client, channel)}
}

var clientsOf sync.Map // of processes of the double

// computeGroup is the handle of the compute group of a process of the double.
const computeGroup = 0x5c000015

// withGroup calls do for the compute group of a process.
func withGroup(t *testing.T, control string, pid int, do func(nvrm.Group) error) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if to, _ := os.Readlink(link); to != control {
			continue
		}
		n, _ := strconv.Atoi(filepath.Base(link))
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := nvrm.NewFile(fd)
		defer f.Close()
		client, _, err := nvrm.FindClient(f, nvrm.FirstClients(256))
		if err != nil {
			continue
		}
		g := nvrm.Group{File: f, Client: client, Handle: computeGroup}
		if _, err := g.Timeslice(); err != nil {
			continue
		}
		if err := do(g); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("process %d has no compute group", pid)
}

// TestDaemonOnNVIDIA runs the daemon with two processes: they are found, get classes, one
// is paused, one is killed, and the other is left as it was found.
func TestDaemonOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	serve, train := m.Start(t), m.Start(t)
	d := newDaemon(m.Path, "")
	stop := run(t, d)
	drivertest.Eventually(t, "both processes are found", func() bool { return len(d.Processes()) == 2 })
	if got := groupOf(t, rm, m.Path, train.PID); got != asFound {
		t.Errorf("process without attributes: got %+v, want %+v", got, asFound)
	}
	set := func(pid int, attrs string) {
		t.Helper()
		if _, err := d.Change(server.Caller{All: true}, pid, api.Change{Values: attr.Must(attrs)}); err != nil {
			t.Fatal(err)
		}
	}
	set(serve.PID, "class=online")
	set(train.PID, "class=batch")
	drivertest.Eventually(t, "batch has the minimum slice", func() bool { return groupOf(t, rm, m.Path, train.PID).slice == time.Microsecond })
	drivertest.Eventually(t, "online has a long slice", func() bool { return groupOf(t, rm, m.Path, serve.PID).slice == 20*time.Millisecond })
	set(train.PID, "paused=true")
	drivertest.Eventually(t, "it is paused", func() bool { return groupOf(t, rm, m.Path, train.PID).disabled })
	set(train.PID, "paused=false")
	drivertest.Eventually(t, "it is resumed", func() bool { return !groupOf(t, rm, m.Path, train.PID).disabled })

	before := rm.Clients()
	serve.Kill()
	drivertest.Eventually(t, "a killed process is forgotten, and its memory free", func() bool {
		return len(d.Processes()) == 1 && rm.Clients() == before/2
	})
	stop()
	if got := groupOf(t, rm, m.Path, train.PID); got != asFound {
		t.Errorf("after the daemon ended: got %+v, want %+v", got, asFound)
	}
}

// TestGuardianRestoresNVIDIA kills the daemon while it rotates three batch processes. All
// are restored to the state in which they were found.
func TestGuardianRestoresNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	var pids []int
	for range 3 {
		pids = append(pids, m.Start(t).PID)
	}
	changed := func() bool {
		for _, pid := range pids {
			if groupOf(t, rm, m.Path, pid) != asFound {
				return true
			}
		}
		return false
	}
	for round := range 4 {
		killable := drivertest.Start(t, drivertest.Self("BACKENDS_TEST=daemon", "BACKENDS_TEST_CONTROL="+m.Path))
		_, _ = killable.Out.Read(make([]byte, 8)) // ready
		drivertest.Eventually(t, "the daemon has changed a group", changed)
		time.Sleep(time.Duration(round*7) * time.Millisecond)
		killable.Kill()
		killed := time.Now()
		drivertest.Eventually(t, "everything is restored", func() bool { return !changed() })
		t.Logf("restored %v after the daemon was killed", time.Since(killed))
	}
}

// TestKernelLogLinesAreCounted checks that the status counts the lines that wrong guesses
// leave in the kernel's log.
func TestKernelLogLinesAreCounted(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported}) // otherwise nothing is guessed
	m := nvrmtest.Mounted(t, rm)
	m.Start(t)
	freed := rm.Open() // handles to guess wrongly
	for range 10 {
		if _, err := nvrm.NewClient(freed); err != nil {
			t.Fatal(err)
		}
	}
	freed.Close()
	d := newDaemon(m.Path, "")
	defer run(t, d)()
	drivertest.Eventually(t, "the process is found", func() bool { return len(d.Processes()) == 1 })
	logged := rm.Logged()
	if st := d.Status(); logged == 0 || st.KernelLogLines < uint64(logged) {
		t.Errorf("kernel log lines: got %d, want at least %d, which is more than 0", st.KernelLogLines, logged)
	}
}

// TestAdoptRefusesUnknownBackends checks that the guardian refuses a queue of a backend that
// it does not know.
func TestAdoptRefusesUnknownBackends(t *testing.T) {
	for _, text := range []string{`{}`, `{"backend":"shim"}`, `{"backend":"none","state":{}}`, `not JSON`} {
		if q, err := Adopt(json.RawMessage(text), -1); err == nil {
			t.Errorf("%s: got %v, want an error", text, q)
		}
	}
}
