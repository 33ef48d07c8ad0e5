package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// openOnline opens queue 3, a second online queue.
func (x *sloRun) openOnline(attr sched.Attr) {
	attr.Class = sched.Online
	x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: attr})
}

// TestSLOIsGivewayBesideAQueueThatMustBeFast checks that batch work keeps the minimum
// slice, although requests have much time to spare, while another online queue has no SLO,
// or has one and does not report its requests. A paused one does not matter.
func TestSLOIsGivewayBesideAQueueThatMustBeFast(t *testing.T) {
	for _, c := range []struct {
		name    string
		attr    sched.Attr
		reports bool
		want    time.Duration
	}{
		{"no SLO, requests reported", sched.Attr{}, true, sched.MinSlice},
		{"no SLO, no requests", sched.Attr{}, false, sched.MinSlice},
		{"an SLO, no requests", sched.Attr{SLO: testSLO}, false, sched.MinSlice},
		{"an SLO, requests reported", sched.Attr{SLO: testSLO}, true, 0},
		{"no SLO, paused", sched.Attr{Paused: true}, false, 0},
	} {
		x := newSLORun(t, h200)
		x.openOnline(c.attr)
		for range 500 {
			if c.reports {
				x.step(sched.Event{Kind: sched.RequestStarted, Queue: 3})
				x.step(sched.Event{Kind: sched.RequestFinished, Queue: 3, Duration: ms})
			}
			x.request(stretch(3 * ms))
		}
		if x.slice != c.want {
			t.Errorf("%s: batch work has a slice of %v, want %v", c.name, x.slice, c.want)
		}
	}
}

// TestSLOAQueueThatFinishesWithoutAStartReports checks that a request that begins and
// ends between two readings, of which only the end is reported, counts.
func TestSLOAQueueThatFinishesWithoutAStartReports(t *testing.T) {
	x := newSLORun(t, h200)
	for range 200 {
		x.now = x.now.Add(20 * ms)
		x.step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: 2 * ms})
	}
	if x.slice != 0 {
		t.Errorf("batch work has a slice of %v, want the default: all requests had time to spare", x.slice)
	}
}

// TestSLOIgnoresRequestsThatMeanNothing checks that a request whose duration is unknown or
// negative, of a queue without an SLO, of a batch queue, or of a queue that is closed,
// changes nothing.
func TestSLOIgnoresRequestsThatMeanNothing(t *testing.T) {
	x := newSLORun(t, h200)
	x.step(sched.Event{Kind: sched.QueueOpened, Queue: 4, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: sched.Standard, SLO: testSLO}})
	for range 300 {
		x.request(stretch(3 * ms))
	}
	total := x.p.ladder.total
	for range 100 {
		for _, ev := range []sched.Event{
			{Queue: 1, Duration: -1}, {Queue: 1}, {Queue: 2, Duration: time.Second}, {Queue: 4, Duration: time.Second}, {Queue: 9, Duration: time.Second},
		} {
			ev.Kind = sched.RequestFinished
			x.step(ev)
		}
	}
	if x.slice != 0 || x.p.ladder.total != total {
		t.Errorf("batch work has a slice of %v, and %d requests counted; want the default and 0", x.slice, x.p.ladder.total-total)
	}
}

// TestSLOBeginsAnewOnAnotherDevice checks that a changed description of the device, for
// example another default slice, gives new settings.
func TestSLOBeginsAnewOnAnotherDevice(t *testing.T) {
	x := newSLORun(t, h200)
	for range 300 {
		x.request(stretch(3 * ms))
	}
	if x.slice != 0 {
		t.Fatalf("batch work has a slice of %v, want the default", x.slice)
	}
	other := h200
	other.Slice, other.MinSharedSlice = 3*ms, 1400*time.Microsecond
	x.step(sched.Event{Kind: sched.DeviceOpened, Device: h200.ID, About: other})
	if x.slice != sched.MinSlice {
		t.Errorf("at first batch work has a slice of %v, want the minimum", x.slice)
	}
	seen := map[time.Duration]bool{}
	for range 300 {
		x.request(stretch(3 * ms))
		seen[x.slice] = true
	}
	if len(seen) != 3 || !seen[sched.MinSlice] || !seen[1500*time.Microsecond] || !seen[0] {
		t.Errorf("batch work had the slices %v, want the minimum, half of the new default, the default", seen)
	}
}

// TestSLOForgetsWhenQueuesChange checks that a new online queue makes batch work give way
// at once, and that a new batch queue leaves the setting in force.
func TestSLOForgetsWhenQueuesChange(t *testing.T) {
	for _, c := range []struct {
		class sched.Class
		want  time.Duration
	}{{sched.Batch, 0}, {sched.Online, sched.MinSlice}} {
		x := newSLORun(t, h200)
		for range 300 {
			x.request(stretch(3 * ms))
		}
		attr := sched.Attr{Class: c.class, SLO: testSLO}
		x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: attr})
		x.step(sched.Event{Kind: sched.RequestFinished, Queue: 3, Duration: ms})
		if x.slice != c.want {
			t.Errorf("a new queue of class %v: batch work has a slice of %v, want %v", c.class, x.slice, c.want)
		}
	}
}

// TestSLOForgetsWhenOnlineQueuesChange checks that what is known about the rungs is dropped when an
// online queue closes, and that the ladder begins anew when a queue is opened or becomes online, or the
// SLO of one becomes tighter. Other queues, and an event that replaces the abilities of a known queue,
// change nothing.
func TestSLOForgetsWhenOnlineQueuesChange(t *testing.T) {
	online, batch := sched.Attr{Class: sched.Online, SLO: testSLO}, sched.Attr{Class: sched.Batch}
	tighter, looser := online, online
	tighter.SLO--
	looser.SLO++
	for _, c := range []struct {
		name           string
		ev             sched.Event
		drops, restart bool
	}{
		{"a new online queue", sched.Event{Kind: sched.QueueOpened, Queue: 3, Attr: online}, true, true},
		{"a known online queue", sched.Event{Kind: sched.QueueOpened, Queue: 1, Attr: online}, false, false},
		{"new abilities of an online queue", sched.Event{Kind: sched.QueueOpened, Queue: 1}, false, false},
		{"an online queue closes", sched.Event{Kind: sched.QueueClosed, Queue: 1}, true, false},
		{"a new batch queue", sched.Event{Kind: sched.QueueOpened, Queue: 3, Attr: batch}, false, false},
		{"new abilities of a batch queue", sched.Event{Kind: sched.QueueOpened, Queue: 2}, false, false},
		{"a batch queue closes", sched.Event{Kind: sched.QueueClosed, Queue: 2}, false, false},
		{"a new standard queue", sched.Event{Kind: sched.QueueOpened, Queue: 3}, false, false},
		{"an unknown queue closes", sched.Event{Kind: sched.QueueClosed, Queue: 3}, false, false},
		{"commands of an online queue", sched.Event{Kind: sched.Progressed, Queue: 1}, false, false},
		{"attributes of an online queue", sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: online}, false, false},
		{"a tighter SLO", sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: tighter}, true, true},
		{"a looser SLO", sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: looser}, false, false},
		{"a batch queue becomes online", sched.Event{Kind: sched.AttrsChanged, Queue: 2, Attr: online}, true, true},
		{"an online queue becomes batch", sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: batch}, false, false},
	} {
		p := newSLO().(*slo)
		v := &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{h200}, Queues: []sched.Queue{{ID: 1, Attr: online}, {ID: 2, Attr: batch}}}
		p.Plan(v)
		p.ladder.setCurrent(1, 0)
		p.ladder.rungs[1].tried, p.ladder.rungs[1].retry, p.ladder.since, p.ladder.requests = 5, sched.Time(time.Minute), 1, 5
		p.Observe(sched.Time(time.Second), &c.ev)
		switch i, known := index(v.Queues, c.ev.Queue); {
		case c.ev.Kind == sched.AttrsChanged:
			v.Queues[i].Attr = c.ev.Attr
		case c.ev.Kind == sched.QueueOpened && !known:
			v.Queues = append(v.Queues, sched.Queue{ID: c.ev.Queue, Attr: c.ev.Attr})
		}
		p.updateQueues(v, p.requests.update(v.Queues))
		r, want := &p.ladder.rungs[1], 1
		if c.restart {
			want = p.ladder.start
		}
		known := r.tried == 5 && r.retry > 0 && p.ladder.since == 1 && p.ladder.requests == 5
		dropped := r.tried == 0 && r.retry == 0 && p.ladder.since == sched.Never && p.ladder.requests == 0
		if known == c.drops || dropped != c.drops || p.ladder.current != want {
			t.Errorf("%s: %v requests known, retry at %v, rung %d in force; want it dropped: %v, and rung %d", c.name, r.tried, r.retry, p.ladder.current, c.drops, want)
		}
	}
}

// TestSLOAdaptsWhileQueuesComeAndGo checks that batch work gets the default slice, and that requests
// are in time, although another queue is replaced more often than a trial takes.
func TestSLOAdaptsWhileQueuesComeAndGo(t *testing.T) {
	for _, c := range []sched.Class{sched.Standard, sched.Batch, sched.Idle} {
		for _, base := range []time.Duration{3 * ms, 9300 * time.Microsecond} {
			x := newSLORun(t, h200)
			id, atMin := sched.QueueID(100), 0
			for i := range 1500 {
				if i%20 == 0 {
					x.step(
						sched.Event{Kind: sched.QueueClosed, Queue: id},
						sched.Event{Kind: sched.QueueOpened, Queue: id + 1, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: c}},
						sched.Event{Kind: sched.Progressed, Queue: id + 1},
						sched.Event{Kind: sched.QueueOpened, Queue: 2, Can: canAll}, // its abilities are known anew
					)
					id++
				}
				if x.request(stretch(base)); x.slice == sched.MinSlice {
					atMin++
				}
			}
			if atMin > 150 || x.late*200 > x.n {
				t.Errorf("queues of class %v come and go, requests of %v: the minimum slice for %d of %d requests, %d late; want at most a tenth, 0.5 %%",
					c, base, atMin, x.n, x.late)
			}
		}
	}
}

// quiet returns how long after a request it is quiet. Batch work has the default slice
// then.
func (x *sloRun) quiet() time.Duration {
	began := x.now
	for !x.p.isQuiet && x.now < began.Add(time.Hour) {
		if wake := x.step(); !x.p.isQuiet {
			x.now = wake
		}
	}
	if x.slice != 0 || x.stopped {
		x.t.Errorf("when it is quiet batch work has a slice of %v, stopped: %v", x.slice, x.stopped)
	}
	return x.now.Sub(began)
}

// TestSLOQuietTimeDoublesIfTheNextRequestIsLate checks when it is quiet: 2 s after the end
// of the last request, and twice as long, up to 10 minutes, each time that the first
// request after quiet is late. A later one that is late does not matter.
func TestSLOQuietTimeDoublesIfTheNextRequestIsLate(t *testing.T) {
	x := newSLORun(t, h200)
	one := func(took time.Duration) {
		x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
		x.now = x.now.Add(took)
		x.step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
	}
	for range 20 {
		x.request(stretch(9900 * time.Microsecond))
	}
	one(9 * ms)
	want := 2 * time.Second
	for i := range 14 {
		if got := x.quiet(); got != want {
			t.Fatalf("period %d: quiet after %v, want %v", i+1, got, want)
		}
		switch i % 3 {
		case 0: // just in time, then late
			one(testSLO)
			one(testSLO + ms)
			one(9 * ms)
		default:
			one(testSLO + ms)
			one(9 * ms)
			want = min(2*want, 10*time.Minute)
		}
	}
	if want != 10*time.Minute {
		t.Errorf("the longest quiet time is %v, want 10m", want)
	}
}

// TestSLOQuietTimeFollowsTheParameter checks that the parameter quiet has an effect when it is changed,
// in both directions and after the time has doubled, and that the time is halved again after 16 first
// requests in time.
func TestSLOQuietTimeFollowsTheParameter(t *testing.T) {
	x := newSLORun(t, h200)
	first := func(took time.Duration) { // a request, and one after it
		for _, d := range []time.Duration{took, 9 * ms} {
			x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
			x.now = x.now.Add(d)
			x.step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: d})
		}
	}
	expect := func(what string, want time.Duration) {
		t.Helper()
		if got := x.quiet(); got != want {
			t.Errorf("%s: quiet after %v, want %v", what, got, want)
		}
	}
	set := func(value string) {
		choice, err := Choose("slo", map[string]string{"quiet": value})
		if err != nil {
			t.Fatal(err)
		}
		x.step(sched.Event{Kind: sched.PolicyChosen, Choice: choice})
	}
	set("5m")
	for range 20 {
		x.request(stretch(9 * ms))
	}
	first(9 * ms)
	expect("5m", 5*time.Minute)
	set("1s")
	first(9 * ms)
	expect("lowered to 1s", time.Second)
	first(testSLO + ms)
	expect("the first request was late", 2*time.Second)
	first(testSLO + ms)
	expect("and again", 4*time.Second)
	set("500ms")
	first(9 * ms)
	expect("lowered to 500ms, doubled twice", 2*time.Second)
	for range 14 {
		first(testSLO)
		expect("some were in time", 2*time.Second)
	}
	first(testSLO)
	expect("16 were in time", time.Second)
	for range 10 {
		first(testSLO)
		expect("10 were in time", time.Second)
	}
	first(testSLO + ms)
	expect("one was late", 2*time.Second)
	for range 15 {
		first(testSLO)
		expect("15 were in time since then", 2*time.Second)
	}
	first(testSLO)
	expect("16 were in time since then", time.Second)
	for range 40 {
		first(9 * ms)
		x.quiet()
	}
	first(9 * ms)
	expect("many were in time", 500*ms)
	set("20s")
	first(9 * ms)
	expect("raised", 20*time.Second)
}

// TestSLOQueueThatMustBeFastEndsQuiet checks that batch work gives way at once when an online
// queue without an SLO is opened while it is quiet.
func TestSLOQueueThatMustBeFastEndsQuiet(t *testing.T) {
	x := newSLORun(t, h200)
	for range 20 {
		x.request(stretch(9900 * time.Microsecond))
	}
	x.quiet()
	x.served[1] += time.Second // so it is not its floor turn
	x.runUntil(x.now.Add(50 * ms))
	x.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: x.served[1]})
	x.openOnline(sched.Attr{})
	if x.slice != sched.MinSlice {
		t.Errorf("batch work has a slice of %v, want the minimum", x.slice)
	}
}

// TestSLOAnOpenRequestIsNotQuiet checks that it is not quiet while a request is open.
func TestSLOAnOpenRequestIsNotQuiet(t *testing.T) {
	x := newSLORun(t, h200)
	for range 20 {
		x.request(stretch(9900 * time.Microsecond))
	}
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	for range 50 {
		x.now = x.now.Add(100 * ms)
		x.step()
		if x.p.isQuiet { // the slice may be that of a floor turn
			t.Fatalf("it is quiet at %v, during a request", time.Duration(x.now))
		}
	}
}

// TestSLOStopsBatchForFourTimesTheSLO checks for how long one request stops batch work: four
// times its SLO, but at most 1 s. Other queues are not stopped.
func TestSLOStopsBatchForFourTimesTheSLO(t *testing.T) {
	for _, c := range []struct{ slo, want time.Duration }{
		{testSLO, 40 * ms}, {200 * ms, 800 * ms}, {250 * ms, time.Second}, {10 * time.Second, time.Second},
	} {
		p := newSLO().(*slo)
		queues := []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: c.slo}, OpenRequests: 1, NewestRequest: sched.Time(time.Minute)},
			{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
			{ID: 3, Can: canAll, Attr: sched.Attr{Class: sched.Idle}},
			{ID: 4, Can: canAll, Attr: sched.Attr{Class: sched.Standard}},
			{ID: 5, Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}},                                // cannot be stopped
			{ID: 6, Can: canAll, Attr: sched.Attr{Class: sched.Batch}, Counters: sched.Counters{Known: true}}, // idle
		}
		granted := func(after time.Duration) (ids []sched.QueueID, wake sched.Time) {
			plan := sched.Plan{}
			for _, q := range queues {
				plan.Grants = append(plan.Grants, sched.Grant{Queue: q.ID})
			}
			opened := sched.Time(time.Minute)
			p.stopBatch(&sched.View{Now: opened.Add(after), Queues: queues}, &plan)
			for _, g := range plan.Grants {
				ids = append(ids, g.Queue)
			}
			return ids, plan.Wake
		}
		got, wake := granted(c.want - 1)
		if len(got) != 4 || got[0] != 1 || got[1] != 4 || got[2] != 5 || got[3] != 6 || wake != sched.Time(time.Minute+c.want) {
			t.Errorf("SLO %v: just before %v queues %v run until %v, want 1, 4, 5 and 6", c.slo, c.want, got, wake)
		}
		if got, _ := granted(c.want); len(got) != 6 {
			t.Errorf("SLO %v: after %v queues %v run, want all", c.slo, c.want, got)
		}
		queues[0].OpenRequests, queues[0].NewestRequest = 0, 0
		if got, _ := granted(0); len(got) != 6 {
			t.Errorf("SLO %v: without a request queues %v run, want all", c.slo, got)
		}
	}
}

// TestSLOAdaptsWhileOthersSleep checks that an online queue without an SLO must be served as fast
// as possible until it has launched nothing for the time quiet.
func TestSLOAdaptsWhileOthersSleep(t *testing.T) {
	p := newSLO().(*slo)
	begin := sched.Time(time.Hour)
	v := &sched.View{Now: begin, Devices: []sched.Device{h200}, Queues: []sched.Queue{
		{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: testSLO}, OpenRequests: 1},
		{ID: 2, Attr: sched.Attr{Class: sched.Online}, Counters: sched.Counters{Known: true, Submitted: 1, Launched: 1, Completed: 1}},
	}}
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {p.quiet - 1, false}, {p.quiet, true}} {
		v.Now = begin.Add(c.after)
		if got := p.updateQueues(v, p.requests.update(v.Queues)); got != c.want {
			t.Errorf("%v after a launch: adapts is %v, want %v", c.after, got, c.want)
		}
	}
}

// TestSLOIsNotQuietBeforeTheFirstRequest checks that batch work gives way at once until a
// request was seen, however long that takes.
func TestSLOIsNotQuietBeforeTheFirstRequest(t *testing.T) {
	p := newSLO().(*slo)
	now := sched.Time(time.Hour)
	if wake := p.updateQuiet(now, true); p.isQuiet || wake != 0 {
		t.Errorf("without a request: quiet %v, until %v; want not quiet", p.isQuiet, wake)
	}
	p.lastRequest = now
	if wake := p.updateQuiet(now, true); p.isQuiet || wake != now.Add(p.quiet) {
		t.Errorf("at a request: quiet %v, next look after %v; want not quiet until %v", p.isQuiet, wake.Sub(now), p.quiet)
	}
	if p.updateQuiet(now.Add(p.quiet), true); !p.isQuiet {
		t.Error("it is not quiet later")
	}
}

// TestSLOQueueThatComesBackBeginsAnew checks that late requests from before a queue was paused,
// or of another class, do not count when it is online again. That it reports requests is known.
func TestSLOQueueThatComesBackBeginsAnew(t *testing.T) {
	for _, away := range []sched.Attr{{Class: sched.Online, SLO: testSLO, Paused: true}, {Class: sched.Standard, SLO: testSLO}} {
		p := newSLO().(*slo)
		v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200}, Queues: []sched.Queue{{ID: 1, Attr: away}}}
		queues := p.requests.update(v.Queues)
		queues[0] = requestState{lateScore: 2, reports: true, latePeriods: 4, countedLate: true}
		if p.updateQueues(v, queues); queues[0] != (requestState{reports: true}) {
			t.Errorf("%+v: got %+v, want only that it reports requests", away, queues[0])
		}
	}
}

// TestSLOLightQueuesBetweenRegularRequests checks when light batch queues may run side by side
// between regular requests although they take turns otherwise: at the rung with the minimum
// slice, unless requests were late because of it, or the parameter shared says min.
func TestSLOLightQueuesBetweenRegularRequests(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, c := range []struct {
		name   string
		change func(*slo)
		want   bool
	}{
		{"minimum slice", func(*slo) {}, true},
		{"shared is min", func(p *slo) { p.base.sharedSlice = sched.MinSlice }, false},
		{"requests were late", func(p *slo) { p.ladder.stopPredicting(now) }, false},
		{"a longer slice", func(p *slo) { p.ladder.current-- }, false},
	} {
		p := newSLO().(*slo)
		p.ladder.build(h200)
		c.change(p)
		if set := p.adaptedSetting(now); set.betweenRequests != c.want || set.onlineSlice != p.base.onlineSlice {
			t.Errorf("%s: side by side between requests %v, slice of online queues %v; want %v, %v", c.name, set.betweenRequests, set.onlineSlice, c.want, p.base.onlineSlice)
		}
	}
}

// TestSLOAdaptsOnlyWithAnSLO checks that a service without an SLO that sleeps is no reason to adapt.
func TestSLOAdaptsOnlyWithAnSLO(t *testing.T) {
	for target, want := range map[time.Duration]bool{0: false, ms: true} {
		p := newSLO().(*slo)
		q := sched.Queue{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: target}, Counters: sched.Counters{Known: true}}
		v := &sched.View{Now: sched.Time(time.Hour), Queues: []sched.Queue{q}, Devices: []sched.Device{h200Device}}
		if got := p.updateQueues(v, p.requests.update(v.Queues)); got != want {
			t.Errorf("SLO %v: adapts is %v, want %v", target, got, want)
		}
	}
}

// TestSLOKeepsABoundedNumberOfRequests checks that requests between two plans take bounded memory.
func TestSLOKeepsABoundedNumberOfRequests(t *testing.T) {
	p := newSLO().(*slo)
	for range 2 * maxFinished {
		p.Observe(1, &sched.Event{Kind: sched.RequestFinished, Queue: 1})
	}
	if len(p.finished) != maxFinished {
		t.Errorf("got %d requests, want %d", len(p.finished), maxFinished)
	}
}

// TestLadderPausesLongerIfMostRequestsWereLate checks that half of them are not most.
func TestLadderPausesLongerIfMostRequestsWereLate(t *testing.T) {
	for late, want := range map[float64]time.Duration{5: time.Second, 6: 2 * time.Second} {
		l := ladder{}
		l.rungs[0] = rung{tried: 10, late: late}
		l.pause(0, 0, time.Second)
		if got := l.rungs[0].pause; got != want {
			t.Errorf("%v of 10 requests late: got a pause of %v, want %v", late, got, want)
		}
	}
}

// TestSLOOpenRequestCountsEachLatePeriod checks when an open request counts as late: each time
// that it was open, with the present setting, for another late period, which is a little
// longer than its SLO here. The next request, and the next setting, begin anew. A request
// that is seen late for the first time does not count for what passed before.
func TestSLOOpenRequestCountsEachLatePeriod(t *testing.T) {
	p := newSLO().(*slo)
	begin := sched.Time(time.Minute)
	v := &sched.View{Now: begin, Devices: []sched.Device{h200}, Queues: []sched.Queue{
		{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: testSLO}, OpenRequests: 1, RequestSince: begin},
		{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Batch}, RequestSince: begin},
	}}
	p.ladder.build(h200)
	p.base.current = 2
	p.base.batchAt = sched.Never // there is batch work all the time
	inForce := func(at sched.Time) {
		p.ladder.setCurrent(p.ladder.start, at)
		p.ladder.since = at
	}
	inForce(begin)
	at := func(after time.Duration, want int, wake time.Duration) {
		t.Helper()
		v.Now = begin.Add(after)
		queues := p.requests.update(v.Queues)
		p.countOpen(v, queues)
		got := p.nextLate(v, queues).Sub(begin)
		if p.nextLate(v, queues) == 0 {
			got = 0
		}
		if p.ladder.requests != want || got != wake {
			t.Errorf("after %v: %d late requests, the next after %v; want %d, %v", after, p.ladder.requests, got, want, wake)
		}
	}
	const late = testSLO + 1
	at(0, 0, late)
	at(testSLO, 0, late)
	at(late, 1, 2*late)
	at(late, 1, 2*late)
	at(2*late-1, 1, 2*late)
	at(2*late, 2, 3*late)
	at(4*late, 4, 5*late)
	// Another setting.
	inForce(begin.Add(45 * ms))
	at(45*ms, 0, 45*ms+late)
	at(45*ms+late, 1, 45*ms+2*late)
	at(45*ms+2*late, 2, 45*ms+3*late)
	// The next request.
	v.Queues[0].RequestSince = begin.Add(70 * ms)
	at(71*ms, 2, 70*ms+late)
	at(70*ms+late, 3, 70*ms+2*late)
	// One that is late when it is seen first.
	v.Queues[0].RequestSince = begin.Add(71 * ms)
	at(71*ms+2*late, 3, 71*ms+3*late)
	at(71*ms+3*late, 4, 71*ms+4*late)
	// Bursts are in force, or no batch work, or the setting is not yet.
	p.base.burst.phase = inBurst
	at(71*ms+4*late, 4, 71*ms+5*late)
	p.base.burst.phase, p.base.current = noBurst, 0
	at(71*ms+5*late, 4, 71*ms+6*late)
	p.base.current, p.ladder.since = 2, sched.Never
	at(71*ms+6*late, 4, 71*ms+7*late)
	p.ladder.since = begin
	at(71*ms+7*late, 5, 71*ms+8*late)
	// Without work it does not wait for the device.
	v.Queues[0].Counters.Known = true
	at(71*ms+8*late, 5, 0)
	v.Queues[0].Counters.Submitted = 1
	at(71*ms+8*late, 6, 71*ms+9*late)
	// Its end may never be reported.
	at(71*ms+maxLatePeriods*2*testSLO, 6+23, 71*ms+32*late)
	at(71*ms+(maxLatePeriods+1)*2*testSLO, 6+23, 0)
}

// TestSLOSumsDurations checks that the durations of the requests that count are added up, and
// that one that was open for ever counts for no more than the longest quiet period.
func TestSLOSumsDurations(t *testing.T) {
	p := newSLO().(*slo)
	v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200}, Queues: []sched.Queue{
		{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}},
		{ID: 2, Attr: sched.Attr{Class: sched.Online}},
		{ID: 3, Attr: sched.Attr{Class: sched.Batch}},
	}}
	p.ladder.build(h200)
	p.finished = []finishedRequest{{1, 2 * ms, v.Now}, {1, 3 * ms, v.Now}, {1, time.Hour, v.Now}, {1, -1, v.Now}, {1, 0, v.Now}, {2, ms, v.Now}, {3, ms, v.Now}, {9, ms, v.Now}}
	if n, open := p.countRequests(v, p.requests.update(v.Queues)); n != 3 || open != 5*ms+maxQuiet {
		t.Errorf("got %d requests of %v in all, want 3 of %v", n, open, 5*ms+maxQuiet)
	}
}

// TestSLOWhichOpenRequestsCount checks since when an open request counts: from its start or the
// last change of the setting, unless the queue is paused or has no SLO, or the request has been
// open for so long that its end may never be reported.
func TestSLOWhichOpenRequestsCount(t *testing.T) {
	began := sched.Time(time.Hour)
	longest := 2 * maxLatePeriods * testSLO
	for _, tt := range []struct {
		name    string
		attr    sched.Attr
		began   sched.Time
		changed sched.Time
		age     time.Duration
		want    sched.Time
	}{
		{"a request", sched.Attr{SLO: testSLO}, began, 0, ms, began},
		{"a new setting", sched.Attr{SLO: testSLO}, began, began + 5, ms, began + 5},
		{"none", sched.Attr{SLO: testSLO}, 0, began, ms, 0},
		{"no SLO", sched.Attr{}, began, 0, ms, 0},
		{"no SLO, at its start", sched.Attr{}, began, 0, 0, 0},
		{"paused", sched.Attr{SLO: testSLO, Paused: true}, began, 0, ms, 0},
		{"open for long", sched.Attr{SLO: testSLO}, began, 0, longest, began},
		{"for too long", sched.Attr{SLO: testSLO}, began, 0, longest + maxLatePeriods, 0},
	} {
		p := newSLO().(*slo)
		p.ladder.changedAt = tt.changed
		if got := p.openFrom(&sched.Queue{Attr: tt.attr, RequestSince: tt.began}, began.Add(tt.age)); got != tt.want {
			t.Errorf("%s: counts from %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestSLODoesNotCompareDeviceTimeSideBySide checks that settings are not compared by the device
// time of batch queues while those may run side by side: there they do more work in less of it.
func TestSLODoesNotCompareDeviceTimeSideBySide(t *testing.T) {
	for _, sideBySide := range []bool{false, true} {
		p := newSLO().(*slo)
		v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200}, Queues: []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}, OpenRequests: 1, RequestSince: sched.Time(time.Hour)},
			{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Batch}, Measured: true, MeasuredAt: sched.Time(time.Hour)},
		}}
		p.base.mayShare = sideBySide
		if p.Plan(v); p.ladder.measured == sideBySide {
			t.Errorf("side by side %v: compared by device time %v, want %v", sideBySide, p.ladder.measured, !sideBySide)
		}
	}
}

// TestSLORecordsLateDurations checks that the duration of a request is recorded when it ends,
// also if the request counted as late while it was open: what is usual decides what a stall is.
func TestSLORecordsLateDurations(t *testing.T) {
	for _, counted := range []bool{false, true} {
		p := newSLO().(*slo)
		v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200}, Queues: []sched.Queue{
			{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}},
		}}
		p.ladder.build(h200)
		p.base.current, p.base.batchAt = 2, sched.Never
		queues := p.requests.update(v.Queues)
		queues[0].countedLate, queues[0].oldestSince = counted, v.Now.Add(-30*ms)
		p.finished = []finishedRequest{{1, 30 * ms, v.Now}}
		if p.countRequests(v, queues); p.ladder.total != 1 || p.ladder.allTook[0] != 30*ms {
			t.Errorf("counted before %v: got %d durations, the first %v, want one of 30 ms", counted, p.ladder.total, p.ladder.allTook[0])
		}
	}
}

// TestSLOBursts checks that ping-pong leads to bursts under slo where it may not adapt the setting:
// beside an online queue without an SLO. With one, bursts are for requests that are mostly late.
func TestSLOBursts(t *testing.T) {
	for _, c := range []struct {
		slo  time.Duration
		want burstPhase
	}{{0, inBurst}, {10 * ms, noBurst}} {
		p, b := newSLO().(*slo), newBurstTest()
		b.v.Queues[0].Attr.SLO, b.v.Queues[0].OpenRequests, b.v.Queues[0].RequestSince = c.slo, 1, b.v.Now
		p.Plan(&b.v)
		if b.after(50*ms, 100, 100, 12*ms); c.slo == 0 {
			p.base.lone.next = sched.Never // the batch queue was tried
		}
		if p.Plan(&b.v); p.base.lone.phase != loneOff {
			t.Errorf("an SLO of %v: the batch queue is tried", c.slo)
		}
		if p.base.burst.phase != c.want {
			t.Errorf("an SLO of %v: got phase %d, want %d", c.slo, p.base.burst.phase, c.want)
		}
	}
}

// TestSLOForgetsLateRequestsOfAnotherSetting checks that the late requests of a queue count until the
// chosen setting changes.
func TestSLOForgetsLateRequestsOfAnotherSetting(t *testing.T) {
	p := newSLO().(*slo)
	v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200}, Queues: []sched.Queue{
		{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}},
	}}
	p.Plan(v)
	for _, changed := range []bool{false, true} {
		p.requests.values[0].lateScore, p.ladder.resetScores = 2, changed
		v.Now = v.Now.Add(ms)
		if p.Plan(v); (p.requests.values[0].lateScore == 0) != changed || p.ladder.resetScores {
			t.Errorf("the setting has changed %v: got a score of %v", changed, p.requests.values[0].lateScore)
		}
	}
}

// TestSLOJudgesNoRungWithoutBatchWork: a batch queue without work keeps the turn, so that its next
// command starts at once. Requests then say nothing about how far batch work must give way.
func TestSLOJudgesNoRungWithoutBatchWork(t *testing.T) {
	p := newSLO().(*slo)
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Attr: sched.Attr{Class: sched.Online, SLO: 10 * ms}, Can: sched.CanSlice},
		{ID: 2, Attr: sched.Attr{Class: sched.Batch}, Can: sched.CanSlice | sched.CanInterrupt, Counters: sched.Counters{Known: true, Submitted: 1, Launched: 1}},
	}}
	p.Plan(v)
	for _, busy := range []bool{true, false} {
		if !busy {
			v.Queues[1].Counters.Completed = 1
		}
		for range 200 {
			v.Now = v.Now.Add(10 * ms)
			p.Plan(v)
		}
		if got := p.judgesRung(v.Now); got != busy || p.base.current != 2 {
			t.Errorf("batch queue with work %v: requests count %v, the turn is that of queue %d", busy, got, p.base.current)
		}
	}
}
