package htmlreport

import (
	"fmt"
	"math"
	"strings"
)

// LinePlot draws figures by a number, such as a time by the number of queues. The
// horizontal axis is logarithmic.
type LinePlot struct {
	Title, XLabel string
	Kind          string // of the figures, such as modelled; shown beside the title
	Curves        []curve
	X, Y          []Tick
}

// Line is one line of a LinePlot.
type Line struct {
	Name, Colour string
	Wide         bool // so that another line on top of it leaves it visible
	Points       []Point
}

// Point is a figure, the upper end of its spread (drawn as a dotted line), and the
// text of its tooltip.
type Point struct {
	X, Y, Upper float64
	Label       string
}

type curve struct {
	*Line
	Path, Upper string
	Dots        []point
}

type point struct{ X, Y, Label string }

// linesHeight is the height of the drawing's coordinates; its width is 1000. Both are
// also in plots.tmpl.
const linesHeight = 210

// NewLinePlot draws the lines that have points. label writes a figure; log makes
// the vertical axis logarithmic, else it begins at zero.
func NewLinePlot(title, xLabel string, lines []Line, label func(float64) string, log bool) *LinePlot {
	p := &LinePlot{Title: title, XLabel: xLabel}
	low, high, most := math.Inf(1), 0.0, 2.0
	for _, l := range lines {
		for _, pt := range l.Points {
			low, high, most = min(low, pt.Y), max(high, pt.Upper), max(most, pt.X)
		}
	}
	x, y := Scale{Low: 1, High: most, Log: true}, Scale{High: max(high*1.1, 1e-3)}
	if log {
		y = LogScale(low, high)
	}
	for i := range lines {
		if len(lines[i].Points) > 0 {
			p.Curves = append(p.Curves, lines[i].draw(x, y))
		}
	}
	p.X = x.Ticks(7, func(v float64) string { return fmt.Sprint(v) })
	for _, v := range y.values(5) {
		p.Y = append(p.Y, Tick{At: down(y, v), Label: trimZeros(label(v))})
	}
	return p
}

func (l *Line) draw(x, y Scale) curve {
	c := curve{Line: l}
	var line, upper strings.Builder
	spread := false
	for _, pt := range l.Points {
		fmt.Fprintf(&line, "%s,%s ", Coordinate(10*x.At(pt.X)), down(y, pt.Y))
		fmt.Fprintf(&upper, "%s,%s ", Coordinate(10*x.At(pt.X)), down(y, pt.Upper))
		spread = spread || pt.Upper != pt.Y
		c.Dots = append(c.Dots, point{Coordinate(x.At(pt.X)), down(y, pt.Y), pt.Label})
	}
	if c.Path = strings.TrimSpace(line.String()); spread {
		c.Upper = strings.TrimSpace(upper.String())
	}
	return c
}

// down returns the distance of v from the top.
func down(y Scale, v float64) string { return Coordinate(linesHeight * (1 - y.At(v)/100)) }
