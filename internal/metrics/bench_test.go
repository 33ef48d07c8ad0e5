package metrics

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// crowd returns a node with 200 processes.
func crowd() (*Node, []sched.Queue) {
	n := node(Labels{PID: true, User: true, Series: 100})
	n.Processes = nil
	var queues []sched.Queue
	for i := range 200 {
		id := sched.QueueID(1000 + i)
		queues = append(queues, sched.Queue{ID: id})
		n.Tally.Open(id, "GPU-a", sched.Batch, Process{PID: 1000 + i, User: "alice"})
		n.Processes = append(n.Processes, api.Process{PID: 1000 + i, User: "alice", Queues: []api.Queue{{ID: uint64(id), Device: "GPU-a", State: "running"}}})
	}
	return n, queues
}

// BenchmarkText is a scrape with 200 processes, of which 100 have series of their own.
func BenchmarkText(b *testing.B) {
	n, _ := crowd()
	for b.Loop() {
		Text(n)
	}
}

// BenchmarkServed counts the device time of 200 queues, as the daemon does ten times a second.
func BenchmarkServed(b *testing.B) {
	n, queues := crowd()
	now := sched.Time(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range queues {
			queues[i].Served += time.Millisecond
		}
		now = now.Add(100 * time.Millisecond)
		n.Tally.Served(now, queues)
	}
}

// BenchmarkRequest counts a request.
func BenchmarkRequest(b *testing.B) {
	t := NewTally(Labels{PID: true})
	b.ReportAllocs()
	for b.Loop() {
		t.Request(0, sched.Online, Process{PID: 812, User: "alice"}, time.Millisecond, time.Second)
	}
}
