package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// latencyClient is an open-loop client whose requests take base, and one in fifty
// three times as long.
func latencyClient(name string, class sched.Class, base time.Duration) sim.ClientResult {
	r := sim.ClientResult{Name: name, Device: "gpu0", Class: class, OpenLoop: true, Requests: 1000, Rate: 50, DeviceTime: time.Second}
	for i := range 1000 {
		d := base + base*time.Duration(i)/10_000
		if i%50 == 0 {
			d = 3 * base
		}
		r.Latencies.Add(d)
	}
	r.Latency = r.Latencies.Summary()
	return r
}

// closedClient is a client that sends the next request when the last is answered,
// and fills the device when alone.
func closedClient(name string, class sched.Class, rate float64) sim.ClientResult {
	return sim.ClientResult{Name: name, Device: "gpu0", Class: class, Requests: int(20 * rate), Rate: rate, DeviceTime: 20 * time.Second}
}

// openClient is an open-loop client that finishes rate requests per second, and
// uses 30% of the device when alone.
func openClient(name string, class sched.Class, rate float64) sim.ClientResult {
	r := latencyClient(name, class, time.Millisecond)
	r.Rate, r.DeviceTime = rate, 6*time.Second
	return r
}

func outcome(name string, alone []sim.ClientResult, runs ...scenario.Run) scenario.Outcome {
	o := scenario.Outcome{
		Name: name, Doc: "what it is about", Policy: "giveway", Seed: 1, Length: 20 * time.Second, Alone: alone, Runs: runs,
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: sim.Model{Name: "nvidia-h200"}}},
	}
	for i, c := range alone {
		o.Groups = append(o.Groups, scenario.Group{Name: c.Name, First: i, Count: 1})
	}
	return o
}

func under(policy string, clients ...sim.ClientResult) scenario.Run {
	return scenario.Run{Policy: policy, Result: sim.Result{Clients: clients}}
}

type results = []sim.ClientResult

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// outcomes are outcomes of many kinds, with invented figures.
func outcomes() []scenario.Outcome {
	pair := outcome("pair",
		results{latencyClient("serve", sched.Online, 1190*us), closedClient("train", sched.Batch, 19)},
		under("native", latencyClient("serve", sched.Online, 2100*us), closedClient("train", sched.Batch, 17.9)),
		under("giveway", latencyClient("serve", sched.Online, 1250*us), closedClient("train", sched.Batch, 17.8)),
	)
	published := pair
	published.Name = "published"
	published.Published = []scenario.Published{
		{Source: "a paper, fig. 6", What: "mean added", Value: "40 us"}, {Source: "its artifact", Value: "1.019x"},
	}
	single := pair
	single.Name, single.Runs = "single-policy", pair.Runs[1:]
	return []scenario.Outcome{pair, published, single, many(), onlyBatch(), onlyOnline(), alike(), mixed(), behind(), devices()}
}

func many() scenario.Outcome {
	var alone, native, giveway, rr results
	for i, name := range []string{"bert", "densenet", "inception", "resnet", "vgg"} {
		base := time.Duration(2+i) * ms
		alone = append(alone, latencyClient(name, sched.Online, base))
		native = append(native, latencyClient(name, sched.Online, base*time.Duration(5+i)))
		giveway = append(giveway, latencyClient(name, sched.Online, base+base*time.Duration(5-i)/10))
		rr = append(rr, latencyClient(name, sched.Online, base*2))
	}
	for _, name := range []string{"bert-be", "densenet-be", "inception-be", "resnet-be", "vgg-be"} {
		alone = append(alone, openClient(name, sched.Batch, 100))
		native = append(native, openClient(name, sched.Batch, 42.4))
		giveway = append(giveway, openClient(name, sched.Batch, 38.6))
		rr = append(rr, openClient(name, sched.Batch, 30.1))
	}
	return outcome("many", alone, under("native", native...), under("giveway", giveway...), under("rr:quantum=5ms", rr...))
}

func onlyBatch() scenario.Outcome {
	return outcome("only-batch",
		results{closedClient("four", sched.Batch, 5000), closedClient("one", sched.Batch, 5000), closedClient("rest", sched.Idle, 0.52)},
		under("native", closedClient("four", sched.Batch, 1519), closedClient("one", sched.Batch, 1519), closedClient("rest", sched.Idle, 0.15)),
		under("wfq", closedClient("four", sched.Batch, 3900), closedClient("one", sched.Batch, 990), closedClient("rest", sched.Idle, 0)),
	)
}

func onlyOnline() scenario.Outcome {
	return outcome("only-online",
		results{latencyClient("probe", sched.Standard, 44*us)},
		under("giveway", latencyClient("probe", sched.Standard, 45*us)),
	)
}

// alike has eight clients that are alike.
func alike() scenario.Outcome {
	alone, native, giveway := results{latencyClient("probe", sched.Online, 44*us)}, results{latencyClient("probe", sched.Online, 13*ms)}, results{latencyClient("probe", sched.Online, 224*us)}
	for i := range 8 {
		alone = append(alone, closedClient("fill", sched.Batch, 4977))
		native = append(native, closedClient("fill", sched.Batch, 555))
		giveway = append(giveway, closedClient("fill", sched.Batch, 570+float64(i)))
	}
	o := outcome("alike", alone, under("native", native...), under("giveway", giveway...))
	o.Groups = []scenario.Group{{Name: "probe", Count: 1}, {Name: "fill", First: 1, Count: 8}}
	return o
}

// mixed has closed-loop and open-loop batch clients, and more policies than fit into
// the finding.
func mixed() scenario.Outcome {
	row := func(p string) scenario.Run {
		return under(p, latencyClient("serve", sched.Online, 2*ms), closedClient("train", sched.Batch, 10), openClient("nightly", sched.Batch, 5))
	}
	return outcome("mixed",
		results{latencyClient("serve", sched.Online, ms), closedClient("train", sched.Batch, 19), openClient("nightly", sched.Batch, 5)},
		row("native"), row("giveway"), row("rr"), row("wfq"), row("hpf"))
}

// behind has a client that falls behind and one that is never answered.
func behind() scenario.Outcome {
	late := latencyClient("serve", sched.Online, 4*time.Second)
	late.Unfinished = 760
	return outcome("behind",
		results{latencyClient("serve", sched.Online, ms), latencyClient("never", sched.Online, ms), closedClient("train", sched.Batch, 19)},
		under("native", late, sim.ClientResult{Name: "never", Class: sched.Online, OpenLoop: true}, closedClient("train", sched.Batch, 9)),
		under("giveway", late, latencyClient("never", sched.Online, ms), closedClient("train", sched.Batch, 9)),
	)
}

// devices has two devices.
func devices() scenario.Outcome {
	two := results{closedClient("a", sched.Batch, 100), closedClient("b", sched.Batch, 100)}
	two[1].Device = "gpu1"
	o := outcome("devices", two, under("giveway", two...))
	o.Devices = append(o.Devices, sim.DeviceConfig{ID: "gpu1", Model: sim.Model{Name: "amd-hws"}})
	return o
}

// TestOutcomeText compares the text for the terminal with the golden files.
func TestOutcomeText(t *testing.T) {
	for _, o := range outcomes() {
		t.Run(o.Name, func(t *testing.T) {
			var b bytes.Buffer
			if err := printOutcome(&b, analysis.Of(&o)); err != nil {
				t.Fatal(err)
			}
			golden(t, o.Name+".txt", b.Bytes())
		})
	}
}

func TestOutcomeAsJSON(t *testing.T) {
	o := outcomes()[1]
	o.Runs[1].Result.Violations = []string{"at 1s: it is only a test"}
	var b bytes.Buffer
	if err := writeJSON(&b, toJSON(analysis.Of(&o))); err != nil {
		t.Fatal(err)
	}
	golden(t, "outcome.json", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}
