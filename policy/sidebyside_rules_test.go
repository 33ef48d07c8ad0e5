package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestTrialOfNewcomers checks that newcomers run side by side with the others until all are
// known, for 300 ms at most, and that four times as long passes until the next trial.
func TestTrialOfNewcomers(t *testing.T) {
	var s sideBySide
	begin := sched.Time(time.Second)
	for _, tt := range []struct {
		name      string
		after     time.Duration
		newcomers int
		trial     bool
		wake      time.Duration // after begin; zero: none
	}{
		{"no newcomers", 0, 0, false, 0},
		{"one comes", 10 * ms, 1, true, 310 * ms},
		{"another comes", 60 * ms, 2, true, 310 * ms},
		{"all are known", 110 * ms, 0, false, 0},
		{"one comes soon after", 200 * ms, 1, false, 510 * ms},
		{"just before four times as long has passed", 510*ms - 1, 1, false, 510 * ms},
		{"then", 510 * ms, 1, true, 810 * ms},
		{"it is not known for long", 810*ms - 1, 1, true, 810 * ms},
		{"for too long", 810 * ms, 1, false, 2010 * ms},
		{"it is known later", 900 * ms, 0, false, 0},
		{"another one comes later", 2010 * ms, 1, true, 2310 * ms},
	} {
		sum := summary{}
		s.updateTrial(begin.Add(tt.after), &sharedGPU, tt.newcomers, &sum)
		wake := sched.Time(0)
		if tt.wake > 0 {
			wake = begin.Add(tt.wake)
		}
		if got := s.trial.since > 0; got != tt.trial || sum.wake != wake {
			t.Errorf("%s: trial %v, wake %v; want %v and %v", tt.name, got, sum.wake.Sub(begin), tt.trial, tt.wake)
		}
	}
}

// TestNewcomersAreTriedInTurn checks that of more newcomers than a trial takes those are tried whose
// last trial is longest ago, that they stay in the trial until they are known, and that another takes
// the place of one that is.
func TestNewcomersAreTriedInTurn(t *testing.T) {
	p, v, states := lightNode(make([]load, 30)...)
	plan := func() (tried []int) {
		v.Now = v.Now.Add(10 * ms)
		s := p.summarize(v, states, &setting{})
		for i := range states {
			if p.inTrial(&states[i]) {
				tried = append(tried, i)
			}
		}
		if len(tried) > trialQueues || s.newcomers < len(tried) {
			t.Fatalf("%d newcomers are tried, of %d", len(tried), s.newcomers)
		}
		return tried
	}
	nextTrial := func() []int {
		for len(plan()) > 0 { // until this one is over
		}
		for {
			if tried := plan(); len(tried) > 0 {
				return tried
			}
		}
	}
	trials := make([]int, len(states))
	for range 5 {
		tried := nextTrial()
		for _, i := range tried {
			trials[i]++
		}
		if again := plan(); !slices.Equal(again, tried) {
			t.Errorf("the trial changes from %v to %v", tried, again)
		}
	}
	if slices.Min(trials) != 2 || slices.Max(trials) != 2 {
		t.Errorf("in five trials of 12 the newcomers were tried %v times, want 2 each", trials)
	}
	tried := nextTrial()
	states[tried[3]].load.verdict = heavyLoad
	after := plan()
	if len(after) != trialQueues || slices.Contains(after, tried[3]) {
		t.Errorf("queue %d is known: tried were %v and are %v, want another in its place", tried[3], tried, after)
	}
	for _, i := range tried {
		if i != tried[3] && !slices.Contains(after, i) {
			t.Errorf("queue %d is known: tried were %v and are %v, want the others still tried", tried[3], tried, after)
		}
	}
}

// TestOverlapsAreRareAfterATrial checks that the next overlap is as long after a trial beside
// online work as after an overlap, unless it is later anyway. Without online work a trial
// makes no difference.
func TestOverlapsAreRareAfterATrial(t *testing.T) {
	begin, end := sched.Time(time.Minute), sched.Time(time.Minute+20*ms)
	for _, tt := range []struct {
		active       int
		before, want sched.Time
	}{
		{1, 0, end.Add(150 * 20 * ms)},
		{1, end.Add(time.Minute), end.Add(time.Minute)},
		{0, end, end},
	} {
		s, sum := sideBySide{overlap: overlap{next: tt.before}}, summary{onlineSummary: onlineSummary{activeOnline: tt.active}}
		s.updateTrial(begin, &sharedGPU, 1, &sum)
		if s.updateTrial(end, &sharedGPU, 0, &sum); s.overlap.next != tt.want {
			t.Errorf("%d online queues, due after %v: now due after %v, want %v", tt.active, tt.before.Sub(end), s.overlap.next.Sub(end), tt.want.Sub(end))
		}
	}
}

// TestWhichQueuesRunBeside checks which queues run side by side: the light ones and the batch
// queue whose turn it is, or in an overlap the two queues of which one leaves.
func TestWhichQueuesRunBeside(t *testing.T) {
	for _, tt := range []struct {
		name       string
		sharingNow bool
		overlapped sched.QueueID
		change     func(states []queueState, queues []sched.Queue)
		want       [3]bool
	}{
		{"light ones", true, 0, func([]queueState, []sched.Queue) {}, [3]bool{true, false, true}},
		{"the turn is that of an idle queue", true, 0, func(a []queueState, _ []sched.Queue) { a[0].takesTurns = false }, [3]bool{false, false, true}},
		{"of one of class idle", true, 0, func(_ []queueState, q []sched.Queue) { q[0].Attr.Class = sched.Idle }, [3]bool{false, false, true}},
		{"an overlap", false, 2, func([]queueState, []sched.Queue) {}, [3]bool{true, true, false}},
		{"turns", false, 0, func([]queueState, []sched.Queue) {}, [3]bool{}},
	} {
		p, v, states := lightNode(heavyLoad, heavyLoad, lightLoad)
		p.current, p.sharingNow, p.overlap.leaving = 1, tt.sharingNow, tt.overlapped
		states[2].sideBySide = true
		tt.change(states, v.Queues)
		for i, want := range tt.want {
			if got := p.runsBeside(&v.Queues[i], &states[i]); got != want {
				t.Errorf("%s: queue %d runs beside others: %v, want %v", tt.name, i+1, got, want)
			}
		}
	}
}

// TestMeanTime checks that the first values have the same weight, later ones an eighth, and
// that the distance from the mean is known from the second value on.
func TestMeanTime(t *testing.T) {
	var m meanTime
	for i, tt := range []struct{ value, mean, off time.Duration }{
		{8 * ms, 8 * ms, 0},
		{4 * ms, 6 * ms, 2 * ms},
		{6 * ms, 6 * ms, 2*ms - 2*ms/3},
	} {
		if m.add(tt.value); m.mean != tt.mean || !near(m.spread, tt.off, 10) || m.n != i+1 {
			t.Errorf("value %d: got a mean of %v, off by %v, of %d values; want %v, %v", i, m.mean, m.spread, m.n, tt.mean, tt.off)
		}
	}
	for range 200 {
		m.add(6 * ms)
	}
	if m.add(14 * ms); !near(m.mean, 7*ms, 10) || !near(m.spread, ms, 10) {
		t.Errorf("one value far off after many: got a mean of %v, off by %v; want 7ms, 1ms", m.mean, m.spread)
	}
}

// clearNode is a policy that runs three light queues, of which queue 1 has the turn.
func clearNode() (*giveway, *sched.View, []queueState) {
	p := makeGiveway()
	p.mayShare, p.sharing, p.current = true, true, 1
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{{ID: 1}, {ID: 2}, {ID: 3}}}
	for i := range v.Queues {
		v.Queues[i].Can = canAll
	}
	return p, v, []queueState{{sideBySide: true}, {sideBySide: true}, {sideBySide: true}}
}

// TestClearTimeIsMeasured checks that clearing the device takes from the first plan that does
// until all light queues but the one with the turn are stopped, and that one has a short slice. It
// takes three calls here, so a call takes a third of that.
func TestClearTimeIsMeasured(t *testing.T) {
	p, v, states := clearNode()
	clear := summary{onlineSummary: onlineSummary{wantClear: true}}
	step := func(change func()) int {
		v.Now = v.Now.Add(ms)
		change()
		p.measureClear(v, states, &clear)
		return p.clearing.call.n
	}
	nothing := func() {}
	if n := step(nothing) + step(nothing); n != 0 {
		t.Fatalf("got %d values, want none yet", n)
	}
	if n := step(func() { v.Queues[1].State = sched.Stopped; v.Queues[2].State = sched.Stopping }); n != 0 {
		t.Errorf("one queue is still being stopped: got %d values, want none", n)
	}
	if n := step(func() { v.Queues[2].State = sched.Stopped }); n != 0 {
		t.Errorf("the slice is not yet set: got %d values, want none", n)
	}
	if n := step(func() { v.Queues[0].Slice = sched.MinSlice }); n != 1 || p.clearing.call.mean != 4*ms/3 {
		t.Errorf("got %d values with mean %v, want one, a third of 4 ms", n, p.clearing.call.mean)
	}
	if n := step(nothing); n != 1 {
		t.Errorf("got %d values for one request, want one", n)
	}
	// The next request: queues are cleared anew.
	clear.wantClear = false
	step(func() { v.Queues[1].State, v.Queues[2].State, v.Queues[0].Slice = sched.Running, sched.Running, 0 })
	clear.wantClear = true
	step(nothing)
	if n := step(func() {
		v.Queues[1].State, v.Queues[2].State, v.Queues[0].Slice = sched.Stopped, sched.Stopped, sched.MinSlice
	}); n != 2 || p.clearing.call.mean != 5*ms/6 {
		t.Errorf("got %d values with mean %v, want two, thirds of 4 ms and 1 ms", n, p.clearing.call.mean)
	}
	// A request that is over before the device was clear tells nothing.
	clear.wantClear = false
	step(func() { v.Queues[1].State = sched.Running })
	clear.wantClear = true
	step(nothing)
	clear.wantClear = false
	step(nothing)
	clear.wantClear = true
	step(nothing)
	if n := step(func() { v.Queues[1].State = sched.Stopped }); n != 3 || p.clearing.call.mean >= 5*ms/6 {
		t.Errorf("got %d values with mean %v, want the third, of 1 ms", n, p.clearing.call.mean)
	}
	p, v, states = clearNode()
	p.sharing = false
	v.Queues[1].State, v.Queues[2].State, v.Queues[0].Slice = sched.Stopped, sched.Stopped, sched.MinSlice
	if n := step(nothing) + step(nothing); n != 0 {
		t.Errorf("without queues side by side: got %d values, want none", n)
	}
}

// overlapNode is a policy whose queue 1 leaves its turn to queue 2.
func overlapNode() (*giveway, *sched.View, []queueState) {
	p := makeGiveway()
	p.current = 2
	queue := sched.Queue{Attr: sched.Attr{Class: sched.Batch}, Visits: sched.Visits{Known: true}}
	v := &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{queue, queue}}
	v.Queues[0].ID, v.Queues[1].ID = 1, 2
	return p, v, make([]queueState, 2)
}

// TestOverlapBegins checks when the queue that leaves runs on beside the next for a moment.
func TestOverlapBegins(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *giveway, v *sched.View, sum *summary, set *setting)
		want   bool
	}{
		{"heavy queues", func(*giveway, *sched.View, *summary, *setting) {}, true},
		{"beside online work", func(_ *giveway, _ *sched.View, s *summary, _ *setting) { s.activeOnline = 1 }, true},
		{"a newcomer", func(_ *giveway, _ *sched.View, s *summary, _ *setting) { s.newcomers = 1 }, true},
		{"a newcomer beside online work", func(_ *giveway, _ *sched.View, s *summary, _ *setting) { s.activeOnline, s.newcomers = 1, 1 }, false},
		{"light queues", func(p *giveway, _ *sched.View, _ *summary, _ *setting) { p.lightQueues = 1 }, true},
		{"light queues beside online work", func(p *giveway, _ *sched.View, s *summary, _ *setting) { s.activeOnline, p.lightQueues = 1, 1 }, false},
		{"a trial", func(p *giveway, _ *sched.View, _ *summary, _ *setting) { p.newcomersTried = true }, false},
		{"a request is expected", func(_ *giveway, _ *sched.View, s *summary, _ *setting) { s.expecting = true }, false},
		{"soon after another", func(p *giveway, v *sched.View, _ *summary, _ *setting) { p.overlap.next = v.Now + 1 }, false},
		{"a while after another", func(p *giveway, v *sched.View, _ *summary, _ *setting) { p.overlap.next = v.Now }, true},
		{"one queue", func(_ *giveway, v *sched.View, _ *summary, _ *setting) { v.Queues[1].ID = 1 }, false},
		{"no trace of one", func(_ *giveway, v *sched.View, _ *summary, _ *setting) { v.Queues[0].Visits.Known = false }, false},
		{"no trace of the other", func(_ *giveway, v *sched.View, _ *summary, _ *setting) { v.Queues[1].Visits.Known = false }, false},
		{"class idle enters", func(_ *giveway, v *sched.View, _ *summary, _ *setting) { v.Queues[1].Attr.Class = sched.Idle }, false},
		{"class idle leaves", func(_ *giveway, v *sched.View, _ *summary, _ *setting) { v.Queues[0].Attr.Class = sched.Idle }, false},
		{"shared=min", func(_ *giveway, _ *sched.View, _ *summary, set *setting) { set.sharedSlice = sched.MinSlice }, true},
		{"shared=min, beside online work", func(_ *giveway, _ *sched.View, s *summary, set *setting) {
			s.activeOnline, set.sharedSlice = 1, sched.MinSlice
		}, false},
	} {
		p, v, _ := overlapNode()
		sum, set := summary{rotationClass: sched.Batch}, p.ownSetting()
		tt.change(p, v, &sum, &set)
		next := p.overlap.next
		p.beginOverlap(v.Now, &v.Queues[0], &v.Queues[1], &sum, &set)
		if got := p.overlap.leaving == 1; got != tt.want {
			t.Errorf("%s: an overlap begins: %v, want %v", tt.name, got, tt.want)
		}
		if tt.want && p.overlap.next != v.Now.Add(time.Second) || !tt.want && p.overlap.next != next {
			t.Errorf("%s: the next overlap is due %v from now", tt.name, p.overlap.next.Sub(v.Now))
		}
	}
}

// TestOverlapShowsRest checks that a queue which is hardly served in two overlaps in a row, although
// they take long enough, is light, and that the next overlap does not have to wait for a second.
func TestOverlapShowsRest(t *testing.T) {
	const n = maxOverlap
	slice := h200Device.Slice
	for _, tt := range []struct {
		name    string
		running int
		took    time.Duration
		served  []time.Duration // in each overlap
		online  bool
		want    load
		soon    bool // the next overlap may begin soon
	}{
		{"not served", 2, n, []time.Duration{0, 0}, false, lightLoad, true},
		{"once", 2, n, []time.Duration{0}, false, heavyLoad, true},
		{"not twice in a row", 2, n, []time.Duration{0, n / 2, 0}, false, heavyLoad, true},
		{"less than half of its part", 2, n, []time.Duration{n/4 - 1, n / 4}, false, lightLoad, true},
		{"half of its part", 2, n, []time.Duration{n/4 + 1, n/4 + 1}, false, heavyLoad, false},
		{"many others", 10, n, []time.Duration{n / 20, n / 20}, false, lightLoad, true},
		{"too many to tell", 20, n, []time.Duration{0, 0}, false, heavyLoad, false},
		{"too short", 2, slice*5/2 - 1, []time.Duration{0, 0}, false, heavyLoad, false},
		{"beside online work", 2, n, []time.Duration{0, 0}, true, heavyLoad, false},
	} {
		p, v, states := overlapNode()
		states[0].load.verdict = heavyLoad
		sum, set := summary{rotationClass: sched.Batch, running: tt.running}, p.ownSetting()
		for _, served := range tt.served {
			p.overlap.next = v.Now
			p.beginOverlap(v.Now, &v.Queues[0], &v.Queues[1], &sum, &set)
			began := v.Now
			v.Now = v.Now.Add(maxOverlap)
			v.Queues[0].MeasuredAt, v.Queues[0].Served = began.Add(tt.took), v.Queues[0].Served+served
			if tt.online {
				sum.activeOnline = 1
			}
			if p.updateOverlap(v, states, &sum); p.overlap.leaving != 0 {
				t.Fatalf("%s: the overlap goes on", tt.name)
			}
			sum.activeOnline = 0
		}
		if got := states[0].load.verdict; got != tt.want {
			t.Errorf("%s: got load %d, want %d", tt.name, got, tt.want)
		}
		if soon := p.overlap.next == v.Now.Add(maxOverlap); soon != tt.soon {
			t.Errorf("%s: the next overlap is due %v from now", tt.name, p.overlap.next.Sub(v.Now))
		}
	}
}

// TestOverlapEnds checks that an overlap ends when both queues are judged, when a request is
// expected, and after 40 ms, or 25 ms beside online work; and that it takes little of the
// time beside online work.
func TestOverlapEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		after  time.Duration
		judged []bool
		online int
		clear  bool
		want   bool
		next   time.Duration // after the overlap; of one that goes on: until the policy looks again
	}{
		{"judged too few", 10 * ms, []bool{true, false}, 0, false, false, 2 * ms},
		{"judged the other only", 10 * ms, []bool{false, true}, 0, false, false, 2 * ms},
		{"judged both", 10 * ms, []bool{true, true}, 0, false, true, 990 * ms},
		{"long", 39 * ms, []bool{false, false}, 0, false, false, ms},
		{"too long", 40 * ms, []bool{false, false}, 0, false, true, 960 * ms},
		{"long beside online work", 24 * ms, []bool{false, false}, 1, false, false, ms},
		{"too long beside online work", 25 * ms, []bool{false, false}, 1, false, true, 3750 * ms},
		{"judged both beside online work", 4 * ms, []bool{true, true}, 1, false, true, 996 * ms},
		{"a request is expected", 10 * ms, []bool{false, false}, 1, true, true, 1500 * ms},
	} {
		p, v, states := overlapNode()
		sum, set := summary{rotationClass: sched.Batch, onlineSummary: onlineSummary{activeOnline: tt.online}}, p.ownSetting()
		states[0].load.judgedAt, states[1].load.judgedAt = v.Now-1, v.Now-1
		p.beginOverlap(v.Now, &v.Queues[0], &v.Queues[1], &sum, &set)
		v.Now = v.Now.Add(tt.after)
		for i, judged := range tt.judged {
			if judged {
				states[i].load.judgedAt = v.Now
			}
		}
		sum.wantClear = tt.clear
		p.updateOverlap(v, states, &sum)
		if got := p.overlap.leaving == 0; got != tt.want {
			t.Errorf("%s: the overlap ends: %v, want %v", tt.name, got, tt.want)
		}
		if got := p.overlap.next.Sub(v.Now); tt.want && got != tt.next {
			t.Errorf("%s: the next overlap is due after %v, want %v", tt.name, got, tt.next)
		}
		if got := sum.wake.Sub(v.Now); !tt.want && got != tt.next {
			t.Errorf("%s: the policy looks again after %v, want %v", tt.name, got, tt.next)
		}
	}
	// A queue that has gone need not be judged.
	p, v, states := overlapNode()
	sum, set := summary{rotationClass: sched.Batch}, p.ownSetting()
	p.beginOverlap(v.Now, &v.Queues[0], &v.Queues[1], &sum, &set)
	v.Queues, states = v.Queues[1:], states[1:]
	states[0].load.judgedAt = v.Now
	if p.updateOverlap(v, states, &sum); p.overlap.leaving != 0 {
		t.Error("the overlap goes on after one queue has gone and the other is judged")
	}
}

// TestSliceBeside checks the slice of a queue that runs side by side with others.
func TestSliceBeside(t *testing.T) {
	suspected := loadState{verdict: lightLoad, suspected: true, heldUntil: 1}
	for _, tt := range []struct {
		name      string
		active    int
		predicted bool
		together  bool
		shared    time.Duration
		load      loadState
		want      time.Duration
		wake      bool // by the end of a trial
	}{
		{"no online work", 0, false, true, ownShared, loadState{}, 0, false},
		{"online work", 1, false, true, ownShared, loadState{verdict: lightLoad}, ownShared, false},
		{"a short slice by the parameter", 1, false, true, 50 * time.Microsecond, loadState{verdict: lightLoad}, h200Device.MinSharedSlice, false},
		{"the default one by the parameter", 1, false, true, 0, loadState{verdict: lightLoad}, 0, false},
		{"online work that is expected: the device is cleared for it", 1, true, true, ownShared, loadState{verdict: lightLoad}, 0, false},
		{"the same in an overlap", 1, true, false, ownShared, loadState{verdict: lightLoad}, ownShared, false},
		{"a trial", 1, false, true, ownShared, suspected, 0, true},
		{"a heavy queue in an overlap", 1, false, false, ownShared, suspected, ownShared, false},
		{"a newcomer without a trial", 1, false, true, ownShared, loadState{}, ownShared, false},
	} {
		p := makeGiveway()
		p.sharingNow = tt.together
		sum, set, a := summary{onlineSummary: onlineSummary{activeOnline: tt.active, predicted: tt.predicted}}, p.ownSetting(), queueState{load: tt.load}
		set.sharedSlice = tt.shared
		if got := p.sliceBeside(sched.Time(ms), &h200Device, &a, &sum, &set); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		if got := sum.wake > 0; got != tt.wake {
			t.Errorf("%s: the policy looks again by itself: %v, want %v", tt.name, got, tt.wake)
		}
	}
	p := makeGiveway()
	p.sharingNow, p.trial.since = true, sched.Time(time.Microsecond)
	sum, set := summary{onlineSummary: onlineSummary{activeOnline: 1}}, p.ownSetting()
	if got := p.sliceBeside(sched.Time(ms), &h200Device, &queueState{}, &sum, &set); got != 0 {
		t.Errorf("a newcomer in a trial: got %v, want the default", got)
	}
}

// lightNode is a policy with batch queues that take turns, of these loads.
func lightNode(loads ...load) (*giveway, *sched.View, []queueState) {
	p, v := makeGiveway(), &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{h200Device}}
	states := make([]queueState, len(loads))
	for i, l := range loads {
		v.Queues = append(v.Queues, sched.Queue{
			ID: sched.QueueID(i + 1), Can: sched.CanSlice | sched.CanInterrupt, Measured: true, MeasuredAt: v.Now,
			Attr: sched.Attr{Class: sched.Batch}, Visits: sched.Visits{Known: true},
		})
		states[i] = queueState{takesTurns: true, class: sched.Batch, load: loadState{verdict: l}}
	}
	return p, v, states
}

// TestSideBySideOrTurns checks which queues run side by side, and which take turns.
func TestSideBySideOrTurns(t *testing.T) {
	light, heavy := lightLoad, heavyLoad
	for _, tt := range []struct {
		name       string
		loads      []load
		sum        summary
		shared     time.Duration
		light      []bool // which run side by side
		together   bool   // now
		heavyTurns bool
		step       time.Duration // after which the policy looks again; zero: only if something happens
	}{
		{"light queues", []load{light, light}, summary{}, ownShared, []bool{true, true}, true, false, 50 * ms},
		{"a light one and a heavy one", []load{light, heavy}, summary{}, ownShared, []bool{true, false}, true, true, 50 * ms},
		{"heavy ones", []load{heavy, heavy}, summary{}, ownShared, []bool{false, false}, false, false, 0},
		{"a light one alone", []load{light}, summary{}, ownShared, []bool{false}, false, false, 0},
		{"beside online work", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1}}, ownShared, []bool{true, true}, true, false, 10 * ms},
		{"beside online work that is expected", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1, predicted: true}}, ownShared, []bool{true, true}, true, false, 50 * ms},
		{"a request is expected now", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1, predicted: true, wantClear: true}}, ownShared, []bool{true, true}, false, false, 50 * ms},
		{"shared=min", []load{light, light}, summary{}, sched.MinSlice, []bool{true, true}, true, false, 50 * ms},
		{"shared=min beside online work", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1}}, sched.MinSlice, []bool{false, false}, false, false, 0},
		{"the first requests", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1, learning: true}}, ownShared, []bool{false, false}, false, false, 10 * ms},
		{"the first requests, shared=default", []load{light, light}, summary{onlineSummary: onlineSummary{activeOnline: 1, learning: true}}, 0, []bool{true, true}, true, false, 10 * ms},
		{"heavy ones beside requests that only the trace tells of", []load{heavy, heavy}, summary{onlineSummary: onlineSummary{activeOnline: 1, uncounted: true}}, ownShared, []bool{false, false}, false, false, 10 * ms},
		{"heavy ones beside such requests that are expected", []load{heavy, heavy}, summary{onlineSummary: onlineSummary{activeOnline: 1, uncounted: true, predicted: true}}, ownShared, []bool{false, false}, false, false, 50 * ms},
		{"a heavy one beside such requests", []load{heavy}, summary{onlineSummary: onlineSummary{activeOnline: 1, uncounted: true}}, ownShared, []bool{false}, false, false, 0},
		{"the first requests beside heavy ones", []load{heavy, heavy}, summary{onlineSummary: onlineSummary{activeOnline: 1, learning: true}}, ownShared, []bool{false, false}, false, false, 0},
	} {
		p, v, states := lightNode(tt.loads...)
		sum, set := tt.sum, p.ownSetting()
		sum.inRotation, sum.rotationClass, set.sharedSlice = len(tt.loads), sched.Batch, tt.shared
		countLoads(v, states, &sum)
		p.watchLoads(v, states, &sum)
		p.overlap.leaving = 1
		p.chooseSideBySide(v, states, &sum, &set)
		for i, want := range tt.light {
			if states[i].sideBySide != want {
				t.Errorf("%s: queue %d runs side by side: %v, want %v", tt.name, i+1, states[i].sideBySide, want)
			}
			if got, want := p.mayHaveTurn(&states[i]), !tt.heavyTurns || !want; got != want {
				t.Errorf("%s: queue %d takes turns: %v, want %v", tt.name, i+1, got, want)
			}
		}
		if p.sharingNow != tt.together || p.heavyTurns != tt.heavyTurns {
			t.Errorf("%s: together %v, only heavy ones take turns %v; want %v and %v", tt.name, p.sharingNow, p.heavyTurns, tt.together, tt.heavyTurns)
		}
		if got := max(sum.wake-v.Now, 0); got != sched.Time(tt.step) {
			t.Errorf("%s: the policy looks again after %v, want %v", tt.name, time.Duration(got), tt.step)
		}
		if apart := tt.step > 0 && tt.loads[0] == light && tt.sum.activeOnline > 0; apart != (p.overlap.leaving == 0) {
			t.Errorf("%s: an overlap goes on: %v, want %v", tt.name, p.overlap.leaving != 0, !apart)
		}
	}
	// A newcomer runs side by side with the others only during a trial.
	for _, trial := range []bool{false, true} {
		p, v, states := lightNode(light, light, unknownLoad)
		if !trial {
			p.trial.end, p.trial.took = v.Now-1, ms
		}
		sum, set := summary{inRotation: 3, rotationClass: sched.Batch}, p.ownSetting()
		countLoads(v, states, &sum)
		p.watchLoads(v, states, &sum)
		p.chooseSideBySide(v, states, &sum, &set)
		if !states[0].sideBySide || states[2].sideBySide != trial || p.heavyTurns == trial {
			t.Errorf("trial %v: the newcomer runs side by side: %v", trial, states[2].sideBySide)
		}
	}
	// Queues of class idle take turns, whatever their visits.
	p, v, states := lightNode(light, light)
	sum, set := summary{inRotation: 2, rotationClass: sched.Idle}, p.ownSetting()
	countLoads(v, states, &sum)
	p.watchLoads(v, states, &sum)
	if p.chooseSideBySide(v, states, &sum, &set); p.sharingNow {
		t.Error("side by side although only queues of class idle take turns")
	}
}

// TestOnlySomeQueuesAreCandidates checks which queues of unknown load begin a trial: several
// batch queues that take turns, with a slice that can be set and a trace.
func TestOnlySomeQueuesAreCandidates(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(q *sched.Queue, st *queueState)
		turns  int
		want   bool
	}{
		{"a newcomer", func(*sched.Queue, *queueState) {}, 2, true},
		{"alone", func(*sched.Queue, *queueState) {}, 1, false},
		{"without a trace", func(q *sched.Queue, _ *queueState) { q.Visits.Known = false }, 2, false},
		{"without a slice", func(q *sched.Queue, _ *queueState) { q.Can = sched.CanInterrupt }, 2, false},
		{"takes no turns", func(_ *sched.Queue, st *queueState) { st.takesTurns = false }, 2, false},
		{"of class idle", func(q *sched.Queue, _ *queueState) { q.Attr.Class = sched.Idle }, 2, false},
		{"known to be heavy", func(_ *sched.Queue, st *queueState) { st.load.verdict = heavyLoad }, 2, false},
		{"known to be light", func(_ *sched.Queue, st *queueState) { st.load.verdict = lightLoad }, 2, false},
	} {
		p, v, states := lightNode(unknownLoad, heavyLoad)
		tt.change(&v.Queues[0], &states[0])
		sum := summary{inRotation: tt.turns, rotationClass: sched.Batch}
		countLoads(v, states, &sum)
		p.watchLoads(v, states, &sum)
		if got := p.trial.since > 0; got != tt.want {
			t.Errorf("%s: a trial begins: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestLightQueueWithoutServiceIsIdle checks that a light queue without counters that runs and
// gets nothing for a quarter of a second takes no turns: it has no work.
func TestLightQueueWithoutServiceIsIdle(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(q *sched.Queue, st *queueState)
		want   bool
	}{
		{"idle", func(*sched.Queue, *queueState) {}, true},
		{"served", func(q *sched.Queue, _ *queueState) { q.Served++ }, false},
		{"stopped", func(q *sched.Queue, _ *queueState) { q.State = sched.Stopped }, false},
		{"with counters", func(q *sched.Queue, _ *queueState) { q.Counters = sched.Counters{Known: true, Submitted: 1} }, false},
		{"not measured", func(q *sched.Queue, _ *queueState) { q.Measured = false }, false},
		{"heavy", func(_ *sched.Queue, st *queueState) { st.load.verdict = heavyLoad }, false},
	} {
		p, v, states := lightNode(lightLoad, lightLoad)
		from, idleAt := v.Now, time.Duration(0)
		sum := summary{inRotation: 2, rotationClass: sched.Batch}
		for v.Now < from.Add(time.Second) && idleAt == 0 {
			countLoads(v, states, &sum)
			p.watchLoads(v, states, &sum)
			if states[0].unusedTurn {
				idleAt = v.Now.Sub(from)
			}
			v.Now = v.Now.Add(10 * ms)
			v.Queues[0].MeasuredAt = v.Now
			v.Queues[1].Served, v.Queues[1].MeasuredAt = v.Queues[1].Served+ms, v.Now
			tt.change(&v.Queues[0], &states[0])
			states[0].sideBySide, states[1].sideBySide = states[0].load.verdict == lightLoad, true
		}
		if got := idleAt > 0; got != tt.want || tt.want && idleAt != 250*ms {
			t.Errorf("%s: the queue counts as idle after %v, want %v, after 250 ms", tt.name, idleAt, tt.want)
		}
		if states[1].unusedTurn {
			t.Errorf("%s: the queue that is served counts as idle", tt.name)
		}
	}
}

// TestCompanyOfABatchQueue checks beside which queues the visits of a batch queue tell its
// load: those that run, and fill the device if they can.
func TestCompanyOfABatchQueue(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(q *sched.Queue, st *queueState)
		want   load
	}{
		{"a batch queue", func(*sched.Queue, *queueState) {}, heavyLoad},
		{"a standard queue", func(q *sched.Queue, st *queueState) { q.Attr.Class, st.takesTurns = sched.Standard, false }, heavyLoad},
		{"a stopped standard queue", func(q *sched.Queue, _ *queueState) { q.Attr.Class, q.State = sched.Standard, sched.Stopped }, unknownLoad},
		{"a standard queue without work", func(q *sched.Queue, _ *queueState) { q.Attr.Class, q.Counters.Known = sched.Standard, true }, unknownLoad},
		{"an online queue", func(q *sched.Queue, _ *queueState) { q.Attr.Class = sched.Online }, unknownLoad},
		{"a stopped queue", func(q *sched.Queue, _ *queueState) { q.State = sched.Stopped }, unknownLoad},
		{"a queue that takes no turns", func(_ *sched.Queue, st *queueState) { st.takesTurns = false }, unknownLoad},
		{"a queue without work", func(q *sched.Queue, _ *queueState) { q.Counters.Known = true }, unknownLoad},
	} {
		p, v, states := lightNode(unknownLoad, heavyLoad)
		tt.change(&v.Queues[1], &states[1])
		for range 5 {
			sum := summary{inRotation: 2, rotationClass: sched.Batch}
			countLoads(v, states, &sum)
			p.watchLoads(v, states, &sum)
			v.Now = v.Now.Add(10 * ms)
			q := &v.Queues[0]
			q.MeasuredAt, q.Visits.Count, q.Visits.Full = v.Now, q.Visits.Count+10, q.Visits.Full+10
		}
		if got := states[0].load.verdict; got != tt.want {
			t.Errorf("beside %s: got load %d, want %d", tt.name, got, tt.want)
		}
	}
	// With the minimum slice all visits are short, and tell nothing; nor do those of a long slice.
	for slice, want := range map[time.Duration]load{
		sched.MinSlice: unknownLoad, h200Device.MinSharedSlice - 1: unknownLoad, h200Device.MinSharedSlice: lightLoad,
		h200Device.Slice: lightLoad, h200Device.Slice + 1: unknownLoad,
	} {
		p, v, states := lightNode(unknownLoad, heavyLoad)
		for range 5 {
			v.Queues[0].Slice = slice
			sum := summary{inRotation: 2, rotationClass: sched.Batch}
			countLoads(v, states, &sum)
			p.watchLoads(v, states, &sum)
			v.Now = v.Now.Add(10 * ms)
			q := &v.Queues[0]
			q.MeasuredAt, q.Visits.Count, q.Served = v.Now, q.Visits.Count+10, q.Served+ms
		}
		if got := states[0].load.verdict; got != want {
			t.Errorf("with a slice of %v: got load %d, want %d", slice, got, want)
		}
	}
}

// countLoads counts the queues as summarize does before watchLoads.
func countLoads(v *sched.View, states []queueState, sum *summary) {
	p := makeGiveway()
	sum.running, sum.newcomers = 0, 0
	for i := range v.Queues {
		q, st := &v.Queues[i], &states[i]
		switch q.Attr.Class {
		case sched.Batch:
			if st.takesTurns && q.Runnable() {
				countBatch(&v.Devices[0], q, st, sum)
			}
		case sched.Standard:
			p.watchStandard(v.Now, q, st, sum)
		}
	}
}

// TestTrialLimits checks how long a trial of newcomers may take, and how rare trials are: 300 ms
// and a fifth of the time, and beside online work that may come at any moment only as long as
// all queues need for twelve visits, from 50 ms to 300 ms, and one part in 150.
func TestTrialLimits(t *testing.T) {
	for _, tt := range []struct {
		name          string
		sum           summary
		limit, rarity time.Duration
	}{
		{"no online work", summary{inRotation: 2}, 300 * ms, 4},
		{"online work that is predicted", summary{inRotation: 2, onlineSummary: onlineSummary{activeOnline: 1, predicted: true}}, 300 * ms, 4},
		{"one queue beside online work", summary{inRotation: 1, onlineSummary: onlineSummary{activeOnline: 1}}, 50 * ms, 150},
		{"four", summary{inRotation: 4, onlineSummary: onlineSummary{activeOnline: 1}}, 12 * 4 * h200Device.Slice * 9 / 8, 150},
		{"fifty", summary{inRotation: 50, onlineSummary: onlineSummary{activeOnline: 1}}, 300 * ms, 150},
	} {
		if limit, rarity := trialLimits(&h200Device, &tt.sum); limit != tt.limit || rarity != tt.rarity {
			t.Errorf("%s: got %v and one part in %d, want %v and %d", tt.name, limit, rarity, tt.limit, tt.rarity)
		}
	}
}

// TestLightQueueThatIsFarAheadTakesTurns checks that a light queue which had more than two turns
// beyond its share takes turns beside heavy ones until those have caught up, and that nothing
// is counted without heavy ones.
func TestLightQueueThatIsFarAheadTakesTurns(t *testing.T) {
	p, v, states := lightNode(lightLoad, heavyLoad)
	p.sharing, states[0].sideBySide = true, true
	limit := func(passed time.Duration) *queueState {
		v.Now = v.Now.Add(ms)
		p.clocks[0].now += passed
		p.limitShares(v, states)
		return &states[0]
	}
	limit(0)
	const share = sideBySideShare
	states[0].ahead = share * 2 * p.turn
	if st := limit(0); st.overdrawn || st.ahead != share*2*p.turn {
		t.Errorf("two turns ahead: it takes turns %v, ahead by %v; want side by side, ahead by %v", st.overdrawn, st.ahead, share*2*p.turn)
	}
	states[0].ahead += share
	if st := limit(0); !st.overdrawn || st.at != p.clocks[0].now+st.ahead/share {
		t.Errorf("further ahead: it takes turns %v, the next at %v; want when the others have caught up", st.overdrawn, st.at)
	}
	if states[1].overdrawn || states[1].ahead != 0 {
		t.Error("the heavy queue is limited as well")
	}
	states[0].sideBySide, p.sharing = false, false
	if st := limit(p.turn); !st.overdrawn || st.ahead != share*(p.turn+1) {
		t.Errorf("one turn later: it takes turns %v, ahead by %v; want still, by %v", st.overdrawn, st.ahead, share*(p.turn+1))
	}
	before := states[0].ahead
	p.clocks[0].now += ms // by the first plan
	if p.limitShares(v, states); states[0].ahead != before {
		t.Error("a second plan at the same time changes something")
	}
	if st := limit(2 * p.turn); st.overdrawn || st.ahead != 0 {
		t.Errorf("when the others have caught up: it takes turns %v, ahead by %v; want side by side", st.overdrawn, st.ahead)
	}
	// Where queues keep to their weights, and no trace shows what a queue needs, its share is one turn.
	p.weighted, states[0].sideBySide, states[0].ahead = true, true, 2*p.turn
	if st := limit(p.turn / 2); st.overdrawn || st.ahead != 3*p.turn/2 {
		t.Errorf("by weights, two turns ahead: it takes turns %v, ahead by %v after half a turn", st.overdrawn, st.ahead)
	}
	states[0].ahead = 2*p.turn + 1
	if st := limit(0); !st.overdrawn {
		t.Error("by weights, further ahead: it runs side by side")
	}
	p.weighted, states[0].overdrawn, states[0].ahead = false, false, 0
	// Without a heavy queue that takes turns, no queue is kept from anything.
	for _, change := range []func(st *queueState){
		func(st *queueState) { st.takesTurns = false },
		func(st *queueState) { st.class = sched.Idle },
		func(st *queueState) { st.sideBySide = true },
		func(st *queueState) { st.overdrawn, st.ahead = true, ms },
	} {
		p, v, states = lightNode(lightLoad, heavyLoad)
		p.sharing, states[0].sideBySide, states[0].ahead = true, true, 5*p.turn
		change(&states[1])
		if st := limit(0); st.overdrawn || st.ahead != 0 {
			t.Errorf("no heavy queue takes turns: %v, ahead by %v; want side by side", st.overdrawn, st.ahead)
		}
	}
}

// TestSideBySideBetweenRequests checks when light queues run side by side only because requests
// are regular: if they would take turns beside online work otherwise.
func TestSideBySideBetweenRequests(t *testing.T) {
	for _, tt := range []struct {
		name           string
		loads          []load
		active         int
		shared         time.Duration
		allowed        bool
		together, only bool
	}{
		{"regular requests", []load{lightLoad, lightLoad}, 1, sched.MinSlice, true, true, true},
		{"not allowed", []load{lightLoad, lightLoad}, 1, sched.MinSlice, false, false, false},
		{"no online work", []load{lightLoad, lightLoad}, 0, sched.MinSlice, true, true, false},
		{"side by side anyway", []load{lightLoad, lightLoad}, 1, ownShared, true, true, false},
		{"heavy queues", []load{heavyLoad, heavyLoad}, 1, sched.MinSlice, true, false, false},
	} {
		p, v, states := lightNode(tt.loads...)
		sum, set := summary{inRotation: 2, rotationClass: sched.Batch, onlineSummary: onlineSummary{activeOnline: tt.active, predicted: tt.active > 0}}, p.ownSetting()
		set.sharedSlice, set.betweenRequests = tt.shared, tt.allowed
		countLoads(v, states, &sum)
		p.watchLoads(v, states, &sum)
		p.sharesBetweenRequests = !tt.only
		p.chooseSideBySide(v, states, &sum, &set)
		if p.sharing != tt.together || p.sharesBetweenRequests != tt.only {
			t.Errorf("%s: side by side %v, only between requests %v; want %v, %v", tt.name, p.sharing, p.sharesBetweenRequests, tt.together, tt.only)
		}
	}
}

// TestQueueThatLeavesOverlapsWithTheNext checks that at the end of a turn the queue that leaves,
// whichever it is, runs beside the next, and that none does whose turn ends because it is idle.
func TestQueueThatLeavesOverlapsWithTheNext(t *testing.T) {
	for leaving := range 2 {
		for _, idle := range []bool{false, true} {
			p, v, _ := lightNode(heavyLoad, heavyLoad)
			for i := range v.Queues {
				v.Queues[i].State = sched.Running
			}
			plan := func(after time.Duration) {
				v.Now = v.Now.Add(after)
				states := p.states.update(v.Queues)
				for i := range states {
					states[i].load.verdict = heavyLoad
				}
				p.Plan(v)
			}
			v.Queues[1-leaving].Counters.Known = true // idle at first
			plan(ms)
			plan(0)
			if p.current != v.Queues[leaving].ID {
				t.Fatalf("the turn is that of queue %d, want %d", p.current, v.Queues[leaving].ID)
			}
			v.Queues[1-leaving].Counters.Known = false
			plan(ms)
			v.Queues[leaving].Counters.Known = idle
			v.Queues[leaving].Served += 50 * ms
			want := v.Queues[leaving].ID
			if idle {
				want = 0
			}
			if plan(50 * ms); p.overlap.leaving != want || p.current != v.Queues[1-leaving].ID {
				t.Errorf("queue %d leaves, idle %v: queue %d overlaps with queue %d", v.Queues[leaving].ID, idle, p.overlap.leaving, p.current)
			}
		}
	}
}

// TestOrderOfTurns checks which queue has the next turn: the one with the lower virtual time, or
// of two that run side by side the one whose last turn was earlier.
func TestOrderOfTurns(t *testing.T) {
	for _, c := range []struct{ a, b, want bool }{{false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}} {
		a := queueState{vtime: vtime{at: 5 * ms}, lastTurn: 1, sideBySide: c.a}
		if a.before(&a) {
			t.Errorf("%+v: a queue goes before one like it, and that before the queue", c)
		}
		b := queueState{vtime: vtime{at: 3 * ms}, lastTurn: 2, sideBySide: c.b}
		if got, back := a.before(&b), b.before(&a); got != c.want || back == c.want {
			t.Errorf("side by side %v and %v: the first goes before the second %v, and back %v", c.a, c.b, got, back)
		}
	}
}
