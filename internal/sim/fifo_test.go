package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFIFOAgainstASlice adds and removes at random and compares with a plain slice.
func TestFIFOAgainstASlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var f fifo[int]
	var want []int
	for step := range 50_000 {
		if n := rng.IntN(1000); n < 500+step%2000/100 || len(want) == 0 {
			f.push(step)
			want = append(want, step)
		} else {
			if got := f.pop(); got != want[0] {
				t.Fatalf("step %d: removed %d, want %d", step, got, want[0])
			}
			want = want[1:]
		}
		if f.len() != len(want) || !slices.Equal(f.all(), want) || len(want) > 0 && *f.at(len(want) - 1) != want[len(want)-1] {
			t.Fatalf("step %d: holds %v, want %v", step, f.all(), want)
		}
	}
}

// TestFIFOMovesFewValues counts how many values are moved in memory while n values pass
// through a backlog of n: a few for each on average, not n for each.
func TestFIFOMovesFewValues(t *testing.T) {
	const n = 100_000
	var f fifo[int]
	for i := range n {
		f.push(i)
	}
	moved := 0
	for i := range n {
		newest := f.at(n - 1)
		f.pop()
		if f.at(n-2) != newest {
			moved += n
		}
		newest = f.at(n - 2)
		f.push(n + i)
		if f.at(n-2) != newest {
			moved += n
		}
	}
	if moved > 8*n {
		t.Errorf("%d values were moved while %d were served, want at most %d", moved, n, 8*n)
	}
	if cap(f.items) > 8*n {
		t.Errorf("a backlog of %d takes the memory of %d, want at most %d", n, cap(f.items), 8*n)
	}
}
