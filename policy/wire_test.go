package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// TestParseAnswerChecksEveryLimit checks the limits on an answer, which is untrusted
// input: a value at the limit is accepted and one beyond is not.
func TestParseAnswerChecksEveryLimit(t *testing.T) {
	slice := func(ns int64) string { return fmt.Sprintf(`{"answer":7,"grants":[{"queue":1,"slice_ns":%d}]}`, ns) }
	long := func(n int) string {
		const text = `{"answer":7}`
		return text + strings.Repeat(" ", n-len(text))
	}
	for _, c := range []struct {
		line string
		ok   bool
	}{
		{`{"answer":1}`, true},
		{`{"answer":0}`, false},
		{`{}`, false},
		{`{"answer":7,"wake_ns":0}`, true},
		{`{"answer":7,"wake_ns":-1}`, false},
		{slice(0), true},
		{slice(-1), false},
		{slice(int64(10 * time.Second)), true},
		{slice(int64(10*time.Second) + 1), false},
		{`{"answer":7} {"answer":8}`, false},
		{`{"answer":7} x`, false},
		{long(4 << 20), true},
		{long(4<<20 + 1), false},
	} {
		number, plan, err := policy.ParseAnswer([]byte(c.line))
		if (err == nil) != c.ok || (plan != nil) != c.ok || (number != 0) != c.ok {
			t.Errorf("%.60s: number %d, plan %v, error %v", c.line, number, plan, err)
		}
	}
	number, plan, err := policy.ParseAnswer([]byte(`{"answer":9,"grants":[{"queue":3,"slice_ns":5,"bound":2}],"wake_ns":11}`))
	if err != nil || number != 9 || plan.Wake != 11 || len(plan.Grants) != 1 || plan.Grants[0] != (sched.Grant{Queue: 3, Slice: 5, Bound: 2}) {
		t.Errorf("number %d, plan %+v, error %v", number, plan, err)
	}
}

// TestExternalAsksAgain checks when the other process is asked: after an event, at the time
// that its last answer named, and once a deadline while it gives no valid answer.
func TestExternalAsksAgain(t *testing.T) {
	ext := newExternal()
	const deadline = 100 * time.Millisecond
	start := sched.Time(time.Hour)
	view := sched.View{Devices: []sched.Device{{ID: "gpu0"}}, Queues: []sched.Queue{{ID: 1}, {ID: 2}}}
	// plan plans at a time, and returns whether a question was asked, and the plan's wake.
	plan := func(after time.Duration) (asked bool, wake time.Duration) {
		view.Now = start.Add(after)
		p := ext.Plan(&view)
		_, asked = ext.Ask()
		if p.Wake == 0 {
			return asked, 0
		}
		return asked, p.Wake.Sub(start)
	}
	number := uint64(0)
	answer := func(p *sched.Plan) {
		ext.Observe(view.Now, &sched.Event{Kind: sched.PlanOffered, Number: number, Plan: p})
	}
	expect := func(after time.Duration, wantAsked bool, wantWake time.Duration) {
		t.Helper()
		asked, wake := plan(after)
		if asked {
			number++
		}
		if asked != wantAsked || wake != wantWake {
			t.Errorf("at %v: asked %v, wake %v, want %v, %v", after, asked, wake, wantAsked, wantWake)
		}
	}
	expect(0, true, deadline)                 // the first question, answered by its deadline
	expect(time.Millisecond, false, deadline) // one is open
	answer(&sched.Plan{Grants: []sched.Grant{{Queue: 1}}, Wake: start.Add(time.Second)})
	expect(2*time.Millisecond, false, time.Second) // nothing has happened since
	expect(time.Second-1, false, time.Second)
	expect(time.Second, true, time.Second+deadline) // it asked to be asked now
	answer(nil)                                     // the process is gone
	if _, yes := ext.FallingBack(view.Now); !yes {
		t.Error("without a process the fallback policy does not decide")
	}
	expect(time.Second+1, false, time.Second+deadline) // at most once a deadline
	expect(time.Second+deadline-1, false, time.Second+deadline)
	expect(time.Second+deadline, true, time.Second+2*deadline)
	answer(&sched.Plan{Grants: []sched.Grant{{Queue: 2}}})
	ext.Observe(view.Now, &sched.Event{Kind: sched.AttrsChanged, Queue: 1})
	expect(2*time.Second, true, 2*time.Second+deadline) // an event
	expect(2*time.Second+deadline-1, false, 2*time.Second+deadline)
	if _, yes := ext.FallingBack(view.Now); yes {
		t.Error("the fallback policy decides before the deadline")
	}
	expect(2*time.Second+deadline, false, 0)
	if _, yes := ext.FallingBack(view.Now); !yes {
		t.Error("the fallback policy does not decide after the deadline")
	}
}

// TestExternalKeepsItsLastAnswer checks what runs while a question is open: what the last
// answer granted, unless it has closed, and queues that are new.
func TestExternalKeepsItsLastAnswer(t *testing.T) {
	ext := newExternal()
	view := sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{{ID: "gpu0"}}, Queues: []sched.Queue{{ID: 1}, {ID: 2}, {ID: 3}}}
	ext.Plan(&view)
	ext.Observe(view.Now, &sched.Event{Kind: sched.PlanOffered, Number: 1, Plan: &sched.Plan{Grants: []sched.Grant{{Queue: 1, Bound: 5}, {Queue: 2}}}})
	view.Queues = []sched.Queue{{ID: 1}, {ID: 3}, {ID: 4}}
	ext.Observe(view.Now, &sched.Event{Kind: sched.QueueOpened, Queue: 4})
	got := map[sched.QueueID]uint32{}
	for _, g := range ext.Plan(&view).Grants {
		got[g.Queue] = g.Bound
	}
	if len(got) != 2 || got[1] != 5 {
		t.Errorf("granted %v (queue and bound), want 1 with 5, and the new queue 4", got)
	}
	if _, ok := got[4]; !ok {
		t.Errorf("granted %v, want the new queue 4 too", got)
	}
}
