// Package format writes numbers and tables for people: one form for each kind of
// number, the same in the terminal, in HTML reports and in log lines.
package format

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Missing stands for a number that is not known.
const Missing = "-"

// Number returns x with three significant digits, or with all digits before the
// point if there are more: 1.52, 15.2, 152, 1520.
func Number(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return Missing
	case a >= 1e10:
		return strconv.FormatFloat(x, 'g', 3, 64)
	case a >= 99.95 || a == 0:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a >= 0.01:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// Integer returns n with a comma between groups of three digits: 1,234,567.
func Integer[T int | uint64](n T) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Duration returns d with three significant digits in the largest unit that
// leaves a digit before the point: 44.0us, 1.37ms.
func Duration(d time.Duration) string { return Nanoseconds(float64(d)) }

// Nanoseconds is Duration for a time that is not a whole number of nanoseconds.
func Nanoseconds(ns float64) string {
	switch a := math.Abs(ns); {
	case ns == 0:
		return "0"
	case a < 999.5:
		return Number(ns) + "ns"
	case a < 999.5e3:
		return Number(ns/1e3) + "us"
	case a < 999.5e6:
		return Number(ns/1e6) + "ms"
	}
	return Number(ns/1e9) + "s"
}

// ExactDuration returns d in full, without units that are zero: 20s, 1.5s, 1h.
func ExactDuration(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m", "µ", "u").Replace(d.String())
}

// Rate returns a number of events per second: 405/s.
func Rate(perSecond float64) string { return withUnit(perSecond, "/s") }

// Ratio returns a multiple: 1.15x.
func Ratio(x float64) string { return withUnit(x, "x") }

// Bytes returns a size in the largest unit of 1000 that leaves a digit before the point:
// 40.4MB.
func Bytes(n int64) string {
	switch x := float64(n); {
	case x < 1e3:
		return strconv.FormatInt(n, 10) + "B"
	case x < 999.5e3:
		return Number(x/1e3) + "kB"
	case x < 999.5e6:
		return Number(x/1e6) + "MB"
	default:
		return Number(x/1e9) + "GB"
	}
}

func withUnit(x float64, unit string) string {
	if s := Number(x); s != Missing {
		return s + unit
	}
	return Missing
}

// Percent returns a share of 1 with one digit after the point: 92.1%. Less than
// all never reads as 100.0%, and more than nothing never as 0.0%.
func Percent(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return Missing
	case x > 0 && x < 0.0005:
		return "<0.1%"
	case x >= 0.9995 && x < 1:
		return ">99.9%"
	case math.Abs(x) >= 1e7:
		return Number(100*x) + "%"
	}
	return strconv.FormatFloat(100*x, 'f', 1, 64) + "%"
}

// Plural returns n and a noun: 1 client, 2 clients.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
