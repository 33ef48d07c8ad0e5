package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestSLOStopsOnlyBatchAndBeginsAnew checks for how long batch work is stopped for an open
// request: four times its SLO, at most a second, from when the newest one began. A queue that cannot be stopped, has no work, or does not give way stays.
func TestSLOStopsOnlyBatchAndBeginsAnew(t *testing.T) {
	for _, tt := range []struct{ slo, want time.Duration }{{10 * ms, 40 * ms}, {250 * ms, time.Second}, {10 * time.Second, time.Second}} {
		p := newSLO().(*slo)
		begin := sched.Time(time.Minute)
		v := &sched.View{Now: begin, Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: tt.slo}, OpenRequests: 1, NewestRequest: begin},
			{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
			{ID: 3, Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}},
			{ID: 4, Can: canAll, Attr: sched.Attr{Class: sched.Batch}, Counters: sched.Counters{Known: true}},
			{ID: 5, Can: canAll, Attr: sched.Attr{Class: sched.Idle}},
			{ID: 6, Can: canAll},
		}}
		stops := func(after time.Duration) (batch bool, wake sched.Time) {
			t.Helper()
			v.Now = begin.Add(after)
			plan := sched.Plan{}
			for i := range v.Queues {
				plan.Grants = append(plan.Grants, sched.Grant{Queue: v.Queues[i].ID})
			}
			p.stopBatch(v, &plan)
			granted := map[sched.QueueID]bool{}
			for _, g := range plan.Grants {
				granted[g.Queue] = true
			}
			if !granted[1] || !granted[3] || !granted[4] || !granted[6] || granted[2] != granted[5] {
				t.Errorf("SLO %v, after %v: granted are %v", tt.slo, after, granted)
			}
			for _, c := range []sched.Class{sched.Batch, sched.Idle} {
				if why := plan.Waiting[c]; (why == sched.OnlineWork) == granted[2] {
					t.Errorf("SLO %v, after %v: %v work waits because of %q", tt.slo, after, c, why)
				}
			}
			return !granted[2], plan.Wake
		}
		if batch, wake := stops(0); !batch || wake != begin.Add(tt.want) {
			t.Errorf("SLO %v: batch work is stopped %v until %v, want for %v", tt.slo, batch, wake.Sub(begin), tt.want)
		}
		if batch, _ := stops(tt.want - 1); !batch {
			t.Errorf("SLO %v: batch work is not stopped just before %v", tt.slo, tt.want)
		}
		if batch, wake := stops(tt.want); batch || wake != 0 {
			t.Errorf("SLO %v: batch work is stopped after %v", tt.slo, tt.want)
		}
		v.Queues[0].OpenRequests, v.Queues[0].NewestRequest = 2, begin.Add(2*tt.want)
		if batch, wake := stops(2 * tt.want); !batch || wake != begin.Add(3*tt.want) {
			t.Errorf("SLO %v, another request: batch work is stopped %v until %v, want until %v", tt.slo, batch, wake.Sub(begin), 3*tt.want)
		}
		v.Queues[0].OpenRequests = 0 // and NewestRequest is as before
		if batch, _ := stops(2 * tt.want); batch {
			t.Errorf("SLO %v: batch work is stopped although all requests are finished", tt.slo)
		}
		v.Queues[1].Attr.SLO, v.Queues[1].OpenRequests, v.Queues[1].NewestRequest = tt.slo, 1, begin.Add(2*tt.want)
		if batch, _ := stops(2 * tt.want); batch {
			t.Errorf("SLO %v: batch work is stopped for a request of a batch queue", tt.slo)
		}
		v.Queues[0].OpenRequests, v.Queues[0].NewestRequest = 0, 0
		if batch, _ := stops(2 * tt.want); batch {
			t.Errorf("SLO %v: batch work is stopped without a request", tt.slo)
		}
	}
}

// TestSLOStopsBatchBesideARequestThatNeverEnds checks that batch work is stopped for each request,
// although others are open that are slow or whose ends are never reported.
func TestSLOStopsBatchBesideARequestThatNeverEnds(t *testing.T) {
	for _, open := range []int{0, 1, 3, 100} {
		x := newSLORun(t, h200)
		for range open {
			x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
		}
		for range 1500 {
			x.request(whileStopped(8*ms, 8*ms, 12*ms, 2*ms))
		}
		if x.late*100 > x.n {
			t.Errorf("%d requests never end: %d of %d others are late, want at most 1 %%", open, x.late, x.n)
		}
	}
}

// TestLadderCountsQueuesSideBySide checks that online work waits for a slice of each batch queue
// that runs side by side, except with the minimum slice, with which one runs at a time.
func TestLadderCountsQueuesSideBySide(t *testing.T) {
	var l ladder
	l.build(h200)
	for _, beside := range []int{0, 1, 3} {
		l.queuesBeside = beside
		n := time.Duration(max(beside, 1))
		for i, want := range []time.Duration{n * h200.Slice, n * h200.Slice, n * h200.Slice / 2, n * h200.Slice / 4, n * h200.Slice / 8, 0} {
			if got := l.batchStay(i); got != want {
				t.Errorf("%d queues side by side, rung %d: online work waits for %v, want %v", beside, i, got, want)
			}
		}
	}
	// Under slo they are the light queues of the device.
	node := newNode(t, "slo", nil, sharedGPU)
	node.measureEvery, node.visits, node.actionTime = 10*ms, true, 500*time.Microsecond
	for range 3 {
		node.openJob(batch(1), saturating, lightBurst)
	}
	online := node.openJob(sched.Queue{Attr: sched.Attr{Class: sched.Online, SLO: 50 * ms}}, periodic(20*ms, ms), 0)
	for range 100 {
		node.events = append(node.events, sched.Event{Kind: sched.RequestFinished, Queue: online.ID, Duration: 2 * ms})
		node.run(20 * ms)
	}
	if got := node.policies[0].(*slo).ladder.queuesBeside; got != 3 {
		t.Errorf("three light queues: the ladder counts %d side by side", got)
	}
}

// TestSLOOrdersOnlineQueuesByTheirSLO checks that under slo the online queue with the tighter SLO
// goes before the other, and has the long slice. giveway does not read SLOs.
func TestSLOOrdersOnlineQueuesByTheirSLO(t *testing.T) {
	for name, want := range map[string]time.Duration{"slo": 20 * ms, "giveway": 0} {
		node := newNode(t, name, nil, sharedGPU)
		node.measureEvery, node.visits = 10*ms, true
		node.openJob(batch(1), saturating, 0)
		loose := node.openJob(sched.Queue{Attr: sched.Attr{Class: sched.Online, SLO: 5 * ms}}, periodic(20*ms, ms), 0)
		tight := node.openJob(sched.Queue{Attr: sched.Attr{Class: sched.Online, SLO: 2 * ms}}, periodic(20*ms, ms), 0)
		node.run(500 * ms)
		if loose.slice != 0 || tight.slice != want {
			t.Errorf("%s: got slices %v and %v for SLOs of 5 and 2 ms, want 0s and %v", name, loose.slice, tight.slice, want)
		}
	}
}

// TestLadderStopsOnlyIfARungIsThere checks that batch work is stopped during requests only where
// the ladder has such a rung beyond its start, and requests take longer than two stops.
func TestLadderStopsOnlyIfARungIsThere(t *testing.T) {
	for _, tt := range []struct {
		name string
		dev  sched.Device
		took time.Duration
		want bool
	}{
		{"with slices", h200, 10 * ms, true},
		{"with slices, requests of two stops", h200, 2 * h200.StopTime, false},
		{"without slices, where the start stops already", sched.Device{StopTime: h200.StopTime}, 10 * ms, false},
	} {
		var l ladder
		l.build(tt.dev)
		for range probeRequests {
			l.took[l.requests] = tt.took
			l.requests++
		}
		if got := l.mayStop(); got != tt.want {
			t.Errorf("%s: may stop %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestSLOBeginsWithTheChosenSettingAfterAQuietPeriod checks that the first request after a quiet
// period ends a trial that was under way before: what it would show is not due to the trial.
func TestSLOBeginsWithTheChosenSettingAfterAQuietPeriod(t *testing.T) {
	p := newSLO().(*slo)
	p.ladder.build(h200)
	now := sched.Time(time.Hour)
	p.ladder.setCurrent(p.ladder.chosen-1, now.Add(-time.Minute))
	p.isQuiet, p.lastRequest = true, now
	p.updateQuiet(now, true)
	if p.isQuiet || p.ladder.current != p.ladder.chosen || p.quietEnd != now {
		t.Errorf("quiet %v, on rung %d; want rung %d, which was chosen", p.isQuiet, p.ladder.current, p.ladder.chosen)
	}
}

// TestSLOIgnoresRequestsInTrialsOfNewcomers checks that a request counts neither if it finishes while
// newcomers are tried or queues overlap, nor if it began before that was over.
func TestSLOIgnoresRequestsInTrialsOfNewcomers(t *testing.T) {
	for _, name := range []string{"trial", "overlap"} {
		p := newSLO().(*slo)
		p.ladder.build(h200Device)
		v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{{ID: 1}}}
		p.base.current, p.base.batchAt = 1, v.Now
		v.Queues[0].Slice, v.Queues[0].Can = sched.MinSlice, sched.CanSlice
		p.ladder.confirm(v, 1)
		if !p.judgesRung(v.Now) || p.ladder.since != v.Now {
			t.Fatalf("%s: before it requests count %v, since %v", name, p.judgesRung(v.Now), p.ladder.since)
		}
		if name == "trial" {
			p.base.trial.since = v.Now
		} else {
			p.base.overlap.leaving = 1
		}
		v.Now = v.Now.Add(20 * ms)
		p.adapt(v, make([]requestState, 1), 0, 0)
		if p.judgesRung(v.Now) || p.ladder.since != sched.Never || p.ladder.changedAt != v.Now {
			t.Errorf("%s: requests count %v, since %v", name, p.judgesRung(v.Now), p.ladder.since)
		}
		p.base.trial.since, p.base.overlap.leaving = 0, 0
		v.Now = v.Now.Add(20 * ms)
		p.adapt(v, make([]requestState, 1), 0, 0)
		if !p.judgesRung(v.Now) || p.ladder.since != v.Now {
			t.Errorf("%s: after it requests count %v, since %v, want %v", name, p.judgesRung(v.Now), p.ladder.since, v.Now)
		}
	}
}

// TestLadderReturnsFromTheLastRung checks that the start rung is tried again, whatever the budget, if
// requests are too short to stop batch work for.
func TestLadderReturnsFromTheLastRung(t *testing.T) {
	for _, tt := range []struct {
		name  string
		took  time.Duration
		late  float64
		retry sched.Time
		want  bool
	}{
		{"short requests", ms / 4, 100, 0, true},
		{"short requests, in the pause", ms / 4, 100, sched.Time(time.Minute), false},
		{"long requests", 10 * ms, 100, 0, false},
		{"long requests, within the budget", 10 * ms, 0, 0, true},
	} {
		var l ladder
		l.build(h200Device)
		l.setCurrent(l.last, 0)
		l.recentLate, l.rungs[l.start].retry = tt.late, tt.retry
		for range probeRequests {
			l.took[l.requests], l.spare[l.requests] = tt.took, ms
			l.requests++
		}
		if got := l.mayTry(l.start, sched.Time(time.Second)); got != tt.want {
			t.Errorf("%s: the start rung may be tried %v, want %v", tt.name, got, tt.want)
		}
		if l.setCurrent(l.start, 0); tt.late > 0 && l.mayTry(l.start-1, sched.Time(time.Second)) {
			t.Errorf("%s: a milder rung may be tried although too many requests were late", tt.name)
		}
	}
}

// TestLadderDecidesDespiteTrialsOfNewcomers checks that the time before a suspension counts: beside
// jobs that come and go, trials are more frequent than decisions.
func TestLadderDecidesDespiteTrialsOfNewcomers(t *testing.T) {
	var l ladder
	l.build(h200Device)
	v := &sched.View{Devices: []sched.Device{h200Device}, Queues: []sched.Queue{{ID: 1, Slice: sched.MinSlice, Can: sched.CanSlice}}}
	v.Now = sched.Time(time.Minute)
	for range 3 {
		l.confirm(v, 1)
		v.Now = v.Now.Add(200 * ms)
		l.suspend(v.Now)
		v.Now = v.Now.Add(50 * ms)
		l.suspend(v.Now)
	}
	if got := l.inForceFor(v.Now); got != 600*ms {
		t.Errorf("three times 200 ms: got %v in force", got)
	}
	l.confirm(v, 1)
	v.Now = v.Now.Add(10 * ms)
	if got := l.inForceFor(v.Now); got != 610*ms {
		t.Errorf("10 ms later: got %v", got)
	}
	if l.setCurrent(l.start-1, v.Now); l.inForceFor(v.Now) != 0 {
		t.Errorf("another rung: got %v in force, want none", l.inForceFor(v.Now))
	}
}
