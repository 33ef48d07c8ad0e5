package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/report"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// online has Poisson requests of about 1.2 ms each.
func online(name string, device int) sim.ClientConfig {
	return sim.ClientConfig{
		Name: name, Device: device, Attr: sched.Attr{Class: sched.Online}, Arrival: sim.Arrival{Kind: sim.Poisson, Every: 20 * ms},
		Kernels: []sim.Kernels{{Count: 160, Time: sim.Around(7400, 0.05)}},
	}
}

// batch always has 64 kernels queued.
func batch(name string, device int) sim.ClientConfig {
	return sim.ClientConfig{
		Name: name, Device: device, Attr: sched.Attr{Class: sched.Batch}, Arrival: sim.Arrival{Kind: sim.Closed, Depth: 64},
		Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(200*us, 0.01)}},
	}
}

type recorder struct{ actions []scenario.TimedAction }

func (r *recorder) Record(at sched.Time, _ []sched.Event, actions []sched.Action) {
	for _, a := range actions {
		r.actions = append(r.actions, scenario.TimedAction{At: at, Action: a})
	}
}

// simulate runs clients alone and together on devices of one model.
func simulate(t *testing.T, model string, clients []sim.ClientConfig, policies ...string) scenario.Outcome {
	t.Helper()
	m, err := sim.NewModel(model)
	if err != nil {
		t.Fatal(err)
	}
	o := scenario.Outcome{Name: "test", Seed: 7, Warmup: 100 * ms, Length: 2 * time.Second, Wall: time.Second}
	for i := range clients {
		for len(o.Devices) <= clients[i].Device {
			o.Devices = append(o.Devices, sim.DeviceConfig{ID: sched.DeviceID(fmt.Sprint("gpu", len(o.Devices))), Model: m})
		}
	}
	cfg := sim.Config{Seed: o.Seed, Devices: o.Devices, Warmup: o.Warmup, Length: o.Length}
	for i := range clients {
		cfg.Clients = clients[i : i+1]
		o.Alone = append(o.Alone, sim.New(cfg).Run().Clients...)
		o.Groups = append(o.Groups, scenario.Group{Name: clients[i].Name, First: i, Count: 1})
	}
	cfg.Clients, cfg.Segments = clients, 200_000
	for _, name := range policies {
		var rec recorder
		cfg.Recorder, cfg.Policy = &rec, sched.PolicyChoice{}
		if name != "native" {
			if cfg.Policy, err = policy.Choose(name, nil); err != nil {
				t.Fatal(err)
			}
		}
		o.Runs = append(o.Runs, scenario.Run{Policy: name, Result: sim.New(cfg).Run(), Actions: rec.actions})
	}
	return o
}

func render(t *testing.T, o scenario.Outcome) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Write(&b, analysis.Of(&o)); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if dir := os.Getenv("REPORT_OUT"); dir != "" { // for viewing
		file := strings.Map(func(r rune) rune {
			if strings.ContainsRune("/ ", r) {
				return '-'
			}
			return r
		}, t.Name())
		if err := os.WriteFile(filepath.Join(dir, file+".html"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	checkPage(t, text)
	return text
}

// checkPage checks that a report is well-formed, loads nothing, is not too large,
// and shows no NaN, infinity or formatting error.
func checkPage(t *testing.T, text string) {
	t.Helper()
	const most = 2_000_000
	if len(text) > most {
		t.Errorf("got %d bytes, want at most %d", len(text), most)
	}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Entity = xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			checkElement(t, e)
		}
	}
	for _, pattern := range []string{`https?:`, `@import`, `url\(`, `NaN`, `[+-]Inf\b`, `ZgotmplZ`, `%!`, `&lt;nil`} {
		if found := regexp.MustCompile(pattern).FindString(text); found != "" {
			t.Errorf("got %q in the page, want none", found)
		}
	}
}

func checkElement(t *testing.T, e xml.StartElement) {
	t.Helper()
	switch e.Name.Local {
	case "img", "link", "iframe", "object", "embed", "base", "form", "a", "use", "image":
		t.Errorf("got element %s, which loads or links something", e.Name.Local)
	}
	for _, a := range e.Attr {
		name := strings.ToLower(a.Name.Local)
		if strings.HasPrefix(name, "on") || name == "src" || name == "href" || name == "style" {
			t.Errorf("got attribute %s of element %s, want none", name, e.Name.Local)
		}
	}
}

// parts are the sections a report can have.
var parts = []string{"comparison", "latency", "tails", "timeline", "work", "published", "repeat"}

func checkParts(t *testing.T, text, want string) {
	t.Helper()
	for _, id := range parts {
		has, wanted := strings.Contains(text, `<section id="`+id+`"`), strings.Contains(" "+want+" ", " "+id+" ")
		if has != wanted {
			t.Errorf("section %s: got %v, want %v", id, has, wanted)
		}
	}
}

func several(n, devices int, make func(string, int) sim.ClientConfig, name string) []sim.ClientConfig {
	var all []sim.ClientConfig
	for i := range n {
		all = append(all, make(fmt.Sprint(name, i), i%devices))
	}
	return all
}

// TestSections renders outcomes of many kinds and checks which sections they have.
func TestSections(t *testing.T) {
	both := []sim.ClientConfig{online("chat", 0), batch("train", 0)}
	const everything = "comparison latency tails timeline work repeat"
	for _, c := range []struct {
		name     string
		model    string
		clients  []sim.ClientConfig
		policies []string
		parts    string
		tails    int
	}{
		{"no clients", "nvidia-h200", nil, []string{"native"}, "repeat", 0},
		{"no policies", "nvidia-h200", both, nil, "latency tails work repeat", 1},
		{"one policy", "nvidia-h200", both, []string{"giveway"}, everything, 1},
		{"two policies", "nvidia-h200", both, []string{"native", "giveway"}, everything, 1},
		{"six policies", "nvidia-h200", both, []string{"native", "giveway", "rr", "fifo", "wfq", "hpf"}, everything, 1},
		{"only batch", "nvidia-h200", several(3, 1, batch, "train"), []string{"native", "wfq"}, "comparison timeline work repeat", 0},
		{"only online", "nvidia-h200", several(3, 1, online, "chat"), []string{"native", "giveway"}, "comparison latency tails timeline repeat", 3},
		{"ten online on two devices", "nvidia-h200", append(several(10, 2, online, "chat"), several(4, 2, batch, "train")...), []string{"native", "giveway"}, everything, 1},
		{"slots side by side", "amd-hws", both, []string{"native", "giveway"}, everything, 1},
		{"thousands of pieces", "level1-npu", both, []string{"native", "giveway"}, everything, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := render(t, simulate(t, c.model, c.clients, c.policies...))
			checkParts(t, text, c.parts)
			if n := strings.Count(text, `<svg class="hover-tail"`); n != c.tails {
				t.Errorf("got %d plots of distributions, want %d", n, c.tails)
			}
			if strings.Contains(c.parts, "comparison") {
				for _, name := range c.policies {
					if !strings.Contains(text, `<div title="`+name+`">`) {
						t.Errorf("policy %s has no bar", name)
					}
				}
			}
		})
	}
}

// TestExtremeOutcomes renders outcomes with missing parts and extreme numbers.
func TestExtremeOutcomes(t *testing.T) {
	full := func() scenario.Outcome {
		return simulate(t, "nvidia-h200", []sim.ClientConfig{online("chat", 0), batch("train", 0)}, "native", "giveway")
	}
	for name, change := range map[string]func(*scenario.Outcome){
		"nothing":     func(o *scenario.Outcome) { *o = scenario.Outcome{} },
		"no segments": func(o *scenario.Outcome) { o.Runs[0].Result.Segments, o.Runs[1].Result.Segments = nil, nil },
		"few segments": func(o *scenario.Outcome) {
			o.Runs[0].Result.Segments = o.Runs[0].Result.Segments[:3]
		},
		"zero": func(o *scenario.Outcome) {
			for i := range o.Alone {
				o.Alone[i].Rate, o.Alone[i].Latency, o.Alone[i].Latencies = 0, stats.Summary{}, stats.Distribution{}
				o.Runs[0].Result.Clients[i].Rate = 0
			}
		},
		"huge": func(o *scenario.Outcome) {
			c := &o.Runs[0].Result.Clients[0]
			c.Latencies = stats.NewDistribution(1, math.MaxInt64)
			c.Latency = c.Latencies.Summary()
			o.Runs[0].Result.Clients[1].Rate = 1e300
			o.Runs[0].Result.Events, o.Seed = math.MaxUint64, math.MaxUint64
		},
		"broken": func(o *scenario.Outcome) {
			o.Runs[0].Result.Violations = []string{"at 1s: queue 2 ran while stopped"}
			o.Runs[1].Result.Crashes = 3
			o.Published = []scenario.Published{{Source: "a paper", What: "P99", Value: "1.1 ×"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := full()
			change(&o)
			text := render(t, o)
			if name == "broken" {
				if !strings.Contains(text, "ran while stopped") || !strings.Contains(text, "killed the daemon 3 times") {
					t.Error("the violation or the crashes are missing in the page")
				}
				checkParts(t, text, strings.Join(parts, " "))
			}
		})
	}
}

// TestHostileNamesAreEscaped uses names that might inject HTML, in every place.
func TestHostileNamesAreEscaped(t *testing.T) {
	for _, evil := range []string{
		`<script>alert(1)</script>`, `</style><h1>x`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</svg></title>`,
		`{{.Seed}}`, "-->\n]]>", "\x00\xff\u202e", `javascript:alert(1)`, strings.Repeat("long ", 2000),
	} {
		o := simulate(t, "nvidia-h200", []sim.ClientConfig{online(evil, 0), batch(evil+"2", 0)}, "native", "giveway")
		o.Name, o.Doc = evil, evil
		o.Devices[0].Model.Name, o.Devices[0].Model.Doc = evil, evil
		o.Runs[1].Policy = evil
		o.Runs[1].Result.Violations = []string{evil}
		o.Published = []scenario.Published{{Source: evil, What: evil, Value: evil}}
		text := render(t, o)
		for _, tag := range []string{"<script", "</script", "<style", "</style", "<title>", "<h1"} {
			want := 1
			if tag == "<title>" { // the page's, and one for each bar
				want = strings.Count(text, "</title>")
			}
			if n := strings.Count(text, tag); n != want {
				t.Errorf("name %.20q: got %d times %s, want %d", evil, n, tag, want)
			}
		}
		if strings.ContainsAny(text, "\x00\u202e") {
			t.Errorf("name %q: got control characters in the page, want none", evil)
		}
		if strings.Contains(evil, "<") && strings.Contains(text, evil) {
			t.Errorf("name %q is in the page without escaping", evil)
		}
	}
}

// TestReportIsDeterministic checks that one outcome gives the same bytes twice.
func TestReportIsDeterministic(t *testing.T) {
	o := simulate(t, "nvidia-h200", append(several(2, 2, online, "chat"), several(4, 2, batch, "train")...), "native", "giveway")
	first, second := render(t, o), render(t, o)
	if first != second {
		t.Error("two reports of one outcome differ")
	}
}
