package bench

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// started returns how the clients of the last run were started, sorted.
func started(t *testing.T, daemon *fakeDaemon) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(daemon.dir, "started"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(lines)
	return lines
}

func phaseNames(c CaseResult) (names []string) {
	for _, p := range c.Phases {
		names = append(names, p.Name)
	}
	return names
}

func TestSetups(t *testing.T) {
	const pooled = "be --class batch --weight 1 --pool MPS priority of the pool"
	t.Setenv(fakePool, t.TempDir())
	daemon := &fakeDaemon{}
	config := Config{Python: fakePython(t), MPSControl: fakeMPSControl(t, 0), Length: 100 * ms}
	t.Setenv("TMPDIR", t.TempDir())
	for _, want := range []struct {
		name            string
		phases          []string
		starts, changes []string
	}{
		{
			name:   "pool-mixed",
			phases: []string{alone, native, underGiveway, mpsPriority, alone, inPoolSmall, alone, inPool, inPoolPredicted},
			starts: []string{
				"be", "be", "be", "lc", // nothing prepared
				"be MPS priority 1", "be MPS priority 1", "be MPS priority 1", "lc MPS priority 0",
				"be", pooled, pooled, "lc --class online --weight 1",
				pooled, pooled, pooled, "lc --class online --weight 1",
			},
			changes: []string{
				"set --class online --weight 1", "set --class batch --weight 1", "set --class batch --weight 1", "set --class batch --weight 1",
				"set --class batch --weight 1", "set --predict",
			},
		},
		{
			name:   "many-small-online", // the same processes in all rounds, whose classes change
			phases: []string{alone, "alone, random arrivals", native, "native, random arrivals", underGiveway, "giveway, random arrivals", mpsPriority},
			starts: []string{
				"be", "be", "be", "be", "lc",
				"be MPS priority 1", "be MPS priority 1", "be MPS priority 1", "be MPS priority 1", "lc MPS priority 0",
			},
			changes: slices.Repeat(slices.Concat(
				slices.Repeat([]string{"set --class standard --weight 1"}, 2*5), // native, and with random arrivals
				slices.Repeat(slices.Concat([]string{"set --class online --weight 1"}, slices.Repeat([]string{"set --class batch --weight 1"}, 4)), 2),
			), rounds),
		},
		{
			name: "eager-late",
			phases: []string{
				alone, "alone, random arrivals", native, "native, random arrivals",
				lateAuto, "late entry auto, random arrivals", "alone, batch on and off", "late entry auto, batch on and off", lateOff, lateEntry, mpsPriority,
			},
			starts: []string{"be", "lc", "lc --class online --weight 1 --late-entry auto", "be MPS priority 1", "lc MPS priority 0"},
			changes: append(slices.Repeat([]string{
				"set --class standard --weight 1", "set --class standard --weight 1", // native
				"set --class batch --weight 1", "set --class batch --weight 1",
			}, 1+rounds)[2:], "set --late-entry=off", "set --late-entry=on"),
		},
	} {
		var log bytes.Buffer
		config.Log, daemon.orders = &log, nil
		r, err := measureFake(t, config, daemon, named(t, want.name)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", want.name, err, &log)
		}
		c := r.Cases[0]
		if got := phaseNames(c); !slices.Equal(got, want.phases) {
			t.Errorf("%s: got phases\n%q, want\n%q", want.name, got, want.phases)
		}
		slices.Sort(want.starts)
		if got := started(t, daemon); !slices.Equal(got, want.starts) {
			t.Errorf("%s: got clients\n%q, want\n%q", want.name, got, want.starts)
		}
		if !slices.Equal(daemon.orders, want.changes) {
			t.Errorf("%s: got orders\n%q, want\n%q", want.name, daemon.orders, want.changes)
		}
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
			t.Errorf("%s: left behind %q", want.name, left)
		}
	}
}

// TestSituations compares random arrivals with random arrivals, and regular ones with
// regular ones.
func TestSituations(t *testing.T) {
	r, err := measureFake(t, Config{Python: fakePython(t)}, &fakeDaemon{}, named(t, "many-small-online")...)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Cases[0]
	for name, p50 := range map[string]time.Duration{
		alone: 48900, "alone, random arrivals": 92900, native: 1504900, "native, random arrivals": 3004900,
		underGiveway: 214900, "giveway, random arrivals": 424900,
	} {
		if p := c.phase(name); p == nil || p.Latency.P50 != p50 {
			t.Fatalf("%s: got %+v, want P50 %v", name, p, p50)
		}
	}
	p := c.phase("giveway, random arrivals")
	if math.Abs(p.VsAlone.P50-424.9/92.9) > 1e-6 || math.Abs(p.VsNative.P50-424.9/3004.9) > 1e-6 {
		t.Errorf("got ratios %+v and %+v to alone and native", p.VsAlone, p.VsNative)
	}
	if p.Kept != nil || math.Abs(*p.BatchVsNative-1) > 0.1 {
		t.Errorf("got work kept %v, want none of jobs that do not fill the GPU; rate over native %v, want 1", p.Kept, *p.BatchVsNative)
	}
	for _, r := range c.Targets {
		g := c.phase(underGiveway)
		if want := map[Figure]float64{BatchNative: *g.BatchVsNative, P99Native: g.VsNative.P99}[r.Figure]; r.Got != want || !r.Met {
			t.Errorf("got target %+v, want it met with %g", r, want)
		}
	}
	if len(c.Targets) != 2 {
		t.Errorf("got %d targets, want 2", len(c.Targets))
	}
	if rate := p.answersPerSecond(); math.Abs(rate-100*rounds/0.6) > 1e-6 {
		t.Errorf("got %g requests per second, want %g", rate, 100*rounds/0.6)
	}
	if want := []string{"MPS with priority: not measured: left out by --mps=false"}; !slices.Equal(c.Notes, want) {
		t.Errorf("got notes %q, want %q", c.Notes, want)
	}
}

func TestMixedWorkIsComparedByClient(t *testing.T) {
	batch := func(train, small float64) []BatchResult {
		return []BatchResult{{Name: "training", Rate: train, AloneRate: 20}, {Name: "small-1", Rate: small, AloneRate: 260}, {Name: "small-2", Rate: small, AloneRate: 260}}
	}
	c := CaseResult{Mixed: true, Light: true, Phases: []Phase{{Name: alone}, {Name: native, Batch: batch(16, 100)}, {Name: inPool, Batch: batch(8, 175)}}}
	for i := range c.Phases {
		c.Phases[i].sum()
	}
	c.compare()
	if got := *c.phase(inPool).BatchVsNative; math.Abs(got-(0.5+1.75+1.75)/3) > 1e-9 {
		t.Errorf("got %g of native, want the mean of 0.5, 1.75 and 1.75", got)
	}
	cells := c.batchCells(c.phase(inPool))
	if want := []string{"-", "1.33x", "-"}; !slices.Equal(cells, want) {
		t.Errorf("got cells %q, want %q: rates of different work have no sum", cells, want)
	}
	text, err := c.Text()
	if err != nil || !strings.Contains(text, "8.00/s (0.50x)") || !strings.Contains(text, "175/s (1.75x)") {
		t.Errorf("got %v and\n%s\nwant each client's rate, and that over native", err, text)
	}
	if names := c.batchColumns(); !slices.Equal(names, []string{"training", "small-1", "small-2"}) {
		t.Errorf("got columns %q, want each client", names)
	}
	if c := named(t, "pool-mixed")[0]; !c.mixed() || c.firstLike(2) != 1 || c.firstLike(0) != 0 {
		t.Error("pool-mixed: want different work, and the third load like the second")
	}
}

func TestTargets(t *testing.T) {
	c := sample().Cases[0] // P99 3.00 of alone and 0.16 of native; 0.98 of native's batch work
	c.judge([]Target{
		{Phase: underGiveway, Figure: P99Alone, Most: 2.5},
		{Phase: underGiveway, Figure: P99Native, Most: 0.2},
		{Phase: underGiveway, Figure: BatchNative, Least: 1},
		{Phase: inPool, Figure: BatchNative, Least: 1}, // not measured
	})
	const want = `  MISSED: giveway p99/alone: 3.005, target <= 2.5
  met: giveway p99/native: 0.160, target <= 0.2
  MISSED: giveway batch/native: 0.980, target >= 1
`
	if got := c.targetLines(); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	for _, c := range Cases() {
		for _, target := range c.Targets {
			if (target.Least > 0) == (target.Most > 0) {
				t.Errorf("%s: target %+v has not exactly one limit", c.Name, target)
			}
			if !slices.Contains(phasesOf(c), target.Phase) {
				t.Errorf("%s: target %+v: the case has only the phases %q", c.Name, target, phasesOf(c))
			}
		}
	}
}

// phasesOf returns the names of the phases with the daemon that a case can have.
func phasesOf(c Case) (names []string) {
	if !c.Prepared {
		names = append(names, underGiveway)
	}
	setups := c.Setups
	if c.InRounds != nil {
		setups = append(slices.Clone(setups), *c.InRounds)
		names = append(names, newPhase(c.InRounds.Name, onAndOff).Name)
	}
	for _, s := range setups {
		names = append(names, s.Name)
		if c.Idle {
			names = append(names, newPhase(s.Name, onlineIdle).Name)
		}
		for _, change := range s.Then {
			names = append(names, change.Name)
		}
	}
	return names
}

func TestCountersOfTheDaemon(t *testing.T) {
	answers := map[string]string{
		"ps":     `{"version":1,"processes":[{"pid":7,"shim":{"parked":7,"hits":5,"saved_ns":1000000,"late_requests":10,"late_early":1,"late_ns":50000000,"late_compared":{"pairs":5,"counts":[{"from":0.99,"to":0.995,"pairs":2},{"from":1.01,"to":1.015,"pairs":3}]}}},{"pid":8},{"pid":9,"shim":{"late_requests":99}}]}`,
		"doctor": `{"devices":[{"id":"GPU-1","switching":{"lost_ns":1000}},{"id":"GPU-2","switching":{"lost_ns":5000000000}}]}`,
	}
	h := &harness{Config: Config{Ask: func(args ...string) []byte { return []byte(answers[args[0]]) }}, uuid: "GPU-2"}
	clients := []*client{{pid: 7}, {pid: 8}}
	before := h.counters(clients)
	answers["ps"] = strings.NewReplacer(`"parked":7,"hits":5,"saved_ns":1000000`, `"parked":17,"hits":13,"saved_ns":2600000`, `"late_requests":10`, `"late_requests":30`, `"late_early":1`, `"late_early":4`, "50000000", "150000000", `[{"from":0.99`, `[{"from":0.95,"to":0.955,"pairs":1},{"from":0.99`, `"pairs":3}`, `"pairs":9}`).Replace(answers["ps"])
	answers["doctor"] = strings.Replace(answers["doctor"], "5000000000", "5250000000", 1)
	after := h.counters(clients)
	after.collected = before.collected.Add(2 * time.Second)
	var p Phase
	after.addTo(&p, before)
	want := &LateResult{Requests: 20, Early: 3, LeftUs: 5000, Compared: &LateCompared{
		Pairs: 7, Ratio: 1.01 + 0.005*2.5/6, Low: 0.95, High: 1.015, Bins: []ratioCount{{0.95, 0.955, 1}, {1.01, 1.015, 6}},
	}}
	if !reflect.DeepEqual(p.Late, want) {
		t.Errorf("got %+v, want 20 requests that entered late by 5 ms, 3 of them early, and 7 pairs", p.Late)
	}
	if want := (&AheadResult{Taken: 10, Came: 8, SavedUs: 200}); !reflect.DeepEqual(p.Ahead, want) {
		t.Errorf("got %+v, want %+v", p.Ahead, want)
	}
	if p.Lost == nil || *p.Lost != 0.125 {
		t.Errorf("got %v, want 0.125 of the time lost on this GPU", p.Lost)
	}
	answers = nil // an older daemon, or none
	p = Phase{}
	h.counters(clients).addTo(&p, h.counters(clients))
	if p.Late != nil || p.Ahead != nil || p.Lost != nil {
		t.Errorf("the daemon tells nothing: got %+v, %+v and %v, want nothing", p.Late, p.Ahead, p.Lost)
	}
}

// TestClientOutsideMPS checks that a client that runs without MPS is noticed, and that
// the setups after it are measured.
func TestClientOutsideMPS(t *testing.T) {
	c := named(t, "loop-1us")[0]
	slices.Reverse(c.Setups)
	daemon := &fakeDaemon{}
	r, err := measureFake(t, Config{MPSControl: fakeMPSControl(t, 1)}, daemon, c)
	if err == nil || !strings.Contains(err.Error(), "MPS with priority: ") || !strings.Contains(err.Error(), "is not a client of the MPS server") {
		t.Errorf("got error %v, want one that names the client", err)
	}
	if got, want := phaseNames(r.Cases[0]), []string{alone, native, underGiveway, underRun}; !slices.Equal(got, want) {
		t.Errorf("got phases %q, want %q", got, want)
	}
}

// TestClientOutsideThePool checks that a program that could not join the pool, which
// giveway run only warns of, is noticed.
func TestClientOutsideThePool(t *testing.T) {
	config := Config{Python: fakePython(t), MPSControl: fakeMPSControl(t, 0), Length: 100 * ms}
	_, err := measureFake(t, config, &fakeDaemon{}, named(t, "pool-small")...)
	if err == nil || !strings.Contains(err.Error(), "pool: small-1: is not in the pool") {
		t.Errorf("got error %v, want one that says that the client is not in the pool", err)
	}
}

// TestTorchClient runs the unit tests of the PyTorch client, which need no PyTorch, and
// lets it parse the flags of all cases.
func TestTorchClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	var flags strings.Builder
	for _, c := range torchCases() {
		h := &harness{Config: Config{Length: time.Second}, torch: &torchCheck{script: "torch_client.py"}}
		for i, l := range slices.Concat(c.Online, c.Batch) {
			argv := h.argv(c, l, i < len(c.Online))
			fmt.Fprintln(&flags, strings.Join(argv[3:], " ")) // after python -u script
		}
	}
	cmd := exec.CommandContext(t.Context(), python, "-B", "testdata/test_torch_client.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH=.", "FLAGS_OF_CASES="+flags.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLearning checks that requests from which the shim learns do not count.
func TestLearning(t *testing.T) {
	answered := func() *Answered {
		return &Answered{ArrivedUs: []float64{0, 400e3, 500e3, 900e3}, SamplesUs: []float64{1, 2, 3, 4}, Took: time.Second}
	}
	a := answered()
	if a.skip(500 * ms); !slices.Equal(a.SamplesUs, []float64{3, 4}) || a.Took != 500*ms {
		t.Errorf("got %+v, want the last two requests, in 0.5 s", a)
	}
	for _, d := range []time.Duration{0, time.Second} { // the shim learns nothing, or the measurement is too short
		a = answered()
		if a.skip(d); len(a.SamplesUs) != 4 || a.Took != time.Second {
			t.Errorf("skip %v: got %+v, want all requests", d, a)
		}
	}
	a = answered()
	a.ArrivedUs = nil
	if a.skip(500 * ms); len(a.SamplesUs) != 4 {
		t.Errorf("without times of arrival: got %+v, want all requests", a)
	}
}
