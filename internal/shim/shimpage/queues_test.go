package shimpage

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestWish: what is wanted of queues is told whole, each time in another turn, and it
// ends: by being taken back, with the lease, and with the page.
func TestWish(t *testing.T) {
	page, _, program := pair(t)
	wants := func(what string, priority uint32, off ...uint32) {
		t.Helper()
		if w := program.Wished(); !slices.Equal(w.Off, off) || w.Priority != priority {
			t.Errorf("%s: %+v, want %v off and priority %d", what, w, off, priority)
		}
	}
	wants("at first", 0)
	first, ok := page.SetQueuesStopped(7, true, time.Minute)
	if !ok || page.Applied(first) {
		t.Error("it is not told, or taken for obeyed")
	}
	wants("one", 0, 7)
	second, _ := page.SetQueuesStopped(8, true, time.Second)
	page.SetQueuePriority(0, time.Second)
	wants("two, and the least priority", 1, 7, 8)
	program.Obey(first)
	if !page.Applied(first) || page.Applied(second) {
		t.Error("an answer to the first is none to the second")
	}
	page.SetQueuesStopped(7, false, time.Second)
	page.SetQueuePriority(-1, time.Second)
	wants("one of them", 0, 8)
	turn := program.Wished().Turn
	page.RenewQueueLease(time.Second)
	if program.Wished().Turn != turn {
		t.Error("a lease that is kept up is no news")
	}
	page.SetQueuesStopped(8, true, time.Millisecond)
	time.Sleep(5 * time.Millisecond)
	wants("after the lease", 0)
	turn = program.Wished().Turn
	page.RenewQueueLease(time.Second)
	wants("kept up too late", 0, 8)
	if program.Wished().Turn == turn {
		t.Error("who has taken it to be over is not told")
	}
	page.ReleaseQueues()
	wants("taken back", 0)
	page.SetQueuesStopped(8, true, time.Second)
	page.Close()
	wants("closed", 0)
	if _, ok := page.SetQueuesStopped(8, true, time.Second); ok || page.Applied(0) {
		t.Error("a page that is closed takes wishes")
	}
}

// TestWishHasRoom: there is room for so many GPUs, and no number is no GPU.
func TestWishHasRoom(t *testing.T) {
	page, _, program := pair(t)
	for i := range uint32(maxGPUs) {
		if _, ok := page.SetQueuesStopped(i+1, true, time.Second); !ok {
			t.Fatalf("no room for GPU %d", i)
		}
	}
	if _, ok := page.SetQueuesStopped(1000, true, time.Second); ok {
		t.Error("there is room for more")
	}
	if _, ok := page.SetQueuesStopped(0, true, time.Second); ok {
		t.Error("0 is a GPU")
	}
	if _, ok := page.SetQueuesStopped(maxGPUs, true, time.Second); !ok || len(program.Wished().Off) != maxGPUs {
		t.Error("twice is not once")
	}
}

// TestOwnQueues: what a program tells is bounded, and scribbles harm nobody.
func TestOwnQueues(t *testing.T) {
	page, _, program := pair(t)
	program.Owns(0, 9, 3)
	program.Owns(1, 5, 1)
	if got := page.GPUs(); !slices.Equal(got, []uint32{5, 9}) {
		t.Errorf("GPUs %v", got)
	}
	if got := page.QueueCounts(9); got.Queues != 3 || got.Stopped != 0 {
		t.Errorf("%+v", got)
	}
	if got := page.QueueCounts(4); got != (QueueCounts{}) {
		t.Errorf("of a GPU that it does not use: %+v", got)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	program.Scribble(func() byte { return byte(r.Uint32()) })
	for _, gpu := range append(page.GPUs(), 0, 9) {
		if o := page.QueueCounts(gpu); o.Queues < 0 || o.Queues > mostQueues || o.Stopped < 0 || o.Stopped > o.Queues || o.Failed < 0 || o.Failed > o.Queues {
			t.Errorf("seed %d: GPU %d: %+v", seed, gpu, o)
		}
	}
	page.SetQueuesStopped(9, true, time.Second)
	page.SetQueuePriority(-1, time.Second)
	if w := program.Wished(); !slices.Equal(w.Off, []uint32{9}) {
		t.Errorf("seed %d: after scribbles it is told %+v", seed, w)
	}
}
