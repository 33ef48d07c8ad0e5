package daemon

import (
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// classOf returns the class that a process has in the daemon's records.
func classOf(d *Daemon, pid int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.processes[pid].attrs.Class().String()
}

// TestOrdersNeedTheOwner: an order changes a process only if its caller owns it, by the
// rule of the kernel for ptrace.
func TestOrdersNeedTheOwner(t *testing.T) {
	d, b, s := newSlowDaemon(t)
	defer runDaemon(t, d)()
	pid := family(t, b, s, alice, 10_000, 1)[0]
	for _, c := range []struct {
		name string
		by   server.Caller
		want string // part of the error
	}{
		{"another user", of(bob), "belongs to another user"},
		{"the user in another group", server.Caller{UID: alice, GID: bob}, "belongs to another user or group"},
		{"the owner", of(alice), ""},
		{"root", ourselves, ""},
	} {
		for what, change := range map[string]func() error{
			"set": func() error { _, err := d.Change(c.by, pid, given("weight=2")); return err },
			"set --tree": func() error {
				_, err := d.Change(c.by, 10_000, tree("weight=2"))
				return err
			},
			"hint": func() error { _, err := d.Hint(c.by, pid, api.Hint{Values: attr.Must("weight=2")}); return err },
		} {
			err := change()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s by %s: got %v, want %q", what, c.name, err, c.want)
			}
		}
	}
}

// TestContainersDoNotOwnSetuidPrograms: uid 0 of a container, without root's rights, may
// change its own processes but not those of other users that belong to root.
func TestContainersDoNotOwnSetuidPrograms(t *testing.T) {
	d, container := newTestDaemon(), server.Caller{}
	if d.mayChange(container, &proc.Process{Starter: alice}) {
		t.Error("a setuid program of another user: got true, want false")
	}
	if !d.mayChange(container, &proc.Process{}) || !d.mayChange(ourselves, &proc.Process{Starter: alice}) {
		t.Error("its own process, or root: got false, want true")
	}
}

// unreadable is a table of processes that cannot be read.
type unreadable struct{ ProcSource }

func (unreadable) Stat(int) (proc.Stat, error) { return proc.Stat{}, syscall.EMFILE }

// TestOrdersOutliveALackOfDescriptors: a process that cannot be looked at has not exited, so
// what it was given is kept.
func TestOrdersOutliveALackOfDescriptors(t *testing.T) {
	d, _, s := newSlowDaemon(t)
	root := s.add(proc.Process{PID: 10_000, Start: 10_000, UID: alice, GID: alice, Parent: 1})
	if err := d.apply(order{Kind: orderTree, By: of(alice), Target: root.ID(), Values: attr.Must("class=batch")}); err != nil {
		t.Fatal(err)
	}
	d.procs = unreadable{s}
	if d.sweep(); len(d.trees) != 1 {
		t.Errorf("got %d trees, want 1", len(d.trees))
	}
	d.procs = newSlowProc() // it has exited
	if d.sweep(); len(d.trees) != 0 {
		t.Errorf("after its root has exited: got %d trees, want none", len(d.trees))
	}
}

// TestOrderNeverReachesAnEarlierProcess: when a pid belongs to another process by now, an
// order for it does not change the record of the earlier one, which a backend has not
// withdrawn yet.
func TestOrderNeverReachesAnEarlierProcess(t *testing.T) {
	d, b, s := newSlowDaemon(t)
	defer runDaemon(t, d)()
	pid := family(t, b, s, alice, 10_000, 1)[0]
	s.add(proc.Process{PID: pid, Start: 99_999, UID: bob, GID: bob, Parent: 1}) // the pid is reused
	for _, by := range []server.Caller{of(alice), of(bob), ourselves} {
		if _, err := d.Change(by, pid, given("class=batch")); err == nil {
			t.Errorf("user %d: set reached the record of a process that has exited", by.UID)
		}
		if _, err := d.Hint(by, pid, api.Hint{Values: attr.Must("class=batch")}); err == nil {
			t.Errorf("user %d: a hint reached the record of a process that has exited", by.UID)
		}
	}
	for _, by := range []server.Caller{of(alice), ourselves} {
		if _, err := d.Change(by, 10_000, tree("class=batch")); err != nil {
			t.Error(err)
		}
	}
	if got := classOf(d, pid); got != "standard" {
		t.Errorf("the record of the earlier process: got class %s, want standard", got)
	}
	// The pid's new process has a record of its own once a backend finds it.
	b.mustOffer(t, proc.Process{PID: pid, Start: 99_999, UID: bob, GID: bob, Parent: 1})
	if _, err := d.Change(of(bob), pid, given("class=idle")); err != nil || classOf(d, pid) != "idle" {
		t.Errorf("the later process: got %v and class %s, want idle", err, classOf(d, pid))
	}
}
