package report

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

const ms = time.Millisecond

func TestShellQuote(t *testing.T) {
	for s, want := range map[string]string{
		"scenarios/demo.yaml": "scenarios/demo.yaml",
		"it's; rm -rf":        `'it'\''s; rm -rf'`,
		"":                    "''",
	} {
		if got := shellQuote(s); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestMedianWindow checks that the window has the median of the queue's device
// time, and lies within the limits.
func TestMedianWindow(t *testing.T) {
	var pieces []sim.Segment
	for i := range 101 { // pieces of 1 to 101 us every ms
		from := sched.Time(i) * sched.Time(ms)
		pieces = append(pieces, sim.Segment{Queue: 1, From: from, To: from + sched.Time((i*37)%101+1)*1000})
	}
	const width = sched.Time(500_000)
	from, ok := medianWindow(pieces, 1, width, sched.Time(10*ms), sched.Time(90*ms))
	if !ok || from < sched.Time(10*ms) || from+width > sched.Time(90*ms) {
		t.Fatalf("got a window from %v, %v; want one between 10ms and 90ms", time.Duration(from), ok)
	}
	used := sched.Time(0)
	for _, p := range pieces {
		used += max(0, min(p.To, from+width)-max(p.From, from))
	}
	if used < 40_000 || used > 62_000 {
		t.Errorf("got %v of device time in the window, want 40us to 62us", time.Duration(used))
	}
	if _, ok := medianWindow(pieces, 2, width, 0, sched.Time(90*ms)); ok {
		t.Error("got a window for a queue that never ran, want none")
	}
}

// TestEveryParameterIsListed checks the parameters of every model.
func TestEveryParameterIsListed(t *testing.T) {
	for _, name := range sim.ModelNames() {
		m, err := sim.NewModel(name)
		if err != nil {
			t.Fatal(err)
		}
		v := view{Analysis: &analysis.Analysis{Outcome: &scenario.Outcome{Devices: []sim.DeviceConfig{{ID: "a", Model: m}, {ID: "b", Model: m}}}}}
		d := v.Devices()
		if len(d) != 1 || d[0].IDs() != "a, b" {
			t.Fatalf("got %+v, want equal devices in one table", d)
		}
		var names []string
		for _, p := range d[0].Params() {
			if p.Value == "" || strings.ContainsAny(p.Value, "{}") {
				t.Errorf("%s: %s: got %q, want a plain value", name, p.Name, p.Value)
			}
			names = append(names, p.Name)
		}
		all := strings.Join(names, ",")
		for _, want := range []string{"calls: stop", "calls: effect"} {
			if !strings.Contains(all, want) {
				t.Errorf("%s: got %s, want %s in it", name, all, want)
			}
		}
		if m.Slots != nil && !strings.Contains(all, "slots: context: bandwidth") || m.Runlist != nil && !strings.Contains(all, "runlist: min ") {
			t.Errorf("%s: got only %s; want the parameters of the slots or the runlist", name, all)
		}
	}
}
