package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// admit gives a process a page, which the test writes in its place.
func admit(t *testing.T, gates *shim.Backend, runtime string) (pid int, page *pagetest.Process) {
	t.Helper()
	p, _ := sleeper(t)
	return admitProcess(t, gates, p, runtime)
}

func admitProcess(t *testing.T, gates *shim.Backend, p proc.Process, runtime string) (pid int, page *pagetest.Process) {
	t.Helper()
	fds, leave, err := gates.Admit(server.ShimProcess{PID: p.PID, UID: uint32(os.Getuid()), Runtime: runtime})
	if err != nil {
		t.Fatal(err)
	}
	if page, err = pagetest.NewProcess(fds[0], fds[1], fds[2]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		leave()
		_ = page.Close()
	})
	return p.PID, page
}

// besideBatchWork runs a daemon with a policy, and beside it a batch process that has work at its gate.
func besideBatchWork(t *testing.T, policy string) (d *Daemon, gates *shim.Backend, work *pagetest.Process) {
	t.Helper()
	gates = newShim()
	d = newTestDaemon(gates)
	t.Cleanup(runDaemon(t, d))
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: policy}); err != nil {
		t.Fatal(err)
	}
	pid, work := admit(t, gates, "opencl")
	if _, err := d.Change(ourselves, pid, given("class=batch")); err != nil {
		t.Fatal(err)
	}
	work.AddLaunched(1)
	return d, gates, work
}

// closedFor returns for which part of a second a gate is closed.
func closedFor(page *pagetest.Process) float64 {
	closed, all := 0, 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all++
		if page.Page.Gate.Load() == pageabi.GateClosed {
			closed++
		}
	}
	return float64(closed) / float64(all)
}

// TestOnlineWithoutWorkStopsNoBatch: a process that calls itself online and claims to wait at
// its open gate, to have a request, or to expect one all the time, but launches nothing,
// does not stop the batch work of others.
func TestOnlineWithoutWorkStopsNoBatch(t *testing.T) {
	for _, c := range []struct {
		name, policy string
		claim        func(d *Daemon, pid int, page *pagetest.Process)
	}{
		{"waits at an open gate", "giveway", func(_ *Daemon, _ int, page *pagetest.Process) {
			page.Page.Flags.Store(pageabi.Held | pageabi.Ready)
			page.AddLaunched(0)
		}},
		{"waits at an open gate, priority", "hpf", func(_ *Daemon, _ int, page *pagetest.Process) {
			page.Hint(shimpage.HintPriority, 1<<31-1)
			page.Page.Flags.Store(pageabi.Held | pageabi.Ready)
			page.AddLaunched(0)
		}},
		{"has a request", "slo", func(_ *Daemon, _ int, page *pagetest.Process) {
			page.Hint(shimpage.HintSLO, int64(time.Microsecond))
			page.Begin()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, gates, work := besideBatchWork(t, c.policy)
			hostile, page := admit(t, gates, "opencl")
			page.Hint(shimpage.HintClass, int64(sched.Online))
			c.claim(d, hostile, page)
			eventually(t, "the hints are taken in", func() bool { return classOf(d, hostile) == "online" })
			if part := closedFor(work); part > 0.3 {
				t.Errorf("the gate of batch work was closed for %.0f %% of the time, want almost never", 100*part)
			}
		})
	}
}

// TestAnnouncedRequestsMustCome: a process that announces requests and launches nothing is
// not believed after a while, until it launches.
func TestAnnouncedRequestsMustCome(t *testing.T) {
	gates := newShim()
	d := newTestDaemon(gates)
	defer runDaemon(t, d)()
	pid, page := admit(t, gates, "opencl")
	expects := func() (at sched.Time, invalid uint64) {
		d.events.inLoop(func() {})
		d.events.inLoop(func() {}) // what was written before the first turn was read
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processes[pid].attr.Expect, d.processes[pid].invalid
	}
	announce := func() (changed bool) {
		t.Helper()
		was, _ := expects()
		page.Hint(shimpage.HintExpect, int64(shimpage.Monotonic(time.Now().Add(time.Minute))))
		now, _ := expects()
		return now != was
	}
	page.AddLaunched(1)
	for range 3 {
		for i := range maxUnmet {
			if !announce() {
				t.Fatalf("announcement %d was not believed", i)
			}
		}
		_, was := expects()
		for range 5 {
			if announce() {
				t.Fatalf("an announcement was believed after %d without a launch", maxUnmet)
			}
		}
		if _, now := expects(); now != was+5 {
			t.Errorf("got %d hints counted as invalid, want 5", now-was)
		}
		if _, err := d.Hint(ourselves, pid, api.Hint{Values: attr.Must("expect=1s")}); err == nil || !server.IsLimit(err) {
			t.Errorf("an announcement through the API: got %v, want that it is beyond a limit", err)
		}
		page.AddLaunched(1)
	}
}
