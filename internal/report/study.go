package report

import (
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// study is an outcome by client: each one alone beside the same one in every
// run, and what follows from that for all of them together.
type study struct {
	o        *scenario.Outcome
	subjects []*subject
	latency  []*subject // how long their requests take is what matters
	rates    []*subject // how much they get done is
	runs     []runFigures
	room     float64 // of all devices, that those of rates could take up at most
	words    words
}

// subject is one client in all of its runs.
type subject struct {
	name   string
	class  sched.Class
	device sched.DeviceID
	colour string              // class of the style sheet
	alone  *sim.ClientResult   // nil: it was not run alone
	in     []*sim.ClientResult // by run; nil: it was not in it
	weight float64             // part of its device that it takes up alone
}

// runFigures are what a run comes to: the two numbers that the trade is about.
type runFigures struct {
	policy string
	colour string // class of the style sheet
	worst  *subject
	ratio  float64 // of the worst-off client's P99 to its P99 alone; NaN: not known
	p99    time.Duration
	kept   float64 // of the work that the other clients do alone; NaN: not known
}

// words are what the two kinds of clients are called in this report.
type words struct{ Online, Batch string }

func newStudy(o *scenario.Outcome) *study {
	s := &study{o: o}
	s.meet()
	for _, sub := range s.subjects {
		if sub.isLatency() {
			s.latency = append(s.latency, sub)
		} else {
			s.rates = append(s.rates, sub)
		}
	}
	s.words = words{Online: "open-loop", Batch: "other"}
	if !slices.ContainsFunc(s.latency, func(c *subject) bool { return c.class != sched.Online }) {
		s.words.Online = "online"
	}
	if !slices.ContainsFunc(s.rates, func(c *subject) bool { return c.class != sched.Batch }) {
		s.words.Batch = "batch"
	}
	s.paint()
	s.measure()
	for i := range o.Runs {
		s.runs = append(s.runs, s.figures(i))
	}
	return s
}

// meet makes the list of clients, in the order of the scenario.
func (s *study) meet() {
	list := s.o.Alone
	for i := range s.o.Runs {
		if c := s.o.Runs[i].Result.Clients; len(c) > len(list) {
			list = c
		}
	}
	for i := range list {
		c := &list[i]
		sub := &subject{name: c.Name, class: c.Class, device: c.Device, alone: find(s.o.Alone, i, c.Name), weight: 1}
		for r := range s.o.Runs {
			sub.in = append(sub.in, find(s.o.Runs[r].Result.Clients, i, c.Name))
		}
		if whole := s.o.Warmup + s.o.Length; sub.alone != nil && sub.alone.DeviceTime > 0 && whole > 0 {
			sub.weight = min(float64(sub.alone.DeviceTime)/float64(whole), 1)
		}
		s.subjects = append(s.subjects, sub)
	}
}

// find returns the client at i, or the first of that name if another is there.
func find(all []sim.ClientResult, i int, name string) *sim.ClientResult {
	if i < len(all) && all[i].Name == name {
		return &all[i]
	}
	if i = slices.IndexFunc(all, func(c sim.ClientResult) bool { return c.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// isLatency reports whether the client is judged by latency: it does not merely
// run flat out, and is not one that gives way.
func (c *subject) isLatency() bool {
	r := c.alone
	for _, in := range c.in {
		if r == nil {
			r = in
		}
	}
	return r != nil && r.OpenLoop && c.class != sched.Batch && c.class != sched.Idle
}

// figures sums up run i.
func (s *study) figures(i int) runFigures {
	f := runFigures{policy: s.o.Runs[i].Policy, colour: s.runColour(i), ratio: math.NaN(), kept: math.NaN()}
	for _, sub := range s.latency {
		r := sub.p99Ratio(i)
		if !math.IsNaN(r) && (math.IsNaN(f.ratio) || r > f.ratio) {
			f.ratio, f.worst, f.p99 = r, sub, sub.in[i].Latency.P99
		}
	}
	for _, sub := range s.rates {
		if part := s.part(sub, i); !math.IsNaN(part) {
			if math.IsNaN(f.kept) {
				f.kept = 0
			}
			f.kept += part
		}
	}
	return f
}

// p99Ratio is P99 in run i over P99 alone, NaN where one is not known.
func (c *subject) p99Ratio(i int) float64 {
	if c.alone == nil || c.in[i] == nil || c.alone.Latency.P99 <= 0 || c.in[i].Latency.Count == 0 {
		return math.NaN()
	}
	return float64(c.in[i].Latency.P99) / float64(c.alone.Latency.P99)
}

// kept is the client's rate in run i over its rate alone, NaN where one is not
// known.
func (c *subject) kept(i int) float64 {
	if c.alone == nil || c.in[i] == nil || c.alone.Rate <= 0 {
		return math.NaN()
	}
	return c.in[i].Rate / c.alone.Rate
}

// part is what the client contributes to the work kept in run i.
//
// Clients that each fill a device cannot all keep their rate, however good the
// policy; clients that each take a tenth of one can. So a client counts with the
// part of the device that it takes up alone, and the sum is over what all of
// them could take up at most: 1 a device.
func (s *study) part(c *subject, i int) float64 { return c.kept(i) * c.weight / s.room }

// measure finds how much of all devices the clients could take up at most.
func (s *study) measure() {
	want := map[sched.DeviceID]float64{}
	for _, sub := range s.rates {
		before := min(want[sub.device], 1)
		want[sub.device] += sub.weight
		s.room += min(want[sub.device], 1) - before
	}
}

// Colours are classes of the style sheet. Runs have strong lines, clients fills:
// dark ones who wait for an answer, light ones who do not.
const (
	runColours   = 7
	darkColours  = 4
	lightColours = 8
	nativeColour = "r0"
	aloneColour  = "al"
	switchColour = "sw"
)

func (s *study) paint() {
	for i, sub := range s.latency {
		sub.colour = indexed("o", i%darkColours)
	}
	for i, sub := range s.rates {
		sub.colour = indexed("b", i%lightColours)
	}
}

// runColour gives native sharing its own colour in every report, and the others
// theirs in the order asked.
func (s *study) runColour(i int) string {
	if s.o.Runs[i].Policy == "native" {
		return nativeColour
	}
	n := 0
	for _, r := range s.o.Runs[:i] {
		if r.Policy != "native" {
			n++
		}
	}
	return indexed("r", 1+n%(runColours-1))
}

func indexed(prefix string, i int) string { return prefix + string(rune('0'+i)) }
