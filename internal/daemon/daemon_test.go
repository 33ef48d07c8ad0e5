package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

func TestMain(m *testing.M) {
	switch os.Getenv("DAEMON_TEST") {
	case "guardian":
		_ = guardian.Keep(3, Adopt, slog.New(slog.DiscardHandler))
		os.Exit(0)
	case "shim":
		behave(os.Args[1], os.Args[2])
		os.Exit(0)
	case "host":
		hostUntilKilled(os.Args[1])
	case "amd-daemon":
		amdUntilKilled(os.Args[1:])
		os.Exit(0)
	case "daemon":
		d := newTestDaemon(os.Args[1])
		fmt.Println("ready")
		_ = d.Run(context.Background())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newTestDaemon makes a daemon on a control file of the double's.
func newTestDaemon(control string) *Daemon {
	d, err := New(Config{
		Policy:   api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}},
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		Discover: discover.Config{Control: control, Only: proc.Everyone, Poll: 20 * time.Millisecond, NoBPF: true},
		Rule: func(_ proc.Process, a sched.Attr) (sched.Attr, bool) { // for the daemon that is killed
			a.Class = sched.Batch
			return a, os.Getenv("DAEMON_TEST") == "daemon"
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d
}

// truth is the state of a program's compute group as the driver has it.
type truth struct {
	slice    time.Duration
	disabled bool
}

// runs lets a daemon run until it is told to stop.
func runs(t *testing.T, d *Daemon) (stop func()) {
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

// look asks the driver, through a copy of the program's descriptor.
func look(t *testing.T, rm *nvrmtest.RM, control string, pid int) truth {
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
		const group, channel = 0x5c000015, 0x5c00001c
		slice, err := nvrm.Group{File: f, Client: client, Handle: group}.Timeslice()
		if err != nil {
			continue
		}
		return truth{slice, rm.Disabled(client, channel)}
	}
	t.Fatalf("process %d has no compute group", pid)
	return truth{}
}

// eventually waits for something to become so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for range 500 {
		if so() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not so after 5 s: %s", what)
}

var found = truth{slice: 2048 * time.Microsecond}

// TestDaemon lives a day with two programs: they are found, classed, paused, and
// left as they were found.
func TestDaemon(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	serve, train := m.Start(t), m.Start(t)
	d := newTestDaemon(m.Path)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()

	eventually(t, "both programs are found", func() bool { return len(d.Processes()) == 2 })
	if got := look(t, rm, m.Path, train.Pid); got != found {
		t.Errorf("a program that nobody said anything about has %+v", got)
	}
	set := func(pid int, c api.Change) {
		t.Helper()
		if _, err := d.Change(pid, c); err != nil {
			t.Fatal(err)
		}
	}
	online, batch, yes, no := "online", "batch", true, false
	set(serve.Pid, api.Change{Class: &online})
	set(train.Pid, api.Change{Class: &batch})
	eventually(t, "batch has the least slice", func() bool { return look(t, rm, m.Path, train.Pid).slice == time.Microsecond })
	eventually(t, "online has a long one", func() bool { return look(t, rm, m.Path, serve.Pid).slice == 20*time.Millisecond })

	set(train.Pid, api.Change{Paused: &yes})
	eventually(t, "it is paused", func() bool { return look(t, rm, m.Path, train.Pid).disabled })
	set(train.Pid, api.Change{Paused: &no})
	eventually(t, "it goes on", func() bool { return !look(t, rm, m.Path, train.Pid).disabled })

	bad := "urgent"
	if _, err := d.Change(train.Pid, api.Change{Class: &bad}); err == nil {
		t.Error("a class that there is not was taken")
	}
	if _, err := d.Change(1, api.Change{Class: &batch}); err == nil {
		t.Error("a process without a GPU was classed")
	}

	before := rm.Clients()
	serve.Kill()
	eventually(t, "a program that was killed is forgotten, and its memory free", func() bool {
		return len(d.Processes()) == 1 && rm.Clients() == before/2
	})

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := look(t, rm, m.Path, train.Pid); got != found {
		t.Errorf("after the daemon has ended the program has %+v", got)
	}
}

// TestDaemonKilled kills the daemon while it rotates three batch programs: soon all
// are as they were found. (Within a second, on a machine that is not busy with other
// tests: the log says how long it took.)
func TestDaemonKilled(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	var pids []int
	for range 3 {
		pids = append(pids, m.Start(t).Pid)
	}
	for round := range 4 {
		cmd := exec.Command(os.Args[0], m.Path)
		cmd.Env = append(os.Environ(), "DAEMON_TEST=daemon")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "somebody is stopped", func() bool {
			n := 0
			for _, pid := range pids {
				if look(t, rm, m.Path, pid).disabled {
					n++
				}
			}
			return n > 0
		})
		time.Sleep(time.Duration(round*7) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		killed := time.Now()
		eventually(t, "all are as they were found", func() bool {
			for _, pid := range pids {
				if look(t, rm, m.Path, pid) != found {
					return false
				}
			}
			return true
		})
		t.Logf("it took %v to put everything back", time.Since(killed))
	}
}

// TestGroupLost: a group that a process has no more, and another may have, is put back;
// and found again at once, it is not taken to have been as we had made it.
func TestGroupLost(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	d := newTestDaemon(m.Path)
	stop := runs(t, d)
	eventually(t, "it is found", func() bool { return len(d.Processes()) == 1 })
	yes := true
	if _, err := d.Change(p.Pid, api.Change{Paused: &yes}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return look(t, rm, m.Path, p.Pid).disabled })
	hang := make(chan struct{})
	rm.Inject(nvrmtest.Control(nvrmtest.DisableChannels), nvrmtest.Fault{Hang: hang, Times: 1})
	d.mu.Lock()
	info, key := d.processes[p.Pid].info, groupKey{}
	for key = range d.processes[p.Pid].queues {
	}
	d.mu.Unlock()
	d.gone(&discover.Gone{PID: info.PID, Start: info.Start, Client: key.client, Group: key.group})
	d.mu.Lock()
	if before := d.givenBack(key); before.found != found.slice || before.done == nil {
		t.Errorf("what is known of it while it is put back: %+v", before)
	}
	d.mu.Unlock()
	d.ward.mu.Lock()
	if len(d.ward.wards) != 1 {
		t.Error("the guardian has forgotten it before it was put back")
	}
	d.ward.mu.Unlock()
	close(hang)
	eventually(t, "it is as it was found", func() bool { return look(t, rm, m.Path, p.Pid) == found })
	stop()
}

// TestHangingCall: a driver's call that hangs holds up one queue, and not the
// daemon.
func TestHangingCall(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	first, second := m.Start(t), m.Start(t)
	d := newTestDaemon(m.Path)
	stop := runs(t, d)
	eventually(t, "both programs are found", func() bool { return len(d.Processes()) == 2 })

	hang := make(chan struct{})
	rm.Inject(nvrmtest.Control(nvrmtest.DisableChannels), nvrmtest.Fault{Hang: hang, Times: 1})
	yes := true
	for _, p := range []*nvrmtest.Program{first, second} {
		if _, err := d.Change(p.Pid, api.Change{Paused: &yes}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the one whose call does not hang is paused", func() bool {
		return look(t, rm, m.Path, first.Pid).disabled != look(t, rm, m.Path, second.Pid).disabled
	})
	close(hang)
	eventually(t, "then both are", func() bool {
		return look(t, rm, m.Path, first.Pid).disabled && look(t, rm, m.Path, second.Pid).disabled
	})
	stop()
}

// TestRestoreWithoutADaemon: what was left changed and nobody remembers is put
// back as CUDA makes it.
func TestRestoreWithoutADaemon(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	d := newTestDaemon(m.Path)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	eventually(t, "the program is found", func() bool { return len(d.Processes()) == 1 })
	var file *nvrm.File // a copy that outlives the daemon
	watch, err := discover.Watch(ctx, d.cfg.Discover)
	if err != nil {
		t.Fatal(err)
	}
	g := (<-watch.Events()).Found
	file = g.File
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := errors.Join(
		nvrm.Group{File: file, Client: g.Client, Handle: g.Handle}.SetTimeslice(time.Microsecond),
		nvrm.DisableChannels(file, g.Client, g.Subdevice, g.Channels, true, false),
		file.Close(),
	); err != nil {
		t.Fatal(err)
	}
	if got := look(t, rm, m.Path, p.Pid); !got.disabled || got.slice == found.slice {
		t.Fatalf("it was not changed: %+v", got)
	}
	m.Start(t) // another, which is looked at after it
	where := everywhere()
	where.Control = m.Path
	rm.Inject(nvrmtest.Control(nvrmtest.GetGIDInfo), nvrmtest.Fault{Latency: time.Second, Times: 1}) // it is waited for
	groups, slices, err := restoreAll(t.Context(), where)
	if got := look(t, rm, m.Path, p.Pid); err != nil || groups != 2 || slices != 1 || got != found {
		t.Errorf("%d groups, %d slices, %v: the program has %+v", groups, slices, err, got)
	}
}

// TestFile: the configuration file gives classes by rule and a device a policy of
// its own; when it changes that counts, and when it is wrong the old one stays.
func TestFile(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	var rules ruleBook
	set := func(text string) error {
		c, err := config.Parse("giveway.yaml", []byte(text))
		if err == nil {
			rules.set(c)
		}
		return err
	}
	if err := set("policy: giveway\ndevices: [{device: 0, policy: native}]\nrules: [{match: {}, class: batch, weight: 3}]\n"); err != nil {
		t.Fatal(err)
	}
	d := newTestDaemon(m.Path)
	d.cfg.Rule, d.cfg.Own = rules.apply, rules.own
	stop := runs(t, d)
	eventually(t, "the program has its class by rule", func() bool {
		ps := d.Processes()
		return len(ps) == 1 && ps[0].PID == p.Pid && ps[0].Class == "batch" && ps[0].From == "rule" && ps[0].Weight == 3
	})
	if err := set("rules: [{match: {}, class: urgent}]"); err == nil {
		t.Error("a class that there is not was taken")
	}
	if err := set("rules: [{match: {}, class: online}]"); err != nil {
		t.Fatal(err)
	}
	d.rule()
	if got := d.Processes()[0]; got.Class != "online" {
		t.Errorf("after the file has changed its class is %s", got.Class)
	}
	stop()
}
