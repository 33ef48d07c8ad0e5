package cli

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// job is one client of the scenario file, which may be many programs alike, and
// how it fared alone and in each run.
type job struct {
	name    string
	class   sched.Class
	device  sched.DeviceID
	count   int
	flatOut bool
	alone   fare
	runs    []fare // as Outcome.Runs
}

// fare is how the programs of a job fared in one run, taken together.
type fare struct {
	latency     stats.Summary
	slo         time.Duration
	met         float64 // part of the requests within it
	unfinished  int
	rate        float64 // of all of them; alone, of one
	least, most float64 // of any one
}

// waits reports whether what matters about the job is how long its requests
// take. For all others it is how much they get done.
func (j *job) waits() bool {
	return !j.flatOut && (j.class == sched.Online || j.class == sched.Standard)
}

// tail is the P99 in a run as a multiple of that alone; zero: unknown.
func (j *job) tail(run int) float64 {
	if j.alone.latency.P99 == 0 || j.runs[run].latency.Count == 0 {
		return 0
	}
	return float64(j.runs[run].latency.P99) / float64(j.alone.latency.P99)
}

// kept is the work done in a run as a part of that alone.
func (j *job) kept(run int) float64 {
	if j.alone.rate == 0 {
		return 0
	}
	return j.runs[run].rate / j.alone.rate
}

func jobs(o *scenario.Outcome) []job {
	all := make([]job, 0, len(o.Groups))
	for _, g := range o.Groups {
		of := func(results []sim.ClientResult) []sim.ClientResult { return results[g.First : g.First+g.Count] }
		first := o.Alone[g.First]
		j := job{
			name: g.Name, class: first.Class, device: first.Device, count: g.Count, flatOut: !first.OpenLoop,
			alone: pool(of(o.Alone)[:1]),
		}
		if g.Count > 1 {
			j.name = fmt.Sprintf("%s x%d", g.Name, g.Count)
		}
		for _, r := range o.Runs {
			j.runs = append(j.runs, pool(of(r.Result.Clients)))
		}
		all = append(all, j)
	}
	return all
}

// pool takes the results of programs alike together.
func pool(results []sim.ClientResult) fare {
	f := fare{latency: results[0].Latency, least: results[0].Rate, slo: results[0].SLO}
	var samples []time.Duration
	for _, r := range results {
		f.unfinished += r.Unfinished
		f.rate += r.Rate
		f.met += r.SLOMet / float64(len(results))
		f.least, f.most = min(f.least, r.Rate), max(f.most, r.Rate)
		if len(results) > 1 && r.OpenLoop {
			samples = append(samples, r.Latencies...)
		}
	}
	if len(samples) > 0 {
		f.latency = stats.Summarize(samples)
	}
	return f
}

// crew is the jobs of one class that do work rather than wait for answers.
type crew struct {
	class    sched.Class
	jobs     []*job
	programs int
	flatOut  bool // all of them; otherwise none is
}

// crews gathers the jobs of each class whose work can be added up: those that
// run flat out by the part each has of what it does alone, the others by
// requests. Where a class has both kinds, neither sum would mean anything.
func crews(all []job) []crew {
	var cs []crew
	for _, class := range []sched.Class{sched.Online, sched.Standard, sched.Batch, sched.Idle} {
		c := crew{class: class}
		flat := 0
		for i := range all {
			if j := &all[i]; j.class == class && !j.waits() {
				c.jobs = append(c.jobs, j)
				c.programs += j.count
				if j.flatOut {
					flat++
				}
			}
		}
		c.flatOut = flat > 0
		if len(c.jobs) > 0 && (flat == 0 || flat == len(c.jobs)) {
			cs = append(cs, c)
		}
	}
	return cs
}

// devices is how many devices the crew is on.
func (c *crew) devices() int {
	ids := map[sched.DeviceID]bool{}
	for _, j := range c.jobs {
		ids[j.device] = true
	}
	return len(ids)
}

// kept is the work of the crew in a run: as a part of what one program does that
// has its device to itself, or of all that was asked for.
func (c *crew) kept(run int) float64 {
	parts, done, asked := 0.0, 0.0, 0.0
	for _, j := range c.jobs {
		parts += j.kept(run)
		done += j.runs[run].rate
		asked += j.alone.rate * float64(j.count)
	}
	switch {
	case c.flatOut:
		return parts / float64(c.devices())
	case asked > 0:
		return done / asked
	}
	return 0
}
