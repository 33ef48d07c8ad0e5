package scenario

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Options says how much of a run to record. The zero value records only the results.
type Options struct {
	Segments int // pieces of device time, at most
	Actions  int // actions of the scheduler at most, and as many decisions and requests
	// Compare is for a comparison of policies with each other. Clients then get the
	// attributes that a policy uses and none of them has, as far as they can be derived;
	// policies that would be without the attribute they need are left out. The
	// scenario's own policy runs as the scenario has it.
	Compare bool
	// Simulated, if not nil, is advanced by the time that the simulations have
	// simulated. Total returns what it will be in the end.
	Simulated *atomic.Int64
}

// Total returns the time that Run will simulate under a number of policies, drains not
// included.
func (s *Scenario) Total(policies int) time.Duration {
	return time.Duration(len(s.Groups)+policies) * (s.Config.Warmup + s.Config.Length)
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
		Runs:  make([]Run, 0, len(policies)), // the simulations keep pointers to its items
	}
	var simulations []func()
	for _, g := range s.Groups {
		simulations = append(simulations, func() { s.alone(g, out.Alone, o.Simulated) })
	}
	for _, name := range policies {
		cfg, p, err := s.under(name)
		if err != nil {
			return Outcome{}, err
		}
		run := Run{Policy: p.String()}
		if o.Compare && run.Policy != s.Policy {
			var reason string
			if run.Derived, reason = prepare(&cfg, p.name); reason != "" {
				out.NotApplicable = append(out.NotApplicable, NotApplicable{run.Policy, reason})
				addTime(o.Simulated, c.Warmup+c.Length)
				continue
			}
		}
		cfg.Segments, cfg.Simulated = o.Segments, o.Simulated
		out.Runs = append(out.Runs, run)
		r := &out.Runs[len(out.Runs)-1]
		simulations = append(simulations, func() { r.simulate(cfg, o.Actions) })
	}
	if n := out.NotApplicable; len(out.Runs) == 0 && len(n) > 0 {
		return Outcome{}, fmt.Errorf("compare policies: %s is not applicable: %s; --policy runs it all the same", n[0].Policy, n[0].Reason)
	}
	inParallel(simulations)
	out.Wall = time.Since(start)
	return out, nil
}

// alone runs the first client of g alone and stores the result for all clients of g.
func (s *Scenario) alone(g Group, results []sim.ClientResult, simulated *atomic.Int64) {
	cfg := s.Config
	cfg.Simulated = simulated
	cfg.Clients = withoutDaemon(cfg.Clients[g.First : g.First+1])
	cfg.Faults, cfg.Drain = sim.Faults{}, 0
	r := sim.New(cfg).Run().Clients[0]
	for i := g.First; i < g.First+g.Count; i++ {
		r.Name, r.Queue = s.Config.Clients[i].Name, sched.QueueID(i+1)
		results[i] = r
	}
}

// under returns the configuration with a policy, and the policy.
func (s *Scenario) under(name string) (sim.Config, spec, error) {
	cfg := s.Config
	p, err := parseSpec(name)
	if err != nil {
		return cfg, p, err
	}
	if own, _ := parseSpec(s.Policy); own.name == p.name && len(p.params) == 0 {
		p = own
	}
	choice, err := p.choice()
	if err != nil {
		return cfg, p, err
	}
	if p.name == Native {
		cfg.Clients = withoutDaemon(cfg.Clients)
	} else {
		cfg.Policy = choice
	}
	return cfg, p, nil
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

func addTime(to *atomic.Int64, d time.Duration) {
	if to != nil {
		to.Add(int64(d))
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
