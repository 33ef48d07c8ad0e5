package daemon

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// newLimitedDaemon makes a daemon with a configuration in which alice is a student.
func newLimitedDaemon(t *testing.T, text string) (*Daemon, *fakeBackend, *slowProc) {
	t.Helper()
	d, b, s := newSlowDaemon(t)
	c, err := config.Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	d.conf = &c
	d.users.lookup = func(uid uint32) account {
		return map[uint32]account{alice: {"alice", []string{"100", "students"}}, bob: {"bob", nil}}[uid]
	}
	return d, b, s
}

// TestLimitsOfAUser: set beyond the limits of its user is refused with an error that names the
// limit. Runs and hints are reduced to it, which giveway run and giveway ps show. Root is not
// limited.
func TestLimitsOfAUser(t *testing.T) {
	d, b, s := newLimitedDaemon(t, "limits: [{match: {group: students}, class: batch, priority: 5}, {match: {user: root}, class: standard}]")
	log := &logBuffer{}
	d.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	defer runDaemon(t, d)()
	pid := family(t, b, s, alice, 10_000, 1)[0]
	bobs := family(t, b, s, bob, 20_000, 1)[0]
	const refused = "class online exceeds the limit of user alice, which is batch (limits, line 1 of the daemon's configuration)"
	for what, order := range map[string]func(by server.Caller) error{
		"set":        func(by server.Caller) error { _, err := d.Change(by, pid, given("class=online")); return err },
		"set --tree": func(by server.Caller) error { _, err := d.Change(by, 10_000, tree("class=online")); return err },
	} {
		if err := order(of(alice)); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: got %v, want %q", what, err, refused)
		}
		if got := classOf(d, pid); got != "standard" {
			t.Fatalf("%s: got class %s after it was refused", what, got)
		}
	}
	got, err := d.Hint(of(alice), pid, api.Hint{Values: attr.Must("class=online priority=2147483647 weight=9")})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "after a hint", got, "class=batch priority=5 weight=9", attr.FromHint)
	if len(got.Ignored) == 0 || got.Ignored[len(got.Ignored)-1].Name != "priority" || got.Ignored[len(got.Ignored)-1].Mark != "limited" {
		t.Errorf("after a hint: got ignored %+v, want that the priority is limited", got.Ignored)
	}
	// A program that runs without its attributes could have more than it asked for.
	inRun := of(alice)
	inRun.PID = 10_000
	run, end, err := d.BeginRun(inRun, api.Run{Values: attr.Must("class=idle priority=6 weight=4")})
	if err != nil || len(run.Ignored) != 2 || run.Ignored[1].Mark != api.Limited || run.Ignored[1].Name != "priority" {
		t.Errorf("run: got %v and ignored %+v, want that the priority is limited, and ignored for batch work", err, run.Ignored)
	}
	late := s.add(proc.Process{PID: 10_900, Start: 10_900, UID: alice, GID: alice, Parent: 10_000})
	b.mustOffer(t, late)
	for _, p := range d.Processes() {
		if p.PID == late.PID {
			check(t, "in the run", p, "class=idle priority=5 weight=4", attr.FromRun)
		}
	}
	eventually(t, "the log says so", func() bool { return log.count("than the limits allow") == 3 }) // two of the hint
	end()
	// The processes of a container's root have no limits, so its runs are refused.
	d.users.lookup = func(uint32) account { return account{"root", nil} }
	inContainer := of(0)
	inContainer.PID = family(t, b, s, 0, 40_000, 1)[0]
	if _, _, err := d.BeginRun(inContainer, api.Run{Values: attr.Must("class=online")}); err == nil || !strings.Contains(err.Error(), "class online exceeds the limit of user root") {
		t.Errorf("run by root of a container: got %v, want that it is refused", err)
	}
	if got, err = d.Change(ourselves, pid, given("class=online")); err != nil || got.Class() != "online" {
		t.Errorf("by root: got %v, class %s", err, got.Class())
	}
	if got, err = d.Change(of(bob), bobs, given("class=online priority=9")); err != nil || got.Class() != "online" {
		t.Errorf("by a user without limits: got %v, class %s", err, got.Class())
	}
	// A subordinate uid has the limits of its owner.
	d.users.account = func(uid uint32) uint32 { return map[uint32]uint32{100_005: alice}[uid] }
	sub := family(t, b, s, 100_005, 30_000, 1)[0]
	by := of(100_005)
	by.Account = alice
	if _, err := d.Change(by, sub, given("class=online")); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("by a subordinate uid: got %v, want %q", err, refused)
	}
	if got, err = d.Hint(by, sub, api.Hint{Values: attr.Must("class=online")}); err != nil || got.Class() != "batch" {
		t.Errorf("a hint by a subordinate uid: got %v, class %s; want batch", err, got.Class())
	}
	d.users.account = nil
	// A limit that comes later bounds what was set before.
	c, err := config.Parse("x.yaml", []byte("limits: [{match: {}, class: standard, priority: 1}]"))
	if err != nil {
		t.Fatal(err)
	}
	c.Policy = d.conf.Policy
	if err := d.useConfig(&c); err != nil {
		t.Fatal(err)
	}
	if got := classOf(d, bobs); got != "standard" {
		t.Errorf("after a limit was added: got class %s, want standard", got)
	}
	if got := classOf(d, pid); got != "online" {
		t.Errorf("what root set, after a limit was added: got class %s, want online", got)
	}
}

// lockedBuffer is a buffer for a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestHintsDoNotRaiseARule: a process that a rule makes idle does not make itself online by
// hints on its page, and the log says so once. It may lower itself, and a rule can allow
// more.
func TestHintsDoNotRaiseARule(t *testing.T) {
	d := newShimDaemon()
	var log lockedBuffer
	d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	rules := func(text string) []config.Rule {
		c, err := config.Parse("x.yaml", []byte("rules: ["+text+"]"))
		if err != nil {
			t.Fatal(err)
		}
		return c.Rules
	}
	d.conf.Rules = rules("{match: {}, class: batch, priority: 3}")
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	for range 3 {
		p.send("hint %d %d", shimpage.HintClass, sched.Online)
		p.send("hint %d %d", shimpage.HintPriority, 1<<30)
		p.send("hint %d %d", shimpage.HintWeight, 7)
	}
	eventually(t, "the hints are taken in", func() bool { return p.described(d).Attrs.Int(attr.Weight) == 7 })
	got := p.described(d)
	check(t, "a hint above the rule", got, "class=batch priority=3 weight=7", attr.FromRule)
	marks := map[string]string{}
	for _, i := range got.Ignored {
		marks[i.Name] = i.Mark
	}
	if marks["class"] != "limited" || marks["priority"] == "" {
		t.Errorf("got ignored %+v, want class and priority", got.Ignored)
	}
	eventually(t, "the log says so", func() bool { return strings.Count(log.String(), "than the limits allow") == 2 })
	p.send("hint %d %d", shimpage.HintClass, sched.Idle)
	eventually(t, "a hint below the rule", func() bool { return p.class(d) == "idle" })
	p.send("hint %d %d", shimpage.HintClass, sched.Online)
	eventually(t, "the rule again", func() bool { return p.class(d) == "batch" })
	setRules(d, rules("{match: {}, class: batch, hints_raise: true}"))
	check(t, "a rule that allows it", p.described(d), "class=online priority=1073741824 weight=7", attr.FromHint)
	if n := strings.Count(log.String(), "than the limits allow"); n != 2 {
		t.Errorf("got %d lines in the log, want 2:\n%s", n, log.String())
	}
}

// class returns the class that giveway ps shows for the process.
func (p *shimProcess) class(d *Daemon) string {
	got := p.described(d)
	return got.Class()
}

// TestJournalKeepsWhatIsUnlimited: after a restart, limits apply to what the owner set and
// not to what root set.
func TestJournalKeepsWhatIsUnlimited(t *testing.T) {
	was := &process{hasOrders: true}
	was.layers[attr.FromSet] = attr.Must("class=online priority=1").Unlimited().With(attr.Must("priority=9"))
	k, _ := was.kept()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var read keptProcess
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	d, _, s := newSlowDaemon(t)
	info := s.add(proc.Process{PID: 10_000, Start: 5, UID: alice, GID: alice, Parent: 1})
	read.ID = info.ID()
	d.conf = &config.Config{Limits: []config.Limit{{Ceiling: attr.Must("class=batch priority=5")}}}
	d.takeOverProcess(read, nil)
	if got, want := d.processes[10_000].attrs.Given(), attr.Must("class=online priority=5"); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLimitsOfAProcessThatIsNotDumpable: such a process belongs to root, and has the limits
// and the rule of the user who started it nevertheless.
func TestLimitsOfAProcessThatIsNotDumpable(t *testing.T) {
	d, _, _ := newLimitedDaemon(t, "rules: [{match: {user: root}, weight: 9}, {match: {user: alice}, weight: 2}]\nlimits: [{match: {user: alice}, class: batch}]")
	a := d.adminSettingsOf(&proc.Process{PID: 7, Starter: alice}, d.conf, nil)
	if most, ok := a.limits.Ceiling.Get(attr.Class); !ok || sched.Class(most) != sched.Batch {
		t.Errorf("got class %v, %v as its limit, want batch", sched.Class(most), ok)
	}
	if weight, _ := a.rule.Get(attr.Weight); weight != 2 {
		t.Errorf("got weight %d by rule, want 2", weight)
	}
	if a = d.adminSettingsOf(&proc.Process{PID: 7}, d.conf, nil); !a.limits.Ceiling.Empty() {
		t.Errorf("root: got limits %v, want none", a.limits.Ceiling)
	}
}
