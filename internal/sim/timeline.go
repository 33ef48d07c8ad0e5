package sim

import (
	"container/heap"

	"github.com/giveway/giveway/sched"
)

// timer calls a function at a time. It is made once and set many times, so that setting
// it allocates nothing.
type timer struct {
	at        sched.Time
	order     uint64 // breaks ties: the timer set first fires first
	heapIndex int    // index in the heap plus one; zero: not set
	fire      func()
}

// isSet reports whether t is due to fire.
func (t *timer) isSet() bool { return t.heapIndex != 0 }

// timeline holds the timers that are set.
type timeline struct {
	timers   timerHeap
	setCount uint64
	fired    uint64
}

// set makes t fire at a time, instead of any time set before.
func (l *timeline) set(t *timer, at sched.Time) {
	l.setCount++
	t.at, t.order = at, l.setCount
	if t.isSet() {
		heap.Fix(&l.timers, t.heapIndex-1)
	} else {
		heap.Push(&l.timers, t)
	}
}

// cancel makes t not fire.
func (l *timeline) cancel(t *timer) {
	if t.isSet() {
		heap.Remove(&l.timers, t.heapIndex-1)
	}
}

// next returns when the next timer fires; sched.Never if there is none.
func (l *timeline) next() sched.Time {
	if len(l.timers) == 0 {
		return sched.Never
	}
	return l.timers[0].at
}

// fire removes the next timer and calls its function.
func (l *timeline) fire() {
	t := l.timers[0]
	l.cancel(t)
	l.fired++
	t.fire()
}

// timerHeap implements heap.Interface.
type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }

func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i+1, j+1
}

func (h *timerHeap) Push(t any) {
	*h = append(*h, t.(*timer))
	t.(*timer).heapIndex = len(*h)
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.heapIndex = 0
	return t
}
