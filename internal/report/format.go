package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	missing = "–"      // stands for a number that is not known
	space   = "\u00a0" // between a number and its unit, which stay on one line
)

// duration writes d with three digits that count, in the unit that suits it.
func duration(d time.Duration) string { return durationFloat(float64(d)) }

func durationFloat(ns float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		// What would be written as 1000 of one unit is 1 of the next.
		if ns >= u.size*0.9995 {
			return digits(ns/u.size) + space + u.name
		}
	}
	return digits(ns) + space + "ns"
}

// digits writes three digits that count, or all of those before the point
// unless they are beyond reading.
func digits(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return missing
	case a >= 1e10:
		return strconv.FormatFloat(x, 'g', 3, 64)
	case a >= 99.95 || x == 0:
		return grouped(strconv.FormatFloat(x, 'f', 0, 64))
	case a >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a >= 0.01:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// grouped sets whole digits apart in threes.
func grouped(s string) string {
	var b strings.Builder
	for i, r := range s {
		if left := len(s) - i; i > 0 && left%3 == 0 && s[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func integer(n uint64) string { return grouped(strconv.FormatUint(n, 10)) }

// times writes a ratio.
func times(x float64) string { return timesOr(x, missing) }

func timesOr(x float64, otherwise string) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return otherwise
	}
	return digits(x) + space + "×"
}

// percent writes a part of one. What is not all is never rounded up to it.
func percent(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return missing
	case x > 0 && x < 0.0995, x > 0.995 && x < 1:
		return strconv.FormatFloat(min(math.Round(x*1000)/10, 99.9+math.Floor(x)), 'f', 1, 64) + space + "%"
	}
	if x < 1 {
		return strconv.FormatFloat(x*100, 'f', 0, 64) + space + "%"
	}
	return digits(math.Round(x*100)) + space + "%"
}

// rate writes a number a second.
func rate(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return missing
	}
	return digits(x) + "/s"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%s %ss", grouped(strconv.Itoa(n)), what)
}

// short cuts a name to n characters.
func short(name string, n int) string {
	if r := []rune(name); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return name
}

// num writes a coordinate.
func num(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}
