package backends

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
)

// These tests run the real daemon with the NVIDIA backend on a double of the driver: real
// processes, a real guardian, and a control device that is a file.

func TestMain(m *testing.M) {
	switch os.Getenv("BACKENDS_TEST") {
	case "guardian":
		_ = guardian.Keep(3, Adopt, slog.New(slog.DiscardHandler))
		os.Exit(0)
	case "daemon":
		d := newDaemon(os.Args[1])
		fmt.Println("ready")
		_ = d.Run(context.Background())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newDaemon makes a daemon on a control file of the double.
func newDaemon(control string) *daemon.Daemon {
	knownDriver := fstest.MapFS{"sys/module/nvidia/version": {Data: []byte("580.159.04\n")}}
	file := config.Config{Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}}}
	if os.Getenv("BACKENDS_TEST") == "daemon" {
		file.Rules = []config.Rule{{Attrs: attr.Must("class=batch")}}
	}
	d, err := daemon.New(daemon.Config{
		File:     file,
		Guardian: []string{"/usr/bin/env", "BACKENDS_TEST=guardian", os.Args[0]},
		Backends: []hal.Backend{nvidia.New(nvidia.Config{
			Only: proc.Everyone, Control: control, Poll: 20 * time.Millisecond, NoBPF: true, Root: knownDriver,
		})},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d
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

// groupOf asks the driver, through a copy of the process's descriptor.
func groupOf(t *testing.T, rm *nvrmtest.RM, control string, pid int) group {
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
		const group1, channel = 0x5c000015, 0x5c00001c
		slice, err := nvrm.Group{File: f, Client: client, Handle: group1}.Timeslice()
		if err != nil {
			continue
		}
		return group{slice, rm.Disabled(client, channel)}
	}
	t.Fatalf("process %d has no compute group", pid)
	return group{}
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for range 500 {
		if so() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("after 5 s it does not hold that %s", what)
}

// TestDaemonOnNVIDIA runs two processes through a day: found, classed, paused, one
// killed, the other left as it was found.
func TestDaemonOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	serve, train := m.Start(t), m.Start(t)
	d := newDaemon(m.Path)
	stop := run(t, d)
	eventually(t, "both processes are found", func() bool { return len(d.Processes()) == 2 })
	if got := groupOf(t, rm, m.Path, train.PID); got != asFound {
		t.Errorf("a process without attributes has %+v", got)
	}
	set := func(pid int, attrs string) {
		t.Helper()
		if _, err := d.Change(pid, api.Change{Values: attr.Must(attrs)}); err != nil {
			t.Fatal(err)
		}
	}
	set(serve.PID, "class=online")
	set(train.PID, "class=batch")
	eventually(t, "batch has the minimum slice", func() bool { return groupOf(t, rm, m.Path, train.PID).slice == time.Microsecond })
	eventually(t, "online has a long slice", func() bool { return groupOf(t, rm, m.Path, serve.PID).slice == 20*time.Millisecond })
	set(train.PID, "paused=true")
	eventually(t, "it is paused", func() bool { return groupOf(t, rm, m.Path, train.PID).disabled })
	set(train.PID, "paused=false")
	eventually(t, "it is resumed", func() bool { return !groupOf(t, rm, m.Path, train.PID).disabled })

	before := rm.Clients()
	serve.Kill()
	eventually(t, "a killed process is forgotten, and its memory free", func() bool {
		return len(d.Processes()) == 1 && rm.Clients() == before/2
	})
	stop()
	if got := groupOf(t, rm, m.Path, train.PID); got != asFound {
		t.Errorf("after the daemon ended the process has %+v", got)
	}
}

// TestGuardianRestoresNVIDIA kills the daemon while it rotates three batch processes:
// soon all are as they were found.
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
		cmd := exec.Command(os.Args[0], m.Path)
		cmd.Env = append(os.Environ(), "BACKENDS_TEST=daemon")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Read(make([]byte, 8)) // ready
		eventually(t, "the daemon has changed a group", changed)
		time.Sleep(time.Duration(round*7) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		killed := time.Now()
		eventually(t, "everything is restored", func() bool { return !changed() })
		t.Logf("restored %v after the daemon was killed", time.Since(killed))
	}
}

// TestKernelLogLinesAreCounted: every line that guessing at handles leaves in the
// kernel's log is counted in the status.
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
	d := newDaemon(m.Path)
	defer run(t, d)()
	eventually(t, "the process is found", func() bool { return len(d.Processes()) == 1 })
	logged := rm.Logged()
	if st := d.Status(); logged == 0 || st.KernelLogLines < uint64(logged) {
		t.Errorf("%d lines are counted of %d", st.KernelLogLines, logged)
	}
}

// TestAdopt: the guardian refuses a queue of a backend that it does not know.
func TestAdopt(t *testing.T) {
	for _, text := range []string{`{}`, `{"backend":"shim"}`, `{"backend":"none","state":{}}`, `not JSON`} {
		if q, err := Adopt(json.RawMessage(text), -1); err == nil {
			t.Errorf("%s: adopted %v", text, q)
		}
	}
}
