package cli

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// table lines up columns: the first ones to the left, numbers to the right, and
// a note behind them, which moves nothing.
type table struct{ rows []row }

type row struct {
	cells []string
	note  string
}

// add appends a row; without cells it is a blank line.
func (t *table) add(cells ...string) *row {
	t.rows = append(t.rows, row{cells: cells})
	return &t.rows[len(t.rows)-1]
}

// write prints the table, the first so many columns to the left.
func (t *table) write(w io.Writer, left int) error {
	var widths []int
	for _, r := range t.rows {
		for i, cell := range r.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range t.rows {
		var b strings.Builder
		for i, cell := range r.cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < left {
				b.WriteString(cell + pad + "  ")
			} else {
				b.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(r.note)
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// digits is x with three digits that count, or all those before the point.
func digits(x float64) string {
	switch a := math.Abs(x); {
	case a >= 99.95 || a == 0:
		return fmt.Sprintf("%.0f", x)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// humanTime is d with three digits and the unit that suits it.
func humanTime(d time.Duration) string {
	ns := float64(d)
	switch {
	case d == 0:
		return "0"
	case ns < 999.5:
		return digits(ns) + "ns"
	case ns < 999.5e3:
		return digits(ns/1e3) + "us"
	case ns < 999.5e6:
		return digits(ns/1e6) + "ms"
	}
	return digits(ns/1e9) + "s"
}

// wholeTime is d without digits that say nothing: 20s, 1.5s.
func wholeTime(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m", "µ", "u").Replace(d.String())
}

func humanRate(perSecond float64) string { return digits(perSecond) + "/s" }

// humanPart is a part of a whole in per cent. It does not say 100 for less, nor
// 0 for more than nothing.
func humanPart(x float64) string {
	switch {
	case x > 0 && x < 0.01:
		return "<1%"
	case x < 1 && x >= 0.995:
		return ">99%"
	}
	return fmt.Sprintf("%.0f%%", 100*x)
}

func humanTimes(x float64) string { return digits(x) + "x" }
