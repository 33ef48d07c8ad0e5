package attr

import "testing"

// TestWithin: run, hint and set stay within the limits, rules and the administrator's own
// values do not, and a hint lowers what a rule gives but does not raise it.
func TestWithin(t *testing.T) {
	ceiling := Must("class=batch priority=5 weight=10 nice=0 deadline=10ms share=20%")
	for _, c := range []struct {
		name    string
		layers  Layers
		limits  Limits
		want    string
		reduced string
	}{
		{"below", Layers{FromSet: Must("class=idle priority=-3 weight=9 nice=5 deadline=1s")}, Limits{Ceiling: ceiling}, "class=idle priority=-3 weight=9 nice=5 deadline=1s", ""},
		{"set", Layers{FromSet: Must("class=online priority=6")}, Limits{Ceiling: ceiling}, "class=batch priority=5", "class=online priority=6"},
		{"run", Layers{FromRun: Must("class=standard weight=11 share=21%")}, Limits{Ceiling: ceiling}, "class=batch weight=10 share=20%", "class=standard weight=11 share=21%"},
		{"hint", Layers{FromHint: Must("class=online nice=-1 deadline=1ms")}, Limits{Ceiling: ceiling}, "class=batch nice=0 deadline=10ms", "class=online nice=-1 deadline=1ms"},
		{"no deadline asks for nothing", Layers{FromHint: Must("deadline=0")}, Limits{Ceiling: ceiling}, "deadline=0", ""},
		{"a limit of none", Layers{FromHint: Must("deadline=1h")}, Limits{Ceiling: Must("deadline=0")}, "deadline=0", "deadline=1h"},
		{"a rule", Layers{FromRule: Must("class=online priority=9")}, Limits{Ceiling: ceiling}, "class=online priority=9", ""},
		{"a rule and a hint", Layers{FromRule: Must("class=online"), FromHint: Must("class=online")}, Limits{Ceiling: ceiling}, "class=online", ""},
		{"the administrator", Layers{FromSet: Must("class=online priority=9").Unlimited()}, Limits{Ceiling: ceiling}, "class=online priority=9", ""},
		{"the administrator, then the owner", Layers{FromSet: Must("class=online priority=9").Unlimited().With(Must("class=online"))}, Limits{Ceiling: ceiling}, "class=batch priority=9", "class=online"},
		{"the last source counts", Layers{FromHint: Must("class=online"), FromSet: Must("class=idle")}, Limits{Ceiling: ceiling}, "class=idle", ""},

		{"a hint raises a rule", Layers{FromRule: Must("class=idle"), FromHint: Must("class=online priority=3")}, Limits{}, "class=idle priority=3", "class=online"},
		{"a hint lowers a rule", Layers{FromRule: Must("class=online weight=7"), FromHint: Must("class=batch weight=2")}, Limits{}, "class=batch weight=2", ""},
		{"a hint raises a rule that allows it", Layers{FromRule: Must("class=idle"), FromHint: Must("class=online")}, Limits{HintsRaise: true}, "class=online", ""},
		{"a hint raises a run above a rule", Layers{FromRule: Must("class=idle"), FromRun: Must("class=batch"), FromHint: Must("class=online")}, Limits{}, "class=batch", "class=online"},
		{"a hint of the administrator", Layers{FromRule: Must("class=idle"), FromHint: Must("class=online").Unlimited()}, Limits{}, "class=online", ""},
		{"set raises a rule", Layers{FromRule: Must("class=idle"), FromSet: Must("class=online")}, Limits{}, "class=online", ""},
		{"without a rule", Layers{FromRun: Must("class=idle"), FromHint: Must("class=online")}, Limits{}, "class=online", ""},
	} {
		got, reduced := c.layers.Within(&c.limits)
		if got.Given() != Must(c.want) || reduced != Must(c.reduced) {
			t.Errorf("%s: got %v, reduced %v; want %s, reduced %s", c.name, got.Given(), reduced, c.want, c.reduced)
		}
	}
}

// TestExceeds names an attribute that asks for more than the ceiling.
func TestExceeds(t *testing.T) {
	ceiling := Must("class=batch weight=4")
	if id, yes := Must("class=idle weight=5 priority=9").Exceeds(ceiling); !yes || id != Weight {
		t.Errorf("got %v, %v; want weight", id, yes)
	}
	for _, v := range []Values{Must("class=batch weight=4 priority=9"), Must("class=online").Unlimited(), {}} {
		if id, yes := v.Exceeds(ceiling); yes {
			t.Errorf("%v: got that %v exceeds the ceiling", v, id)
		}
	}
}

// TestLimitable: every attribute that orders processes among each other has a limit.
func TestLimitable(t *testing.T) {
	limited := map[ID]bool{}
	for _, id := range Limitable() {
		limited[id] = true
	}
	harmless := map[ID]bool{Work: true, Expect: true, Bound: true, BoundBatch: true, Predict: true, LateEntry: true, StreamClasses: true, Pool: true, Idempotent: true, Paused: true}
	for _, id := range IDs(0) {
		if limited[id] == harmless[id] {
			t.Errorf("%v: limitable %v, harmless %v", id, limited[id], harmless[id])
		}
	}
}
