package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/heaptest"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/server"
)

// TestContainersComeAndGo: what the daemon keeps does not grow with the number of containers
// that came and went. Each has a user of its own and a process with a queue, whose attributes
// are changed by an order, and which is shown and counted. Tables with a limit are full before
// the first part has gone.
func TestContainersComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector makes it slow, and other tests make the same calls at once")
	}
	const part = 8_000
	few, many := newChurn(t), newChurn(t)
	before, _ := few.run(part, 1)
	after, heap := many.run(part, 3)
	if grown := after.Grown(before, part/2); grown != "" {
		t.Errorf("after %d more containers:\n%s", 2*part, grown)
	}
	t.Logf("live heap: %d KiB after %d containers, %d KiB after %d, %d KiB after %d", heap[0]>>10, part, heap[1]>>10, 2*part, heap[2]>>10, 3*part)
	// One table may grow to its limit in one of the parts, by up to 2 MiB, but not in both.
	if grown := min(heap[1]-heap[0], heap[2]-heap[1]); grown > 128*part {
		t.Errorf("the heap grew by %d bytes with each container", grown/part)
	}
	if size := many.journalSize(); size > few.journalSize()+256<<10 {
		t.Errorf("the journal has %d KiB, and had %d KiB after a third of the containers", size>>10, few.journalSize()>>10)
	}
}

// churn is a daemon in which containers come and go.
type churn struct {
	t *testing.T
	d *Daemon
	b *fakeBackend
	s *slowProc
}

func newChurn(t *testing.T) *churn {
	t.Helper()
	dir := journalDir(t)
	c := &churn{t: t, s: newSlowProc(), b: newFakeBackend(dir)}
	d, err := New(Config{
		File: config.Config{
			Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}}, Agent: "/run/giveway-agent/agent.sock",
			Metrics: metrics.Labels{PID: true, User: true, Container: true, Pod: true, Namespace: true},
		},
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		Backends: []hal.Backend{c.b},
		Journal:  openJournal(dir),
		Proc:     c.s,
		Log:      newTestDaemon().cfg.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.users.lookup = func(uid uint32) account { return account{name: fmt.Sprint("user", uid)} }
	c.d = d
	return c
}

// run lets containers come and go, in parts of this size. It returns what the daemon keeps at its end, and
// how large the heap was after each part.
func (c *churn) run(size, parts int) (kept heaptest.Elements, heap []int) {
	stop := runDaemon(c.t, c.d)
	for range record.DefaultEntries { // so that what comes and goes finds the ring full
		c.d.recorder.rec.Note("", 0, "test", "")
	}
	for i := range size * parts {
		c.container(i)
		if (i+1)%size == 0 {
			heap = append(heap, c.live())
		}
	}
	stop()
	return heaptest.Count(map[string]any{"daemon": c.d}), heap
}

// live returns the size of the heap once the daemon has dropped what is gone.
func (c *churn) live() int {
	c.t.Helper()
	c.d.sweep()
	c.d.keepAll()
	c.d.settle()
	return heaptest.Live()
}

func (c *churn) container(i int) {
	c.t.Helper()
	id, pid := fmt.Sprintf("%064x", i+1), 10_000+i
	uid := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
	mustRegister(c.t, c.d, api.Container{ID: id, PodUID: uid, ContainerNames: api.ContainerNames{Name: "main", Pod: fmt.Sprint("pod-", i), Namespace: "ml"}})
	p := c.s.add(proc.Process{PID: pid, Start: uint64(pid), Parent: 1, UID: uint32(100_000 + i), GID: uint32(100_000 + i), Containers: id, Container: id})
	q, err := c.b.offer(p)
	if err != nil {
		c.t.Fatal(err)
	}
	by := server.Caller{PID: pid, UID: p.UID, GID: p.GID, Account: p.UID, Pod: uid}
	if _, err := c.d.Change(by, pid, given("class=idle")); err != nil {
		c.t.Fatal(err)
	}
	if i%100 == 0 {
		c.d.Processes()
		c.d.Delays()
	}
	q.Withdraw(true)
	c.s.remove(pid)
	if err := os.Remove(filepath.Join(c.b.dir, fmt.Sprint(pid))); err != nil {
		c.t.Fatal(err)
	}
	c.d.Unregister(id)
}

func (c *churn) journalSize() int64 {
	info, err := os.Stat(c.d.cfg.Journal.Path())
	if err != nil {
		c.t.Fatal(err)
	}
	return info.Size()
}
