package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "write what is found to the golden files")

// waiting is how a client fared whose requests took base, and one in fifty of
// them three times that.
func waiting(name string, class sched.Class, base time.Duration) sim.ClientResult {
	r := sim.ClientResult{Name: name, Device: "gpu0", Class: class, OpenLoop: true, Requests: 1000, Rate: 50}
	for i := range 1000 {
		d := base + base*time.Duration(i)/10_000
		if i%50 == 0 {
			d = 3 * base
		}
		r.Latencies = append(r.Latencies, d)
	}
	r.Latency = stats.Summarize(r.Latencies)
	return r
}

// working is how a client fared that runs flat out.
func working(name string, class sched.Class, rate float64) sim.ClientResult {
	return sim.ClientResult{Name: name, Device: "gpu0", Class: class, Requests: int(20 * rate), Rate: rate}
}

// asked is how a client fared that is asked for so many, and does rate.
func asked(name string, class sched.Class, rate float64) sim.ClientResult {
	r := waiting(name, class, time.Millisecond)
	r.Rate = rate
	return r
}

func outcome(name string, alone []sim.ClientResult, runs ...scenario.Run) scenario.Outcome {
	o := scenario.Outcome{
		Name: name, Doc: "what it is about", Seed: 1, Length: 20 * time.Second, Alone: alone, Runs: runs,
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

// outcomes are scenarios of many shapes, with figures that are made up.
func outcomes() []scenario.Outcome {
	pair := outcome("pair",
		results{waiting("serve", sched.Online, 1190*us), working("train", sched.Batch, 19)},
		under("native", waiting("serve", sched.Online, 2100*us), working("train", sched.Batch, 17.9)),
		under("giveway", waiting("serve", sched.Online, 1250*us), working("train", sched.Batch, 17.8)),
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
		alone = append(alone, waiting(name, sched.Online, base))
		native = append(native, waiting(name, sched.Online, base*time.Duration(5+i)))
		giveway = append(giveway, waiting(name, sched.Online, base+base*time.Duration(5-i)/10))
		rr = append(rr, waiting(name, sched.Online, base*2))
	}
	for _, name := range []string{"bert-be", "densenet-be", "inception-be", "resnet-be", "vgg-be"} {
		alone = append(alone, asked(name, sched.Batch, 100))
		native = append(native, asked(name, sched.Batch, 42.4))
		giveway = append(giveway, asked(name, sched.Batch, 38.6))
		rr = append(rr, asked(name, sched.Batch, 30.1))
	}
	return outcome("many", alone, under("native", native...), under("giveway", giveway...), under("rr:quantum=5ms", rr...))
}

func onlyBatch() scenario.Outcome {
	return outcome("only-batch",
		results{working("four", sched.Batch, 5000), working("one", sched.Batch, 5000), working("rest", sched.Idle, 0.52)},
		under("native", working("four", sched.Batch, 1519), working("one", sched.Batch, 1519), working("rest", sched.Idle, 0.15)),
		under("wfq", working("four", sched.Batch, 3900), working("one", sched.Batch, 990), working("rest", sched.Idle, 0)),
	)
}

func onlyOnline() scenario.Outcome {
	return outcome("only-online",
		results{waiting("probe", sched.Standard, 44*us)},
		under("giveway", waiting("probe", sched.Standard, 45*us)),
	)
}

// alike has eight programs of one kind.
func alike() scenario.Outcome {
	alone, native, giveway := results{waiting("probe", sched.Online, 44*us)}, results{waiting("probe", sched.Online, 13*ms)}, results{waiting("probe", sched.Online, 224*us)}
	for i := range 8 {
		alone = append(alone, working("fill", sched.Batch, 4977))
		native = append(native, working("fill", sched.Batch, 555))
		giveway = append(giveway, working("fill", sched.Batch, 570+float64(i)))
	}
	o := outcome("alike", alone, under("native", native...), under("giveway", giveway...))
	o.Groups = []scenario.Group{{Name: "probe", Count: 1}, {Name: "fill", First: 1, Count: 8}}
	return o
}

// mixed has batch programs whose work cannot be added up, and more policies than
// a sentence can hold.
func mixed() scenario.Outcome {
	row := func(p string) scenario.Run {
		return under(p, waiting("serve", sched.Online, 2*ms), working("train", sched.Batch, 10), asked("nightly", sched.Batch, 5))
	}
	return outcome("mixed",
		results{waiting("serve", sched.Online, ms), working("train", sched.Batch, 19), asked("nightly", sched.Batch, 5)},
		row("native"), row("giveway"), row("rr"), row("wfq"), row("hpf"))
}

// behind has a program that is asked for more than it can do.
func behind() scenario.Outcome {
	late := waiting("serve", sched.Online, 4*time.Second)
	late.Unfinished = 760
	return outcome("behind",
		results{waiting("serve", sched.Online, ms), waiting("never", sched.Online, ms), working("train", sched.Batch, 19)},
		under("native", late, sim.ClientResult{Name: "never", Class: sched.Online, OpenLoop: true}, working("train", sched.Batch, 9)),
		under("giveway", late, waiting("never", sched.Online, ms), working("train", sched.Batch, 9)),
	)
}

// devices has two of them.
func devices() scenario.Outcome {
	two := results{working("a", sched.Batch, 100), working("b", sched.Batch, 100)}
	two[1].Device = "gpu1"
	o := outcome("devices", two, under("giveway", two...))
	o.Devices = append(o.Devices, sim.DeviceConfig{ID: "gpu1", Model: sim.Model{Name: "amd-hws"}})
	return o
}

// TestOutcomes holds what people see to the golden files.
func TestOutcomes(t *testing.T) {
	for _, o := range outcomes() {
		t.Run(o.Name, func(t *testing.T) {
			var b bytes.Buffer
			if err := printOutcome(&b, &o); err != nil {
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
	if err := writeJSON(&b, toJSON(&o)); err != nil {
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
