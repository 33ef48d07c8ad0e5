package report

import (
	"math"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// latencyTable has a group of rows a client: alone, then each run.
type latencyTable struct{ Groups []latencyGroup }

type latencyGroup struct {
	Client, Class, Device string
	Rows                  []latencyRow
}

type latencyRow struct {
	Run, Colour string
	Cells       []timeCell // P50, P90, P99, max, mean
	Requests    string
	Unfinished  string
	Met         string // the part of requests within the SLO, if there is one
}

type timeCell struct {
	Time, Ratio string
	Key         bool // the column that the finding is about
}

func (s *study) latencyTable() *latencyTable {
	if len(s.latency) == 0 {
		return nil
	}
	t := &latencyTable{}
	for _, sub := range s.latency {
		g := latencyGroup{Client: sub.name, Class: sub.class.String(), Device: string(sub.device)}
		if sub.alone != nil {
			g.Rows = append(g.Rows, rowOf("alone", aloneColour, sub.alone, nil))
		}
		for i, in := range sub.in {
			g.Rows = append(g.Rows, rowOf(s.o.Runs[i].Policy, s.runs[i].colour, in, sub.alone))
		}
		t.Groups = append(t.Groups, g)
	}
	return t
}

// rowOf compares c with base; both may be nil.
func rowOf(name, colour string, c, base *sim.ClientResult) latencyRow {
	row := latencyRow{Run: name, Colour: colour, Requests: missing, Cells: make([]timeCell, 5)}
	for i := range row.Cells {
		row.Cells[i] = timeCell{Time: missing, Key: i == 2}
	}
	if c == nil {
		return row
	}
	row.Requests = integer(uint64(max(c.Requests, 0)))
	if c.Unfinished > 0 {
		row.Unfinished = integer(uint64(c.Unfinished))
	}
	if c.Latency.Count == 0 {
		return row
	}
	if c.SLO > 0 {
		row.Met = percent(c.SLOMet) + " within " + duration(c.SLO)
	}
	mine := columns(c)
	for i := range row.Cells {
		row.Cells[i].Time = duration(mine[i])
		if base != nil && columns(base)[i] > 0 {
			row.Cells[i].Ratio = times(float64(mine[i]) / float64(columns(base)[i]))
		}
	}
	return row
}

func columns(c *sim.ClientResult) [5]time.Duration {
	l := &c.Latency
	return [5]time.Duration{l.P50, l.P90, l.P99, l.Max, l.Mean}
}

// rateTable has a row a client and a column a run.
type rateTable struct {
	Runs  []rateHead
	Rows  []rateRow
	Total []string // work kept, by run
}

type rateHead struct{ Policy, Colour string }

type rateRow struct {
	Client, Class, Device, Colour string
	Alone                         string
	Cells                         []rateCell
}

type rateCell struct{ Rate, Kept string }

func (s *study) rateTable() *rateTable {
	if len(s.rates) == 0 {
		return nil
	}
	t := &rateTable{}
	for _, r := range s.runs {
		t.Runs = append(t.Runs, rateHead{r.policy, r.colour})
		t.Total = append(t.Total, percent(r.kept))
	}
	for _, sub := range s.rates {
		row := rateRow{Client: sub.name, Class: sub.class.String(), Device: string(sub.device), Colour: sub.colour, Alone: missing}
		if sub.alone != nil {
			row.Alone = rate(sub.alone.Rate)
		}
		for i, in := range sub.in {
			cell := rateCell{Rate: missing}
			if in != nil {
				cell.Rate = rate(in.Rate)
			}
			if k := sub.kept(i); !math.IsNaN(k) {
				cell.Kept = percent(k)
			}
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
