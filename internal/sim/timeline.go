package sim

import "github.com/giveway/giveway/sched"

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

// timeline is a heap of timers. A node has four children, because that needs fewer cache
// lines than two.
type timeline struct {
	heap     []*timer
	setCount uint64
	fired    uint64
}

// set makes t fire at a time, instead of any time set before.
func (l *timeline) set(t *timer, at sched.Time) {
	l.setCount++
	up := t.heapIndex == 0 || at < t.at
	t.at, t.order = at, l.setCount
	if t.heapIndex == 0 {
		l.heap = append(l.heap, t)
		t.heapIndex = len(l.heap)
	}
	if up {
		l.up(t.heapIndex - 1)
	} else {
		l.down(t.heapIndex - 1)
	}
}

// cancel makes t not fire.
func (l *timeline) cancel(t *timer) {
	i := t.heapIndex - 1
	if i < 0 {
		return
	}
	t.heapIndex = 0
	last := len(l.heap) - 1
	moved := l.heap[last]
	l.heap[last] = nil
	l.heap = l.heap[:last]
	if i == last {
		return
	}
	l.heap[i] = moved
	moved.heapIndex = i + 1
	l.up(i)
	l.down(moved.heapIndex - 1)
}

// next returns when the next timer fires; sched.Never if there is none.
func (l *timeline) next() sched.Time {
	if len(l.heap) == 0 {
		return sched.Never
	}
	return l.heap[0].at
}

// fire removes the next timer and calls its function.
func (l *timeline) fire() {
	t := l.heap[0]
	l.cancel(t)
	l.fired++
	t.fire()
}

func before(a, b *timer) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

func (l *timeline) up(i int) {
	t := l.heap[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !before(t, l.heap[parent]) {
			break
		}
		l.heap[i] = l.heap[parent]
		l.heap[i].heapIndex = i + 1
		i = parent
	}
	l.heap[i] = t
	t.heapIndex = i + 1
}

func (l *timeline) down(i int) {
	t := l.heap[i]
	for {
		first := 4*i + 1
		if first >= len(l.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(l.heap)); c++ {
			if before(l.heap[c], l.heap[least]) {
				least = c
			}
		}
		if !before(l.heap[least], t) {
			break
		}
		l.heap[i] = l.heap[least]
		l.heap[i].heapIndex = i + 1
		i = least
	}
	l.heap[i] = t
	t.heapIndex = i + 1
}
