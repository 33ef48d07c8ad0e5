package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Case is a set of processes that is measured without the daemon and with it.
type Case struct {
	Name, Group, About string
	Online             []Load // measured by the latency of their requests
	Batch              []Load // measured by their rate; all do the same work
	Pause              bool   // pause and resume the only batch load
	Torch              bool   // the clients are the PyTorch script, not giveway-bench
}

// Load is one client process.
type Load struct {
	Name   string
	Class  string // in the phases with the daemon
	Weight int
	Args   []string
}

func load(name, class string, weight int, args string) Load {
	return Load{Name: name, Class: class, Weight: weight, Args: strings.Fields(args)}
}

// times returns n loads like l, numbered from 1. The number replaces "#" in arguments.
func (l Load) times(n int) []Load {
	all := make([]Load, n)
	for i := range all {
		number := fmt.Sprint(i + 1)
		all[i] = l
		all[i].Name = l.Name + "-" + number
		all[i].Args = slices.Clone(l.Args)
		for j, a := range all[i].Args {
			all[i].Args[j] = strings.ReplaceAll(a, "#", number)
		}
	}
	return all
}

const (
	request = "--alone 44us --after 5ms --awake" // a closed loop
	longJob = "--kernel 40ms --depth 16"
	job     = "--kernel 212us --depth 64"
)

// Cases returns all cases, in order.
func Cases() []Case {
	online := load("online", "online", 1, "--kernel 28us "+request)
	batch := load("batch", "batch", 1, job)
	versus := func(a, b int) []Load {
		return []Load{load("heavy", "batch", a, job), load("light", "batch", b, job)}
	}
	return []Case{
		{
			Name: "micro-40ms", Group: "micro", About: "one kernel, 44 us alone, 5 ms after each answer, against batch kernels of 40 ms",
			Online: []Load{online}, Batch: []Load{load("batch", "batch", 1, longJob)},
		},
		{
			Name: "micro-212us", Group: "micro", About: "the same against batch kernels of 212 us",
			Online: []Load{online}, Batch: []Load{batch},
		},
		{
			Name: "long", Group: "micro", About: "an online kernel of 350 us against batch kernels of 212 us",
			Online: []Load{load("online", "online", 1, "--kernel 350us --after 5ms")}, Batch: []Load{batch},
		},
		{
			Name: "steps", Group: "micro", About: "requests of 20 kernels of 28 us, launched 50 us apart",
			Online: []Load{load("online", "online", 1, "--kernel 28us --kernels 20 --gap 50us --every 20ms")}, Batch: []Load{batch},
		},
		{
			Name: "hint", Group: "hint", About: "as micro-212us, with two waiting kernels put on the GPU 300 us before each request",
			Online: []Load{load("online", "online", 1, "--kernel 28us --after 5ms --parked 2 --lead 300us")}, Batch: []Load{batch},
		},
		{
			Name: "eight", Group: "eight", About: "one online client against eight batch processes",
			Online: []Load{online}, Batch: batch.times(8),
		},
		{Name: "weights-3-1", Group: "weights", About: "two batch processes of weights 3 and 1", Batch: versus(3, 1)},
		{Name: "weights-8-1", Group: "weights", About: "two batch processes of weights 8 and 1", Batch: versus(8, 1)},
		{Name: "pause", Group: "pause", About: "a batch process is paused and resumed", Batch: []Load{batch}, Pause: true},
		{
			Name: "poisson", Group: "poisson", About: "five online clients with 40 random requests a second each, against five batch processes",
			Online: load("online", "online", 1, "--kernel 200us --poisson 40/s --seed #").times(5), Batch: batch.times(5),
		},
		{
			Name: "priority", Group: "priority", About: "online work that fills the GPU against batch work that fills it too",
			Batch: []Load{load("high", "online", 1, job), load("low", "batch", 1, job)},
		},
		{
			Name: "torch-graph", Group: "torch", About: "ResNet-50 as a CUDA graph every 20 ms against transformer training", Torch: true,
			Online: []Load{load("resnet50", "online", 1, "--mode graph --every-ms 20")}, Batch: []Load{load("training", "batch", 1, "")},
		},
		{
			Name: "torch-eager", Group: "torch", About: "ResNet-50 launched kernel by kernel every 20 ms against transformer training", Torch: true,
			Online: []Load{load("resnet50", "online", 1, "--mode eager --every-ms 20")}, Batch: []Load{load("training", "batch", 1, "")},
		},
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
		if !slices.ContainsFunc(all, func(c Case) bool { return c.Name == name || c.Group == name }) {
			var have []string
			for _, c := range all {
				have = append(have, c.Name)
			}
			return nil, fmt.Errorf("unknown case %q; the cases are %s", name, strings.Join(have, ", "))
		}
	}
	return slices.DeleteFunc(all, func(c Case) bool {
		return !slices.Contains(names, c.Name) && !slices.Contains(names, c.Group)
	}), nil
}
