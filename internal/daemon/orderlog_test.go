package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/quota"
	"github.com/giveway/giveway/internal/server"
)

// TestOrdersOfOneUserLeaveRoomForOthers: alice gives attributes to 16,000 processes that then use no
// device any more. The daemon remembers a limited number of them, and the order of bob is journaled.
func TestOrdersOfOneUserLeaveRoomForOthers(t *testing.T) {
	dir := journalDir(t)
	s, b := newSlowProc(), newFakeBackend(dir)
	d := newTestDaemon(b)
	d.procs, d.cfg.Journal = s, openJournal(dir)
	defer runDaemon(t, d)()
	for i := range 16_000 {
		p := s.add(proc.Process{PID: 100_000 + i, Start: uint64(i + 1), UID: alice, GID: alice, Parent: 1})
		q := d.lockProcess(p)
		d.give(q, given("class=batch weight=3 priority=-5 nice=5 share=10% slo=10ms deadline=20ms late-entry=on predict=true stream-classes=true").Values)
		d.forget(q)
		d.mu.Unlock()
		if i%4000 == 0 {
			d.keepAll()
		}
	}
	d.keepAll()
	bobs := s.add(proc.Process{PID: 20_000, Start: 1, UID: bob, GID: bob, Parent: 1})
	b.mustOffer(t, bobs)
	if _, err := d.Change(of(bob), bobs.PID, given("class=batch")); err != nil {
		t.Fatal(err)
	}
	var kept keptProcess
	if !d.cfg.Journal.Get(idKey(keptProcesses, bobs.ID()), &kept) {
		t.Error("the order of bob is not in the journal")
	}
	d.sweep()
	if got := len(d.allProcesses()); got != maxRemembered+1 {
		t.Errorf("got %d processes, want %d of alice and 1 of bob", got, maxRemembered)
	}
	d.keepAll()
	if got := len(d.cfg.Journal.Keys(keptProcesses)); got != maxRemembered+1 {
		t.Errorf("the journal has %d processes, want %d", got, maxRemembered+1)
	}
}

// TestOrderOfRootIsNotTheUsers: what root sets for a process of a user counts to no user's share of the
// journal.
func TestOrderOfRootIsNotTheUsers(t *testing.T) {
	dir := journalDir(t)
	s, b := newSlowProc(), newFakeBackend(dir)
	d := newTestDaemon(b)
	d.procs, d.cfg.Journal = s, openJournal(dir)
	defer runDaemon(t, d)()
	p := s.add(proc.Process{PID: 20_000, Start: 1, UID: bob, GID: bob, Parent: 1})
	b.mustOffer(t, p)
	for _, tt := range []struct {
		by   server.Caller
		want orderOwner
	}{{of(bob), orderOwner{account: bob}}, {server.Caller{All: true}, administrator}} {
		if _, err := d.Change(tt.by, p.PID, given("weight=7")); err != nil {
			t.Fatal(err)
		}
		d.keeping.Lock()
		if got := d.kept.written[idKey(keptProcesses, p.ID())].orderOwner; got != tt.want {
			t.Errorf("order of %+v: got owner %+v, want %+v", tt.by, got, tt.want)
		}
		d.keeping.Unlock()
	}
}

// TestFullShareIsLoggedOnce: orders of alice do not fit in her share of the journal. The log says so once,
// and again after they did fit. It says the same of bob on its own.
func TestFullShareIsLoggedOnce(t *testing.T) {
	share := orderQuota
	orderQuota = quota.Quota{All: 64 << 10, Each: 1 << 10}
	defer func() { orderQuota = share }()
	dir := journalDir(t)
	s, log := newSlowProc(), &logBuffer{}
	d := newTestDaemon(newFakeBackend(dir))
	d.procs, d.cfg.Journal, d.cfg.Log = s, openJournal(dir), slog.New(slog.NewTextHandler(log, nil))
	defer runDaemon(t, d)()
	last := 0
	give := func(uid uint32, n int) (all []*process) {
		for range n {
			last++
			p := d.lockProcess(s.add(proc.Process{PID: 100_000 + last, Start: 1, UID: uid, GID: uid, Parent: 1}))
			d.give(p, given("class=batch weight=3").Values)
			d.mu.Unlock()
			all = append(all, p)
		}
		return all
	}
	lines := func(when string, want int) {
		t.Helper()
		for range 5 {
			d.keepAll()
		}
		if got := log.count("order could not be written"); got != want {
			t.Errorf("%s: the log has %d lines, want %d:\n%s", when, got, want, log)
		}
	}
	alices := give(alice, 40)
	lines("orders of alice do not fit", 1)
	if err := d.applyOnly(order{Kind: orderSet, By: of(alice), Target: alices[39].info.ID(), Values: given("weight=4").Values}); err != nil {
		t.Fatal(err)
	}
	lines("another order of alice does not fit", 1)
	give(bob, 40)
	lines("orders of bob do not fit", 2)
	d.eachProcess(alices, func(p *process) { delete(d.processes, p.info.PID) })
	lines("the processes of alice have exited", 2)
	give(alice, 40)
	lines("orders of alice do not fit again", 3)
}

// TestFullShareHidesNoWriteError: the journal cannot be written while the share of a user is full.
func TestFullShareHidesNoWriteError(t *testing.T) {
	j := openJournal(journalDir(t))
	var k orderLog
	k.load(j)
	large := keptTree{By: server.Caller{Pod: string(make([]byte, orderQuota.Each))}}
	all := map[string]keptValue{keptTrees + "1": {orderOwner{account: alice}, large}}
	if err := k.replace(j, all); !errors.Is(err, errNoRoom) {
		t.Errorf("got %v, want %v", err, errNoRoom)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	all[keptTrees+"2"] = keptValue{orderOwner{account: bob}, large}
	all[keptTrees+"3"] = keptValue{administrator, keptTree{}}
	if err := k.replace(j, all); !errors.Is(err, errNoRoom) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want that there is no room for bob and that nothing can be written", err)
	}
}

// TestKeeperSharesTheJournal: one user gets no more than its share of the journal, others and the
// administrator get theirs, and what is deleted makes room again.
func TestKeeperSharesTheJournal(t *testing.T) {
	j := openJournal(journalDir(t))
	defer j.Close()
	var k orderLog
	k.load(j)
	fill := func(of orderOwner) (n int) {
		for k.put(j, fmt.Sprintf("%s%v.%d", keptTrees, of, n), keptValue{of, keptTree{By: server.Caller{Pod: string(make([]byte, 4000))}}}) == nil && n < 1000 {
			n++
		}
		return n
	}
	first := orderOwner{account: 1000}
	n := fill(first)
	if n == 0 || k.bytes[first] > orderQuota.Each {
		t.Errorf("got %d values with %d bytes, want some and at most %d bytes", n, k.bytes[first], orderQuota.Each)
	}
	if others := fill(orderOwner{account: 1001}); others < n/2 {
		t.Errorf("the second user got %d values, the first %d", others, n)
	}
	key := fmt.Sprintf("%s%v.%d", keptTrees, first, 0)
	if err := k.put(j, key, keptValue{first, keptTree{By: server.Caller{Pod: string(make([]byte, 60_000))}}}); err == nil || j.Get(key, new(keptTree)) {
		t.Errorf("a value for which there is no room: got %v, want an error, and the old one removed", err)
	}
	if fill(orderOwner{pod: "pod"}) == 0 || k.put(j, keptPolicies, keptValue{administrator, keptPolicy{}}) != nil {
		t.Error("a pod or the administrator got no room")
	}
	if err := k.replace(j, nil); err != nil || len(k.bytes) != 0 || k.limited != 0 || len(k.written) != 0 {
		t.Errorf("got %v and %d bytes of %d owners after everything was deleted", err, k.limited, len(k.bytes))
	}
	if again := fill(first); again != n {
		t.Errorf("after everything was deleted: got %d values, want %d", again, n)
	}
}

// TestOrderThatDoesNotFitIsAnswered: an order of alice that does not fit in her share of the journal is
// carried out, and its answer warns that it ends with the daemon. Orders that fit, of bob and of root, have
// no warning.
func TestOrderThatDoesNotFitIsAnswered(t *testing.T) {
	share := orderQuota
	orderQuota = quota.Quota{All: 64 << 10, Each: 1 << 10}
	defer func() { orderQuota = share }()
	s, b := newSlowProc(), newFakeBackend(journalDir(t))
	d := newTestDaemon(b)
	d.procs, d.cfg.Journal = s, openJournal(b.dir)
	defer runDaemon(t, d)()
	const attrs = "class=batch weight=3 priority=-5 nice=5 share=10%"
	warned := func(by server.Caller, pids []int) (n int) {
		t.Helper()
		for _, pid := range pids {
			p, err := d.Change(by, pid, given(attrs))
			if err != nil || p.Class() != "batch" {
				t.Fatalf("process %d: got %v, class %s", pid, err, p.Class())
			}
			if p.Warning != "" {
				n++
			}
		}
		return n
	}
	alices := family(t, b, s, alice, 10_000, 20)
	if n := warned(of(alice), alices); n == 0 || n == len(alices) {
		t.Errorf("%d of %d orders of alice were answered with a warning, want some", n, len(alices))
	}
	if p, err := d.Change(of(alice), 10_000, tree("weight=4")); err != nil || p.Warning == "" {
		t.Errorf("set --tree of alice: got %v and warning %q, want a warning", err, p.Warning)
	}
	inRun := of(alice)
	inRun.PID = 10_000
	if run, _, err := d.BeginRun(inRun, api.Run{Values: attr.Must("class=idle")}); err != nil || run.Warning == "" {
		t.Errorf("run of alice: got %v and warning %q, want a warning", err, run.Warning)
	}
	if n := warned(of(bob), family(t, b, s, bob, 20_000, 1)); n != 0 {
		t.Error("an order of bob was answered with a warning")
	}
	if n := warned(ourselves, alices); n != 0 {
		t.Errorf("%d orders of root were answered with a warning", n)
	}
}
