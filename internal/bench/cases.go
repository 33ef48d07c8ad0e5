package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Case is a set of processes that is measured without the daemon and with it.
type Case struct {
	Name, About string
	Group       string // default: the name up to the first dash
	Online      []Load // measured by the latency of their requests
	Batch       []Load // measured by their rate; all do the same work
	Pause       bool   // pause and resume the only batch load
	Torch       bool   // the clients are the PyTorch script, not giveway-bench
}

// is reports whether a name is that of the case or of its group.
func (c Case) is(name string) bool {
	prefix, _, _ := strings.Cut(c.Name, "-")
	return name == c.Name || name == cmp.Or(c.Group, prefix)
}

// Load is one client process.
type Load struct {
	Name   string
	Class  string // in the phases with the daemon
	Weight int
	Args   []string
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
func Cases() []Case {
	const job = "--kernel 212us --depth 64"
	online := func(args string) []Load { return load("online", "online", 1, args) }
	micro := online("--kernel 28us --alone 44us --after 5ms --awake")
	batch := load("batch", "batch", 1, job)
	long := load("batch", "batch", 1, "--kernel 40ms --depth 16")
	versus := func(a, b int) []Load {
		return append(load("heavy", "batch", a, job), load("light", "batch", b, job)...)
	}
	resnet := func(mode string) []Load { return load("resnet50", "online", 1, "--every-ms 20 --mode "+mode) }
	training := load("training", "batch", 1, "")
	return []Case{
		{Name: "micro-40ms", About: "one kernel, 44 us alone, 5 ms after each answer, against batch kernels of 40 ms", Online: micro, Batch: long},
		{Name: "micro-212us", About: "the same against batch kernels of 212 us", Online: micro, Batch: batch},
		{Name: "long", Group: "micro", About: "an online kernel of 350 us against batch kernels of 212 us", Online: online("--kernel 350us --after 5ms"), Batch: batch},
		{Name: "steps", Group: "micro", About: "requests of 20 kernels of 28 us, launched 50 us apart", Online: online("--kernel 28us --kernels 20 --gap 50us --every 20ms"), Batch: batch},
		{Name: "hint", About: "as micro-212us, with two waiting kernels put on the GPU 300 us before each request", Online: online("--kernel 28us --after 5ms --parked 2 --lead 300us"), Batch: batch},
		{Name: "eight", About: "one online client against eight batch processes", Online: micro, Batch: times(8, batch)},
		{Name: "weights-3-1", About: "two batch processes of weights 3 and 1", Batch: versus(3, 1)},
		{Name: "weights-8-1", About: "two batch processes of weights 8 and 1", Batch: versus(8, 1)},
		{Name: "pause", About: "a batch process is paused and resumed", Batch: batch, Pause: true},
		{
			Name: "poisson", About: "five online clients with 40 random requests a second each, against five batch processes",
			Online: times(5, online("--kernel 200us --poisson 40/s --seed #")), Batch: times(5, batch),
		},
		{
			Name: "priority", About: "online work that fills the GPU against batch work that fills it too",
			Batch: append(load("high", "online", 1, job), load("low", "batch", 1, job)...),
		},
		{Name: "torch-graph", About: "ResNet-50 as a CUDA graph every 20 ms against transformer training", Torch: true, Online: resnet("graph"), Batch: training},
		{Name: "torch-eager", About: "ResNet-50 launched kernel by kernel every 20 ms against transformer training", Torch: true, Online: resnet("eager"), Batch: training},
	}
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
