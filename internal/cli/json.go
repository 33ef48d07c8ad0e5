package cli

import (
	"encoding/json"
	"io"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// simJSON is what `sim --json` prints. docs/SCENARIOS.md describes it; fields are
// added, never changed. The same file, policies and seed give the same bytes.
type simJSON struct {
	Name      string          `json:"name"`
	Doc       string          `json:"doc,omitempty"`
	Seed      uint64          `json:"seed"`
	Warmup    time.Duration   `json:"warmup_ns"`
	Length    time.Duration   `json:"length_ns"`
	Devices   []deviceJSON    `json:"devices"`
	Alone     []clientJSON    `json:"alone"`
	Runs      []runJSON       `json:"runs"`
	Published []publishedJSON `json:"published,omitempty"`
	Summary   string          `json:"summary,omitempty"`
}

type deviceJSON struct {
	ID    string `json:"id"`
	Model string `json:"model"`
}

type runJSON struct {
	Policy     string       `json:"policy"`
	Clients    []clientJSON `json:"clients"`
	Calls      uint64       `json:"control_calls"`
	Turns      uint64       `json:"daemon_turns"`
	Crashes    int          `json:"daemon_crashes"`
	Events     uint64       `json:"events"`
	Overruled  string       `json:"overruled,omitempty"` // for what the scheduler overruled the policy
	Violations []string     `json:"violations,omitempty"`
}

type clientJSON struct {
	Name       string         `json:"name"`
	Class      string         `json:"class"`
	Device     string         `json:"device"`
	FlatOut    bool           `json:"flat_out,omitempty"`
	Latency    *stats.Summary `json:"latency,omitempty"`
	SLO        time.Duration  `json:"slo_ns,omitempty"`
	Met        *float64       `json:"slo_met,omitempty"` // part of the requests
	Unfinished int            `json:"unfinished"`
	Requests   int            `json:"requests"`
	Rate       float64        `json:"rate_per_s"`
	Kept       *float64       `json:"rate_of_alone,omitempty"`
	DeviceTime time.Duration  `json:"device_time_ns"`
}

type publishedJSON struct {
	Source string `json:"source"`
	What   string `json:"what,omitempty"`
	Value  string `json:"value"`
}

func toJSON(o *scenario.Outcome) simJSON {
	v := simJSON{
		Name: o.Name, Doc: o.Doc, Seed: o.Seed, Warmup: o.Warmup, Length: o.Length, Summary: summary(o),
		Alone: clientsJSON(o.Alone, nil),
	}
	for _, d := range o.Devices {
		v.Devices = append(v.Devices, deviceJSON{string(d.ID), d.Model.Name})
	}
	for _, r := range o.Runs {
		overruled := ""
		if r.Result.Overruled != sched.NoMistake {
			overruled = r.Result.Overruled.String()
		}
		v.Runs = append(v.Runs, runJSON{
			Policy: r.Policy, Clients: clientsJSON(r.Result.Clients, o.Alone),
			Calls: r.Result.Calls, Turns: r.Result.Steps, Crashes: r.Result.Crashes, Events: r.Result.Events,
			Overruled: overruled, Violations: r.Result.Violations,
		})
	}
	for _, p := range o.Published {
		v.Published = append(v.Published, publishedJSON(p))
	}
	return v
}

func clientsJSON(clients, alone []sim.ClientResult) []clientJSON {
	var all []clientJSON
	for i, c := range clients {
		j := clientJSON{
			Name: c.Name, Class: c.Class.String(), Device: string(c.Device), FlatOut: !c.OpenLoop,
			Unfinished: c.Unfinished, Requests: c.Requests, Rate: c.Rate, DeviceTime: c.DeviceTime,
		}
		if c.OpenLoop && c.Latency.Count > 0 {
			j.Latency = &c.Latency
			if j.SLO = c.SLO; c.SLO > 0 {
				j.Met = &c.SLOMet
			}
		}
		if alone != nil && alone[i].Rate > 0 {
			kept := c.Rate / alone[i].Rate
			j.Kept = &kept
		}
		all = append(all, j)
	}
	return all
}
