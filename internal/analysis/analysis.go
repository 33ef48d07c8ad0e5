// Package analysis computes every figure of a scenario's outcome, once. The
// terminal, the HTML report and the JSON output format these figures and compute
// none of their own. docs/SCENARIOS.md defines each figure.
package analysis

import (
	"fmt"
	"math"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// Analysis is the figures of one outcome. Slices named Runs have one item for each
// of the outcome's runs, in the same order.
type Analysis struct {
	Outcome *scenario.Outcome
	Alone   []Figures   // by client, in the order of the scenario
	Clients [][]Figures // by run, then as Alone
	Groups  []*Group    // in the order of the scenario
	Latency []*Group    // those of Groups that are judged by latency
	Work    []*Group    // those of Groups that are judged by work
	Classes []*Class    // the groups of Work by class
	Runs    []Run
}

// Group is one entry of the scenario's clients: Count clients that are alike.
type Group struct {
	Name   string // with the number of clients, if there are several: "fill x3"
	Class  sched.Class
	Device sched.DeviceID
	Count  int
	First  int // index of its first client
	// OpenLoop reports that requests arrive on their own schedule. A client that is
	// not open-loop sends the next request when the last one is answered.
	OpenLoop bool
	// ByLatency reports that the group is judged by latency: it is open-loop and of
	// class online or standard. All other groups are judged by work.
	ByLatency bool
	Alone     Figures // of one client with the device to itself
	Runs      []Figures
}

// Figures is what one client, or a group of clients taken together, achieved in
// one run. A figure that is not known is NaN.
type Figures struct {
	// Latency is the distribution of the time from a request's arrival to its
	// answer, over the requests of all clients. A request that had no answer at the
	// end of the run counts with its wait until then. Only for open-loop clients.
	Latency   stats.Summary
	Latencies stats.Distribution // that Latency summarizes

	SLO        time.Duration // zero: none
	SLOMet     float64       // share of requests whose latency is within the SLO
	Requests   int           // finished
	Unanswered int           // had no answer at the end of the run
	Rate       float64       // requests finished per second, all clients together
	MinRate    float64       // rate of the slowest client
	MaxRate    float64       // rate of the fastest client
	DeviceTime time.Duration

	// P99OverAlone is the P99 latency over the P99 latency of one client alone.
	P99OverAlone float64
	// WorkKept is the work done as a share of the work that the same clients can do
	// without any other client: see stats.WorkKept. For one client it is its rate
	// over its rate alone.
	WorkKept float64
	// WorkPart is what the clients contribute to the work kept by all groups that
	// are judged by work.
	WorkPart float64
}

// FallsBehind reports that requests arrive faster than they are answered: more
// than 2, and more than 1% of all, had no answer at the end. Latency then says how
// long the run was and little else.
func (f *Figures) FallsBehind() bool {
	return f.Unanswered > 2 && f.Unanswered > f.Latency.Count/100
}

// Class is all groups of one class that are judged by work.
type Class struct {
	Class    sched.Class
	Groups   []*Group
	Clients  int
	Alone    float64 // sum of the rates of the clients alone
	OpenLoop bool    // all groups are open-loop: Alone is the rate of arrivals
	Runs     []ClassFigures
}

// ClassFigures is what a class achieved in one run.
type ClassFigures struct {
	Rate     float64 // requests finished per second, all clients together
	WorkKept float64 // as Figures.WorkKept
}

// Run is one run in two figures.
type Run struct {
	Policy string
	// Tail is the largest P99OverAlone of the groups of class online that are judged
	// by latency, or of class standard if there are none of class online.
	Tail Tail
	// WorkKept is the work kept by all groups that are judged by work.
	WorkKept float64
}

// Tail is the worst P99 latency of a run.
type Tail struct {
	Group *Group // nil: no group is judged by latency
	// P99OverAlone is NaN if a request was never answered, alone or in the run.
	P99OverAlone float64
	FallsBehind  bool // the group falls behind: the figures depend on the run's length
}

// Of computes the figures of an outcome.
func Of(o *scenario.Outcome) *Analysis {
	a := &Analysis{Outcome: o, Alone: make([]Figures, len(o.Alone))}
	for i := range o.Alone {
		a.Alone[i] = figures(o.Alone[i:i+1], nil)
	}
	for _, entry := range o.Groups {
		g := a.group(entry)
		a.Groups = append(a.Groups, g)
		if g.ByLatency {
			a.Latency = append(a.Latency, g)
		} else {
			a.Work = append(a.Work, g)
		}
	}
	for r := range o.Runs {
		clients := o.Runs[r].Result.Clients
		each := make([]Figures, len(clients))
		for i := range clients {
			each[i] = figures(clients[i:i+1], &o.Alone[i])
			each[i].WorkKept, _ = stats.WorkKept([]stats.Work{a.work(i, r)})
		}
		a.Clients = append(a.Clients, each)
		a.Runs = append(a.Runs, Run{Policy: o.Runs[r].Policy, Tail: a.tail(r), WorkKept: a.shareWork(r)})
	}
	a.classes()
	return a
}

func (a *Analysis) group(g scenario.Group) *Group {
	o := a.Outcome
	first := &o.Alone[g.First]
	out := &Group{
		Name: g.Name, Class: first.Class, Device: first.Device, Count: g.Count, First: g.First, OpenLoop: first.OpenLoop,
		ByLatency: first.OpenLoop && (first.Class == sched.Online || first.Class == sched.Standard),
		Alone:     a.Alone[g.First],
	}
	if g.Count > 1 {
		out.Name = fmt.Sprintf("%s x%d", g.Name, g.Count)
	}
	for r := range o.Runs {
		f := figures(o.Runs[r].Result.Clients[g.First:g.First+g.Count], first)
		f.WorkKept, _ = stats.WorkKept(a.works(r, out))
		out.Runs = append(out.Runs, f)
	}
	return out
}

// figures computes everything about clients that are alike but for their work. alone
// is one of them with the device to itself, nil if that is what clients are.
func figures(clients []sim.ClientResult, alone *sim.ClientResult) Figures {
	f := Figures{
		SLO: clients[0].SLO, SLOMet: math.NaN(), MinRate: clients[0].Rate,
		P99OverAlone: math.NaN(), WorkKept: math.NaN(), WorkPart: math.NaN(),
	}
	met := 0.0
	for i := range clients {
		c := &clients[i]
		f.Requests += c.Requests
		f.Unanswered += c.Unfinished
		f.Rate += c.Rate
		f.MinRate, f.MaxRate = min(f.MinRate, c.Rate), max(f.MaxRate, c.Rate)
		f.DeviceTime += c.DeviceTime
		if c.OpenLoop {
			f.Latencies.Merge(&c.Latencies)
			met += c.SLOMet * float64(c.Latencies.Count())
		}
	}
	if f.Latencies.Count() == 0 {
		return f
	}
	f.Latency = f.Latencies.Summary()
	if f.SLO > 0 {
		f.SLOMet = met / float64(f.Latency.Count)
	}
	if alone != nil {
		f.P99OverAlone = stats.Ratio(f.Latency.P99, alone.Latency.P99)
	}
	return f
}

// work describes client i in run r for stats.WorkKept.
func (a *Analysis) work(i, r int) stats.Work {
	alone, o := &a.Outcome.Alone[i], a.Outcome
	return stats.Work{
		Device: string(alone.Device), Rate: o.Runs[r].Result.Clients[i].Rate, AloneRate: alone.Rate,
		AloneUse: min(stats.Ratio(alone.DeviceTime, o.Warmup+o.Length), 1),
	}
}

// works describes all clients of groups.
func (a *Analysis) works(r int, groups ...*Group) []stats.Work {
	var all []stats.Work
	for _, g := range groups {
		for i := g.First; i < g.First+g.Count; i++ {
			all = append(all, a.work(i, r))
		}
	}
	return all
}

// shareWork returns the work kept by all groups that are judged by work, and
// divides it among them.
func (a *Analysis) shareWork(r int) float64 {
	kept, parts := stats.WorkKept(a.works(r, a.Work...))
	for _, g := range a.Work {
		f := &g.Runs[r]
		f.WorkPart = 0
		for _, p := range parts[:g.Count] {
			f.WorkPart += p
		}
		parts = parts[g.Count:]
	}
	return kept
}

// classes gathers the groups that are judged by work.
func (a *Analysis) classes() {
	for _, class := range []sched.Class{sched.Online, sched.Standard, sched.Batch, sched.Idle} {
		c := &Class{Class: class, OpenLoop: true, Runs: make([]ClassFigures, len(a.Runs))}
		for _, g := range a.Work {
			if g.Class != class {
				continue
			}
			c.Groups = append(c.Groups, g)
			c.Clients += g.Count
			c.Alone += g.Alone.Rate * float64(g.Count)
			c.OpenLoop = c.OpenLoop && g.OpenLoop
			for r := range c.Runs {
				c.Runs[r].Rate += g.Runs[r].Rate
			}
		}
		if len(c.Groups) == 0 {
			continue
		}
		for r := range c.Runs {
			c.Runs[r].WorkKept, _ = stats.WorkKept(a.works(r, c.Groups...))
		}
		a.Classes = append(a.Classes, c)
	}
}

// TailGroups returns the groups that Run.Tail is about.
func (a *Analysis) TailGroups() []*Group {
	for _, class := range []sched.Class{sched.Online, sched.Standard} {
		var groups []*Group
		for _, g := range a.Latency {
			if g.Class == class && g.Alone.Latency.P99 > 0 {
				groups = append(groups, g)
			}
		}
		if len(groups) > 0 {
			return groups
		}
	}
	return nil
}

// tail finds the worst group of run r: groups that fall behind are worse than others, a
// group that is not answered is worse than any ratio, then a larger ratio is worse.
func (a *Analysis) tail(r int) Tail {
	worst := Tail{P99OverAlone: math.NaN()}
	for _, g := range a.TailGroups() {
		f := &g.Runs[r]
		t := Tail{Group: g, P99OverAlone: f.P99OverAlone, FallsBehind: f.FallsBehind()}
		switch {
		case worst.Group == nil || t.FallsBehind && !worst.FallsBehind:
			worst = t
		case t.FallsBehind == worst.FallsBehind && !math.IsNaN(worst.P99OverAlone) && !(t.P99OverAlone <= worst.P99OverAlone):
			worst = t
		}
	}
	return worst
}
