package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestRunComesSecond: a program whose shim has found the daemon before 'giveway run' has
// told of it gets what run says, unless more has been said of it.
func TestRunComesSecond(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	plain, hinted, owned := start(t, socket, "cuda"), start(t, socket, "cuda"), start(t, socket, "cuda")
	hinted.do("hint 1 1")
	eventually(t, "the hint counts", func() bool { return hinted.found(d).From == "hint" })
	idle, batch, weight := "idle", "batch", uint32(3)
	owned.set(t, d, api.Change{Class: &idle})
	end, err := d.BeginRun(os.Getpid(), api.Change{Class: &batch, Weight: &weight, Tree: true})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for _, c := range []struct {
		p           *program
		class, from string
		weight      uint32
	}{{plain, "batch", "run", 3}, {hinted, "online", "hint", 3}, {owned, "idle", "set", 3}} {
		if got := c.p.found(d); got.Class != c.class || got.From != c.from || got.Weight != c.weight {
			t.Errorf("%s (%s) with weight %d, want %s (%s) with %d", got.Class, got.From, got.Weight, c.class, c.from, c.weight)
		}
	}
	// One that outlives its run keeps what it was given, whatever happens to the rules.
	again, err := d.BeginRun(plain.Process.Pid, api.Change{Class: &idle})
	if err != nil {
		t.Fatal(err)
	}
	again()
	d.rule()
	if got := plain.found(d); got.Class != idle || got.From != "run" {
		t.Errorf("after its run it is %s (%s)", got.Class, got.From)
	}
	if last, err := d.BeginRun(plain.Process.Pid, api.Change{Class: &batch}); err != nil {
		t.Fatal(err)
	} else {
		defer last()
	}
	// Of two runs the nearer counts.
	if end, err := d.BeginRun(os.Getppid(), api.Change{Class: &idle, Tree: true}); err != nil || plain.found(d).Class != "batch" {
		t.Errorf("%v: a run around it made it %s", err, plain.found(d).Class)
	} else {
		end()
	}
	// What was restored stays so when the rules are read again.
	if err := d.Restore(); err != nil {
		t.Fatal(err)
	}
	d.rule()
	if got := plain.found(d); got.Class != "standard" || got.From != "default" {
		t.Errorf("restored it is %s (%s)", got.Class, got.From)
	}
}

// TestTree: what is set with --tree reaches the children that are there and those that
// come, though the root itself has nothing to do with a device; but nobody else's.
func TestTree(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	batch, yes, no := "batch", true, false
	first := start(t, socket, "cuda")
	got, err := d.Change(os.Getpid(), api.Change{Class: &batch, Tree: true})
	if err != nil || got.PID != os.Getpid() || got.Class != batch || len(got.Queues) != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	second := start(t, socket, "cuda")
	is := func(what string, p *program, class, from string, paused bool) {
		t.Helper()
		if got := p.found(d); got.Class != class || got.From != from || got.Paused != paused {
			t.Errorf("%s: %s (%s), paused %v", what, got.Class, got.From, got.Paused)
		}
	}
	is("one that was there", first, "batch", "set", false)
	is("one that came", second, "batch", "set", false)
	if _, err := d.Change(os.Getpid(), api.Change{Paused: &yes, Tree: true}); err != nil {
		t.Fatal(err)
	}
	is("paused", second, "batch", "set", true)
	is("one that came then", start(t, socket, "cuda"), "batch", "set", true)
	if _, err := d.Change(os.Getpid(), api.Change{Paused: &no, Tree: true}); err != nil {
		t.Fatal(err)
	}
	is("resumed", first, "batch", "set", false)
	// Of what was said of a part and of the whole, the last counts, and what can be done is.
	small, bound := first.Process.Pid, uint32(4)
	for _, c := range []struct {
		pid    int
		paused *bool
	}{{os.Getpid(), &yes}, {small, &no}, {os.Getpid(), &yes}, {os.Getpid(), &no}, {small, &yes}, {os.Getpid(), &no}} {
		if _, err := d.Change(c.pid, api.Change{Paused: c.paused, Tree: true}); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		for _, w := range d.treesOf(&proc.Process{PID: small}) {
			if *w.change.Paused != *c.paused && (c.pid != small || w.root.PID == small) {
				t.Errorf("%+v: of %d it still says %v", c, w.root.PID, *w.change.Paused)
			}
		}
		d.mu.Unlock()
	}
	if _, err := d.Change(os.Getpid(), api.Change{Bound: &bound, Tree: true}); err != nil || first.found(d).Bound != bound {
		t.Errorf("%v: bound %d", err, first.found(d).Bound)
	}
	d.mu.Lock()
	d.trees[os.Getpid()].root.UID = 4711
	delete(d.trees, small)
	d.mu.Unlock()
	is("another user's", start(t, socket, "cuda"), "standard", "default", false)
	d.mu.Lock()
	d.trees[os.Getpid()].root.UID = 0
	d.trees[os.Getpid()].root.Start++
	d.mu.Unlock()
	is("of a process that had the pid before", start(t, socket, "cuda"), "standard", "default", false)
	if _, err := d.Change(1<<22+1, api.Change{Class: &batch, Tree: true}); err == nil {
		t.Error("the tree of nobody was changed")
	}
}

// TestRunOfAnotherUser: a run has nothing to say of what others run beneath it.
func TestRunOfAnotherUser(t *testing.T) {
	w := word{}
	for _, c := range []struct {
		root, uid uint32
		want      bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 1001, false}, {1000, 0, false}} {
		w.root.UID = c.root
		if got := w.countsFor(&proc.Process{UID: c.uid}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	d, yes := newHost(), true
	if _, err := d.BeginRun(os.Getpid(), api.Change{Paused: &yes}); err == nil {
		t.Error("a run paused what may not be paused")
	}
}

// TestTheLastWordCounts: of weights, deadlines and the like, whoever said it, when rules
// are read again and runs are told of late.
func TestTheLastWordCounts(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "cuda")
	two, long, none, slo := uint32(2), time.Second, time.Duration(0), 14*time.Millisecond
	p.set(t, d, api.Change{Weight: &two, Deadline: &long})
	p.do("hint %d %d", shimpage.HintWeight, 5)
	p.do("hint %d %d", shimpage.HintPriority, 7)
	p.do("hint %d %d", shimpage.HintSLO, 10*time.Millisecond)
	eventually(t, "the hints count", func() bool { got := p.found(d); return got.Weight == 5 && got.Priority == 7 && got.SLO > 0 })
	if _, err := d.Hint(p.Process.Pid, api.Hint{Deadline: &none}); err != nil {
		t.Fatal(err)
	}
	end, err := d.BeginRun(os.Getpid(), api.Change{SLO: &slo, Weight: &two})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	d.rule()
	if got := p.found(d); got.Weight != 5 || got.Priority != 7 || got.Deadline != 0 || got.SLO != 10*time.Millisecond || got.From != "default" {
		t.Errorf("%+v", got)
	}
	p.set(t, d, api.Change{Weight: &two})
	d.rule()
	if got := p.found(d); got.Weight != 2 {
		t.Errorf("weight %d", got.Weight)
	}
}

// TestWhoSaysIdempotent: what a program says of itself counts before its owner's word, as
// it does in the program.
func TestWhoSaysIdempotent(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "cuda")
	yes := true
	if got, err := d.Hint(p.Process.Pid, api.Hint{Idempotent: &yes}); err != nil || !got.Idempotent {
		t.Fatalf("%+v, %v", got, err)
	}
	p.do("hint %d 0", shimpage.HintIdempotent)
	eventually(t, "the program says no", func() bool { return !p.found(d).Idempotent })
	p.do("hint %d 1", shimpage.HintIdempotent)
	eventually(t, "the program says yes", func() bool { return p.found(d).Idempotent })
}
