package gpuwork

import (
	"math"
	"testing"
	"time"
)

func TestIterations(t *testing.T) {
	if n, err := (Fit{NsPerIteration: 10}).Iterations(28 * time.Microsecond); n != 2800 || err != nil {
		t.Errorf("got %d iterations for 28 us, %v; want 2800", n, err)
	}
	for _, bad := range []Fit{{}, {NsPerIteration: math.NaN()}, {NsPerIteration: 1e12}, {NsPerIteration: 1e-9}} {
		if _, err := bad.Iterations(time.Millisecond); err == nil {
			t.Errorf("%+v: got no error, want one", bad)
		}
	}
}

func TestFitNeedsIncreasingTimes(t *testing.T) {
	flat := func(uint32) (float64, error) { return 1, nil }
	if _, err := fitTimes(flat, 800); err == nil {
		t.Error("constant times: got no error, want one")
	}
	if _, err := findLongest(flat); err == nil {
		t.Error("a kernel without work: got no error, want one")
	}
}
