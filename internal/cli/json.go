package cli

import (
	"math"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// simJSON is what `sim --json` prints. docs/SCENARIOS.md describes it. Fields are
// added, never changed. The same file, policies and seed give the same bytes.
type simJSON struct {
	Name          string                   `json:"name"`
	Doc           string                   `json:"doc,omitempty"`
	Seed          uint64                   `json:"seed"`
	Warmup        time.Duration            `json:"warmup_ns"`
	Length        time.Duration            `json:"length_ns"`
	Devices       []deviceJSON             `json:"devices"`
	Alone         []clientJSON             `json:"alone"`
	Runs          []runJSON                `json:"runs"`
	Published     []scenario.Published     `json:"published,omitempty"`
	NotApplicable []scenario.NotApplicable `json:"not_applicable,omitempty"`
	Summary       string                   `json:"summary,omitempty"`
	Warnings      []string                 `json:"warnings,omitempty"`
}

type deviceJSON struct {
	ID    string `json:"id"`
	Model string `json:"model"`
}

type runJSON struct {
	Policy     string       `json:"policy"`
	Derived    string       `json:"derived,omitempty"` // the attribute of the clients that was derived for the policy
	Clients    []clientJSON `json:"clients"`
	Groups     []clientJSON `json:"groups"` // clients that are alike, taken together
	Classes    []classJSON  `json:"classes,omitempty"`
	Calls      uint64       `json:"control_calls"`
	Steps      uint64       `json:"daemon_turns"`
	Crashes    int          `json:"daemon_crashes"`
	Events     uint64       `json:"events"`
	Overruled  string       `json:"overruled,omitempty"` // the mistake that the policy was overruled for
	Violations []string     `json:"violations,omitempty"`
}

// clientJSON is the figures of a client, or of a group of them.
type clientJSON struct {
	Name         string         `json:"name"`
	Class        string         `json:"class"`
	Device       string         `json:"device"`
	Count        int            `json:"count,omitempty"` // of clients in the group
	FlatOut      bool           `json:"flat_out,omitempty"`
	Latency      *stats.Summary `json:"latency,omitempty"`
	P99OverAlone *float64       `json:"p99_over_alone,omitempty"`
	SLO          time.Duration  `json:"slo_ns,omitempty"`
	SLOMet       *float64       `json:"slo_met,omitempty"` // share of the requests
	Unanswered   int            `json:"unfinished"`
	Requests     int            `json:"requests"`
	Rate         float64        `json:"rate_per_s"`
	RateOfAlone  *float64       `json:"rate_of_alone,omitempty"` // of clients
	WorkKept     *float64       `json:"work_kept,omitempty"`     // of groups
	DeviceTime   time.Duration  `json:"device_time_ns"`
}

// classJSON is the figures of all groups of a class that are judged by work.
type classJSON struct {
	Class    string   `json:"class"`
	Clients  int      `json:"clients"`
	Rate     float64  `json:"rate_per_s"`
	WorkKept *float64 `json:"work_kept,omitempty"`
}

func toJSON(a *analysis.Analysis) simJSON {
	o := a.Outcome
	v := simJSON{
		Name: o.Name, Doc: o.Doc, Seed: o.Seed, Warmup: o.Warmup, Length: o.Length, Summary: a.Finding(), Warnings: a.Warnings(),
		Alone: clientsJSON(a, a.Alone), Published: o.Published, NotApplicable: o.NotApplicable,
	}
	for _, d := range o.Devices {
		v.Devices = append(v.Devices, deviceJSON{string(d.ID), d.Model.Name})
	}
	for i := range o.Runs {
		r := &o.Runs[i].Result
		run := runJSON{
			Policy: o.Runs[i].Policy, Derived: o.Runs[i].Derived, Clients: clientsJSON(a, a.Clients[i]),
			Calls: r.Calls, Steps: r.Steps, Crashes: r.Crashes, Events: r.Events,
			Overruled: overruled(r.Overruled), Violations: r.Violations,
		}
		for _, g := range a.Groups {
			c := figuresJSON(g.Name, g, &g.Runs[i])
			c.Count, c.WorkKept = g.Count, known(g.Runs[i].WorkKept)
			run.Groups = append(run.Groups, c)
		}
		for _, c := range a.Classes {
			run.Classes = append(run.Classes, classJSON{c.Class.String(), c.Clients, c.Runs[i].Rate, known(c.Runs[i].WorkKept)})
		}
		v.Runs = append(v.Runs, run)
	}
	return v
}

func overruled(m sched.Mistake) string {
	if m == sched.NoMistake {
		return ""
	}
	return m.String()
}

// clientsJSON converts the figures of every client in one run, or alone.
func clientsJSON(a *analysis.Analysis, figures []analysis.Figures) []clientJSON {
	var all []clientJSON
	for _, g := range a.Groups {
		for i := g.First; i < g.First+g.Count; i++ {
			c := figuresJSON(a.Outcome.Alone[i].Name, g, &figures[i])
			c.RateOfAlone = known(figures[i].WorkKept)
			all = append(all, c)
		}
	}
	return all
}

func figuresJSON(name string, g *analysis.Group, f *analysis.Figures) clientJSON {
	c := clientJSON{
		Name: name, Class: g.Class.String(), Device: string(g.Device), FlatOut: !g.OpenLoop,
		Unanswered: f.Unanswered, Requests: f.Requests, Rate: f.Rate, DeviceTime: f.DeviceTime,
	}
	if f.Latency.Count > 0 {
		c.Latency, c.P99OverAlone, c.SLO, c.SLOMet = &f.Latency, known(f.P99OverAlone), f.SLO, known(f.SLOMet)
	}
	return c
}

// known returns nil for a figure that is not known.
func known(x float64) *float64 {
	if math.IsNaN(x) {
		return nil
	}
	return &x
}
