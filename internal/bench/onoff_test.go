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
	parts := a.split(400 * ms)
	for i, want := range [][]float64{{2000, 10000}, {3000}, {4000}, {1000}} {
		if got := parts[i]; !slices.Equal(got.SamplesUs, want) || got.Took != 300*ms {
			t.Errorf("window %d: got %v in %v, want %v in 300 ms", i+1, got.SamplesUs, got.Took, want)
		}
	}
	// In short windows the guard is a quarter.
	if part := a.split(100 * ms)[0]; !slices.Equal(part.SamplesUs, []float64{1000}) {
		t.Errorf("windows of 100 ms: got %v, want the first request", part.SamplesUs)
	}
}

// TestMedianRatio compares rounds in which the CPUs had different speeds.
func TestMedianRatio(t *testing.T) {
	of := []RoundPart{{P50: 101 * ms}, {P50: 99 * ms}, {P50: 202 * ms}, {P50: 150 * ms}, {P50: 198 * ms}}
	to := []RoundPart{{P50: 100 * ms}, {P50: 100 * ms}, {P50: 200 * ms}, {P50: 100 * ms}, {P50: 200 * ms}}
	if got := medianRatio(of, to); got != 1.01 {
		t.Errorf("got %v, want 1.01", got)
	}
	if got := medianRatio(of[:1], []RoundPart{{}}); got != 101e6 {
		t.Errorf("got %v, want a number also without requests", got)
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
	if got := len(with.Rounds); got < 12 || got > 15 || got != len(without.Rounds) {
		t.Errorf("got %d and %d rounds, want 15 pairs of neighbouring windows", got, len(without.Rounds))
	}
	for i, r := range with.Rounds {
		if r.P50 < 4*without.Rounds[i].P50 {
			t.Errorf("pair %d: got %v with batch work and %v without", i+1, r.P50, without.Rounds[i].P50)
		}
	}
	if with.VsAlone == nil || with.VsAlone.P50 < 4 || with.VsAlone.P50 > 5.5 {
		t.Errorf("got ratios %+v, want about 210/44", with.VsAlone)
	}
}
