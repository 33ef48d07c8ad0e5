package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestQuietDoubles checks that the time until a quiet period doubles with each late first request up to its
// limit, and that as many doublings are undone as were made.
func TestQuietDoubles(t *testing.T) {
	p := newSLO().(*slo)
	first, doublings := p.quiet, 0
	for p.quietAfter() < maxQuiet {
		p.judgeQuiet(false)
		if doublings++; p.quietAfter() != min(first<<doublings, maxQuiet) {
			t.Fatalf("after %d late requests it is %v", doublings, p.quietAfter())
		}
	}
	for range 100 {
		p.judgeQuiet(false)
	}
	if p.quietAfter() != maxQuiet {
		t.Errorf("after 100 more it is %v, want %v", p.quietAfter(), maxQuiet)
	}
	for range doublings * halveQuiet {
		if p.quietAfter() == first {
			t.Fatal("it is as at first too soon")
		}
		p.judgeQuiet(true)
	}
	if p.quietAfter() != first {
		t.Errorf("after %d requests in time for each doubling it is %v, want %v", halveQuiet, p.quietAfter(), first)
	}
}

// TestOnlyTheFirstRequestJudgesAQuietPeriod checks that of the requests after a quiet period only one that began in it,
// and is the first to finish, says whether it was quiet for too short a time.
func TestOnlyTheFirstRequestJudgesAQuietPeriod(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, tt := range []struct {
		name  string
		began []time.Duration // after the end of the quiet period
		want  int
	}{
		{"one", []time.Duration{0}, 1},
		{"two that wait", []time.Duration{0, 0}, 1},
		{"one of a millisecond later", []time.Duration{ms}, 1},
		{"a later one", []time.Duration{2 * ms}, 0},
		{"a later one is the first to finish", []time.Duration{2 * ms, 0}, 0},
	} {
		p := newSLO().(*slo)
		p.ladder.build(h200)
		p.quietEnd = now
		v := &sched.View{Now: now.Add(10 * ms), Devices: []sched.Device{h200}, Queues: []sched.Queue{
			{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: 20 * ms}},
		}}
		for _, after := range tt.began {
			p.finished = append(p.finished, finishedRequest{1, 10*ms - after, v.Now})
		}
		p.countRequests(v, p.requests.update(v.Queues))
		if p.firstInTime != tt.want || p.quietEnd != 0 {
			t.Errorf("%s: %d requests judge the quiet period, want %d", tt.name, p.firstInTime, tt.want)
		}
	}
}

// TestQuietDeviceHasNoLimits checks that batch work has neither a short slice nor a bound while it is quiet, whether the
// device has slices or not.
func TestQuietDeviceHasNoLimits(t *testing.T) {
	for _, dev := range []sched.Device{h200, plainGPU} {
		p := newSLO().(*slo)
		v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{dev}, Queues: []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}, Counters: sched.Counters{Submitted: 1, Launched: 1, Completed: 1, Known: true}},
			{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
		}}
		p.Plan(v)
		p.lastRequest = v.Now
		v.Now = v.Now.Add(time.Minute)
		plan := p.Plan(v)
		i := slices.IndexFunc(plan.Grants, func(g sched.Grant) bool { return g.Queue == 2 })
		if !p.isQuiet || i < 0 || plan.Grants[i].Slice != 0 || plan.Grants[i].Bound != 0 {
			t.Errorf("device with slices %v: quiet %v, grants %+v", dev.Sliced(), p.isQuiet, plan.Grants)
		}
	}
}
