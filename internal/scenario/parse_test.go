package scenario

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// traces returns the trace files that scenarios in tests may name.
func traces(name string) ([]byte, error) {
	files := map[string]string{
		"good.txt":     "# comment\n0\n1.5 # milliseconds\n2ms\n2ms\n",
		"backward.txt": "5\n4\n",
		"words.txt":    "5\nsoon\n",
		"empty.txt":    "# nothing\n",
	}
	if text, ok := files[name]; ok {
		return []byte(text), nil
	}
	return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
}

// TestMistakes compares every error with testdata/mistakes.txt. Each case there is a
// file, a line of >>>, and the error.
func TestMistakes(t *testing.T) {
	const golden = "testdata/mistakes.txt"
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var params []string
	for _, info := range policy.List() {
		for _, p := range info.Params {
			if info.Name == "giveway" {
				params = append(params, p.Name)
			}
		}
	}
	// The golden file does not list names that are added elsewhere.
	shorten := strings.NewReplacer(
		strings.Join(policy.Names(), ", "), "(the policies)",
		strings.Join(sim.ModelNames(), ", "), "(the models)",
		strings.Join(params, ", "), "(its parameters)",
	)
	out := ""
	for i, text := range strings.Split("\n"+string(data), "\n=== ") {
		if i == 0 {
			out = strings.TrimPrefix(text, "\n")
			continue
		}
		name, body, _ := strings.Cut(text, "\n")
		file, want, _ := strings.Cut(body, ">>>\n")
		_, err := Parse("x.yaml", []byte(file), traces)
		got := "accepted\n"
		if err != nil {
			got = shorten.Replace(err.Error()) + "\n"
		}
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !*rewrite {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
		out += fmt.Sprintf("\n=== %s\n%s>>>\n%s", name, file, got)
	}
	if *rewrite {
		if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryField reads a file with all fields.
func TestEveryField(t *testing.T) {
	s, err := parseFile("testdata/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	h200, _ := sim.NewModel("nvidia-h200")
	*h200.Runlist = sim.RunlistModel{
		Slice: ms, Switch: sim.Always(100 * us), Refill: 10 * us, Fetch: 9 * us, Stay: 8 * us, Notice: 5 * us, MinSharedSlice: 300 * us,
	}
	h200.Calls = sim.Calls{
		Stop: sim.Between(1*us, 2*us), Start: sim.Always(3 * us), SetSlice: sim.Always(4 * us),
		Gate: sim.Dist{Kind: sim.Exponential, Mean: 5 * us}, Effect: 0.25,
	}
	h200.TraceInterval, h200.Gated, h200.Bound = 20*ms, true, 7
	npu, _ := sim.NewModel("amd-hws")
	*npu.Slots = sim.SlotsModel{
		Slots: 3, Quantum: 5 * ms, Deactivate: sim.FlushDeactivate, FlagCost: 2 * us, FlushCost: 9 * us,
		Context: sim.Context{
			Bytes: 185e6, Bandwidth: 5.3e12, Fixed: 20 * us, Selective: 0.3, Async: 0.9, Compress: 0.5, Lazy: 0.25,
		},
	}
	npu.Calls.Stop, npu.Calls.PerQueue, npu.Calls.AfterStop, npu.Calls.CopyPerQueue = sim.Always(6*us), 7*us, sim.Between(8*us, 9*us), 10*us
	want := sim.Config{
		Seed: 7, Warmup: 100 * ms, Length: 2 * time.Second, Drain: time.Second, AllowLivelock: true,
		WakeDelay: sim.Between(20*us, 60*us),
		Sched:     sched.Config{Floor: 0.05, FloorTurn: 20 * ms, StallLimit: 3 * time.Second},
		Faults:    sim.Faults{Fail: 0.01, FailApplied: 0.02, Permanent: 0.5, Late: 0.03, LateBy: 5 * ms, LostWake: 0.04, Stall: 5 * time.Second, StallFor: sim.Between(ms, 20*ms), Crash: 10 * time.Second, Kill: time.Minute, Trace: 30 * time.Second},
		Devices:   []sim.DeviceConfig{{ID: "gpu0", Model: h200}, {ID: "npu", Model: npu}},
		Clients: []sim.ClientConfig{
			{
				Name: "serve",
				Attr: sched.Attr{
					Class: sched.Online, Priority: 3, Weight: 2, Share: 25, Deadline: 10 * ms, Laxity: 5 * ms, Work: ms,
					Nice: -5, RealTime: 10, Focus: true,
				},
				Shim: true, Arrival: sim.Arrival{Kind: sim.Periodic, Every: 20 * ms, Offset: 3 * ms},
				Kernels: []sim.Kernels{
					{Count: 100, Time: sim.Around(7*us, 0.05), Gap: sim.Always(44 * us)},
					{Count: 1, Time: sim.Dist{Kind: sim.LogNormal, Mean: 90 * us, Jitter: 0.5}},
				},
				Before: sim.Always(8 * us), After: sim.Always(9 * us),
				Prepare: 255 * us, Hint: true, Announce: ms, Park: 2, Lead: 200 * us,
				LateEntry: 0.8, Jitter: sim.Dist{Kind: sim.Exponential, Mean: 4 * us},
				Slice: 4 * ms, Start: 10 * ms, Kill: time.Second,
			},
			{Name: "work-1", Device: 1, Arrival: sim.Arrival{Every: 5 * ms, Depth: 4}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(212 * us)}}},
			{Name: "work-2", Device: 1, Arrival: sim.Arrival{Every: 5 * ms, Depth: 4}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(212 * us)}}},
			{
				Name: "small", Attr: sched.Attr{Class: sched.Batch}, Pool: "jobs", Arrival: sim.Arrival{Every: us, Jitter: sim.Always(2 * us)},
				Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(7 * us), Occupancy: 0.3, Bandwidth: 0.1}},
			},
			{Name: "often", Device: 1, Arrival: sim.Arrival{Kind: sim.Poisson, Every: 10 * ms}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(212 * us)}}},
			{
				Name: "traced", Device: 1, Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(212 * us)}},
				Arrival: sim.Arrival{Kind: sim.Trace, Offset: ms, Trace: []time.Duration{ms, 2500 * us, 3 * ms, 3 * ms}},
			},
			{
				Name: "flat-out", Device: 1, Process: "two", Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(212 * us)}},
				Lifetime: sim.Dist{Kind: sim.Exponential, Mean: time.Minute}, Downtime: sim.Always(5 * time.Second),
			},
		},
	}
	same(t, "seed to drain", headOf(s.Config), headOf(want))
	for i := range want.Devices {
		same(t, string(want.Devices[i].ID), s.Config.Devices[i], want.Devices[i])
	}
	for i := range want.Clients {
		same(t, want.Clients[i].Name, s.Config.Clients[i], want.Clients[i])
	}
	same(t, "groups", s.Groups, []Group{{"serve", 0, 1}, {"work", 1, 2}, {"small", 3, 1}, {"often", 4, 1}, {"traced", 5, 1}, {"flat-out", 6, 1}})
	same(t, "policy", s.Policy, "giveway:slice=200us,turn=20ms")
	same(t, "published", s.Published, []Published{{"a paper", "P99", "40 us"}})
}

// headOf returns a config without its lists.
func headOf(c sim.Config) sim.Config {
	c.Devices, c.Clients = nil, nil
	return c
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func parseFile(path string) (*Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(filepath.Base(path), data, traces)
}

func TestDefaults(t *testing.T) {
	s, err := Parse("x.yaml", []byte("{name: x, devices: [{model: nvidia-h200}], clients: [{name: a, kernels: {time: 1ms}}]}"), traces)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "config", headOf(s.Config), sim.Config{Seed: 1, Warmup: time.Second, Length: 10 * time.Second})
	same(t, "client", s.Config.Clients, []sim.ClientConfig{{Name: "a", Kernels: []sim.Kernels{{Count: 1, Time: sim.Always(ms)}}}})
	same(t, "policy", s.Policy, "slo")
}

// TestExamplesInDocs reads the examples in docs/SCENARIOS.md.
func TestExamplesInDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/SCENARIOS.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.Split(string(doc), "```yaml\n")[1:]
	if len(examples) == 0 {
		t.Fatal("no examples")
	}
	for i, e := range examples {
		e, _, _ = strings.Cut(e, "```")
		if _, err := Parse(fmt.Sprintf("example-%d", i+1), []byte(e), traces); err != nil {
			t.Error(err)
		}
	}
}

// TestAliasesAreBounded checks that a short file that stands for a million values is
// refused quickly.
func TestAliasesAreBounded(t *testing.T) {
	runs := strings.Repeat("{time: 1us},", 2000)
	clients := strings.Repeat("{name: a, kernels: *k},", 9000)
	text := "{name: x, devices: [{model: nvidia-h200}], clients: [{name: k, kernels: &k [" + runs + "]}," + clients + "]}"
	start := time.Now()
	_, err := Parse("x.yaml", []byte(text), traces)
	if !errors.As(err, new(yamlfile.Errors)) {
		t.Fatalf("got error %v, want yamlfile.Errors", err)
	}
	// Without a bound it would take hours; a busy machine needs seconds.
	if took := time.Since(start); took > 2*time.Minute {
		t.Errorf("took %v", took)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxBytes+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "no such file",
		dir:                             "not a plain file",
		large:                           "larger than 8 MiB",
	} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "read "+path) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

// TestTracePathIsRelativeToTheScenario loads a scenario from another folder.
func TestTracePathIsRelativeToTheScenario(t *testing.T) {
	dir := t.TempDir()
	text := "{name: x, devices: [{model: nvidia-h200}], clients: [{name: a, arrival: {trace: t/a.txt}, kernels: {time: 1ms}}]}"
	if err := os.MkdirAll(filepath.Join(dir, "t"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"x.yaml": text, "t/a.txt": "1\n2\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(filepath.Join(dir, "x.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "trace", s.Config.Clients[0].Arrival.Trace, []time.Duration{ms, 2 * ms})
}
