package heaptest

import (
	"sync/atomic"
	"testing"
)

type node struct {
	next  *node
	names []string
}

type tables struct {
	byName  map[string]*node
	shared  atomic.Pointer[map[int]int]
	waiting chan int
	any     any
}

// TestCount: tables are found behind pointers, interfaces and atomic pointers, those of all
// elements are added up, and a cycle is followed once.
func TestCount(t *testing.T) {
	ring := &node{names: []string{"a", "b"}}
	ring.next = ring
	v := &tables{byName: map[string]*node{"x": ring, "y": {names: []string{"c"}}}, waiting: make(chan int, 3), any: []int{1, 2, 3}}
	v.shared.Store(&map[int]int{1: 1, 2: 2})
	v.waiting <- 1
	before := Count(map[string]any{"t": v})
	for way, want := range (Elements{"t.byName": 2, "t.byName[].names": 3, "t.shared": 2, "t.waiting": 1, "t.any": 3}) {
		if before[way] != want {
			t.Errorf("%s: got %d elements, want %d", way, before[way], want)
		}
	}
	v.byName["z"] = &node{}
	(*v.shared.Load())[3] = 3
	(*v.shared.Load())[4] = 4
	if got, want := Count(map[string]any{"t": v}).Grown(before, 2), "t.shared: 4 elements, were 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLive: what is kept counts, and what is not does not.
func TestLive(t *testing.T) {
	const size = 8 << 20
	before := Live()
	kept := make([]byte, size)
	with := Live()
	kept[0]++ // used until here
	if got := with - before; got < size*3/4 || got > 2*size {
		t.Errorf("got %d bytes more, want about %d", got, size)
	}
	if got := Live() - before; got > size/4 {
		t.Errorf("got %d bytes more when nothing is kept", got)
	}
}
