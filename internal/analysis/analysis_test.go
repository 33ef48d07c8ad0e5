package analysis_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

const ms = time.Millisecond

// online is a client whose requests all take as long as p99.
func online(name string, p99 time.Duration) sim.ClientResult {
	l := stats.NewDistribution(p99, p99)
	return sim.ClientResult{Name: name, Class: sched.Online, Device: "gpu0", OpenLoop: true, Latencies: l, Latency: l.Summary(), Rate: 2, DeviceTime: ms}
}

// batch is a closed-loop client that used the device for some time.
func batch(name string, rate float64, used time.Duration) sim.ClientResult {
	return sim.ClientResult{Name: name, Class: sched.Batch, Device: "gpu0", Rate: rate, DeviceTime: used}
}

func run(policy string, clients ...sim.ClientResult) scenario.Run {
	return scenario.Run{Policy: policy, Result: sim.Result{Clients: clients}}
}

func outcome(alone []sim.ClientResult, runs ...scenario.Run) *scenario.Outcome {
	o := &scenario.Outcome{Policy: "giveway", Length: time.Second, Alone: alone, Runs: runs}
	for i, c := range alone {
		o.Groups = append(o.Groups, scenario.Group{Name: c.Name, First: i, Count: 1})
	}
	return o
}

func TestGroupPoolsItsClients(t *testing.T) {
	slow, fast := online("chat-1", 4*ms), online("chat-2", 2*ms)
	slow.SLO, fast.SLO, slow.SLOMet, fast.SLOMet = 3*ms, 3*ms, 0, 1
	slow.Unfinished, slow.Rate = 1, 1
	o := outcome([]sim.ClientResult{online("chat-1", 2*ms), online("chat-2", 2*ms)}, run("giveway", slow, fast))
	o.Groups = []scenario.Group{{Name: "chat", First: 0, Count: 2}}
	a := analysis.Of(o)
	if len(a.Latency) != 1 || len(a.Work) != 0 {
		t.Fatalf("got %d groups by latency and %d by work, want 1 and 0", len(a.Latency), len(a.Work))
	}
	g := a.Groups[0]
	f := g.Runs[0]
	if g.Name != "chat x2" || f.Latency.Count != 4 || f.Latency.P50 != 2*ms || f.Latency.P99 != 4*ms {
		t.Errorf("got %s with latency %+v, want chat x2 with all four samples", g.Name, f.Latency)
	}
	if f.SLOMet != 0.5 || f.Unanswered != 1 || f.Rate != 3 || f.MinRate != 1 || f.MaxRate != 2 {
		t.Errorf("got %+v, want SLO met 0.5, 1 unanswered, rate 3 from 1 to 2", f)
	}
	if f.P99OverAlone != 2 || a.Clients[0][1].P99OverAlone != 1 {
		t.Errorf("got P99 over alone %v, and %v for the second client; want 2 and 1", f.P99OverAlone, a.Clients[0][1].P99OverAlone)
	}
}

// TestWorkKeptIsCountedInDeviceTime uses the case of scenario faults: three clients that fill
// the device, and one that uses a quarter of it because it runs for a short time.
func TestWorkKeptIsCountedInDeviceTime(t *testing.T) {
	alone := []sim.ClientResult{batch("fill", 100, time.Second), batch("late", 40, time.Second/4)}
	a := analysis.Of(outcome(alone, run("giveway", batch("fill", 80, 0), batch("late", 10, 0))))
	want := []struct {
		what      string
		got, want float64
	}{
		{"fill", a.Groups[0].Runs[0].WorkKept, 0.8},
		{"late", a.Groups[1].Runs[0].WorkKept, 0.25},
		{"class batch", a.Classes[0].Runs[0].WorkKept, 0.8 + 0.25/4},
		{"all", a.Runs[0].WorkKept, 0.8 + 0.25/4},
		{"part of fill", a.Groups[0].Runs[0].WorkPart, 0.8},
		{"part of late", a.Groups[1].Runs[0].WorkPart, 0.25 / 4},
		{"client late", a.Clients[0][1].WorkKept, 0.25},
	}
	for _, w := range want {
		if math.Abs(w.got-w.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", w.what, w.got, w.want)
		}
	}
}

func TestTailIsOfTheClientThatSuffersMost(t *testing.T) {
	standard := online("shell", ms)
	standard.Class = sched.Standard
	worse := online("shell", 50*ms)
	worse.Class = sched.Standard
	alone := []sim.ClientResult{online("a", ms), online("b", ms), standard}
	behind := online("a", 2*ms)
	behind.Unfinished = 3
	silent := sim.ClientResult{Name: "b", Class: sched.Online, OpenLoop: true}
	for _, c := range []struct {
		name    string
		clients []sim.ClientResult
		group   string
		ratio   float64
		behind  bool
	}{
		{"largest ratio of class online", []sim.ClientResult{online("a", 2*ms), online("b", 3*ms), worse}, "b", 3, false},
		{"a client that falls behind", []sim.ClientResult{behind, online("b", 3*ms), standard}, "a", 2, true},
		{"a client that is not answered", []sim.ClientResult{online("a", 2*ms), silent, standard}, "b", math.NaN(), false},
	} {
		got := analysis.Of(outcome(alone, run("giveway", c.clients...))).Runs[0].Tail
		same := got.P99OverAlone == c.ratio || math.IsNaN(got.P99OverAlone) && math.IsNaN(c.ratio)
		if got.Group.Name != c.group || !same || got.FallsBehind != c.behind {
			t.Errorf("%s: got %s, %v, falls behind %v; want %s, %v, %v", c.name, got.Group.Name, got.P99OverAlone, got.FallsBehind, c.group, c.ratio, c.behind)
		}
	}
}

func TestFinding(t *testing.T) {
	alone := []sim.ClientResult{online("chat", 2*ms), batch("train", 100, time.Second)}
	native := run("native", online("chat", 20*ms), batch("train", 98, 0))
	giveway := run("giveway", online("chat", 2200*time.Microsecond), batch("train", 91, 0))
	rr := run("rr", online("chat", 40*ms), batch("train", 50, 0))
	for _, c := range []struct {
		runs []scenario.Run
		want string
	}{
		{nil, ""},
		{[]scenario.Run{giveway}, "With giveway the P99 latency of chat is 1.10x its P99 alone; train keeps 91.0% of its work."},
		{[]scenario.Run{native, giveway}, "With giveway the P99 latency of chat is 1.10x its P99 alone (native: 10.0x); train keeps 91.0% of its work (native: 98.0%)."},
		{
			[]scenario.Run{native, giveway, rr},
			"With giveway the P99 latency of chat is 1.10x its P99 alone (native: 10.0x, rr: 20.0x); train keeps 91.0% of its work (native: 98.0%, rr: 50.0%). Most batch work kept: native (98.0%).",
		},
		{
			[]scenario.Run{rr, native, run("giveway", online("chat", 30*ms), batch("train", 99, 0))},
			"With giveway the P99 latency of chat is 15.0x its P99 alone (rr: 20.0x, native: 10.0x); train keeps 99.0% of its work (rr: 50.0%, native: 98.0%). Lowest P99: native (10.0x).",
		},
		{[]scenario.Run{native, rr}, "With rr the P99 latency of chat is 20.0x its P99 alone (native: 10.0x); train keeps 50.0% of its work (native: 98.0%)."},
	} {
		if got := analysis.Of(outcome(alone, c.runs...)).Finding(); got != c.want {
			t.Errorf("got\n %s\nwant\n %s", got, c.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	late := online("chat", 20*ms)
	late.Unfinished = 7
	first, second, blind := run("giveway", late), run("rr", late), run("fifo", online("chat", ms))
	first.Result.Crashes = 2
	first.Derived, second.Derived = "the priority was derived", "the priority was derived"
	first.Result.Calls, second.Result.Calls, blind.Result.Steps = 1, 1, 5
	o := outcome([]sim.ClientResult{online("chat", ms)}, first, second, blind)
	o.NotApplicable = []scenario.NotApplicable{{Policy: "edf", Reason: "no deadline"}, {Policy: "share", Reason: "no share"}, {Policy: "llf", Reason: "no deadline"}}
	want := []string{
		"giveway, rr: the priority was derived.",
		"giveway: the scenario killed the daemon 2 times.",
		"fifo: the policy changed nothing, so the figures are those of native. No device has more than one client, so there is nothing to schedule.",
		"Requests without an answer when the run ended: giveway (chat 7), rr (chat 7). They count with their wait until then, so the true latency is longer.",
		"Not applicable and not run: edf, llf: no deadline.",
		"Not applicable and not run: share: no share.",
	}
	if got := analysis.Of(o).Warnings(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	two := run("fifo", online("chat", ms), online("talk", ms))
	two.Result.Steps = 5
	if got := analysis.Of(outcome([]sim.ClientResult{online("chat", ms), online("talk", ms)}, two)).Warnings(); len(got) != 1 || !strings.Contains(got[0], "Without the shim") {
		t.Errorf("got %q of two clients, want what a policy does not know", got)
	}
}
