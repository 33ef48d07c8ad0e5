package htmlreport

import (
	"math"
	"strings"
)

// Scale maps values to per cent of an axis's length. A value outside is put at the
// nearer end. A logarithmic scale takes positive values only.
type Scale struct {
	Low, High float64
	Log       bool
}

// LogScale spans low to high with some margin, and more if they are so close that
// values could not be distinguished.
func LogScale(low, high float64) Scale {
	low = max(low, 1e-12)
	high = max(high, low)
	if high/low < 1.5 {
		middle := math.Sqrt(low * high)
		low, high = middle/1.25, middle*1.25
	}
	margin := math.Pow(high/low, 0.03)
	return Scale{Low: low / margin, High: high * margin, Log: true}
}

// At returns the position of v, from 0 to 100.
func (s Scale) At(v float64) float64 {
	if s.High <= s.Low {
		return 0
	}
	var part float64
	if s.Log {
		part = math.Log(max(v, s.Low)/s.Low) / math.Log(s.High/s.Low)
	} else {
		part = (v - s.Low) / (s.High - s.Low)
	}
	return 100 * min(max(part, 0), 1)
}

// Tick is a mark on an axis. Anchor keeps the labels at the ends within the axis.
type Tick struct{ At, Label, Anchor string }

// Ticks returns at most n marks at round values.
func (s Scale) Ticks(n int, label func(float64) string) []Tick {
	var all []Tick
	for _, v := range s.values(n) {
		t := Tick{At: Coordinate(s.At(v)), Label: trimZeros(label(v)), Anchor: "middle"}
		switch at := s.At(v); {
		case at < 1:
			t.Anchor = "start"
		case at > 99:
			t.Anchor = "end"
		}
		all = append(all, t)
	}
	return all
}

// values returns at most n round values.
func (s Scale) values(n int) []float64 {
	if s.Log {
		if round := s.decades(n); len(round) >= 2 {
			return round
		}
	}
	return s.even(n)
}

// trimZeros removes zeros after the point: 5.00ms is 5ms.
func trimZeros(label string) string {
	end := strings.LastIndexAny(label, "0123456789") + 1
	number, unit := label[:end], label[end:]
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + unit
}

// decades returns round values of a logarithmic axis: 1, 2 and 5 of every decade,
// or 1 and 3, or 1, or 1 of some decades.
func (s Scale) decades(n int) []float64 {
	first, last := math.Floor(math.Log10(s.Low)), math.Ceil(math.Log10(s.High))
	var values []float64
	for _, steps := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		values = values[:0]
		for e := first; e <= last; e++ {
			for _, m := range steps {
				if v := m * math.Pow(10, e); v >= s.Low && v <= s.High {
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
func (s Scale) even(n int) []float64 {
	span := s.High - s.Low
	if span <= 0 || n < 1 {
		return nil
	}
	base := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, m := range []float64{1, 2, 5, 10, 20} {
		step := base * m
		from, to := math.Ceil(s.Low/step-1e-9)+0, math.Floor(s.High/step+1e-9) // +0 turns -0 into 0
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
