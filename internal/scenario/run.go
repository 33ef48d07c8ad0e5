package scenario

import (
	"runtime"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Options say how much to keep of a run. The zero value keeps only what came of it.
type Options struct {
	Segments int // pieces of the devices' time
	Actions  int // orders of the scheduler
}

// Run runs every program alone, and all together under each policy: a name, or a
// name and parameters as in giveway:turn=20ms. A policy without parameters has
// those that the scenario gives it.
//
// Alone and under Native there is no daemon, and so nobody to hint to and no shim
// that parks kernels. Of programs that are alike only the first is run alone.
//
// Worlds run side by side; the outcome does not depend on how many at a time.
func (s *Scenario) Run(policies []string, o Options) (Outcome, error) {
	began := time.Now()
	c := &s.Config
	out := Outcome{
		Name: s.Name, File: s.File, Doc: s.Doc, Policy: s.Policy, Devices: c.Devices, Seed: c.Seed, Warmup: c.Warmup, Length: c.Length,
		Groups: s.Groups, Published: s.Published,
		Alone: make([]sim.ClientResult, len(c.Clients)),
		Runs:  make([]Run, len(policies)),
	}
	var jobs []func()
	for _, g := range s.Groups {
		jobs = append(jobs, func() { s.alone(g, out.Alone) })
	}
	for i, name := range policies {
		cfg, label, err := s.under(name)
		if err != nil {
			return Outcome{}, err
		}
		cfg.Segments = o.Segments
		jobs = append(jobs, func() { out.Runs[i] = together(cfg, label, o.Actions) })
	}
	inParallel(jobs)
	out.Wall = time.Since(began)
	return out, nil
}

// alone fills in how the programs of g fare with the devices to themselves.
func (s *Scenario) alone(g Group, results []sim.ClientResult) {
	cfg := s.Config
	cfg.Clients = undisturbed(cfg.Clients[g.First : g.First+1])
	cfg.Faults, cfg.Drain = sim.Faults{}, 0
	r := sim.New(cfg).Run().Clients[0]
	for i := g.First; i < g.First+g.Count; i++ {
		r.Name, r.Queue = s.Config.Clients[i].Name, sched.QueueID(i+1)
		results[i] = r
	}
}

// under returns the world in which the named policy is in charge, and what to
// call it.
func (s *Scenario) under(name string) (sim.Config, string, error) {
	cfg := s.Config
	p, err := parseSpec(name)
	if err != nil {
		return cfg, "", err
	}
	if own, _ := parseSpec(s.Policy); own.name == p.name && len(p.params) == 0 {
		p = own
	}
	choice, err := p.choice()
	if err != nil {
		return cfg, "", err
	}
	if p.name == Native {
		cfg.Clients = undisturbed(cfg.Clients)
	} else {
		cfg.Policy = choice
	}
	return cfg, p.String(), nil
}

// undisturbed are the clients without what only Giveway makes them do.
func undisturbed(clients []sim.ClientConfig) []sim.ClientConfig {
	plain := append([]sim.ClientConfig(nil), clients...)
	for i := range plain {
		plain[i].Hint, plain[i].Announce, plain[i].Park, plain[i].Lead = false, 0, 0, 0
	}
	return plain
}

func together(cfg sim.Config, label string, actions int) Run {
	var rec recorder
	if actions > 0 {
		rec.most = actions
		cfg.Recorder = &rec
	}
	return Run{Policy: label, Result: sim.New(cfg).Run(), Actions: rec.actions}
}

// recorder keeps the scheduler's first orders.
type recorder struct {
	most    int
	actions []TimedAction
}

func (r *recorder) Record(now sched.Time, _ []sched.Event, actions []sched.Action) {
	for _, a := range actions {
		if len(r.actions) < r.most {
			r.actions = append(r.actions, TimedAction{now, a})
		}
	}
}

// inParallel does all jobs, as many at a time as there are processors.
func inParallel(jobs []func()) {
	todo := make(chan func())
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			for job := range todo {
				job()
			}
		})
	}
	for _, job := range jobs {
		todo <- job
	}
	close(todo)
	workers.Wait()
}
