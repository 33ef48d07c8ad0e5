package stats_test

import (
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
		t.Errorf("of nothing: %+v", got)
	}
	one := stats.Summarize([]time.Duration{7})
	if one.P50 != 7 || one.P99 != 7 || one.Max != 7 {
		t.Errorf("of one: %+v", one)
	}
}
