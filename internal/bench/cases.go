package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Case is a set of processes that is measured alone, together without the daemon, and
// together with it.
type Case struct {
	Name, About string
	Groups      []string // default: the name up to the first dash
	Online      []Load   // measured by the latency of their requests
	Batch       []Load   // measured by their rate
	Pause       bool     // pause and resume the only batch load
	Torch       bool     // the clients are the PyTorch script, not giveway-bench
	Idle        bool     // measure also while the online clients are idle
	Random      bool     // measure also with random arrivals at the same rate
	Light       bool     // some batch loads do not fill the GPU, so that work kept cannot be computed
	Prepared    bool     // with the daemon, measure only the setups
	Setups      []Setup  // measured after the clients that nothing was prepared for
	InRounds    *Setup   // measure it, alone and native in rounds instead of one after the other: see rounds
	Targets     []Target
}

// is reports whether a name is that of the case or of one of its groups.
func (c Case) is(name string) bool {
	prefix, _, _ := strings.Cut(c.Name, "-")
	return name == c.Name || slices.Contains(c.Groups, name) || len(c.Groups) == 0 && name == prefix
}

// mixed reports whether the batch loads do different work, so that their rates cannot
// be added.
func (c Case) mixed() bool {
	return slices.ContainsFunc(c.Batch, func(l Load) bool { return !slices.Equal(l.Args, c.Batch[0].Args) })
}

// firstLike returns the index of the first batch load that does the same work as load i.
func (c Case) firstLike(i int) int {
	return slices.IndexFunc(c.Batch, func(l Load) bool { return slices.Equal(l.Args, c.Batch[i].Args) })
}

// Load is one client process.
type Load struct {
	Name   string
	Class  string // in the phases with the daemon
	Weight int
	Args   []string
}

// Setup starts the clients of a case anew in another way, and measures them.
type Setup struct {
	Name string // of its phase
	// MPS starts all clients in an MPS server, the online ones with the higher client
	// priority, without the daemon.
	MPS  bool
	Pool bool // Run puts loads into the pool
	// Run returns the flags of giveway run for a load. A load without flags is started
	// plainly, and its class is set while it runs.
	Run func(Load) string
	// Then changes an attribute of the online clients, and measures again.
	Then []Change
}

// Change is a change of an attribute.
type Change struct {
	Name  string
	Set   string        // what giveway set is told
	Learn time.Duration // what the shim learns from: requests of PyTorch clients in this time do not count
}

func load(name, class string, weight int, args string) []Load {
	return []Load{{Name: name, Class: class, Weight: weight, Args: strings.Fields(args)}}
}

// times returns n loads like the first of loads, numbered from 1. The number replaces
// "#" in arguments.
func times(n int, loads []Load) []Load {
	all := make([]Load, n)
	for i := range all {
		number := fmt.Sprint(i + 1)
		all[i] = loads[0]
		all[i].Name += "-" + number
		all[i].Args = strings.Fields(strings.ReplaceAll(strings.Join(loads[0].Args, " "), "#", number))
	}
	return all
}

// Cases returns all cases, in order.
func Cases() []Case { return slices.Concat(kernelCases(), loopCases(), torchCases()) }

// kernelCases returns the cases of kernels that fill the GPU.
func kernelCases() []Case {
	const job = "--kernel 212us --depth 64"
	online := func(args string) []Load { return load("online", "online", 1, args) }
	micro := online("--kernel 28us --alone 44us --after 5ms --awake")
	batch := load("batch", "batch", 1, job)
	long := load("batch", "batch", 1, "--kernel 40ms --depth 16")
	versus := func(a, b int) []Load {
		return append(load("heavy", "batch", a, job), load("light", "batch", b, job)...)
	}
	inMicro := []string{"micro"}
	// The limits are a tenth beyond the worst of the earlier runs in docs/RESULTS.md.
	within := func(p50, p99 float64) []Target {
		return []Target{{Phase: underGiveway, Figure: P50, Most: p50}, {Phase: underGiveway, Figure: P99, Most: p99}}
	}
	return []Case{
		{Name: "micro-40ms", About: "one kernel, 44 us alone, 5 ms after each answer, against batch kernels of 40 ms", Online: micro, Batch: long},
		{Name: "micro-212us", About: "the same against batch kernels of 212 us", Online: micro, Batch: batch, Targets: within(0.265, 0.305)},
		{Name: "long", Groups: inMicro, About: "an online kernel of 350 us against batch kernels of 212 us", Online: online("--kernel 350us --after 5ms"), Batch: batch},
		{Name: "steps", Groups: inMicro, About: "requests of 20 kernels of 28 us, launched 50 us apart", Online: online("--kernel 28us --kernels 20 --gap 50us --every 20ms"), Batch: batch},
		{Name: "hint", About: "as micro-212us, with two waiting kernels put on the GPU 300 us before each request", Online: online("--kernel 28us --after 5ms --parked 2 --lead 300us"), Batch: batch},
		{Name: "eight", About: "one online client against eight batch processes", Online: micro, Batch: times(8, batch), Idle: true, Targets: within(0.265, 0.33)},
		{Name: "weights-3-1", About: "two batch processes of weights 3 and 1", Batch: versus(3, 1)},
		{Name: "weights-8-1", About: "two batch processes of weights 8 and 1", Batch: versus(8, 1)},
		{Name: "pause", About: "a batch process is paused and resumed", Batch: batch, Pause: true},
		{
			Name: "poisson", About: "five online clients with 40 random requests a second each, against five batch processes",
			Online: times(5, online("--kernel 200us --poisson 40/s --seed #")), Batch: times(5, batch), Idle: true, Targets: within(0.485, 1.06),
		},
		{
			Name: "priority", About: "online work that fills the GPU against batch work that fills it too",
			Batch:   append(load("high", "online", 1, job), load("low", "batch", 1, job)...),
			Targets: []Target{{Phase: underGiveway, Figure: FirstToNext, Least: 32}},
		},
	}
}

// loopCases returns the cases of an online client that waits for each kernel and
// launches the next after a gap.
func loopCases() []Case {
	var cases []Case
	for _, gap := range []string{"1us", "60us", "200us"} {
		run := Setup{Name: underRun, Run: byClass}
		targets := []Target{
			{Phase: underGiveway, Figure: P50Alone, Most: 1.15},
			{Phase: underGiveway, Figure: BatchNative, Least: 0.25},
			{Phase: underGiveway, Figure: LostShare, Most: 0.1},
		}
		if gap == "60us" { // the daemon needs about 2 s of requests to find out what the SLO permits
			run.Then = []Change{{Name: sloOf5ms, Set: "--slo=5ms"}}
			targets = append(targets, Target{Phase: sloOf5ms, Figure: BatchNative, Least: 0.5})
		}
		setups := []Setup{run}
		if gap == "1us" { // MPS does not depend on the gap: nothing is switched
			setups = append(setups, Setup{Name: mpsPriority, MPS: true})
		}
		cases = append(cases, Case{
			Name: "loop-" + gap, About: "an online loop of one kernel of 100 us, a wait and a gap of " + gap + ", against batch kernels of 200 us",
			Online: load("online", "online", 1, "--kernel 100us --after "+gap), Batch: load("batch", "batch", 1, "--kernel 200us --depth 64"),
			Setups: setups, Targets: targets,
		})
	}
	return cases
}

// ForTargets returns the case without the phases that no target needs. Alone and native remain.
func (c Case) ForTargets() Case {
	needed := func(name string) bool {
		return slices.ContainsFunc(c.Targets, func(t Target) bool { return t.Phase == name || strings.HasPrefix(t.Phase, name+", ") })
	}
	situation := func(s string) bool {
		return slices.ContainsFunc(c.Targets, func(t Target) bool { return strings.HasSuffix(t.Phase, ", "+s) })
	}
	c.Random, c.Idle = c.Random && situation(randomArrivals), c.Idle && situation(onlineIdle)
	c.Prepared = c.Prepared || !needed(underGiveway)
	shorter := func(s Setup) Setup {
		s.Then = slices.DeleteFunc(slices.Clone(s.Then), func(change Change) bool { return !needed(change.Name) })
		return s
	}
	if c.InRounds != nil {
		s := shorter(*c.InRounds)
		c.InRounds = &s
	}
	var setups []Setup
	for _, s := range c.Setups {
		if s = shorter(s); needed(s.Name) || len(s.Then) > 0 {
			setups = append(setups, s)
		}
	}
	c.Setups = setups
	return c
}

// Select returns the cases with these names or of these groups, in the order of
// Cases, or all cases if names is empty.
func Select(names []string) ([]Case, error) {
	all := Cases()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.is(name) }) {
			var have []string
			for _, c := range all {
				have = append(have, c.Name)
			}
			return nil, fmt.Errorf("unknown case %q; the cases are %s", name, strings.Join(have, ", "))
		}
	}
	return slices.DeleteFunc(all, func(c Case) bool { return !slices.ContainsFunc(names, c.is) }), nil
}
