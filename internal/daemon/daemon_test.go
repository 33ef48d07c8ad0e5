package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/sched"
)

func TestMain(m *testing.M) {
	if os.Getenv(guardian.Env) != "" && os.Getenv("DAEMON_TEST") == "" {
		_ = guardian.Run(3, adoptFake, slog.New(slog.DiscardHandler))
		os.Exit(0)
	}
	switch os.Getenv("DAEMON_TEST") {
	case "guardian":
		_ = guardian.Run(3, adoptFake, slog.New(slog.DiscardHandler))
		os.Exit(0)
	case "supervisor":
		superviseUntilKilled(os.Args[1:])
	case "replace":
		replaceGuardianDuringAnAction(os.Args[1])
	case "shim":
		runShimProcess(os.Args[1], os.Args[2])
		os.Exit(0)
	case "caller":
		connectAndExit(os.Args[1])
	case "server":
		serveUntilKilled(os.Args[1])
	case "front-end":
		runFrontEnd()
		os.Exit(0)
	case "soak":
		serveSoak(os.Args[1], len(os.Args) > 2)
		os.Exit(0)
	case "attack":
		runAttack(os.Args[1], os.Args[2])
		os.Exit(0)
	case "victim":
		runVictim(os.Args[1])
		os.Exit(0)
	case "job":
		runJob(os.Args[1], len(os.Args) > 2)
		os.Exit(0)
	case "daemon":
		rotateUntilKilled(os.Args[1], os.Args[2:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func adoptFake(found json.RawMessage, fd int) (hal.Queue, error) {
	var a adoption
	if err := json.Unmarshal(found, &a); err != nil || a.Backend != "fake" {
		return nil, fmt.Errorf("adopt %s: got %w", found, err)
	}
	return (&fakeBackend{}).Adopt(nil, fd)
}

// TestDaemonSchedulesAndRestores: two processes are found, given classes, paused and
// resumed. One exits. When the daemon stops, the other is as it was found.
func TestDaemonSchedulesAndRestores(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	stop := runDaemon(t, d)
	serve, _ := sleeper(t)
	train, _ := sleeper(t)
	serveQueue := b.mustOffer(t, serve)
	b.mustOffer(t, train)
	if got := len(d.Processes()); got != 2 {
		t.Fatalf("got %d processes, want 2", got)
	}
	if got := b.hardware(train.PID); got != (hardware{}) {
		t.Errorf("a process without attributes: got %+v, want no change", got)
	}
	change := func(pid int, attrs string) {
		t.Helper()
		if _, err := d.Change(ourselves, pid, given(attrs)); err != nil {
			t.Fatal(err)
		}
	}
	change(serve.PID, "class=online")
	change(train.PID, "class=batch")
	eventually(t, "batch has the minimum slice", func() bool { return b.hardware(train.PID).slice == sched.MinSlice })
	eventually(t, "online has a long slice", func() bool { return b.hardware(serve.PID).slice == 20*time.Millisecond })

	change(train.PID, "paused=true")
	eventually(t, "it is paused", func() bool { return b.hardware(train.PID).stopped })
	change(train.PID, "paused=false")
	eventually(t, "it is resumed", func() bool { return !b.hardware(train.PID).stopped })

	if _, err := d.Change(ourselves, train.PID, api.Change{Values: attr.Class.Of(7)}); err == nil {
		t.Error("an unknown class was accepted")
	}
	if _, err := d.Change(ourselves, 1, given("class=batch")); err == nil || !strings.Contains(err.Error(), "the fake backend does not know it") {
		t.Errorf("a process without a queue: got %v, want the note of the backend", err)
	}
	<-serveQueue.Withdraw(true)
	if got := d.Processes(); len(got) != 1 {
		t.Errorf("after one process exited: got %+v, want one", got)
	}
	stop()
	if got := b.hardware(train.PID); got != (hardware{}) {
		t.Errorf("after the daemon stopped: got %+v, want no change left", got)
	}
	if !b.closed {
		t.Error("the backend was not closed")
	}
}

// TestPendingProcessCanBeSet: a process whose queue will be offered soon takes
// attributes already.
func TestPendingProcessCanBeSet(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	if err := os.WriteFile(fmt.Sprintf("%s/pending-%d", b.dir, p.PID), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Change(ourselves, p.PID, given("class=batch")); err != nil {
		t.Fatal(err)
	}
	b.mustOffer(t, p)
	if got := d.Processes(); len(got) != 1 || got[0].Class() != "batch" {
		t.Errorf("got %+v", got)
	}
}

// rotateUntilKilled runs a daemon that rotates the batch processes of the given pids.
func rotateUntilKilled(dir string, pids []string) {
	b := newFakeBackend(dir)
	d := newTestDaemon(b)
	d.cfg.Journal = openJournal(dir)
	d.conf.Rules = []config.Rule{{Attrs: attr.Must("class=batch")}}
	go func() {
		<-d.ready
		for _, text := range pids {
			var pid int
			_, _ = fmt.Sscan(text, &pid)
			p, _ := proc.Look(pid)
			_, _ = b.offer(p)
			if os.Getenv("DAEMON_TEST_PAUSE") != "" {
				_, _ = d.Change(ourselves, pid, given("paused=true"))
			}
		}
		if os.Getenv("DAEMON_TEST_PAUSE") == "" { // giveway would not rotate processes that it knows nothing about
			_, _ = d.SetPolicy(ourselves, api.Policy{Name: "rr", Params: map[string]string{"quantum": "20ms"}})
		}
		fmt.Println("ready")
	}()
	_ = d.Run(context.Background())
}

// TestGuardianRestoresWhenDaemonIsKilled kills a daemon while it rotates three batch
// processes: soon all are as they were found.
func TestGuardianRestoresWhenDaemonIsKilled(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	args := []string{b.dir}
	var pids []int
	for range 3 {
		p, _ := sleeper(t)
		pids = append(pids, p.PID)
		args = append(args, fmt.Sprint(p.PID))
	}
	changed := func() bool {
		return slices.ContainsFunc(pids, func(pid int) bool { return b.hardware(pid) != hardware{} })
	}
	for round := range 4 {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "DAEMON_TEST=daemon")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Read(make([]byte, 8)) // ready
		eventually(t, "the daemon has changed a queue", changed)
		time.Sleep(time.Duration(round*7) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		killed := time.Now()
		eventually(t, "everything is restored", func() bool { return !changed() })
		t.Logf("restored %v after the daemon was killed", time.Since(killed))
	}
}

// TestHangingCallDelaysOneQueue: a driver call that hangs delays neither the other
// queues nor the daemon.
func TestHangingCallDelaysOneQueue(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	stop := runDaemon(t, d)
	first, _ := sleeper(t)
	second, _ := sleeper(t)
	hang := make(chan struct{})
	b.hang[first.PID] = hang
	for _, p := range []proc.Process{first, second} {
		b.mustOffer(t, p)
		if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the other process is paused", func() bool { return b.hardware(second.PID).stopped })
	if b.hardware(first.PID).stopped {
		t.Error("the process whose call hangs is paused")
	}
	close(hang)
	eventually(t, "both are paused", func() bool { return b.hardware(first.PID).stopped })
	stop()
}

// TestWithdrawnQueueIsRestored: a queue that is withdrawn while its process lives is
// restored, and the guardian is responsible for it until then.
func TestWithdrawnQueueIsRestored(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	stop := runDaemon(t, d)
	p, _ := sleeper(t)
	q := b.mustOffer(t, p)
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return b.hardware(p.PID).stopped })
	<-q.Withdraw(false)
	if got := b.hardware(p.PID); got != (hardware{}) {
		t.Errorf("after Withdraw: got %+v, want no change left", got)
	}
	<-q.Withdraw(false) // a second call has no effect
	d.guardian.mu.Lock()
	if n := len(d.guardian.adopted); n != 0 {
		t.Errorf("got %d queues at the guardian, want 0", n)
	}
	d.guardian.mu.Unlock()
	b.mustOffer(t, p) // found again; its owner's pause is still in force
	eventually(t, "it is paused again", func() bool { return b.hardware(p.PID).stopped })
	stop()
}

// TestRulesAndDevicePolicy: the configuration gives classes by rule and a policy to one
// device, and a new configuration takes effect.
func TestRulesAndDevicePolicy(t *testing.T) {
	parse := func(text string) config.Config {
		t.Helper()
		c, err := config.Parse("giveway.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	*d.conf = parse("policy: giveway\ndevices: [{device: fake0, policy: native}]\nrules: [{match: {}, class: batch, weight: 3}]\n")
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	check(t, "by rule", d.Processes()[0], "class=batch weight=3", attr.FromRule)
	if got := d.Policy(); got.Name != "giveway" || len(got.Devices) != 1 || got.Devices[0].Name != "native" || got.Devices[0].Device != "fake0" {
		t.Errorf("got policies %+v, want giveway, and native on fake0", got)
	}
	if err := d.applyConfig(parse("policy: rr\ndevices: [{device: 0, policy: wfq}]\nrules: [{match: {}, class: online}]")); err != nil {
		t.Fatal(err)
	}
	if got := d.Processes()[0]; got.Class() != "online" || got.Ignored[0].Mark != "ignored by wfq" {
		t.Errorf("with a new configuration: got class %s, ignored %+v, want online, ignored by wfq", got.Class(), got.Ignored)
	}
	if c := checkOf(d, "policy of device 0"); c.Name != "" {
		t.Errorf("got check %+v of a device that is there, want none", c)
	}
	if err := d.applyConfig(parse("policy: rr\ndevices: [{device: 5, policy: wfq}]")); err != nil {
		t.Fatal(err)
	}
	if c := checkOf(d, "policy of device 5"); !c.OK || !strings.Contains(c.Detail, "wfq waits for the device") {
		t.Errorf("got check %+v of a device that is not there, want one that says so", c)
	}
	if got := d.Policy(); got.Name != "rr" || len(got.Devices) != 0 {
		t.Errorf("got policies %+v, want rr on all devices", got)
	}
}

// TestHardwareQueueWithGate: a process that has both a hardware queue and a gate is one
// queue that can do what either can, whichever comes first.
func TestHardwareQueueWithGate(t *testing.T) {
	b, gates := newFakeBackend(t.TempDir()), newShim()
	d := newTestDaemon(gates, b)
	stop := runDaemon(t, d)
	train, _ := sleeper(t)
	admit := func() (*pagetest.Process, func()) {
		t.Helper()
		fds, leave, err := gates.Admit(server.ShimProcess{PID: train.PID, UID: uint32(os.Getuid()), Runtime: "cuda"})
		if err != nil {
			t.Fatal(err)
		}
		p, err := pagetest.NewProcess(fds[0], fds[1], fds[2])
		if err != nil {
			t.Fatal(err)
		}
		return p, leave
	}
	queue := func() (device, can string) {
		if all := d.Processes(); len(all) == 1 && len(all[0].Queues) == 1 {
			q := all[0].Queues[0]
			slices.Sort(q.Can)
			return q.Device, strings.Join(q.Can, " ")
		}
		return "", ""
	}
	p, leave := admit()
	if device, can := queue(); device != "cuda" || can != "bound hold" {
		t.Errorf("with its gate alone: got device %q, abilities %q, want cuda, bound hold", device, can)
	}
	b.mustOffer(t, train)
	both := func() bool {
		device, can := queue()
		return device == "fake0" && can == "bound hold interrupt slice"
	}
	if !both() {
		t.Error("with its hardware queue: it does not have the abilities of both")
	}
	change := func(attrs string) {
		t.Helper()
		if _, err := d.Change(ourselves, train.PID, given(attrs)); err != nil {
			t.Fatal(err)
		}
	}
	change("class=batch paused=true")
	eventually(t, "it is interrupted", func() bool { return b.hardware(train.PID).stopped })
	change("paused=false")
	eventually(t, "it is resumed", func() bool { return !b.hardware(train.PID).stopped })

	ready := func() (yes bool) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				yes = q.Ready()
			}
		})
		return yes
	}
	p.Launch()
	p.AddCompleted(1)
	eventually(t, "it is known to be idle", func() bool { return !ready() })
	leave()
	if device, can := queue(); device != "fake0" || can != "interrupt slice" || !ready() {
		t.Errorf("without its gate: got device %q, abilities %q, ready %v, want fake0, interrupt slice, true", device, can, ready())
	}
	p2, leave2 := admit()
	if !both() {
		t.Error("with a new gate: it does not have the abilities of both")
	}
	p2.Launch()
	p2.AddCompleted(1)
	eventually(t, "it is known to be idle again", func() bool { return !ready() })
	stop()
	leave2()
	if got := b.hardware(train.PID); got != (hardware{}) {
		t.Errorf("after the daemon stopped: got %+v, want no change left", got)
	}
}
