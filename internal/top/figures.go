package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
)

const (
	historyTime = time.Minute     // of shares and of requests that met their SLO
	rateTime    = 5 * time.Second // over which requests per second are counted
)

// step is what a process did between two snapshots.
type step struct {
	took     time.Duration
	share    float64 // of device time
	requests uint64  // that ended
	met      int     // of the requests with an SLO that are known
	late     int
}

// history is what a process did in the last minute.
type history struct {
	first uint64 // the ID of its first queue: a process with another is another process
	count uint64 // of its requests
	steps []step // the oldest first
	slot  int    // its colour
}

// add appends a step and drops those that are too old.
func (h *history) add(s step) {
	h.steps = append(h.steps, s)
	total := time.Duration(0)
	for i := range slices.Backward(h.steps) {
		if total += h.steps[i].took; total >= historyTime {
			h.steps = slices.Delete(h.steps, 0, i)
			return
		}
	}
}

// shares returns the share of the last step and of the whole history.
func (h *history) shares() (now, minute float64, known bool) {
	var sum float64
	var took time.Duration
	for _, s := range h.steps {
		sum += s.share * s.took.Seconds()
		took += s.took
	}
	if took == 0 {
		return 0, 0, false
	}
	return h.steps[len(h.steps)-1].share, sum / took.Seconds(), true
}

// rate returns how many requests ended in a second.
func (h *history) rate() (perSecond float64, known bool) {
	var requests uint64
	var took time.Duration
	for _, s := range slices.Backward(h.steps) {
		requests += s.requests
		if took += s.took; took >= rateTime {
			break
		}
	}
	if took == 0 {
		return 0, false
	}
	return float64(requests) / took.Seconds(), true
}

// met returns which part of the requests met the SLO.
func (h *history) met() (part float64, known bool) {
	met, late := 0, 0
	for _, s := range h.steps {
		met += s.met
		late += s.late
	}
	return float64(met) / float64(met+late), met+late > 0
}

// levels divides the last minute into n parts and returns the share in each, the oldest
// first; below zero: it is not known.
func (h *history) levels(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = -1
	}
	part := historyTime / time.Duration(n)
	age := time.Duration(0)
	weight := make([]time.Duration, n)
	for _, s := range slices.Backward(h.steps) {
		i := n - 1 - int((age+s.took/2)/part)
		age += s.took
		if i < 0 {
			break
		}
		if weight[i] == 0 {
			out[i] = 0
		}
		weight[i] += s.took
		out[i] += s.share * float64(s.took)
	}
	for i := range out {
		if weight[i] > 0 {
			out[i] /= float64(weight[i])
		}
	}
	return out
}

// classPair is a class that waits and the class that has the device.
type classPair struct{ device, class, holder string }

// classTotals is how long classes had waited for each other at some time.
type classTotals struct {
	at     time.Duration // since the daemon was started
	totals map[classPair]time.Duration
}

// classTime is the period for which waits between classes are shown.
const classTime = 10 * time.Second

// addClasses notes how long classes have waited for each other, and drops what is too old.
func addClasses(all []classTotals, d *api.Delays) []classTotals {
	if d == nil {
		return nil
	}
	if n := len(all); n > 0 && d.Now <= all[n-1].at {
		all = nil // the daemon is another
	}
	next := classTotals{d.Now, map[classPair]time.Duration{}}
	for _, c := range d.Classes {
		next.totals[classPair{c.Device, c.Class, c.Holder}] += c.Total
	}
	all = append(all, next)
	for len(all) > 2 && all[1].at <= d.Now-classTime {
		all = all[1:]
	}
	return all
}

// row is a process on the screen.
type row struct {
	process  *api.Process
	use      describe.Use // of all its devices
	devices  map[string]float64
	now      float64 // share of device time
	minute   float64
	known    bool // the shares are
	rate     float64
	rates    bool // the rate is known
	met      float64
	hasMet   bool
	waitsFor string
	waits    time.Duration // for waitsFor, in the last 10 s
	holdsUp  string
	holds    time.Duration
	history  *history
}

// rowOf computes the figures of a process.
func rowOf(p *api.Process, h *history, shares map[describe.Key]float64) row {
	r := row{process: p, history: h, devices: map[string]float64{}, use: joined(describe.Uses(p))}
	for _, q := range p.Queues {
		if share, ok := shares[describe.Key{PID: p.PID, Device: q.Device}]; ok {
			r.devices[q.Device] = share
		}
	}
	r.now, r.minute, r.known = h.shares()
	if p.Requests != nil {
		r.rate, r.rates = h.rate()
	}
	r.met, r.hasMet = h.met()
	return r
}

// joined returns the uses of several devices as one, without the time.
func joined(uses []describe.Use) describe.Use {
	u := uses[0]
	for _, other := range uses[1:] {
		for _, part := range []struct{ to, from *string }{{&u.GPU, &other.GPU}, {&u.State, &other.State}, {&u.Why, &other.Why}, {&u.Slice, &other.Slice}} {
			if *part.from != "" && !slices.Contains(strings.Split(*part.to, ","), *part.from) {
				*part.to += "," + *part.from
			}
		}
	}
	return u
}

// addDelays notes for each row the process for which it waited most, and the one that
// waited most for it.
func addDelays(rows []row, delays *api.Delays) {
	if delays == nil {
		return
	}
	byPID := map[int]*row{}
	for i := range rows {
		byPID[rows[i].process.PID] = &rows[i]
	}
	for _, d := range delays.Delays {
		if d.Last10 <= 0 {
			continue
		}
		if r := byPID[d.PID]; r != nil && d.Last10 > r.waits {
			r.waits, r.waitsFor = d.Last10, holderText(d.Holder)+" "+partOf10s(d.Last10)
		}
		if r := byPID[d.Holder.PID]; r != nil && d.Holder.Kind == "process" && d.Last10 > r.holds {
			r.holds, r.holdsUp = d.Last10, fmt.Sprintf("%d %s", d.PID, partOf10s(d.Last10))
		}
	}
}

func holderText(h api.Holder) string {
	switch {
	case h.Kind == "process" && h.PID > 0:
		return fmt.Sprint(h.PID)
	case h.Kind == "process":
		return "hidden"
	}
	return format.Text(h.Kind, 10)
}

func partOf10s(d time.Duration) string { return format.Percent(d.Seconds() / 10) }
