package report

import (
	"math"
	"strings"
)

// scale maps values to per cent of an axis' length. A logarithmic one takes
// positive values only; what is outside is put at the nearer end.
type scale struct {
	lo, hi float64
	log    bool
}

// logScale spans lo to hi with a little room, and more if they are too near each
// other to tell anything apart.
func logScale(lo, hi float64) scale {
	lo = max(lo, 1e-12)
	hi = max(hi, lo)
	if hi/lo < 1.5 {
		mid := math.Sqrt(lo * hi)
		lo, hi = mid/1.25, mid*1.25
	}
	room := math.Pow(hi/lo, 0.03)
	return scale{lo: lo / room, hi: hi * room, log: true}
}

func (s scale) at(v float64) float64 {
	if s.hi <= s.lo {
		return 0
	}
	var part float64
	if s.log {
		part = math.Log(max(v, s.lo)/s.lo) / math.Log(s.hi/s.lo)
	} else {
		part = (v - s.lo) / (s.hi - s.lo)
	}
	return 100 * min(max(part, 0), 1)
}

// tick is a mark on an axis. Anchor keeps the first and the last label within
// the axis, where that is wanted.
type tick struct{ At, Label, Anchor string }

// ticks returns at most n marks at round values.
func (s scale) ticks(n int, label func(float64) string) []tick {
	values := s.even(n)
	if s.log {
		if round := s.decades(n); len(round) >= 2 {
			values = round
		}
	}
	var all []tick
	for _, v := range values {
		t := tick{At: num(s.at(v)), Label: rounded(label(v)), Anchor: "middle"}
		switch at := s.at(v); {
		case at < 1:
			t.Anchor = "start"
		case at > 99:
			t.Anchor = "end"
		}
		all = append(all, t)
	}
	return all
}

// rounded drops zeros after the point: the values are round. Nought needs no
// unit.
func rounded(label string) string {
	n, unit, _ := strings.Cut(label, space)
	if strings.Contains(n, ".") {
		n = strings.TrimRight(strings.TrimRight(n, "0"), ".")
	}
	if n == "0" || unit == "" {
		return n
	}
	return n + space + unit
}

// decades returns round values of a logarithmic axis: of every decade 1, 2 and
// 5, or 1 and 3, or 1, or only of every so many decades.
func (s scale) decades(n int) []float64 {
	first, last := math.Floor(math.Log10(s.lo)), math.Ceil(math.Log10(s.hi))
	var values []float64
	for _, steps := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		values = values[:0]
		for e := first; e <= last; e++ {
			for _, m := range steps {
				if v := m * math.Pow(10, e); v >= s.lo && v <= s.hi {
					values = append(values, v)
				}
			}
		}
		if len(values) <= n {
			return values
		}
	}
	every := (len(values) + n - 1) / n
	kept := values[:0]
	for i := 0; i < len(values); i += every {
		kept = append(kept, values[i])
	}
	return kept
}

// even returns multiples of a round step.
func (s scale) even(n int) []float64 {
	span := s.hi - s.lo
	if span <= 0 || n < 1 {
		return nil
	}
	base := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, m := range []float64{1, 2, 5, 10, 20} {
		step := base * m
		from, to := math.Ceil(s.lo/step-1e-9)+0, math.Floor(s.hi/step+1e-9) // +0: not minus nought
		if int(to-from)+1 > n {
			continue
		}
		var values []float64
		for k := from; k <= to; k++ {
			values = append(values, k*step)
		}
		return values
	}
	return nil
}
