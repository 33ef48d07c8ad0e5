package policy

import (
	"slices"
	"testing"

	"github.com/giveway/giveway/sched"
)

// attributes has, for every name that Info.Uses may contain, a function that
// clears the attribute.
var attributes = map[string]func(*sched.Attr){
	"class":     func(a *sched.Attr) { a.Class = sched.Standard },
	"weight":    func(a *sched.Attr) { a.Weight = 0 },
	"priority":  func(a *sched.Attr) { a.Priority = 0 },
	"deadline":  func(a *sched.Attr) { a.Deadline = 0 },
	"slo":       func(a *sched.Attr) { a.SLO = 0 },
	"laxity":    func(a *sched.Attr) { a.Laxity = 0 },
	"work":      func(a *sched.Attr) { a.Work = 0 },
	"expect":    func(a *sched.Attr) { a.Expect = 0 },
	"share":     func(a *sched.Attr) { a.Share = 0 },
	"nice":      func(a *sched.Attr) { a.Nice = 0 },
	"real-time": func(a *sched.Attr) { a.RealTime = 0 },
	"focus":     func(a *sched.Attr) { a.Focus = false },
}

// inClasses returns a function that clears an attribute of queues of some classes only.
func inClasses(clear func(*sched.Attr), has func(class string) bool) func(*sched.Attr) {
	return func(a *sched.Attr) {
		if has(a.Class.String()) {
			clear(a)
		}
	}
}

// TestUsesListsTheAttributesAPolicyReads clears one attribute in runs that are
// the same otherwise. The actions of some run change if and only if the policy
// uses the attribute; if it does so in some classes only, if and only if it was cleared in
// one of them.
func TestUsesListsTheAttributesAPolicyReads(t *testing.T) {
	if testing.Short() {
		t.Skip("compares thousands of runs, and fewer do not show every attribute")
	}
	const runs = 20
	run := func(name string, i int, clear func(*sched.Attr)) []sched.Action {
		if i == 0 {
			return serviceActions(t, name, clear)
		}
		return randomActions(t, name, uint64(i), nil, func(now sched.Time, a *sched.Attr) {
			a.Expect = now.Add(10 * ms)
			clear(a)
		})
	}
	for _, info := range List() {
		for _, name := range info.Uses {
			if attributes[name] == nil {
				t.Errorf("%s uses %q, which is no attribute", info.Name, name)
			}
		}
		complete := make([][]sched.Action, runs)
		for i := range complete {
			complete[i] = run(info.Name, i, func(*sched.Attr) {})
		}
		check := func(what string, clear func(*sched.Attr), want bool) {
			differs := false
			for i := 0; i < runs && !differs; i++ {
				differs = !slices.Equal(complete[i], run(info.Name, i, clear))
			}
			if differs != want {
				t.Errorf("%s without %s: actions differ: got %v, want %v", info.Name, what, differs, want)
			}
		}
		for name, clear := range attributes {
			check(name, clear, slices.Contains(info.Uses, name))
			in := ClassesUsing(info.Name, name)
			if len(in) == 0 {
				continue
			}
			check(name+" in other classes", inClasses(clear, func(class string) bool { return !slices.Contains(in, class) }), false)
			for _, one := range in {
				check(name+" in class "+one, inClasses(clear, func(class string) bool { return class == one }), true)
			}
		}
	}
}

// serviceActions returns the actions of a run of 4 s in which an online queue
// finishes a request every 20 ms, long before its SLO, beside a batch queue.
func serviceActions(t *testing.T, name string, clear func(*sched.Attr)) (all []sched.Action) {
	t.Helper()
	choice, err := Choose(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, now := sched.New(sched.Config{}, choice), sched.Time(0)
	step := func(events ...sched.Event) {
		for {
			actions, _ := s.Step(now, events)
			if len(actions) == 0 {
				return
			}
			all, events = append(all, actions...), events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
		}
	}
	online, batch := sched.Attr{Class: sched.Online, SLO: 10 * ms}, sched.Attr{Class: sched.Batch}
	clear(&online)
	clear(&batch)
	step(
		sched.Event{Kind: sched.DeviceOpened, Device: slicedGPU.ID, About: slicedGPU},
		sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: slicedGPU.ID, Can: canAll, Attr: online},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: slicedGPU.ID, Can: canAll, Attr: batch},
	)
	for range 200 {
		step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
		now = now.Add(ms)
		step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: ms})
		now = now.Add(19 * ms)
	}
	return all
}

// TestUsersOfAnAttribute checks that NamesUsing is the inverse of Info.Uses.
func TestUsersOfAnAttribute(t *testing.T) {
	for name := range attributes {
		var want []string
		for _, info := range List() {
			if slices.Contains(info.Uses, name) {
				want = append(want, info.Name)
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(slices.Values(NamesUsing(name))); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
