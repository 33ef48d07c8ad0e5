package stats_test

import (
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

func TestSummarize(t *testing.T) {
	var samples []time.Duration
	for i := range 100 {
		samples = append(samples, time.Duration(100-i))
	}
	got := stats.Summarize(samples)
	want := stats.Summary{Count: 100, Mean: 50, P50: 50, P90: 90, P95: 95, P99: 99, Max: 100}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := stats.Summarize(nil); got != (stats.Summary{}) {
		t.Errorf("no samples: got %+v, want zeros", got)
	}
	one := stats.Summarize([]time.Duration{7})
	if one.P50 != 7 || one.P99 != 7 || one.Max != 7 {
		t.Errorf("one sample: got %+v, want 7 everywhere", one)
	}
}

func TestRatio(t *testing.T) {
	if got := stats.Ratio(3*time.Second, 2*time.Second); got != 1.5 {
		t.Errorf("got %v, want 1.5", got)
	}
	if got := stats.Ratio(3.0, 0); !math.IsNaN(got) {
		t.Errorf("divisor 0: got %v, want NaN", got)
	}
}

func TestWorkKept(t *testing.T) {
	for _, c := range []struct {
		name    string
		clients []stats.Work
		want    float64
	}{
		{"no clients", nil, math.NaN()},
		{"one client: rate over rate alone", []stats.Work{{"gpu0", 30, 40, 0.7}}, 0.75},
		{"two clients that each fill the device", []stats.Work{{"gpu0", 45, 100, 1}, {"gpu0", 5, 10, 1}}, 0.95},
		{"two clients that each use a tenth", []stats.Work{{"gpu0", 100, 100, 0.1}, {"gpu0", 10, 10, 0.1}}, 1},
		{"the client that uses more counts for more", []stats.Work{{"gpu0", 100, 100, 0.3}, {"gpu0", 0, 10, 0.1}}, 0.75},
		{"one client on each of two devices", []stats.Work{{"gpu0", 9, 10, 1}, {"gpu1", 7, 10, 1}}, 0.8},
		{"two clients on one device, one on another", []stats.Work{{"gpu0", 5, 10, 1}, {"gpu1", 10, 10, 1}, {"gpu0", 5, 10, 1}}, 1},
		{"a client that did nothing alone is left out", []stats.Work{{"gpu0", 5, 10, 1}, {"gpu0", 0, 0, 0}}, 0.5},
	} {
		if got, _ := stats.WorkKept(c.clients); math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
