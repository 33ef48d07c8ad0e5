package daemon

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/sched"
)

// FuzzPage lets a process write anything to its page while the daemon's loop reads it. It
// checks after every turn of the loop that the scheduler's counters for the process are
// consistent and never decrease, and that the gates, leases and attributes of two other
// processes are not affected.
func FuzzPage(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seedTape(seed, 200+100*int(seed)))
	}
	h := newPageFuzz(f)
	f.Fuzz(func(t *testing.T, input []byte) { h.run(t, input) })
}

// pageFuzz is a daemon with the pages of three processes. The daemon is shared by all
// inputs; the hostile process connects anew for each.
type pageFuzz struct {
	d     *Daemon
	gates *shim.Backend

	hostile        proc.Process
	online, paused victim
}

// victim is a process that must not be affected.
type victim struct {
	proc.Process
	page *pagetest.Process
	attr sched.Attr
}

func newPageFuzz(f *testing.F) *pageFuzz {
	h := &pageFuzz{gates: newShim()}
	h.d = newTestDaemon(h.gates)
	f.Cleanup(runDaemon(f, h.d))
	h.hostile, _ = sleeper(f)
	for _, v := range []struct {
		*victim
		attrs string
	}{{&h.online, "class=online"}, {&h.paused, "class=batch paused=true"}} {
		v.Process, _ = sleeper(f)
		v.page, _ = h.admit(f, v.Process, "opencl")
		if _, err := h.d.Change(ourselves, v.PID, given(v.attrs)); err != nil {
			f.Fatal(err)
		}
		v.page.AddLaunched(1)
		v.attr = h.queues()[v.PID].Attr
	}
	eventually(f, "the paused process is held", func() bool { return h.paused.page.Page.Gate.Load() == pageabi.GateClosed })
	return h
}

// admit gives a process a page.
func (h *pageFuzz) admit(t testing.TB, p proc.Process, runtime string) (page *pagetest.Process, leave func()) {
	t.Helper()
	fds, leave, err := h.gates.Admit(server.ShimProcess{PID: p.PID, UID: uint32(os.Getuid()), Runtime: runtime})
	if err != nil {
		t.Fatal(err)
	}
	page, err = pagetest.NewProcess(fds[0], fds[1], fds[2])
	if err != nil {
		t.Fatal(err)
	}
	return page, leave
}

// queues returns the scheduler's record of the queue of each process that has one, by pid,
// after another turn of the loop.
func (h *pageFuzz) queues() map[int]sched.Queue {
	records := h.d.queueStates.get()
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	found := map[int]sched.Queue{}
	for pid, p := range h.d.processes {
		if len(p.queues) == 1 {
			found[pid] = records[p.queues[0].id]
		}
	}
	return found
}

func (h *pageFuzz) run(t *testing.T, input []byte) {
	in := tape(input)
	began := time.Now()
	h.queues() // so that the turn that finds the page begins later
	page, leave := h.admit(t, h.hostile, []string{"opencl", "cuda", "hint", ""}[in.number(4)])
	var before sched.Queue
	for turns := 0; len(in) > 0 && turns < 200; turns++ {
		for range 1 + in.number(8) {
			h.write(page, &in)
		}
		switch in.number(32) {
		case 0: // the process calls exec: it gets another page before it loses this one
			next, left := h.admit(t, h.hostile, "opencl")
			leave()
			_ = page.Close()
			page, leave = next, left
		case 1:
			_, _ = h.d.Change(ourselves, h.hostile.PID, given("paused=true"))
		case 2:
			_, _ = h.d.Change(ourselves, h.hostile.PID, given("paused=false"))
		default:
			page.AddLaunched(0) // rings
		}
		all := h.queues()
		now := all[h.hostile.PID]
		if problem := queueProblem(before, now, time.Since(began)); problem != "" {
			t.Fatalf("the hostile process: %s\nbefore: %+v\nnow: %+v", problem, before, now)
		}
		before = now
		h.checkVictims(t, all)
	}
	leave()
	_ = page.Close()
	h.forgetHostile(t)
}

// forgetHostile checks that nothing is left of the process but the attributes that its
// owner gave it, and drops those for the next input.
func (h *pageFuzz) forgetHostile(t *testing.T) {
	t.Helper()
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if p := h.d.processes[h.hostile.PID]; p != nil && (!p.hasOrders || p.gate != nil || len(p.queues) != 0) {
		t.Fatalf("after it disconnected: got owned %v, gate %v, %d queues, want no record", p.hasOrders, p.gate, len(p.queues))
	}
	delete(h.d.processes, h.hostile.PID)
}

// write makes one write to a page, or a few that belong together.
func (h *pageFuzz) write(p *pagetest.Process, in *tape) {
	g := p.Page
	switch in.number(12) {
	case 0:
		p.WriteAt(int(in.byte())<<8|int(in.byte()), in.bytes(1+in.number(64)))
	case 1:
		g.Launched.Store(in.word())
	case 2:
		g.Completed.Store(in.word())
	case 3:
		g.Flags.Store(uint32(in.word()))
	case 4:
		g.OpenRequests.Store(uint32(in.word()))
	case 5:
		p.Hint(pageabi.HintKind(in.number(16)), int64(in.word()))
	case 6:
		g.Hints.Store(in.word())
	case 7:
		g.Requests.Store(in.word())
	case 8:
		entry := &g.Log[in.number(pageabi.RequestEntries)]
		entry.Begin.Store(in.word())
		entry.End.Store(pageabi.Now() + in.word())
	case 9:
		g.Runtimes.Store(uint32(in.word()))
	case 10:
		p.SetQueues(in.number(pageabi.GPUEntries), uint32(in.word()), uint32(in.word()))
	case 11:
		g.Doorbell.Add(uint32(in.word()))
	}
}

// queueProblem says what is wrong with the scheduler's record of the hostile queue. The
// record may belong to another queue than before.
func queueProblem(before, now sched.Queue, elapsed time.Duration) string {
	c, was := now.Counters, before.Counters
	switch {
	case c.Completed > c.Launched || c.Launched > c.Submitted:
		return "the counters are not in order"
	case c.Submitted > c.Launched+1:
		return "more than one command is submitted and not launched"
	case now.ID == before.ID && (c.Launched < was.Launched || c.Completed < was.Completed):
		return "a counter decreased"
	case now.ID == before.ID && now.Served < before.Served:
		return "the served time decreased"
	case now.Served > elapsed:
		return fmt.Sprintf("it was served for longer than the %v of its life", elapsed)
	case now.OpenRequests > 1024:
		return "it has more open requests than a page may report"
	case now.Attr.Weight > 10000:
		return "its weight is out of range"
	}
	return ""
}

// checkVictims checks what the daemon promises to the other processes.
func (h *pageFuzz) checkVictims(t *testing.T, all map[int]sched.Queue) {
	t.Helper()
	if h.online.page.Page.Gate.Load() != pageabi.GateOpen {
		t.Fatal("the gate of the online process is closed")
	}
	g := h.paused.page.Page
	if g.Gate.Load() != pageabi.GateClosed {
		t.Fatal("the gate of the paused process is open")
	}
	if left := int64(g.Lease.Load() - pageabi.Now()); left <= 0 || left > pageabi.MaxLeaseNS {
		t.Fatalf("the lease of the paused process ends in %v", time.Duration(left))
	}
	for _, v := range []*victim{&h.online, &h.paused} {
		q := all[v.PID]
		want := sched.Counters{Submitted: 1, Launched: 1, Known: true}
		if q.Attr != v.attr || q.Counters != want {
			t.Fatalf("another process: got %+v, %+v, want %+v, %+v", q.Attr, q.Counters, v.attr, want)
		}
	}
}
