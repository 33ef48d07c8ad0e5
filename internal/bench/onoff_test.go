package bench

import (
	"slices"
	"testing"
	"time"
)

// TestSplit checks which requests count in windows of 400 ms, with a guard of 100 ms.
func TestSplit(t *testing.T) {
	a := &Answered{}
	add := func(at, took time.Duration) {
		a.ArrivedUs, a.SamplesUs = append(a.ArrivedUs, us(at)), append(a.SamplesUs, us(took))
	}
	add(99*ms, 1*ms) // within the guard
	add(100*ms, 2*ms)
	add(390*ms, 10*ms)
	add(391*ms, 10*ms) // reaches into the next window
	add(500*ms, 3*ms)
	add(1000*ms, 4*ms)
	add(1599*ms, 1*ms)
	add(1750*ms, 5*ms) // after the last window
	odd, even := a.split(400 * ms)
	if want := []float64{2000, 10000, 4000}; !slices.Equal(odd.SamplesUs, want) || odd.Took != 600*ms {
		t.Errorf("first and third window: got %v in %v, want %v in 600 ms", odd.SamplesUs, odd.Took, want)
	}
	if want := []float64{3000, 1000}; !slices.Equal(even.SamplesUs, want) {
		t.Errorf("second and fourth window: got %v, want %v", even.SamplesUs, want)
	}
	// In short windows the guard is a quarter.
	if odd, _ = a.split(100 * ms); !slices.Equal(odd.SamplesUs, []float64{1000}) {
		t.Errorf("windows of 100 ms: got %v, want the first request", odd.SamplesUs)
	}
}

// TestOnAndOff checks that a case in rounds has both phases, and that requests beside batch work, which
// take five times as long here, are in the right one.
func TestOnAndOff(t *testing.T) {
	config := Config{Python: fakePython(t), Length: 4 * time.Second}
	r, err := measureFake(t, config, &fakeDaemon{}, named(t, "decode-late")...)
	if err != nil {
		t.Fatal(err)
	}
	with, without := r.Cases[0].phase(newPhase(lateAuto, onAndOff).Name), r.Cases[0].phase(newPhase(alone, onAndOff).Name)
	if with == nil || without == nil {
		t.Fatalf("got phases %v and %v, want both", with, without)
	}
	// Of the 25 requests of a window six are in the guard, which is a quarter.
	if a, b := with.Latency.Count, without.Latency.Count; a < 170 || b < 170 {
		t.Errorf("got %d and %d requests, want about 180 of five runs each", a, b)
	}
	if with.VsAlone == nil || with.VsAlone.P50 < 4 || with.VsAlone.P50 > 5.5 {
		t.Errorf("got ratios %+v, want about 210/44", with.VsAlone)
	}
}
