package shim

import (
	"os/exec"
	"testing"

	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
)

// admitSleepers gives a page to each of n processes of an account.
func admitSleepers(t *testing.T, b *Backend, account uint32, n int) (pages []*pagetest.Process) {
	t.Helper()
	for range n {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		fds, leave, err := b.Admit(server.ShimProcess{PID: cmd.Process.Pid, Account: account, Runtime: "queue"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
		p, err := pagetest.NewProcess(fds[0], fds[1], fds[2])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		pages = append(pages, p)
	}
	return pages
}

// TestReportsOfAnAccountAreLimited: all pages of a user have as much to report as fits on them. A
// turn takes a part of it, and the next turns the rest. Another user's page is read at once.
func TestReportsOfAnAccountAreLimited(t *testing.T) {
	b, err := New(proc.Everyone)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), haltest.NewHost()); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const pages = 64
	for _, p := range append(admitSleepers(t, b, 1000, pages), admitSleepers(t, b, 1001, 1)...) {
		p.Page.OpenRequests.Store(1 << 20)
		now := pageabi.Now()
		for i := range p.Page.Log {
			p.Page.Log[i].Begin.Store(now - 1000)
			p.Page.Log[i].End.Store(now)
		}
		p.Page.Requests.Store(pageabi.RequestEntries)
		for i := range p.Page.Ring {
			e := &p.Page.Ring[i]
			e.Kind, e.Value = uint32(pageabi.HintWeight), int64(i+1)
			e.Seq.Store(uint32(i + 1))
		}
		p.Page.Hints.Store(pageabi.HintEntries)
	}
	other := b.connections[pages].id.PID
	f := haltest.NewFacts()
	var started, finished, hints int
	for turn := 1; turn <= 4; turn++ {
		before := [3]int{started, finished, hints}
		b.Poll(1, f)
		started, finished, hints = 0, 0, 0
		for _, c := range b.connections[:pages] {
			started, finished, hints = started+f.Started[c.id.PID], finished+len(f.Finished[c.id.PID]), hints+len(f.Hints[c.id.PID])
		}
		for i, n := range []int{started, finished, hints} {
			if n-before[i] > maxReports {
				t.Errorf("turn %d: got %d reports of kind %d, want at most %d", turn, n-before[i], i, maxReports)
			}
		}
		if turn == 1 && (f.Started[other] != maxOpen || len(f.Finished[other]) != pageabi.RequestEntries || len(f.Hints[other]) != pageabi.HintEntries) {
			t.Errorf("of the other user: got %d, %d and %d reports, want all", f.Started[other], len(f.Finished[other]), len(f.Hints[other]))
		}
	}
	if finished != pages*pageabi.RequestEntries || hints != pages*pageabi.HintEntries {
		t.Errorf("after 4 turns: got %d finished requests and %d hints, want all", finished, hints)
	}
}
