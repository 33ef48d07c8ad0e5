package shimpage_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestQueueRequestHoldsUntilWithdrawn: every change is written completely and with a new
// number. A request ends when it is withdrawn, with its lease, and with the page.
func TestQueueRequestHoldsUntilWithdrawn(t *testing.T) {
	page, _, process := newPair(t)
	expect := func(step string, priority uint32, stop ...uint32) {
		t.Helper()
		if r := process.QueueRequest(); !slices.Equal(r.Stop, stop) || r.Priority != priority {
			t.Errorf("%s: got %+v, want stop %v and priority %d", step, r, stop, priority)
		}
	}
	expect("at first", 0)
	first, ok := page.SetQueuesStopped(7, true, time.Minute)
	if !ok || page.Applied(first) {
		t.Errorf("first request: ok %v, applied %v; want true, false", ok, page.Applied(first))
	}
	expect("one GPU", 0, 7)
	second, _ := page.SetQueuesStopped(8, true, time.Second)
	page.SetQueuePriority(0, time.Second)
	expect("two GPUs and the lowest priority", 1, 7, 8)
	process.Apply(first)
	if !page.Applied(first) || page.Applied(second) {
		t.Errorf("applied: first %v, second %v; want true, false", page.Applied(first), page.Applied(second))
	}
	page.SetQueuesStopped(7, false, time.Second)
	page.SetQueuePriority(-1, time.Second)
	expect("the first GPU withdrawn", 0, 8)
	seq := process.QueueRequest().Seq
	page.RenewQueueLease(time.Second)
	if got := process.QueueRequest().Seq; got != seq {
		t.Errorf("a renewed lease changed seq to %d, want %d", got, seq)
	}
	page.SetQueuesStopped(8, true, time.Millisecond)
	time.Sleep(5 * time.Millisecond)
	expect("after the lease", 0)
	seq = process.QueueRequest().Seq
	page.RenewQueueLease(time.Second)
	expect("renewed after its end", 0, 8)
	if got := process.QueueRequest().Seq; got == seq {
		t.Errorf("a lease renewed after its end left seq at %d", seq)
	}
	page.ReleaseQueues()
	expect("released", 0)
	page.SetQueuesStopped(8, true, time.Second)
	page.Close()
	expect("page closed", 0)
	if _, ok := page.SetQueuesStopped(8, true, time.Second); ok || page.Applied(0) {
		t.Error("a closed page accepted a request")
	}
}

func TestQueueRequestIsLimitedToEntries(t *testing.T) {
	page, _, process := newPair(t)
	for i := range uint32(pageabi.GPUEntries) {
		if _, ok := page.SetQueuesStopped(i+1, true, time.Second); !ok {
			t.Fatalf("no entry for GPU %d", i+1)
		}
	}
	if _, ok := page.SetQueuesStopped(1000, true, time.Second); ok {
		t.Error("one GPU too many was accepted")
	}
	if _, ok := page.SetQueuesStopped(0, true, time.Second); ok {
		t.Error("GPU 0 was accepted")
	}
	if _, ok := page.SetQueuesStopped(pageabi.GPUEntries, true, time.Second); !ok || len(process.QueueRequest().Stop) != pageabi.GPUEntries {
		t.Error("a repeated request took a second entry")
	}
}

func TestQueueCountsAreLimited(t *testing.T) {
	page, _, process := newPair(t)
	process.SetQueues(0, 9, 3)
	process.SetQueues(1, 5, 1)
	if got := page.GPUs(); !slices.Equal(got, []uint32{5, 9}) {
		t.Errorf("GPUs %v, want [5 9]", got)
	}
	if got := page.QueueCounts(9); got.Queues != 3 || got.Stopped != 0 {
		t.Errorf("GPU 9: got %+v, want 3 queues, none stopped", got)
	}
	if got := page.QueueCounts(4); got != (shimpage.QueueCounts{}) {
		t.Errorf("a GPU that the process does not use: got %+v", got)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	process.Scribble(func() byte { return byte(r.Uint32()) })
	for _, gpu := range append(page.GPUs(), 0, 9) {
		c := page.QueueCounts(gpu)
		if c.Queues < 0 || c.Queues > shimpage.MaxQueues || c.Stopped < 0 || c.Stopped > c.Queues || c.Failed < 0 || c.Failed > c.Queues {
			t.Errorf("seed %d: GPU %d: got %+v", seed, gpu, c)
		}
	}
	page.SetQueuesStopped(9, true, time.Second)
	page.SetQueuePriority(-1, time.Second)
	if got := process.QueueRequest(); !slices.Equal(got.Stop, []uint32{9}) {
		t.Errorf("seed %d: after random bytes the request is %+v, want stop [9]", seed, got)
	}
}
