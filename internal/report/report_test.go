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

// online answers Poisson requests of about 1.2 ms each.
func online(name string, device int) sim.ClientConfig {
	return sim.ClientConfig{
		Name: name, Device: device, Attr: sched.Attr{Class: sched.Online}, Arrival: sim.Arrival{Kind: sim.Poisson, Every: 20 * ms},
		Kernels: []sim.Kernels{{Count: 160, Time: sim.Around(7400, 0.05)}},
	}
}

// batch always has kernels queued.
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

// play runs clients alone and together on devices of one model.
func play(t *testing.T, model string, clients []sim.ClientConfig, policies ...string) scenario.Outcome {
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
	if err := report.Write(&b, o); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if dir := os.Getenv("REPORT_OUT"); dir != "" { // to be looked at
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

// checkPage checks what every report must be: well-formed, alone in the world,
// not too large, and without a number that is none.
func checkPage(t *testing.T, text string) {
	t.Helper()
	const most = 2_000_000
	if len(text) > most {
		t.Errorf("%d bytes, more than %d", len(text), most)
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
			t.Errorf("the page has %q in it", found)
		}
	}
}

func checkElement(t *testing.T, e xml.StartElement) {
	t.Helper()
	switch e.Name.Local {
	case "img", "link", "iframe", "object", "embed", "base", "form", "a", "use", "image":
		t.Errorf("element %s reaches outside", e.Name.Local)
	}
	for _, a := range e.Attr {
		name := strings.ToLower(a.Name.Local)
		if strings.HasPrefix(name, "on") || name == "src" || name == "href" || name == "style" {
			t.Errorf("element %s has attribute %s", e.Name.Local, name)
		}
	}
}

// parts are the sections a report can have.
var parts = []string{"trade", "latency", "tails", "timeline", "rates", "published", "again"}

func checkParts(t *testing.T, text, want string) {
	t.Helper()
	for _, id := range parts {
		has, wanted := strings.Contains(text, `<section id="`+id+`"`), strings.Contains(" "+want+" ", " "+id+" ")
		if has != wanted {
			t.Errorf("section %s: there %v, wanted %v", id, has, wanted)
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

// TestShapes renders outcomes of every shape.
func TestShapes(t *testing.T) {
	both := []sim.ClientConfig{online("chat", 0), batch("train", 0)}
	const everything = "trade latency tails timeline rates again"
	for _, c := range []struct {
		name     string
		model    string
		clients  []sim.ClientConfig
		policies []string
		parts    string
		tails    int
	}{
		{"no clients", "nvidia-h200", nil, []string{"native"}, "again", 0},
		{"no policies", "nvidia-h200", both, nil, "latency tails rates again", 1},
		{"one policy", "nvidia-h200", both, []string{"giveway"}, everything, 1},
		{"two policies", "nvidia-h200", both, []string{"native", "giveway"}, everything, 1},
		{"six policies", "nvidia-h200", both, []string{"native", "giveway", "rr", "fifo", "wfq", "hpf"}, everything, 1},
		{"only batch", "nvidia-h200", several(3, 1, batch, "train"), []string{"native", "wfq"}, "trade timeline rates again", 0},
		{"only online", "nvidia-h200", several(3, 1, online, "chat"), []string{"native", "giveway"}, "trade latency tails timeline again", 3},
		{"ten online on two devices", "nvidia-h200", append(several(10, 2, online, "chat"), several(4, 2, batch, "train")...), []string{"native", "giveway"}, everything, 1},
		{"slots side by side", "amd-hws", both, []string{"native", "giveway"}, everything, 1},
		{"thousands of pieces", "level1-npu", both, []string{"native", "giveway"}, everything, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := render(t, play(t, c.model, c.clients, c.policies...))
			checkParts(t, text, c.parts)
			if n := strings.Count(text, `<svg class="hover-tail"`); n != c.tails {
				t.Errorf("%d plots of distributions, not %d", n, c.tails)
			}
			if strings.Contains(c.parts, "trade") {
				for _, name := range c.policies {
					if !strings.Contains(text, `<div title="`+name+`">`) {
						t.Errorf("policy %s is not among the bars", name)
					}
				}
			}
		})
	}
}

// TestOdd renders outcomes that a simulation does not give: parts missing,
// numbers beyond reason.
func TestOdd(t *testing.T) {
	full := func() scenario.Outcome {
		return play(t, "nvidia-h200", []sim.ClientConfig{online("chat", 0), batch("train", 0)}, "native", "giveway")
	}
	for name, spoil := range map[string]func(*scenario.Outcome){
		"nothing":     func(o *scenario.Outcome) { *o = scenario.Outcome{} },
		"not alone":   func(o *scenario.Outcome) { o.Alone = nil },
		"no segments": func(o *scenario.Outcome) { o.Runs[0].Result.Segments, o.Runs[1].Result.Segments = nil, nil },
		"few segments": func(o *scenario.Outcome) {
			o.Runs[0].Result.Segments = o.Runs[0].Result.Segments[:3]
		},
		"other order": func(o *scenario.Outcome) {
			c := o.Runs[1].Result.Clients
			c[0], c[1] = c[1], c[0]
		},
		"a client missing": func(o *scenario.Outcome) { o.Runs[1].Result.Clients = o.Runs[1].Result.Clients[:1] },
		"zero": func(o *scenario.Outcome) {
			for i := range o.Alone {
				o.Alone[i].Rate, o.Alone[i].Latency, o.Alone[i].Latencies = 0, stats.Summary{}, nil
				o.Runs[0].Result.Clients[i].Rate = 0
			}
		},
		"huge": func(o *scenario.Outcome) {
			c := &o.Runs[0].Result.Clients[0]
			c.Latencies = []time.Duration{1, math.MaxInt64}
			c.Latency = stats.Summarize(c.Latencies)
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
			spoil(&o)
			text := render(t, o)
			if name == "broken" && (!strings.Contains(text, "ran while stopped") || !strings.Contains(text, "crash 3 times")) {
				t.Error("a broken rule or a crash is not told")
			}
			if name == "broken" {
				checkParts(t, text, strings.Join(parts, " "))
			}
		})
	}
}

// TestHostileNames puts what might break out of the page wherever a name goes.
func TestHostileNames(t *testing.T) {
	for _, evil := range []string{
		`<script>alert(1)</script>`, `</style><h1>x`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</svg></title>`,
		`{{.Seed}}`, "-->\n]]>", "\x00\xff\u202e", `javascript:alert(1)`, strings.Repeat("long ", 2000),
	} {
		o := play(t, "nvidia-h200", []sim.ClientConfig{online(evil, 0), batch(evil+"2", 0)}, "native", "giveway")
		o.Name, o.Doc = evil, evil
		o.Devices[0].Model.Name, o.Devices[0].Model.Doc = evil, evil
		o.Runs[1].Policy = evil
		o.Runs[1].Result.Violations = []string{evil}
		o.Published = []scenario.Published{{Source: evil, What: evil, Value: evil}}
		text := render(t, o)
		for _, tag := range []string{"<script", "</script", "<style", "</style", "<title>", "<h1"} {
			want := 1
			if tag == "<title>" { // the page's, and one a bar
				want = strings.Count(text, "</title>")
			}
			if n := strings.Count(text, tag); n != want {
				t.Errorf("name %.20q: %d times %s", evil, n, tag)
			}
		}
		if strings.ContainsAny(text, "\x00\u202e") {
			t.Errorf("name %q: control characters in the page", evil)
		}
		if strings.Contains(evil, "<") && strings.Contains(text, evil) {
			t.Errorf("name %q is in the page as it was", evil)
		}
	}
}

// TestSame checks that the same outcome gives the same report.
func TestSame(t *testing.T) {
	o := play(t, "nvidia-h200", append(several(2, 2, online, "chat"), several(4, 2, batch, "train")...), "native", "giveway")
	first, second := render(t, o), render(t, o)
	if first != second {
		t.Error("two reports of one outcome differ")
	}
}

// TestLimits checks how many points a line has, whatever is put into it.
func TestLimits(t *testing.T) {
	o := play(t, "nvidia-h200", []sim.ClientConfig{online("chat", 0)}, "native")
	c := &o.Runs[0].Result.Clients[0]
	c.Latencies = nil
	for i := range 500_000 {
		c.Latencies = append(c.Latencies, time.Duration(i)*us)
	}
	c.Latency = stats.Summarize(c.Latencies)
	text := render(t, o)
	for _, m := range regexp.MustCompile(`points="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if n := len(strings.Fields(m[1])); n > 300 {
			t.Errorf("a line has %d points", n)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteError(t *testing.T) {
	if err := report.Write(brokenPipe{}, scenario.Outcome{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
}
