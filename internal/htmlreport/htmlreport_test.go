package htmlreport

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/stats"
)

// TestTicks checks that an axis has at least two marks and not too many, in order
// and within it.
func TestTicks(t *testing.T) {
	for _, s := range []Scale{
		LogScale(1e6, 1.1e6), LogScale(1, 1e18), LogScale(5, 5), LogScale(0, 0), LogScale(3e5, 7e6),
		{High: 1.2},
		{High: 3e7},
		{High: 1e18},
	} {
		var before float64 = -1
		ticks := s.Ticks(5, func(v float64) string {
			if v < s.Low || v > s.High || v <= before {
				t.Errorf("axis %+v: got a mark at %v after %v", s, v, before)
			}
			before = v
			return ""
		})
		if len(ticks) < 2 || len(ticks) > 5 {
			t.Errorf("axis %+v: got %d marks, want 2 to 5", s, len(ticks))
		}
	}
}

func TestTrimZeros(t *testing.T) {
	for label, want := range map[string]string{"5.00ms": "5ms", "100ms": "100ms", "0": "0", "20.0%": "20%", "1.50x": "1.5x"} {
		if got := trimZeros(label); got != want {
			t.Errorf("%s: got %s, want %s", label, got, want)
		}
	}
}

func TestTailPlotLimitsItsPoints(t *testing.T) {
	var s Series
	var latencies stats.Distribution
	for i := range 500_000 {
		latencies.Add(time.Duration(i) * time.Microsecond)
	}
	s.Add(&latencies, 1)
	p := NewTailPlot("chat", "", []Series{s, {Name: "empty"}}, format.Nanoseconds, false)
	if len(p.Lines) != 1 {
		t.Fatalf("got %d lines, want 1: a series without values is left out", len(p.Lines))
	}
	if n := len(strings.Fields(p.Lines[0].Points)); n != maxPoints {
		t.Errorf("got %d points, want %d", n, maxPoints)
	}
	if NewTailPlot("chat", "", []Series{{Name: "empty"}}, format.Nanoseconds, false) != nil {
		t.Error("got a plot without values, want nil")
	}
}

func TestComparisonWithoutFigures(t *testing.T) {
	if NewComparison([]Run{{Name: "rr", Kept: math.NaN(), Ratio: math.NaN()}}, "", "") != nil {
		t.Error("got a comparison without figures, want nil")
	}
}

func TestLinePlot(t *testing.T) {
	p := NewLinePlot("stop", "queues", []Line{
		{Name: "batch", Points: []Point{{X: 1, Y: 10, Upper: 20}, {X: 64, Y: 100, Upper: 100}}},
		{Name: "none"},
	}, format.Nanoseconds, true)
	if len(p.Curves) != 1 || p.Curves[0].Upper == "" || len(p.Curves[0].Dots) != 2 || len(p.Y) < 2 || p.X[0].Label != "1" {
		t.Errorf("got %+v, want one curve with its upper end, two dots and two axes", p)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWrite(t *testing.T) {
	page := Parse(fstest.MapFS{"page.tmpl": {Data: []byte(`<p>{{.}}</p>`)}}, nil)
	var b bytes.Buffer
	if err := Write(&b, page, "<b>\x00\u202e"); err != nil || b.String() != "<p>&lt;b&gt;\ufffd\ufffd</p>" {
		t.Errorf("got %q, %v; want the name escaped and made visible", b.String(), err)
	}
	if err := Write(failingWriter{}, page, ""); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got error %v, want %v", err, io.ErrClosedPipe)
	}
}

// TestRunColoursDiffer checks that as many runs as there are policies, and some more, are
// drawn in different colours or patterns, all of which the style sheet has.
func TestRunColoursDiffer(t *testing.T) {
	style, err := shared.ReadFile("style.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{NativeColour: true, AloneColour: true}
	for n := range strongColours * dashes {
		colour := RunColour(n)
		if seen[colour] {
			t.Errorf("run %d has the colour %s of an earlier one", n, colour)
		}
		seen[colour] = true
		for class := range strings.FieldsSeq(colour) {
			if !strings.Contains(string(style), "."+class+" {") {
				t.Errorf("the style sheet has no class %s", class)
			}
		}
	}
}

// TestComparisonTexts checks, for rows of every kind, that the text of a row is drawn where
// the style sheet leaves room for it: from the bar or dot to the right, at most as long as
// the room.
func TestComparisonTexts(t *testing.T) {
	const letter = 9.3 // pixels, at most, of a bold digit or letter of 13 pixels
	for _, ratio := range []float64{0.5, 1, 1.15, 20, 12345} {
		for _, text := range []string{"", "falls behind"} {
			c := NewComparison([]Run{
				{Name: "a", Kept: 1.37, Parts: []Part{{Size: 1.37, Kept: 1.37}}, Ratio: ratio, RatioText: text, Dots: []Dot{{Ratio: ratio}}},
				{Name: "b", Kept: 0, Ratio: 1, Dots: []Dot{{Ratio: 1}}},
			}, "", "")
			room := 72.0
			if c.LongText {
				room = 126
			}
			for _, r := range c.Rows {
				if w := 11 + letter*float64(len(r.Tail)); w > room {
					t.Errorf("text %q takes %v pixels, want at most %v", r.Tail, w, room)
				}
				if w := 7 + letter*float64(len(r.Kept)); w > 72 {
					t.Errorf("text %q takes %v pixels, want at most 72", r.Kept, w)
				}
			}
		}
	}
}
