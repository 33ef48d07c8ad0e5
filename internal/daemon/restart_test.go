package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

func journalPath(dir string) string { return filepath.Join(dir, "journal") }

// openJournal opens the journal of a fake backend.
func openJournal(dir string) *journal.Store {
	s, err := journal.Open(journalPath(dir), 10*time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	return s
}

// journalDir returns a folder for a journal. It is removed when no guardian writes to the
// journal any more.
func journalDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { _ = openJournal(dir).Close() })
	return dir
}

// killBoth kills a daemon and its guardian so that neither notices the end of the other.
func killBoth(t *testing.T, daemon *drivertest.Child) {
	t.Helper()
	if daemon.KillWithChildren() == 0 {
		t.Fatal("the daemon has no guardian")
	}
}

// killedTogether runs f after a daemon that rotates three batch processes was killed
// together with its guardian, at random moments. Changed says whether a queue is changed.
func killedTogether(t *testing.T, f func(b *fakeBackend, changed func() bool)) {
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
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	leftChanged := 0
	for range rounds {
		cmd := drivertest.Self("DAEMON_TEST=daemon")
		cmd.Args = append([]string{os.Args[0]}, args...)
		child := drivertest.Start(t, cmd)
		_, _ = child.Out.Read(make([]byte, 8)) // ready
		eventually(t, "the daemon has changed a queue", changed)
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond)
		killBoth(t, child)
		if changed() {
			leftChanged++
		}
		f(b, changed)
	}
	if leftChanged == 0 {
		t.Error("no daemon left a change, so nothing was tested")
	}
}

// TestNextDaemonUndoesWhatBothLeft: the next daemon finds the queues in the journal and
// restores them before it does anything else.
func TestNextDaemonUndoesWhatBothLeft(t *testing.T) {
	killedTogether(t, func(b *fakeBackend, changed func() bool) {
		d := newTestDaemon(newFakeBackend(b.dir))
		d.cfg.Journal = openJournal(b.dir)
		stop := runDaemon(t, d)
		if changed() {
			t.Error("a queue is changed when the next daemon runs")
		}
		if c := d.journalCheck(); !c.OK {
			t.Errorf("got check %+v, want it OK", c)
		}
		stop()
	})
}

// TestRestoreWithoutDaemonUndoesWhatBothLeft is what 'giveway restore' does.
func TestRestoreWithoutDaemonUndoesWhatBothLeft(t *testing.T) {
	killedTogether(t, func(b *fakeBackend, changed func() bool) {
		s := openJournal(b.dir)
		defer s.Close()
		if _, _, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		if changed() {
			t.Error("a queue is changed after the restore")
		}
		if all, _, _ := s.Left(); len(all) != 0 {
			t.Errorf("got %v in the journal, want nothing", all)
		}
	})
}

// TestGuardianEmptiesTheJournal: the guardian alone restores everything, and the next daemon
// waits for it and finds nothing to undo.
func TestGuardianEmptiesTheJournal(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	p, _ := sleeper(t)
	second, _ := sleeper(t)
	cmd := drivertest.Self("DAEMON_TEST=daemon")
	cmd.Args = []string{os.Args[0], b.dir, fmt.Sprint(p.PID), fmt.Sprint(second.PID)}
	child := drivertest.Start(t, cmd)
	_, _ = child.Out.Read(make([]byte, 8))
	eventually(t, "the queue is changed", func() bool { return b.hardware(p.PID) != hardware{} })
	child.Kill()
	s := openJournal(b.dir)
	defer s.Close()
	if all, _, err := s.Left(); len(all) != 0 || err != nil || b.hardware(p.PID) != (hardware{}) {
		t.Errorf("got %v, %v in the journal and %+v, want nothing", all, err, b.hardware(p.PID))
	}
}

// TestLeftChangeOfAnExitedProcessIsForgotten: nothing is left to undo, and the pid may be
// another process's.
func TestLeftChangeOfAnExitedProcessIsForgotten(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	other, _ := sleeper(t)
	s := openJournal(b.dir)
	for id, q := range []journal.Queue{{}, {Backend: "fake"}, {Backend: "fake"}} {
		q.Process.PID = map[int]int{1: dead.Process.Pid, 2: other.PID}[id]
		if id > 0 {
			_ = s.PutQueue(1, q)
			_ = s.PutChange(1, journal.Change{Sliced: true})
			if n, last, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); n != 1 || last != 1 || err != nil {
				t.Errorf("got %d, %d, %v; want 1, 1, no error", n, last, err)
			}
		}
	}
	if keys := s.Keys(""); len(keys) != 0 {
		t.Errorf("got %v, want no keys", keys)
	}
	_ = s.PutQueue(7, journal.Queue{Backend: "unknown"})
	_ = s.PutChange(7, journal.Change{Sliced: true})
	if _, last, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); last != 7 || err == nil || len(s.Keys("")) != 2 {
		t.Errorf("a queue that cannot be found again: got %d, %v, %v; want an error, and its entry kept", last, err, s.Keys(""))
	}
	_ = s.Close()
}

// nextDaemon ends a daemon with a fake backend, cleanly or by simulating a crash, and returns the
// next one on the same journal. Change may edit its configuration.
func nextDaemon(t *testing.T, b *fakeBackend, stop func(), change func(*config.Config)) (*Daemon, *fakeBackend, func()) {
	t.Helper()
	stop()
	next := newFakeBackend(b.dir)
	d := newTestDaemon(next)
	if change != nil {
		change(d.conf)
		d.policy = d.conf.Policy
	}
	d.cfg.Journal = openJournal(b.dir)
	return d, next, runDaemon(t, d)
}

// newKeptDaemon starts a daemon with a fake backend and a journal.
func newKeptDaemon(t *testing.T) (*Daemon, *fakeBackend, func()) {
	t.Helper()
	b := newFakeBackend(journalDir(t))
	return nextDaemon(t, b, func() {}, nil)
}

// TestOrdersSurviveARestart: a paused process stays paused, a tree and a process keep their
// attributes, and processes that have exited are dropped.
func TestOrdersSurviveARestart(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	paused, _ := sleeper(t)
	gone, goneCmd := sleeper(t)
	b.mustOffer(t, paused)
	b.mustOffer(t, gone)
	for pid, attrs := range map[int]string{paused.PID: "paused=true weight=7", gone.PID: "class=batch"} {
		if _, err := d.Change(ourselves, pid, given(attrs)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Change(ourselves, paused.PID, given("weight=9")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Change(ourselves, os.Getpid(), tree("class=batch")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Change(ourselves, paused.PID, given("class=online")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return b.hardware(paused.PID).stopped })
	_ = goneCmd.Process.Kill()
	_ = goneCmd.Wait()

	d, b, stop = nextDaemon(t, b, stop, nil)
	if b.hardware(paused.PID).stopped {
		t.Error("the queue was not started when the daemon ended")
	}
	b.mustOffer(t, paused)
	eventually(t, "it is paused again", func() bool { return b.hardware(paused.PID).stopped })
	later, _ := sleeper(t) // a child of this process: of the tree
	b.mustOffer(t, later)
	got := map[int]string{}
	for _, p := range d.Processes() {
		got[p.PID] = fmt.Sprint(p.Class(), " ", p.Attrs.Int(attr.Weight))
	}
	if want := map[int]string{paused.PID: "online 9", later.PID: "batch 1"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if keys := d.cfg.Journal.Keys(keptProcesses + fmt.Sprint(gone.PID)); len(keys) > 0 {
		eventually(t, "the process that has exited is dropped", func() bool { return len(d.cfg.Journal.Keys(keptProcesses+fmt.Sprint(gone.PID))) == 0 })
	}
	if err := d.Restore(ourselves); err != nil {
		t.Fatal(err)
	}
	d, b, stop = nextDaemon(t, b, stop, nil)
	defer stop()
	b.mustOffer(t, paused)
	if p := d.Processes()[0]; p.Class() != "standard" || p.Attrs.Bool(attr.Paused) || d.Policy().Name != "native" {
		t.Errorf("after restore and a restart: got %s, paused %v, policy %s; want standard, false, native", p.Class(), p.Attrs.Bool(attr.Paused), d.Policy().Name)
	}
}

// TestOrdersOfAnotherVersion: the journal is of a daemon of another version, which had an attribute
// that this one does not know. The others apply. What cannot be read at all is logged.
func TestOrdersOfAnotherVersion(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	paused, _ := sleeper(t)
	text, _ := json.Marshal(paused.ID())
	id := string(text)
	disk := openJournal(b.dir)
	for key, value := range map[string]string{
		idKey(keptProcesses, paused.ID()): `{"id":` + id + `,"set":{"paused":true,"later":1},"owned":true}`,
		runKey(7):                         `{"root":` + id + `,"run":7,"values":{"later":null,"class":"batch"}}`,
		runKey(8):                         `{"root":` + id + `,"run":8,"values":{"class":"later"}}`,
	} {
		if err := disk.Put(key, json.RawMessage(value)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	d := newTestDaemon(b)
	d.cfg.Journal, d.cfg.Log = disk, slog.New(slog.NewTextHandler(&log, nil))
	stop := runDaemon(t, d)
	b.mustOffer(t, paused)
	eventually(t, "it is paused again", func() bool { return b.hardware(paused.PID).stopped })
	if got := classOf(d, paused.PID); got != "batch" {
		t.Errorf("got class %s, want batch", got)
	}
	stop()
	if n := strings.Count(log.String(), "cannot be read"); n != 1 || !strings.Contains(log.String(), runKey(8)) {
		t.Errorf("got %d orders in the log that cannot be read, want %s:\n%s", n, runKey(8), log.String())
	}
}

// TestRestoreEndsWithAnotherPolicyInTheFile: the file has the policy native, so a restore leaves no policy
// in the journal. The next daemon has a file with another policy, and runs apply again.
func TestRestoreEndsWithAnotherPolicyInTheFile(t *testing.T) {
	in := func(name string) func(*config.Config) { return func(c *config.Config) { c.Policy.Name = name } }
	d, b, stop := nextDaemon(t, newFakeBackend(journalDir(t)), func() {}, in("native"))
	p, _ := sleeper(t)
	if _, _, err := d.BeginRun(server.Caller{PID: p.PID, All: true}, api.Run{Values: attr.Must("class=batch")}); err != nil {
		t.Fatal(err)
	}
	b.mustOffer(t, p)
	if err := d.Restore(ourselves); err != nil {
		t.Fatal(err)
	}
	for _, next := range []struct{ policy, want string }{{"native", "standard"}, {"giveway", "batch"}} {
		d, b, stop = nextDaemon(t, b, stop, in(next.policy))
		b.mustOffer(t, p)
		if got := classOf(d, p.PID); got != next.want {
			t.Errorf("with %s in the file: got class %s, want %s", next.policy, got, next.want)
		}
	}
	stop()
}

// TestOrdersSurviveAKill: the process is paused again although the daemon and its guardian
// could not do anything at the end.
func TestOrdersSurviveAKill(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	p, _ := sleeper(t)
	cmd := drivertest.Self("DAEMON_TEST=daemon", "DAEMON_TEST_PAUSE=1")
	cmd.Args = []string{os.Args[0], b.dir, fmt.Sprint(p.PID)}
	child := drivertest.Start(t, cmd)
	_, _ = child.Out.Read(make([]byte, 8))
	eventually(t, "it is paused", func() bool { return b.hardware(p.PID).stopped })
	killBoth(t, child)
	_, next, stop := nextDaemon(t, b, func() {}, nil)
	defer stop()
	if b.hardware(p.PID).stopped {
		t.Error("the queue is stopped before the next daemon has found it")
	}
	next.mustOffer(t, p)
	eventually(t, "it is paused again", func() bool { return b.hardware(p.PID).stopped })
}

// TestRunsSurviveARestart: a run whose root is alive applies to processes that are found
// later, and is replaced when its root begins it again. Processes keep the attributes of a
// run that has ended.
func TestRunsSurviveARestart(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	live, _ := sleeper(t)
	ended, cmd := sleeper(t)
	member, _ := sleeper(t)
	begin := func(root proc.Process, attrs string) (end func()) {
		t.Helper()
		_, end, err := d.BeginRun(server.Caller{PID: root.PID, All: true}, api.Run{Values: attr.Must(attrs)})
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	endRun := begin(member, "class=batch")
	b.mustOffer(t, member)
	endRun()
	endLive := begin(live, "class=online")
	_ = begin(ended, "class=idle")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	stopBoth := func() {
		stop()
		endLive() // the server ends all runs when the daemon ends
	}
	d, b, stop = nextDaemon(t, b, stopBoth, nil)
	b.mustOffer(t, live)
	b.mustOffer(t, member)
	classes := func() (got []string) {
		for _, p := range d.Processes() {
			got = append(got, p.Class())
		}
		return got
	}
	if got := classes(); fmt.Sprint(got) != "[online batch]" {
		t.Errorf("got classes %v, want [online batch]", got)
	}
	begin(live, "class=idle")()
	if got := classes(); fmt.Sprint(got) != "[idle batch]" {
		t.Errorf("after the root began its run again: got classes %v, want [idle batch]", got)
	}
	if keys := d.cfg.Journal.Keys(keptRuns); len(keys) != 0 {
		t.Errorf("after every run has ended: got %v, want none", keys)
	}
	stop()
}

// TestLastRunAppliesAfterARestart: of several runs with the same root the last one applies,
// also when their numbers have different lengths.
func TestLastRunAppliesAfterARestart(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	d.lastID.Store(8)
	root, _ := sleeper(t)
	for _, attrs := range []string{"class=batch", "class=online"} { // runs 9 and 10
		if _, _, err := d.BeginRun(server.Caller{PID: root.PID, All: true}, api.Run{Values: attr.Must(attrs)}); err != nil {
			t.Fatal(err)
		}
	}
	d, b, stop = nextDaemon(t, b, stop, nil)
	defer stop()
	b.mustOffer(t, root)
	if got := d.Processes()[0].Class(); got != "online" {
		t.Errorf("got class %s, want online", got)
	}
}

// TestNumbersOfEndedRunsAreNotUsedAgain: a process keeps the attributes of a run that has
// ended, over several restarts, whatever runs begin meanwhile.
func TestNumbersOfEndedRunsAreNotUsedAgain(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	member, _ := sleeper(t)
	b.mustOffer(t, member)
	d.lastID.Store(100)
	begin := func(root int, attrs string) (end func()) {
		_, end, err := d.BeginRun(server.Caller{PID: root, All: true}, api.Run{Values: attr.Must(attrs)})
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	begin(member.PID, "class=batch")() // run 101
	d, b, stop = nextDaemon(t, b, stop, nil)
	other, _ := sleeper(t)
	for d.lastID.Load() < 101 {
		_ = begin(other.PID, "class=idle")
	}
	d, b, stop = nextDaemon(t, b, stop, nil)
	defer stop()
	b.mustOffer(t, member)
	if got := d.Processes()[0].Class(); got != "batch" {
		t.Errorf("got class %s, want batch", got)
	}
}

// TestPolicySurvivesARestart: until the policy of the configuration is another one.
func TestPolicySurvivesARestart(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	policies := func() string {
		p := d.Policy()
		text := p.Name + fmt.Sprint(p.Params)
		for _, own := range p.Devices {
			text += " " + own.Device + " " + own.Name
		}
		return text
	}
	for _, p := range []api.Policy{{Name: "wfq"}, {Name: "rr", Device: "fake0"}} {
		if _, err := d.SetPolicy(ourselves, p); err != nil {
			t.Fatal(err)
		}
	}
	want := policies()
	d, b, stop = nextDaemon(t, b, stop, nil)
	eventually(t, "the policies are in force again: "+want, func() bool { return policies() == want })
	d, b, stop = nextDaemon(t, b, stop, nil)
	eventually(t, "and after another restart", func() bool { return policies() == want })
	d, _, stop = nextDaemon(t, b, stop, func(c *config.Config) { c.Policy = api.Policy{Name: "fifo"} })
	defer stop()
	eventually(t, "the changed configuration is in force", func() bool { return policies() == "fifomap[] fake0 rr" })
}

// TestPausedShimProcessSurvivesAKill: a process that only its gate can stop runs when the
// daemon and its guardian were killed, and is paused again when it finds the next daemon.
func TestPausedShimProcessSurvivesAKill(t *testing.T) {
	socket := filepath.Join(journalDir(t), "s")
	c := client.New(socket)
	start := func() *drivertest.Child {
		cmd := drivertest.Self("DAEMON_TEST=server")
		cmd.Args = []string{os.Args[0], socket}
		child := drivertest.Start(t, cmd)
		eventually(t, "the daemon answers", func() bool { st, err := c.Status(t.Context()); return err == nil && st.PID == child.PID })
		return child
	}
	isPaused := func() bool {
		all, err := c.Processes(t.Context())
		return err == nil && len(all) == 1 && all[0].Queues[0].State == "stopped"
	}
	child := start()
	p := startShim(t, socket, "opencl")
	if _, err := c.Change(t.Context(), p.Process.Pid, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", isPaused)
	p.send("launch")
	p.expectNothing(t)
	killBoth(t, child)
	p.expect(t, "launched true")
	start()
	p.send("connect")
	p.expect(t, "connected")
	p.send("use 4") // OpenCL
	eventually(t, "it is paused again", isPaused)
	p.send("launch")
	p.expectNothing(t)
}
