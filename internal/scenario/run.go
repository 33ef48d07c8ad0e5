package scenario

import (
	"runtime"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Options says how much of a run to record. The zero value records only the results.
type Options struct {
	Segments int // pieces of device time, at most
	Actions  int // actions of the scheduler, at most
}

// Run runs every client alone, and all clients together under each policy. A policy
// is a name, or a name and parameters as in giveway:turn=20ms. A policy without
// parameters gets those of the scenario, if it is the scenario's policy.
//
// Alone and under Native there is no daemon, so clients give no hints, park no
// kernels, enter at once and share no pool. Of clients that are alike only the first runs alone.
//
// The simulations run in parallel. The outcome does not depend on how many do.
func (s *Scenario) Run(policies []string, o Options) (Outcome, error) {
	start := time.Now()
	c := &s.Config
	out := Outcome{
		Name: s.Name, File: s.File, Doc: s.Doc, Policy: s.Policy, Devices: c.Devices, Seed: c.Seed, Warmup: c.Warmup, Length: c.Length,
		Groups: s.Groups, Published: s.Published,
		Alone: make([]sim.ClientResult, len(c.Clients)),
		Runs:  make([]Run, len(policies)),
	}
	var simulations []func()
	for _, g := range s.Groups {
		simulations = append(simulations, func() { s.alone(g, out.Alone) })
	}
	for i, name := range policies {
		cfg, label, err := s.under(name)
		if err != nil {
			return Outcome{}, err
		}
		cfg.Segments = o.Segments
		simulations = append(simulations, func() { out.Runs[i] = together(cfg, label, o.Actions) })
	}
	inParallel(simulations)
	out.Wall = time.Since(start)
	return out, nil
}

// alone runs the first client of g alone and stores the result for all clients of g.
func (s *Scenario) alone(g Group, results []sim.ClientResult) {
	cfg := s.Config
	cfg.Clients = withoutDaemon(cfg.Clients[g.First : g.First+1])
	cfg.Faults, cfg.Drain = sim.Faults{}, 0
	r := sim.New(cfg).Run().Clients[0]
	for i := g.First; i < g.First+g.Count; i++ {
		r.Name, r.Queue = s.Config.Clients[i].Name, sched.QueueID(i+1)
		results[i] = r
	}
}

// under returns the configuration with a policy, and the policy's label.
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
		cfg.Clients = withoutDaemon(cfg.Clients)
	} else {
		cfg.Policy = choice
	}
	return cfg, p.String(), nil
}

// withoutDaemon returns the clients without hints, parked kernels, late entry and pools,
// which need the daemon or its shim.
func withoutDaemon(clients []sim.ClientConfig) []sim.ClientConfig {
	plain := append([]sim.ClientConfig(nil), clients...)
	for i := range plain {
		plain[i].Hint, plain[i].Announce, plain[i].Park, plain[i].Lead = false, 0, 0, 0
		plain[i].LateEntry, plain[i].Pool = 0, ""
	}
	return plain
}

func together(cfg sim.Config, label string, actions int) Run {
	var rec recorder
	if actions > 0 {
		rec.limit = actions
		cfg.Recorder = &rec
	}
	return Run{Policy: label, Result: sim.New(cfg).Run(), Actions: rec.actions}
}

// recorder records the first actions of the scheduler.
type recorder struct {
	limit   int
	actions []TimedAction
}

func (r *recorder) Record(now sched.Time, _ []sched.Event, actions []sched.Action) {
	for _, a := range actions {
		if len(r.actions) < r.limit {
			r.actions = append(r.actions, TimedAction{now, a})
		}
	}
}

// inParallel calls all functions, one per CPU at a time.
func inParallel(functions []func()) {
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	var running sync.WaitGroup
	for _, f := range functions {
		free <- struct{}{}
		running.Go(func() { f(); <-free })
	}
	running.Wait()
}
