package stats_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/giveway/giveway/internal/stats"
)

// inBins counts samples in bins of width 0.005.
func inBins(samples []float64) (bins []stats.Bin) {
	counts := map[int]uint64{}
	for _, s := range samples {
		counts[int(math.Floor(s*200))]++
	}
	for i := -1000; i < 1000; i++ {
		if counts[i] > 0 {
			bins = append(bins, stats.Bin{From: float64(i) / 200, To: float64(i+1) / 200, Count: counts[i]})
		}
	}
	return bins
}

// TestMedianOf: the bounds enclose the true median in 95 % of all runs, however few samples there
// are, and become narrower with more of them.
func TestMedianOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	last := math.Inf(1)
	for _, n := range []int{6, 20, 64, 500} {
		const runs = 2000
		enclosed, width, off := 0, 0.0, 0.0
		for range runs {
			samples := make([]float64, n)
			for i := range samples {
				samples[i] = 1.02 + 0.05*r.NormFloat64() // the median is in the middle of no bin
			}
			m := stats.MedianOf(inBins(samples))
			if m.Count != uint64(n) || m.Low > m.Median || m.Median > m.High {
				t.Fatalf("%d samples: got %+v", n, m)
			}
			if m.Low <= 1.02 && 1.02 <= m.High {
				enclosed++
			}
			width += (m.High - m.Low) / runs
			off += (m.Median - 1.02) / runs
		}
		if enclosed < runs*94/100 {
			t.Errorf("%d samples: the bounds enclose the median in %d of %d runs, want 95 %%", n, enclosed, runs)
		}
		if width >= last || math.Abs(off) > 0.01 {
			t.Errorf("%d samples: bounds %.3f apart, with fewer samples %.3f; the median is off by %.4f", n, width, last, off)
		}
		last = width
	}
}

func TestMedianOfFew(t *testing.T) {
	for _, bins := range [][]stats.Bin{nil, {{1, 1.1, 5}}} {
		if m := stats.MedianOf(bins); m.Median != 0 || m.Low != 0 || m.High != 0 {
			t.Errorf("%v: got %+v, want no median", bins, m)
		}
	}
	if m, want := stats.MedianOf([]stats.Bin{{1, 1.5, 6}}), (stats.Median{Count: 6, Median: 1.25, Low: 1, High: 1.5}); m != want {
		t.Errorf("one bin: got %+v, want %+v", m, want)
	}
}
