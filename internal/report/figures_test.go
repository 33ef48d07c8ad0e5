package report

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

const ms = time.Millisecond

func answers(name string, p99 time.Duration) sim.ClientResult {
	l := []time.Duration{p99}
	return sim.ClientResult{Name: name, Class: sched.Online, Device: "gpu0", OpenLoop: true, Latencies: l, Latency: stats.Summarize(l), DeviceTime: ms}
}

func works(name string, rate float64, had time.Duration) sim.ClientResult {
	return sim.ClientResult{Name: name, Class: sched.Batch, Device: "gpu0", Rate: rate, DeviceTime: had}
}

// plain is text with ordinary spaces.
func plain(s string) string { return strings.ReplaceAll(s, space, " ") }

func of(policy string, clients ...sim.ClientResult) scenario.Run {
	return scenario.Run{Policy: policy, Result: sim.Result{Clients: clients}}
}

// TestFinding checks the sentence, whichever way the numbers point.
func TestFinding(t *testing.T) {
	alone := []sim.ClientResult{answers("chat", 2*ms), works("train", 100, time.Second)}
	native := of("native", answers("chat", 20*ms), works("train", 98, 0))
	good := of("giveway", answers("chat", 2200*time.Microsecond), works("train", 91, 0))
	bad := of("giveway", answers("chat", 30*ms), works("train", 10, 0))
	for _, c := range []struct {
		runs []scenario.Run
		want string
	}{
		{nil, "Every client was run alone, and no policy was asked for: there is nothing to compare."},
		{[]scenario.Run{good}, "Under giveway the P99 latency of chat is 1.10 × that of running alone (2.20 ms) and batch work keeps 91 % of what the device would do of it alone."},
		{[]scenario.Run{native, good}, "Under giveway the P99 latency of chat is 1.10 × that of running alone (2.20 ms) and batch work keeps 91 % of what the device would do of it alone; under native they are 10.0 × (20.0 ms) and 98 %."},
		{[]scenario.Run{bad, native}, "Under giveway the P99 latency of chat is 15.0 × that of running alone (30.0 ms) and batch work keeps 10 % of what the device would do of it alone; under native they are 10.0 × (20.0 ms) and 98 %."},
		{[]scenario.Run{native, good, of("rr", answers("chat", 40*ms), works("train", 50, 0))}, "Of 3 policies, giveway has the lowest tail: the P99 latency of chat is 1.10 × that of running alone (2.20 ms) and batch work keeps 91 % of what the device would do of it alone; native keeps the most batch work, 98 %, with a tail of 10.0 ×."},
		{[]scenario.Run{native, bad, of("rr", answers("chat", 40*ms), works("train", 50, 0))}, "Of 3 policies, native does best by both measures: the P99 latency of chat is 10.0 × that of running alone (20.0 ms) and batch work keeps 98 % of what the device would do of it alone."},
	} {
		o := scenario.Outcome{Length: time.Second, Alone: alone, Runs: c.runs}
		if got := plain(newStudy(&o).finding()); got != c.want {
			t.Errorf("finding\n %s\nnot\n %s", got, c.want)
		}
	}
}

// TestKept checks what all batch clients together are said to keep.
func TestKept(t *testing.T) {
	for _, c := range []struct {
		name  string
		alone []sim.ClientResult
		run   []sim.ClientResult
		want  float64
	}{
		{
			"two that each fill the device share it",
			[]sim.ClientResult{works("a", 100, time.Second), works("b", 10, time.Second)},
			[]sim.ClientResult{works("a", 45, 0), works("b", 5, 0)},
			0.95,
		},
		{
			"two that each take a tenth keep all",
			[]sim.ClientResult{works("a", 100, time.Second/10), works("b", 10, time.Second/10)},
			[]sim.ClientResult{works("a", 100, 0), works("b", 10, 0)},
			1,
		},
		{
			"who takes up more counts for more",
			[]sim.ClientResult{works("a", 100, 3*time.Second/10), works("b", 10, time.Second/10)},
			[]sim.ClientResult{works("a", 100, 0), works("b", 0, 0)},
			0.75,
		},
	} {
		o := scenario.Outcome{Length: time.Second, Alone: c.alone, Runs: []scenario.Run{of("rr", c.run...)}}
		if got := newStudy(&o).runs[0].kept; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{duration(0), "0 ns"},
		{duration(999), "999 ns"},
		{duration(1520 * time.Microsecond), "1.52 ms"},
		{duration(999_960), "1.00 ms"},
		{duration(12_345 * time.Second), "12,345 s"},
		{times(1.094), "1.09 ×"},
		{times(13305), "13,305 ×"},
		{times(math.NaN()), missing},
		{percent(0.914), "91 %"},
		{percent(0.9996), "99.9 %"},
		{percent(1), "100 %"},
		{percent(0.0046), "0.5 %"},
		{percent(math.Inf(1)), missing},
		{rate(4977.4), "4,977/s"},
		{integer(1234567), "1,234,567"},
		{rounded("5.00" + space + "ms"), "5 ms"},
		{rounded("100" + space + "ms"), "100 ms"},
		{rounded("0" + space + "ns"), "0"},
		{shellWord("scenarios/demo.yaml"), "scenarios/demo.yaml"},
		{shellWord("it's; rm -rf"), `'it'\''s; rm -rf'`},
	} {
		if plain(c.got) != c.want {
			t.Errorf("%q, not %q", c.got, c.want)
		}
	}
}

// TestTicks checks that an axis has marks, not too many, in order, within it.
func TestTicks(t *testing.T) {
	for _, s := range []scale{
		logScale(1e6, 1.1e6), logScale(1, 1e18), logScale(5, 5), logScale(0, 0), logScale(3e5, 7e6),
		{lo: 0, hi: 1.2},
		{lo: 0, hi: 3e7},
		{lo: 0, hi: 1e18},
	} {
		var before float64 = -1
		ticks := s.ticks(5, func(v float64) string {
			if v < s.lo || v > s.hi || v <= before {
				t.Errorf("axis %+v: mark at %v after %v", s, v, before)
			}
			before = v
			return ""
		})
		if len(ticks) < 2 || len(ticks) > 5 {
			t.Errorf("axis %+v has %d marks", s, len(ticks))
		}
	}
}

// TestLabels checks that no two labels of lines overlap, wherever the lines end.
func TestLabels(t *testing.T) {
	for _, ends := range [][]float64{{50, 50, 50, 50, 50, 50, 50}, {0, 100}, {1, 2, 3, 4, 96, 97, 98}, {10, 45, 55, 60, 61}, {0}} {
		var lines []tailLine
		for _, e := range ends {
			lines = append(lines, tailLine{Label: "giveway P99 1.52 ms", end: e})
		}
		placeLabels(lines)
		for i := range lines {
			for j := range lines[:i] {
				if lines[i].overlaps(&lines[j]) {
					t.Errorf("ends %v: labels %d and %d overlap", ends, j, i)
				}
			}
		}
	}
}

// TestWindow checks that the window is a typical one, within what was kept.
func TestWindow(t *testing.T) {
	var pieces []sim.Segment
	for i := range 101 { // turns of 1 to 100 us every ms
		from := sched.Time(i) * sched.Time(ms)
		pieces = append(pieces, sim.Segment{Queue: 1, From: from, To: from + sched.Time((i*37)%101+1)*1000})
	}
	const width = sched.Time(500_000)
	from, ok := medianWindow(pieces, 1, width, sched.Time(10*ms), sched.Time(90*ms))
	if !ok || from < sched.Time(10*ms) || from+width > sched.Time(90*ms) {
		t.Fatalf("window from %v, %v", time.Duration(from), ok)
	}
	had := sched.Time(0)
	for _, p := range pieces {
		had += max(0, min(p.To, from+width)-max(p.From, from))
	}
	if had < 40_000 || had > 62_000 {
		t.Errorf("the queue has %v in the window: that is not the median", time.Duration(had))
	}
	if _, ok := medianWindow(pieces, 2, width, 0, sched.Time(90*ms)); ok {
		t.Error("a window about a queue that never ran")
	}
}

// TestParams checks that every parameter of every model is listed.
func TestParams(t *testing.T) {
	for _, name := range sim.ModelNames() {
		m, err := sim.NewModel(name)
		if err != nil {
			t.Fatal(err)
		}
		d := deviceTables([]sim.DeviceConfig{{ID: "a", Model: m}, {ID: "b", Model: m}})
		if len(d) != 1 || d[0].Devices != "a, b" {
			t.Fatalf("equal devices are not put together: %+v", d)
		}
		var names []string
		for _, p := range d[0].Params {
			if p.Value == "" || strings.ContainsAny(p.Value, "{}") {
				t.Errorf("%s: %s is %q", name, p.Name, p.Value)
			}
			names = append(names, p.Name)
		}
		all := strings.Join(names, ",")
		for _, want := range []string{"calls: stop", "calls: effect", "window"} {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no %s", name, want)
			}
		}
		if m.Slots != nil && !strings.Contains(all, "slots: context: bandwidth") || m.Runlist != nil && !strings.Contains(all, "runlist: min turn") {
			t.Errorf("%s has only %s", name, all)
		}
	}
}
