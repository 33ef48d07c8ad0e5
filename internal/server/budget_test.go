package server

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
)

// crowded is a node with many processes of users.
type crowded struct {
	mute
	processes int
}

func (n crowded) Processes() []api.Process {
	all := make([]api.Process, n.processes)
	for i := range all {
		all[i] = api.Process{
			PID: i + 1, User: "alice", UID: 1000, Command: "python train.py --epochs 3 --name " + strings.Repeat("x", 100),
			Queues: []api.Queue{{ID: uint64(i), Device: "GPU-01234567-89ab-cdef-0123-456789abcdef", State: "running", Can: []string{"hold", "interrupt"}}},
		}
	}
	return all
}

func (n crowded) Process(pid int) (api.Process, bool) { return one(n.Processes(), pid) }

// TestLongRepliesCostMore: what a user may list in the time that its tokens are for is a number of bytes,
// and not of requests. A list of 1000 processes takes the daemon 18 ms, so that 2000 tokens, which an
// account gets in 2 s, must not be enough for more than about 10.
func TestLongRepliesCostMore(t *testing.T) {
	alice := &connection{peer: peer{local: true, uid: 1000, account: 1000}}
	lists := func(s *Server, ask operation) (n int) {
		for s.answer(alice, request{op: ask}).status == http.StatusOK {
			n++
		}
		return n
	}
	for _, c := range []struct {
		processes, least, most int
		ask                    operation
	}{{3, 250, 400, opProcesses}, {1000, 4, 12, opProcesses}, {1000, 1, 60, opMetrics}} {
		s := New(crowded{processes: c.processes}, Config{})
		s.owner = 0
		s.budgets = newBuckets(1e-9, budgetBurst) // it does not fill
		if n := lists(s, c.ask); n < c.least || n > c.most {
			t.Errorf("%v of %d processes: got %d replies for %v tokens, want %d to %d", c.ask, c.processes, n, budgetBurst, c.least, c.most)
		}
	}
}

// TestLongRepliesAtTheSameTime: an account cannot have many long replies made at once with the tokens of
// one, once the daemon knows how long they are. One that it has no tokens for is possible all the same.
func TestLongRepliesAtTheSameTime(t *testing.T) {
	s := New(crowded{processes: 1000}, Config{})
	s.owner = 0
	s.budgets = newBuckets(1e-9, budgetBurst)
	of := func(uid uint32) *connection { return &connection{peer: peer{local: true, uid: uid, account: uid}} }
	if a := s.answer(of(1001), request{op: opProcesses}); a.status != http.StatusOK {
		t.Fatalf("got status %d", a.status)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	for range 100 {
		all.Go(func() {
			if s.answer(of(1000), request{op: opProcesses}).status == http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				answered++
			}
		})
	}
	all.Wait()
	if answered == 0 || answered > 20 {
		t.Errorf("%d of 100 lists at the same time were answered, want 1 to 20", answered)
	}
	s.budgets = newBuckets(budgetRate, budgetBurst)
	s.replies[opProcesses].Store(maxReply)
	if a := s.answer(of(1002), request{op: opProcesses}); a.status != http.StatusOK {
		t.Errorf("a list that costs more than a user can have: got status %d", a.status)
	}
}

// one returns a process of a list.
func one(all []api.Process, pid int) (p api.Process, ok bool) {
	for _, p := range all {
		if p.PID == pid {
			return p, true
		}
	}
	return p, false
}

// listless is a node on which listing the processes is a mistake.
type listless struct {
	busy
	t *testing.T
}

func (n listless) Processes() []api.Process {
	n.t.Error("a request for one process lists all")
	return nil
}

func (n listless) Process(pid int) (api.Process, bool) { return one(n.busy.Processes(), pid) }

// TestOneProcessCostsOne: a hint or a change, which costs few tokens, does not make the daemon describe
// all processes.
func TestOneProcessCostsOne(t *testing.T) {
	s := New(listless{t: t}, Config{})
	s.owner = 0
	alice := &connection{peer: peer{local: true, uid: 1000, account: 1000}}
	for _, op := range []operation{opHint, opChange} {
		if a := s.answer(alice, request{op: op, pid: 5, values: attr.Must("class=batch")}); a.status != http.StatusOK {
			t.Errorf("%v: got status %d: %s", op, a.status, a.body)
		}
	}
}
