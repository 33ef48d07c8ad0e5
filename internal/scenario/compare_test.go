package scenario

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/giveway/giveway/policy"
)

// TestEveryPolicyThatNeedsAnAttributeIsListed checks the table of needs against the
// attributes that the policies say they use.
func TestEveryPolicyThatNeedsAnAttributeIsListed(t *testing.T) {
	// Policies that tell queues apart by something else too: class, weight, what the
	// queues did, or nothing.
	others := strings.Fields("slo giveway native fifo rr wfq cfs mlfq")
	for _, p := range policy.List() {
		need, listed := needs[p.Name]
		if listed == slices.Contains(others, p.Name) {
			t.Errorf("policy %s: got listed %v; want it in needs, or in this test if it runs queues in a useful order without attributes", p.Name, listed)
		}
		if listed && !slices.Contains(p.Uses, need) {
			t.Errorf("policy %s needs %s, but uses only %q", p.Name, need, p.Uses)
		}
	}
	for name, need := range needs {
		if derivations[need].missing == "" {
			t.Errorf("policy %s needs %s, which has no derivation", name, need)
		}
	}
}

// TestCompareDerivesAttributes checks that hpf, compared, is better than native for the
// online client although no client has a priority, and that policies without the attribute
// they need are not run.
func TestCompareDerivesAttributes(t *testing.T) {
	out := run(t, parse(t, small), Options{Compare: true}, Native, "hpf:lead=1ms", "cfs", "edf", "share")
	var labels []string
	for _, r := range out.Runs {
		labels = append(labels, r.Policy+": "+r.Derived)
	}
	same(t, "runs", labels, []string{
		"native: ", "hpf:lead=1ms: no client has a priority, so it was derived from the class",
	})
	same(t, "not applicable", out.NotApplicable, []NotApplicable{
		{"cfs", unfair}, {"edf", "no client has a deadline or an SLO"}, {"share", "no client has a share"},
	})
	if native, hpf := out.Runs[0].Result.Clients[0].Latency.P99, out.Runs[1].Result.Clients[0].Latency.P99; hpf*3 > native*2 {
		t.Errorf("got P99 %v with hpf and %v native, want at most two thirds", hpf, native)
	}
	if p := parse(t, small).Config.Clients[0].Attr.Priority; p != 0 {
		t.Errorf("got priority %d in the scenario, want it unchanged", p)
	}
}

// TestCompareWithLinux checks that cfs is compared with derived nice values only where it knows,
// as Linux does, which clients have work: then it keeps as much batch work as native, and
// without the shim nearly all of that is lost.
func TestCompareWithLinux(t *testing.T) {
	withNice := strings.NewReplacer("class: online\n", "class: online\n    nice: -10\n", "class: batch\n", "class: batch\n    nice: 10\n").Replace(small)
	withShim := strings.NewReplacer("class: online\n", "class: online\n    shim: true\n", "class: batch\n", "class: batch\n    shim: true\n").Replace(small)
	rate := func(text string, derived string) float64 {
		t.Helper()
		out := run(t, parse(t, text), Options{Compare: true}, Native, "cfs")
		if len(out.Runs) != 2 || out.Runs[1].Derived != derived {
			t.Fatalf("got %d runs, not applicable %v, want cfs with derived %q", len(out.Runs), out.NotApplicable, derived)
		}
		return out.Runs[1].Result.Clients[1].Rate / out.Runs[0].Result.Clients[1].Rate
	}
	known, unknown := rate(withShim, "no client has a nice value, so it was derived from the class"), rate(withNice, "")
	if known < 0.8 || unknown > 0.5 {
		t.Errorf("cfs keeps %.2f of native batch work where it knows which clients have work, and %.2f where it does not; want 0.8 at least, and 0.5 at most", known, unknown)
	}
}

func TestCompareKeepsWhatTheFileSays(t *testing.T) {
	withSLO := strings.Replace(small, "class: online\n", "class: online\n    slo: 5ms\n    priority: 3\n", 1)
	out := run(t, parse(t, withSLO), Options{Compare: true}, "hpf", "edf")
	if d := out.Runs[0].Derived; d != "" {
		t.Errorf("a client has a priority: got %q, want nothing derived", d)
	}
	if d := out.Runs[1].Derived; d != "no client has a deadline, so the SLO was taken" {
		t.Errorf("got %q, want the deadline from the SLO", d)
	}
	own := strings.Replace(small, "policy: {name: giveway, turn: 20ms}", "policy: hpf", 1)
	if out := run(t, parse(t, own), Options{Compare: true}, "hpf"); out.Runs[0].Derived != "" {
		t.Errorf("the scenario's own policy: got %q, want nothing derived", out.Runs[0].Derived)
	}
	if out := run(t, parse(t, small), Options{}, "hpf", "share"); len(out.Runs) != 2 || out.Runs[0].Derived != "" {
		t.Errorf("no comparison: got %d runs, derived %q; want both policies as they are", len(out.Runs), out.Runs[0].Derived)
	}
	oneClass := strings.Replace(small, "class: online", "class: batch", 1)
	if _, err := parse(t, oneClass).Run([]string{"hpf"}, Options{Compare: true}); err == nil || !strings.Contains(err.Error(), "all have the same class") {
		t.Errorf("one class and no priority: got %v, want an error that says so", err)
	}
}

// TestSimulatedTime checks that the time of all simulations adds up to the total, and that
// counting it does not change the outcome.
func TestSimulatedTime(t *testing.T) {
	s := parse(t, small)
	policies := []string{Native, "giveway", "share"}
	var simulated atomic.Int64
	counted := run(t, s, Options{Compare: true, Simulated: &simulated}, policies...)
	if got, want := simulated.Load(), int64(s.Total(len(policies))); got != want {
		t.Errorf("got %d ns simulated, want %d", got, want)
	}
	plain := run(t, s, Options{Compare: true}, policies...)
	same(t, "runs", counted.Runs, plain.Runs)
}

func TestRecordedUntil(t *testing.T) {
	out := run(t, parse(t, small), Options{Segments: 100, Actions: 1 << 20}, "giveway")
	if until := out.Runs[0].RecordedUntil; until != out.Runs[0].Result.Segments[99].To {
		t.Errorf("got recorded until %v, want the end of the last segment", until)
	}
	out = run(t, parse(t, small), Options{Segments: 1 << 20, Actions: 5}, "giveway")
	if until := out.Runs[0].RecordedUntil; until != out.Runs[0].Actions[4].At {
		t.Errorf("got recorded until %v, want the time of the last action", until)
	}
	out = run(t, parse(t, small), Options{Segments: 1 << 20, Actions: 1 << 20}, "giveway")
	if until := out.Runs[0].RecordedUntil; until != 0 {
		t.Errorf("got recorded until %v, want 0: everything was recorded", until)
	}
}
