package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/sim"
)

// tails are the latency distributions: a plot a client, or one of all of them
// when they are many.
type tails struct {
	Plots []tailPlot
	Note  string
}

// mostTails is how many clients get a plot of their own.
const mostTails = 4

// tailPlot is a distribution drawn for its tail: the part of requests that are
// slower halves every so many pixels, so that P99.9 is as plain to see as P50.
// Lengths across are per cent, so that the plot takes any width; lengths down
// are pixels.
type tailPlot struct {
	Title, XLabel string
	Lines         []tailLine
	X, Y          []tick
	Top, Height   int // of the plot within the drawing
	Full          int // height of the drawing
	Lo, Hi        string
	Nines         string // at the top
	Ratio         bool   // values are multiples, not times
}

// tailLine is the distribution of one run.
type tailLine struct {
	Name, Colour string
	Points       string
	P99X, P99Y   string // where P99 is; empty if there is none to be seen
	Label        string
	Anchor       string
	EndX         string
	EndY, LabelY int

	values []float64 // sorted
	end    float64
	row    int
	left   float64
	right  float64
}

const (
	tailHeight = 250
	labelRow   = 17
	maxPoints  = 300
	mostNines  = 4.0
)

func (s *study) tails() *tails {
	if len(s.latency) == 0 {
		return nil
	}
	t := &tails{}
	if len(s.latency) > mostTails {
		t.Note = fmt.Sprintf("The %d clients are pooled: each request counts as a multiple of its own client's median alone, so that clients of different length can be laid on top of each other.", len(s.latency))
		if p, ok := s.pooled(); ok {
			t.Plots = append(t.Plots, p)
		}
	} else {
		for _, sub := range s.latency {
			if p, ok := s.tailOf(sub); ok {
				t.Plots = append(t.Plots, p)
			}
		}
	}
	if len(t.Plots) == 0 {
		t.Note = "No request was finished or waited for: there is no distribution to draw."
	}
	return t
}

// tailOf draws one client.
func (s *study) tailOf(sub *subject) (tailPlot, bool) {
	p := tailPlot{Title: sub.name, XLabel: "latency, logarithmic"}
	add := func(name, colour string, c *sim.ClientResult) {
		if c == nil || len(c.Latencies) == 0 {
			return
		}
		l := tailLine{Name: name, Colour: colour, Label: short(name, 18) + " P99 " + duration(c.Latency.P99)}
		for _, d := range c.Latencies {
			l.values = append(l.values, float64(max(d, 1)))
		}
		p.Lines = append(p.Lines, l)
	}
	add("alone", aloneColour, sub.alone)
	for i, in := range sub.in {
		add(s.o.Runs[i].Policy, s.runs[i].colour, in)
	}
	return p, p.draw(durationFloat)
}

// pooled draws all clients in one.
func (s *study) pooled() (tailPlot, bool) {
	p := tailPlot{Title: fmt.Sprintf("%d %s clients pooled", len(s.latency), s.words.Online), XLabel: "latency as a multiple of the client's median alone, logarithmic", Ratio: true}
	add := func(name, colour string, pick func(*subject) *sim.ClientResult) {
		l := tailLine{Name: name, Colour: colour}
		for _, sub := range s.latency {
			c := pick(sub)
			if c == nil || sub.alone == nil || sub.alone.Latency.P50 <= 0 {
				continue
			}
			for _, d := range c.Latencies {
				l.values = append(l.values, float64(max(d, 1))/float64(sub.alone.Latency.P50))
			}
		}
		if len(l.values) > 0 {
			slices.Sort(l.values)
			l.Label = short(name, 18) + " P99 " + times(quantile(l.values, 0.99))
			p.Lines = append(p.Lines, l)
		}
	}
	add("alone", aloneColour, func(c *subject) *sim.ClientResult { return c.alone })
	for i := range s.runs {
		add(s.runs[i].policy, s.runs[i].colour, func(c *subject) *sim.ClientResult { return c.in[i] })
	}
	return p, p.draw(times)
}

// quantile is stats.Quantile for multiples.
func quantile(sorted []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// draw places everything, once the lines have their values.
func (p *tailPlot) draw(label func(float64) string) bool {
	if len(p.Lines) == 0 {
		return false
	}
	lo, hi, most := math.Inf(1), 0.0, 0
	for _, l := range p.Lines {
		lo, hi = min(lo, l.values[0]), max(hi, l.values[len(l.values)-1])
		most = max(most, len(l.values))
	}
	x := logScale(lo, hi)
	nines := min(max(math.Log10(float64(most)), 2.05), mostNines)
	down := func(nine float64) float64 { return tailHeight * (1 - min(nine, nines)/nines) }
	for i := range p.Lines {
		p.Lines[i].trace(x, down, nines)
	}
	rows := placeLabels(p.Lines)
	p.Top, p.Height = rows*labelRow+8, tailHeight
	p.Full = p.Top + p.Height + 22
	for i := range p.Lines {
		l := &p.Lines[i]
		l.EndY += p.Top
		l.LabelY = p.Top - 8 - l.row*labelRow
	}
	p.X = x.ticks(5, label)
	for _, t := range []struct {
		part float64
		name string
	}{{0.5, "P50"}, {0.9, "P90"}, {0.99, "P99"}, {0.999, "P99.9"}, {0.9999, "P99.99"}} {
		if n := -math.Log10(1 - t.part); n <= nines+1e-9 {
			p.Y = append(p.Y, tick{At: num(float64(p.Top) + down(n)), Label: t.name})
		}
	}
	p.Lo, p.Hi = num(math.Log10(x.lo)*1000), num(math.Log10(x.hi)*1000)
	p.Nines = num(nines)
	return true
}

// trace makes the points of a line: every sample as a step if they are few,
// else as many as can be told apart, evenly spread over the height.
func (l *tailLine) trace(x scale, down func(float64) float64, nines float64) {
	n := len(l.values)
	var b strings.Builder
	point := func(v, nine float64) {
		l.end = x.at(v)
		l.EndY = int(math.Round(down(nine)))
		fmt.Fprintf(&b, "%s,%s ", num(10*l.end), num(down(nine)))
	}
	top := min(math.Log10(float64(n)), nines)
	if 2*n <= maxPoints {
		for i, v := range l.values {
			slower := float64(n-i) / float64(n) // before this one
			point(v, max(-math.Log10(slower), 0))
			if i+1 < n {
				point(v, -math.Log10(float64(n-i-1)/float64(n)))
			}
		}
	} else {
		for i := range maxPoints {
			nine := top * float64(i) / (maxPoints - 1)
			point(quantile(l.values, 1-math.Pow(10, -nine)), nine)
		}
	}
	l.Points = strings.TrimSpace(b.String())
	l.EndX = num(l.end)
	if n >= 100 {
		l.P99X, l.P99Y = num(x.at(quantile(l.values, 0.99))), num(down(2))
	}
}

// placeLabels gives every line's label a row above the plot, the lowest in which
// texts do not overlap and, if there is one, no line that leads down to the plot
// passes behind a text. It reckons with a narrow screen, and returns how many
// rows there are.
func placeLabels(lines []tailLine) int {
	const screen, letter = 330.0, 6.7 // pixels
	order := make([]*tailLine, len(lines))
	for i := range lines {
		l := &lines[i]
		order[i] = l
		width := 100 * (letter*float64(len([]rune(l.Label))) + 8) / screen
		l.Anchor, l.left, l.right = "start", l.end-1, l.end+width
		if l.end > 50 {
			l.Anchor, l.left, l.right = "end", l.end-width, l.end+1
		}
	}
	// From the middle outwards: who is further out can lead down past the others.
	slices.SortStableFunc(order, func(a, b *tailLine) int {
		return cmp.Compare(math.Abs(a.end-50), math.Abs(b.end-50))
	})
	rows := 1
	for i, l := range order {
		for l.row = 0; l.row < len(order); l.row++ {
			if !slices.ContainsFunc(order[:i], l.meets) {
				break
			}
		}
		if l.row == len(order) {
			for l.row = 0; slices.ContainsFunc(order[:i], l.overlaps); {
				l.row++
			}
		}
		rows = max(rows, l.row+1)
	}
	return rows
}

// meets reports whether two labels, or a label and the other's leader, touch.
func (l *tailLine) meets(m *tailLine) bool {
	upper, lower := l, m
	if l.row < m.row {
		upper, lower = m, l
	}
	return l.overlaps(m) || l.row != m.row && upper.end >= lower.left && upper.end <= lower.right
}

func (l *tailLine) overlaps(m *tailLine) bool {
	return l.row == m.row && l.left < m.right && m.left < l.right
}
